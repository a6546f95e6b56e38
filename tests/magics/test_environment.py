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


def test_a_preview_changes_and_imports_nothing(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nimport os\nbefore = dict(os.environ)")
    (output,) = fresh_kernel.run("%tpu_env jax --preview").outputs
    assert output.text.splitlines()[-1] == "Nothing was changed or started."
    assert set(output.data) == {"text/plain", "text/html"}
    assert fresh_kernel.value("before == dict(os.environ)") is True
    assert fresh_kernel.value("'jax' in __import__('sys').modules") is False


PRETEND = """
%load_ext tpumagic
import os
from tpumagic.magics import environment
from tpumagic.runtime.plan import Step
os.environ["XRT_TPU_CONFIG"] = "old"
environment._journal.apply([Step("PJRT_DEVICE", "TPU", ""), Step("XRT_TPU_CONFIG", None, "")])
"""


def test_undo_puts_back_what_was_changed_and_says_what_stays(fresh_kernel, tmp_path):
    fresh_kernel.run(PRETEND)
    fresh_kernel.run(f"%tpu_env jax --cache {tmp_path}")
    assert fresh_kernel.value("(os.environ.get('PJRT_DEVICE'), os.environ.get('XRT_TPU_CONFIG'))") == ("TPU", None)
    (output,) = fresh_kernel.run("%tpu_env --undo").outputs
    assert output.text.splitlines() == [
        "XRT_TPU_CONFIG is old again.",
        "PJRT_DEVICE is no longer set, as before.",
        "JAX's compilation cache is off again.",
        "What has been imported or started stays so until the kernel is restarted.",
    ]
    assert fresh_kernel.value("(os.environ.get('PJRT_DEVICE'), os.environ.get('XRT_TPU_CONFIG'))") == (None, "old")
    (output,) = fresh_kernel.run("%tpu_env --undo").outputs
    assert output.text == "There is nothing to put back: %tpu_env has changed nothing in this process."


def test_the_same_set_up_twice_is_the_same(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nimport os")
    fresh_kernel.run("%tpu_env jax\nbefore = dict(os.environ)")
    (output,) = fresh_kernel.run("%tpu_env jax").outputs
    assert "It was imported already and was running already" in output.text
    assert fresh_kernel.value("before == dict(os.environ)") is True


def test_a_default_target_is_told_with_what_it_is_and_stands_on_the_card(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    (output,) = fresh_kernel.run("%tpu_env --target v5litepod-8").outputs
    assert output.text == "Target v5e-8: 8 chips, 8 devices, 15.75 GiB HBM per device."
    assert set(output.data) == {"text/plain", "text/html"}
    assert (
        "Target     v5e-8: 8 chips, 8 devices, 15.75 GiB HBM per device\n"
        in fresh_kernel.run("%tpu_env").outputs[0].text
    )
    assert fresh_kernel.value("[name for name in __import__('sys').modules if name in ('jax', 'jaxlib')]") == []
    assert fresh_kernel.run("%tpu_env --target none").outputs[0].text == "v5e-8 is no longer the default target."
    assert fresh_kernel.run("%tpu_env --target none").outputs[0].text == "There is no default target."
    assert "Target" not in fresh_kernel.run("%tpu_env").outputs[0].text


def test_jax_gets_as_many_cpu_devices_as_the_target_has_and_undo_takes_both_back(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nimport os\nos.environ['XLA_FLAGS'] = '--xla_dump_max_hlo_modules=3'")
    flags = "--xla_dump_max_hlo_modules=3 --xla_force_host_platform_device_count=4"
    (preview,) = fresh_kernel.run("%tpu_env jax --target v4-8 --preview").outputs
    assert preview.text.splitlines()[0] == (
        f"Would set XLA_FLAGS={flags} (was --xla_dump_max_hlo_modules=3): "
        "JAX then has as many CPU devices as the target has devices."
    )
    (output,) = fresh_kernel.run("%tpu_env jax --target v4-8").outputs
    assert output.text.splitlines()[:2] == [
        "Target v4-8: 4 chips, 4 devices, 30.75 GiB HBM per device.",
        f"Set XLA_FLAGS={flags} (was --xla_dump_max_hlo_modules=3).",
    ]
    assert "runs on cpu: 4 devices." in output.text
    assert fresh_kernel.value("__import__('jax').device_count()") == 4
    (output,) = fresh_kernel.run("%tpu_env jax --target v6e-8").outputs
    late = "JAX runs with 4 devices already, and the target has 8: restart the kernel and ask for the target first."
    assert output.text.count(late) == 1
    assert "Set XLA_FLAGS" not in output.text
    (output,) = fresh_kernel.run("%tpu_env --undo").outputs
    assert output.text.splitlines() == [
        "v6e-8 is no longer the default target.",
        "XLA_FLAGS is --xla_dump_max_hlo_modules=3 again.",
        "What has been imported or started stays so until the kernel is restarted.",
    ]


def test_a_number_of_devices_that_jax_itself_was_told_is_not_passed_over(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nimport jax\njax.config.update('jax_num_cpu_devices', 2)")
    (output,) = fresh_kernel.run("%tpu_env jax --target v5e-8").outputs
    assert (
        "JAX runs with 2 devices already, and the target has 8: restart the kernel and ask for the target first."
        in output.text.splitlines()
    )


def test_the_cpu_is_never_silent_not_even_when_it_was_asked_for(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    (output,) = fresh_kernel.run("%tpu_env jax").outputs
    if "runs on tpu" not in output.text:
        assert output.text.splitlines()[0].startswith("Not on a TPU, but on cpu: ")


def test_a_framework_that_is_not_there_is_told_with_its_command(kernel):
    ran = kernel.run("%tpu_env mxnet")
    assert ran.outputs[-1].text.splitlines()[0] == (
        "There is nothing to start: MXNet was retired in 2023 and never had a TPU backend."
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "caffe",
            "%tpu_env does not know the framework 'caffe'; it can set up: jax, torch_xla, torch_tpu, keras, tensorflow, mxnet",
        ),
        ("--preview", "--preview goes with a framework: %tpu_env jax --preview"),
        ("--cache x", "--cache goes with a framework: %tpu_env jax --cache DIR"),
        ("torch_xla --cache x", "--cache goes with jax and keras only."),
        ("torch_xla --target v5e-8", "--target goes with jax and keras only."),
        ("--target v5e-8 --undo", "--undo stands alone, as in `%tpu_env --undo`: it puts back all that was changed."),
        ("jax --target none", "--target none stands alone, as in `%tpu_env --target none`."),
        (
            "--target gpu",
            "There is no target 'gpu': known are v2-8, v3-8, v4-8, v5e-1, v5e-4, v5e-8, v5p-8, v6e-1, v6e-4, v6e-8, tpu7x-2, tpu7x-8 and larger slices.",
        ),
        ("jax --undo", "--undo stands alone, as in `%tpu_env --undo`: it puts back all that was changed."),
    ],
)
def test_a_wrong_request_is_one_sentence(kernel, line, said):
    ran = kernel.run(f"%tpu_env {line}")
    assert said in "".join(output.text for output in ran.outputs)


def test_frameworks_and_options_are_completed():
    from tpumagic.magics.completion import words

    assert words("%tpu_env t") == ("t", ("tensorflow", "torch_tpu", "torch_xla"))
    assert words("%tpu_env keras --") == ("--", ("--cache", "--preview", "--target", "--undo"))


def test_the_card_is_json_as_well():
    code = "import json; from tpumagic.magics import environment; print(json.dumps(environment.card()['application/json']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    card = json.loads(ran.stdout)
    assert {"host", "chips", "packages", "frameworks", "problems"} <= set(card)
