"""``%tpu_env`` in a kernel."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernel


def test_the_card_is_text_and_html_and_starts_no_framework(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    ran = fresh_kernel.run("%tpu_env")
    (output,) = ran.outputs
    assert set(output.data) == {"text/plain", "text/html"}
    assert "Host" in output.text
    assert "Packages" in output.text
    assert fresh_kernel.value("[name for name in __import__('sys').modules if name in ('jax', 'jaxlib')]") == []


def test_jax_is_set_up_and_proven(fresh_kernel, tmp_path):
    fresh_kernel.run("%load_ext tpumagic")
    cache = tmp_path / "my cache"
    ran = fresh_kernel.run(f"%tpu_env jax --cache '{cache}'")
    (output,) = ran.outputs
    assert "runs on cpu" in output.text
    assert f"Compilation cache in {cache}" in output.text
    assert any(cache.iterdir())


def test_a_cache_directory_that_cannot_be_written_is_told_in_a_sentence(kernel, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    ran = kernel.run(f"%tpu_env jax --cache {blocked}")
    assert ran.status == "ok"
    assert ran.text("error") == ""
    assert str(blocked) in ran.outputs[-1].text


def test_the_card_is_json_as_well():
    code = "import json; from tpumagic.magics import environment; print(json.dumps(environment.card()['application/json']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    card = json.loads(ran.stdout)
    assert {"host", "chips", "packages", "frameworks", "problems"} <= set(card)
