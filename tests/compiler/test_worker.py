"""The compiler's process: its environment, and that nothing of the user's breaks it."""

import os
import sys

from tests.compiler.compilers import V5E, program
from tpumagic.compiler import process
from tpumagic.compiler.errors import explain


def test_settings_for_a_real_tpu_do_not_reach_the_process(monkeypatch):
    for name in ("XLA_FLAGS", "JAX_PLATFORMS", "TPU_VISIBLE_CHIPS", "PJRT_DEVICE", "JAX_ENABLE_X64", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "7")
    seen = process.environment(None, "/nonexistent")
    assert seen["JAX_PLATFORMS"] == "cpu"
    assert {"XLA_FLAGS", "TPU_VISIBLE_CHIPS", "PJRT_DEVICE", "JAX_ENABLE_X64", "PYTHONSTARTUP"}.isdisjoint(seen)
    assert seen["ALLOW_MULTIPLE_LIBTPU_LOAD"] == seen["TPU_SKIP_MDS_QUERY"] == "1"
    assert "TPU_LIBRARY_PATH" not in seen


def test_flags_for_libtpu_reach_the_process(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=65536")
    assert process.environment(None, "/")["LIBTPU_INIT_ARGS"] == "--xla_tpu_scoped_vmem_limit_kib=65536"


def test_answers_under_other_flags_for_libtpu_are_other_answers(stand_in, monkeypatch):
    compiler = stand_in()
    compiler.ask([(program("plan"), V5E)])
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=65536")
    (answer,) = compiler.ask([(program("plan"), V5E)])
    assert not answer.cached


def test_python_path_is_kept_without_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "/opt/modules"]))
    assert process.environment(None, "/")["PYTHONPATH"] == "/opt/modules"


def test_files_of_the_user_named_like_modules_of_python_do_no_harm(stand_in, monkeypatch, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("json", "queue", "jax", "tpumagic", "numpy", "threading"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", str(folder), *sys.path])
    (answer,) = stand_in().ask([(program("plan"), V5E)], wait_for_cost=True)
    assert answer.cost is not None


def test_a_working_directory_that_is_gone_does_no_harm(stand_in, monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    (answer,) = stand_in().ask([(program("plan"), V5E)])
    assert answer.status == "planned"


def test_out_of_memory_is_told_with_its_figures():
    error = explain(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (28.00G) exceeds "
        "available HBM (15.75G). HLO module: jit_step.\n\nSee https://openxla.org/xla/errors/error_1000 for more details."
    )
    assert (error.kind, error.needed_bytes, error.available_bytes) == ("hbm", 28 * 2**30, 16911433728)
    assert error.message.endswith("HLO module: jit_step.")


def test_an_operation_that_the_tpu_has_not_is_named():
    error = explain('UNIMPLEMENTED: No registered implementation for custom call to "Eig" for platform TPU.')
    assert (error.kind, error.operation) == ("unsupported", "Eig")


def test_any_other_refusal_keeps_its_words_shortened():
    error = explain("INTERNAL: " + "word " * 300 + "=== Source Location Trace: ===\nlearning/45eac/tfrc/x.cc:1")
    assert error.kind == "other"
    assert len(error.message) == 500
    assert error.message.endswith("…")
