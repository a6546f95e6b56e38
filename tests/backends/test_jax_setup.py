"""Setting up JAX in fresh processes, since a process can start it only once."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpumagic.backends import set_up as room
from tpumagic.backends.jax import setup
from tpumagic.backends.set_up import SetUp
from tpumagic.events import Backend

pytest.importorskip("jax")

RUN = """
import json, sys
from tpumagic.backends import set_up as room
from tpumagic.backends.jax import setup
{before}
result = setup.set_up({arguments})
print(json.dumps({{**result.to_dict(), "text": room.text(result), "jax": "jax" in sys.modules}}))
"""


def in_process(arguments="", before="", **environ):
    code = RUN.format(arguments=arguments, before=before)
    around = (
        os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"} | environ
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=around)
    return json.loads(done.stdout.splitlines()[-1])


def test_jax_is_started_proven_and_timed():
    answer = in_process()
    assert (answer["ok"], answer["problem"], answer["warning"]) == (True, None, None)
    assert answer["backend"]["platform"] == "cpu"
    assert answer["import_s"] > 0
    assert answer["compile_s"] > 0
    first, second = answer["text"].splitlines()
    assert first == f"JAX {answer['backend']['version']} runs on cpu: 1 device."
    assert second.startswith("It imported in ")


def test_the_cache_keeps_small_programs_even_if_jax_had_compiled_before(tmp_path):
    cache = tmp_path / "made" / "here"
    answer = in_process(f"{str(cache)!r}", "import jax; jax.jit(lambda x: x + 1)(1.0)")
    assert answer["cache_stored"] is True
    assert answer["import_s"] is None
    assert answer["start_s"] is None
    assert answer["text"].splitlines()[-1] == f"Compilation cache in {cache}: small programs are kept too."
    assert any(name.endswith("-cache") for name in os.listdir(cache))
    assert dict(map(tuple, answer["backend"]["settings"]))["jax_compilation_cache_dir"] == str(cache)
    assert in_process(f"{str(cache)!r}")["cache_stored"] is True


def test_cpu_that_nobody_asked_for_is_never_silent():
    answer = in_process(JAX_PLATFORMS="")
    if answer["backend"]["platform"] == "tpu":
        pytest.skip("this machine has a TPU")
    assert answer["ok"]
    assert answer["warning"].startswith("Not on a TPU, but on cpu: ")
    assert answer["warning"] in answer["text"]


def test_a_tpu_that_is_not_there_is_one_sentence_and_a_cure():
    answer = in_process(JAX_PLATFORMS="tpu")
    if answer["ok"]:
        pytest.skip("this machine has a TPU")
    assert answer["problem"].startswith(
        "JAX did not start: JAX_PLATFORMS=tpu asks for a TPU, and there is none that it can use ("
    )
    assert answer["problem"].endswith("Restart the kernel without JAX_PLATFORMS to run on this machine's CPU.")
    assert "\n" not in answer["text"]


@pytest.mark.parametrize("below", ["", "/cache"])
def test_a_file_is_no_cache_directory(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    answer = in_process(f"{str(file) + below!r}")
    assert answer["problem"] == (
        f"The cache directory {file}{below} is no directory but a file, or lies below one; give another. Nothing was changed."
    )
    assert not answer["jax"]
    assert file.read_text() == "mine"


def test_a_cache_directory_that_cannot_be_written_changes_nothing():
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs a folder that even root cannot write to")
    answer = in_process("'/proc/self/fdinfo'")
    assert answer["problem"].startswith("The cache directory /proc/self/fdinfo cannot be read and written (")
    assert not answer["jax"]


def test_a_jax_that_cannot_be_imported_is_told_with_its_reason(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("raise RuntimeError('jaxlib is broken')")
    answer = in_process(before=f"sys.path.insert(0, {str(tmp_path)!r})")
    assert answer["problem"] == "JAX could not be imported (RuntimeError: jaxlib is broken)."


DESCRIBE = """
import json, sys
from dataclasses import asdict
from tpumagic.backends.jax import setup
seen = [setup.describe(), setup.started()]
import jax
seen += [setup.describe(), setup.started()]
jax.config.update("jax_enable_x64", True)
jax.devices()
seen += [setup.describe(), setup.started()]
print(json.dumps([asdict(one) if hasattr(one, "version") else one for one in seen]))
"""


def test_describing_jax_neither_imports_nor_starts_it():
    environ = os.environ | {"JAX_PLATFORMS": "", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, check=True, env=environ)
    absent, before, imported, still_not, running, started = json.loads(done.stdout.splitlines()[-1])
    assert (absent, before, still_not, started) == (None, False, False, True)
    assert (imported["platform"], imported["device_count"], imported["fallback"]) == (None, None, None)
    assert dict(map(tuple, imported["settings"]))["jax_enable_x64"] == "False"
    assert dict(map(tuple, running["settings"]))["jax_enable_x64"] == "True"
    if running["platform"] == "cpu":
        assert running["fallback"], "JAX stores why the TPU did not start"
        assert running["device_count"] == 1


def test_a_setting_that_is_not_set_is_left_out():
    import jax

    described = setup.describe()
    assert described is not None
    assert all(value not in ("None", "") for _, value in described.settings)
    assert described.version == jax.__version__


def test_a_cache_that_did_not_keep_the_program_says_so():
    result = SetUp(
        backend=Backend("jax", "0.10.2", "tpu", 4, "TPU v4"),
        start_s=1.5,
        compile_s=0.25,
        run_s=0.001,
        cache="/c",
        cache_stored=False,
    )
    assert room.lines(result) == (
        "JAX 0.10.2 runs on tpu: 4 devices (TPU v4).",
        "It was imported already and started in 1.5 s; a matrix multiplication compiled in 250 ms and ran in 1 ms.",
        "Compilation cache in /c, which did not keep the program just compiled.",
    )


def test_a_cache_address_in_the_cloud_is_left_to_jax():
    assert setup.unusable("gs://bucket/cache") is None
    assert not Path("gs:").exists()


UNDO = """
setup.turn_cache_on(jax, {cache!r})
setup.turn_cache_on(jax, {cache!r})
on = dict(setup.describe().settings)["jax_compilation_cache_dir"]
said = [setup.turn_cache_back(), setup.turn_cache_back()]
print(repr((before == dict(setup.describe().settings), on, said)))
"""


@pytest.mark.parametrize(("earlier", "after"), [("", "off"), ("/earlier", "in /earlier")])
def test_the_cache_is_put_back_as_it_was(tmp_path, earlier, after):
    cache = str(tmp_path / "cache")
    code = (
        "import jax\nfrom tpumagic.backends.jax import setup\nbefore = dict(setup.describe().settings)\n"
        + UNDO.format(cache=cache)
    )
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    if earlier:
        environ["JAX_COMPILATION_CACHE_DIR"] = earlier
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    same, on, said = ast.literal_eval(done.stdout.splitlines()[-1])
    assert (same, on) == (True, cache)
    assert said == [f"JAX's compilation cache is {after} again.", None]
