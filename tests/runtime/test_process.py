"""What this process and its libtpu.so are, and who else has the chips open."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tpumagic.runtime import detect, host, problems
from tpumagic.runtime.library import Library, Loaded, find_libraries, find_loaded
from tpumagic.runtime.owners import Owner, find_owners, name_of
from tpumagic.runtime.process import Process, find_process

KERAS = SimpleNamespace(backend=lambda: "tensorflow")


def test_frameworks_are_told_in_the_order_of_their_import():
    modules = {"os": os, "torch": 1, "torch_xla": 1, "torch_xla.core": 1, "jax": 1, "keras": 1}
    modules["keras.src.backend.config"] = KERAS
    assert find_process(modules, "") == Process(("torch", "torch_xla", "jax", "keras"), "tensorflow", None)


@pytest.mark.parametrize(
    "config", [None, SimpleNamespace(), SimpleNamespace(backend=lambda: 1 / 0), SimpleNamespace(backend=lambda: 5)]
)
def test_a_keras_that_does_not_say_its_backend_has_none(config):
    assert find_process({"jax": None, "keras.src.backend.config": config}, "") == Process()


def test_a_library_that_was_replaced_while_loaded_is_known():
    line = "7f00-7f01 r-xp 00000000 fe:00 214 {}\n"
    path = "/usr/lib/python3/libtpu/libtpu.so"
    assert find_loaded(line.format("/lib/libc.so.6")) is None
    assert find_loaded(line.format("/lib/libc.so.6") + line.format(path)) == Loaded(path, replaced=False)
    assert find_loaded(line.format(path + " (deleted)")) == Loaded(path, replaced=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_library_replaced_under_a_real_process_is_known(tmp_path):
    code = """
import ctypes, json, os, shutil, sys
from tpumagic.runtime import detect, host
from tpumagic.runtime.library import find_loaded
path = sys.argv[1]
before = detect(versions={"libtpu": "1"})
ctypes.CDLL(path)
first = host(before).libtpu_replaced
shutil.copy(path, path + ".new")
with open(path + ".new", "ab") as file:
    file.write(b"longer")
os.replace(path + ".new", path)
print(json.dumps([first, host(before).libtpu_replaced, find_loaded().path]))
"""
    import _ctypes

    folder = tmp_path / "libtpu"
    folder.mkdir()
    library = folder / "libtpu.so"
    library.write_bytes(open(_ctypes.__file__, "rb").read())
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, text=True, check=True, env=environ
    )
    assert json.loads(done.stdout) == [None, True, str(library)]


def libraries(tmp_path, content, environ=None, versions=None):
    folder = tmp_path / "site/libtpu"
    folder.mkdir(parents=True, exist_ok=True)
    if content is not None:
        (folder / "libtpu.so").write_bytes(content)
    path = ["", str(tmp_path / "nowhere"), str(tmp_path / "site")]
    return find_libraries(tmp_path, environ or {}, versions or {"libtpu": "0.0.42.1"}, path)


@pytest.mark.parametrize(
    ("content", "state", "size"),
    [(b"\x7fELF...", "present", 7), (b"", "empty", 0), (b"<html>", "no library", 6), (None, "missing", None)],
)
def test_a_file_is_called_what_it_is(tmp_path, content, state, size):
    assert libraries(tmp_path, content) == (Library("/site/libtpu/libtpu.so", "libtpu", state, size),)


def test_the_variable_comes_first_and_a_bundled_library_last(tmp_path):
    bundled = tmp_path / "site/torch_xla/lib/libtpu.so"
    bundled.parent.mkdir(parents=True)
    bundled.write_bytes(b"\x7fELF")
    versions = {"libtpu": "0.0.17", "torch_xla": "2.8.0"}
    found = libraries(tmp_path, b"\x7fELF", {"TPU_LIBRARY_PATH": "/opt/libtpu.so"}, versions)
    assert [(one.origin, one.state) for one in found] == [
        ("TPU_LIBRARY_PATH", "missing"),
        ("libtpu", "present"),
        ("torch_xla", "present"),
    ]
    assert libraries(tmp_path, b"\x7fELF", versions={"jax": "0.10.2"}) == ()


def test_a_relative_path_in_the_variable_is_meant_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/libtpu.so").write_bytes(b"\x7fELF")
    monkeypatch.chdir(tmp_path / "here")
    (library,) = find_libraries(tmp_path, {"TPU_LIBRARY_PATH": "libtpu.so"}, {}, [])
    assert (library.path, library.state) == ("libtpu.so", "present")


def test_a_package_whose_folder_is_gone_is_missing(tmp_path):
    assert find_libraries(tmp_path, {}, {"libtpu": "1"}, [str(tmp_path)])[0].state == "missing"
    assert find_libraries(tmp_path, {}, {"libtpu": "1"}, []) == ()


def test_a_kernel_is_named_by_its_notebook_else_by_its_id_else_by_its_command():
    owner = Owner(5, "python -f kernel-ab.json", "ab", (), mine=False, notebook="train.ipynb")
    assert owner.name == "the kernel of train.ipynb (process 5)"
    assert replace(owner, notebook=None).name == "the Jupyter kernel ab (process 5)"
    assert replace(owner, notebook=None, kernel=None).name == "process 5 (python -f kernel-ab.json)"
    assert replace(owner, notebook=None, kernel=None, command="").name == "process 5 (command unknown)"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_of_this_machine_is_named():
    assert name_of(os.getpid()).startswith(f"process {os.getpid()} (")
    assert "python" in name_of(os.getpid())


def test_a_process_that_this_one_started_is_ours(tmp_path):
    for pid, parent in ((500, 499), (499, os.getpid()), (501, 1), (502, 502)):
        folder = tmp_path / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        (folder.parent / "stat").write_text(f"{pid} (a) b) S {parent} 1 1")
        os.symlink("/dev/accel0", folder / "3")
    assert [(owner.pid, owner.mine) for owner in find_owners(tmp_path)] == [
        (499, True),
        (500, True),
        (501, False),
        (502, False),
    ]


def test_the_passes_know_who_holds_the_chips(machine):
    one = machine("tpu7x_container").host()
    assert one.holders == ((4242, "the kernel of train.ipynb (process 4242)"),)
    assert one.container
    assert machine("keras_on_another_backend").host().keras_backend == "tensorflow"
    assert host(detect()).libtpu_replaced is None


def imported(machine, *names, name="tpu_vm_v4_8", **environ):
    environment = replace(machine(name).detect(**environ), process=Process(names))
    return [(one.severity, one.title) for one in problems.find(environment) if one.kind == "env.framework_conflict"]


def test_two_frameworks_that_take_the_chip_are_told_in_the_order_of_their_import(machine):
    title = "JAX, then PyTorch/XLA were imported in this process, and only one of them can have the TPU."
    assert imported(machine, "jax", "torch", "torch_xla") == [("warning", title)]
    # PyTorch/XLA imports JAX by itself.
    assert [severity for severity, _ in imported(machine, "torch_xla", "jax")] == ["info"]


@pytest.mark.parametrize(
    ("names", "environ"),
    [
        (("jax",), {}),
        (("jax", "torch", "keras"), {}),
        (("jax", "tensorflow"), {}),
        (("jax", "torch_xla"), {"JAX_PLATFORMS": "cpu"}),
    ],
    ids=["one", "none of the TPU's", "TensorFlow for the CPU", "kept off the TPU"],
)
def test_frameworks_that_do_not_fight_are_not_told(machine, names, environ):
    assert imported(machine, *names, **environ) == []


def test_frameworks_do_not_fight_where_there_is_no_chip(machine):
    assert imported(machine, "jax", "torch_xla", name="laptop") == []
