"""Answers on the disk: found again in another kernel, dropped when they are not what was written."""

import json
import os
import resource
from dataclasses import replace

import pytest

from tests.compiler.compilers import V5E, V6E, program
from tpumagic.compiler import cache, file_names
from tpumagic.events import SourceSite
from tpumagic.plans import Answer, Buffer, Cost, LineCost, Lowered, Plan


def answer(file: str = "/home/user/model.py") -> Answer:
    stack = (SourceSite(3, file=file, function="step"), SourceSite(7, file="/usr/lib/jax/core.py", function="bind"))
    holder = Buffer("temporary", 4096, 1024, "float32", (32, 8), stack=stack, tiling="T(8,128)")
    plan = Plan(True, 5000, 16_909_336_576, holders=(holder,), timeline=((0.0, 10), (1.0, 5000)), seconds=1.5)
    cost = Cost(0.001, 1.3, "mxu", lines=(LineCost(0.001, 1.0, 1.3, stack, "dot_general", "mxu"),))
    return Answer(V5E, "planned", plan=plan, cost=cost, compiler="0.0.42.1", pending=True)


def key(lowered: Lowered | None = None, **fields) -> cache.Key:
    settings = {"target": V5E, "compiler": "0.0.42.1 7 7", "flags": ""} | fields
    return cache.key(lowered or program("a"), **settings)


def entry(own_cache):
    (path,) = (own_cache / "plans").iterdir()
    return path


def test_an_answer_is_found_again_as_it_was(own_cache):
    cache.store(key(), answer())
    assert cache.find(key()) == replace(answer(), cached=True, pending=False)


def test_what_an_answer_depends_on_is_told_apart(own_cache):
    cache.store(key(), answer())
    others = [
        key(program("b")),
        key(program("a", devices=2)),
        key(program("a", options=(("xla_tpu_x", "1"),))),
        key(target=V6E),
        key(compiler="0.0.43 7 7"),
        key(flags="--xla_tpu_x=1"),
    ]
    assert [cache.find(one) for one in others] == [None] * 6
    assert cache.find(key(program("a", name="another name"))) is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\x00\xff garbage",
        lambda data: b"[1, 2]",
        lambda data: b'{"target": 7}',
        lambda data: data.replace(b'"planned"', b'"dreamt"'),
        lambda data: data.replace(b"5000", b'"5000"'),
        lambda data: b"[" * 100_000,
    ],
)
def test_a_damaged_entry_is_dropped(own_cache, damage):
    cache.store(key(), answer())
    path = entry(own_cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.find(key()) is None
    assert not path.exists()
    cache.store(key(), answer())
    assert cache.find(key()) is not None


def test_what_is_no_file_is_no_entry(own_cache):
    path = own_cache / "plans" / f"{key().digest}.json"
    path.mkdir(parents=True)
    assert cache.find(key()) is None
    cache.store(key(), answer())


def test_fields_of_a_later_version_are_ignored(own_cache):
    cache.store(key(), answer())
    path = entry(own_cache)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "good"}))
    assert cache.find(key()) is not None


def test_the_least_recently_used_goes_first(own_cache, monkeypatch):
    size = 0
    for n in range(3):
        cache.store(key(program(f"p{n}")), answer())
        os.utime(own_cache / "plans" / f"{key(program(f'p{n}')).digest}.json", (n, n))
        size = entry(own_cache).stat().st_size if n == 0 else size
    cache.find(key(program("p0")))
    monkeypatch.setattr(cache, "LIMIT_BYTES", 3 * size + 10)
    cache.store(key(program("p3")), answer())
    assert [cache.find(key(program(f"p{n}"))) is not None for n in range(4)] == [True, False, True, True]
    assert cache.size_bytes() <= 3 * size + 10


def test_a_full_disk_means_no_cache_and_no_error(own_cache):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        cache.store(key(), answer())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cache.find(key()) is None
    assert list((own_cache / "plans").iterdir()) == []


def test_a_place_that_cannot_be_written_means_no_cache_and_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    cache.store(key(), answer())
    assert cache.find(key()) is None
    assert cache.size_bytes() == 0


def test_a_relative_cache_folder_is_not_the_users_wish(monkeypatch, tmp_path):
    from tpumagic.compiler import folders

    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.plans() == tmp_path / ".cache" / "tpumagic" / "plans"


def lowered_in(file: str) -> Lowered:
    """A real program whose operations come from a file of this name."""
    jax = pytest.importorskip("jax")
    from jax._src.interpreters import mlir

    namespace = {"jax": jax}
    source = "def f(x):\n    return jax.numpy.sin(x) @ x\n"
    exec(compile(source, file, "exec"), namespace)
    traced = jax.jit(namespace["f"]).trace(jax.ShapeDtypeStruct((8, 8), "float32"))
    text = traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    return Lowered("f", mlir.module_to_bytecode(text))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/tmp/ipykernel_7/2871.py", "/tmp/ipykernel_4190321/2871.py"),
        ("<ipython-input-3-0a1b2c3d4e5f>", "<ipython-input-1234-0a1b2c3d4e5f>"),
        ("/var/folders/x/ipykernel_81/2871.py", "/tmp/ipykernel_4/2871.py"),
    ],
)
def test_the_same_cell_in_another_kernel_is_the_same_program_under_its_new_name(own_cache, first, second):
    # From one place: who calls the function is part of a program as well.
    one, other = (lowered_in(name) for name in (first, second))
    before, after = key(one), key(other)
    assert one.stablehlo != other.stablehlo
    assert before.digest == after.digest
    cache.store(before, answer(first))
    assert first not in entry(own_cache).read_text()
    found = cache.find(after)
    assert found.plan.holders[0].stack[0].file == second
    assert found.cost.lines[0].stack[0].file == second
    assert found.plan.holders[0].stack[1].file == "/usr/lib/jax/core.py"


def test_other_files_are_other_programs():
    names = ["/tmp/ipykernel_7/2871.py", "/tmp/ipykernel_7/2872.py", "/home/user/a.py", "/home/user/b.py"]
    assert len({key(lowered_in(name)).digest for name in names}) == 4


def test_two_cells_of_the_same_text_keep_their_names():
    text = b'"<ipython-input-3-abc>" "<ipython-input-9-abc>" "<ipython-input-3-abc>"'
    found = file_names.read(text)
    assert found.names == {"<cell abc 0>": "<ipython-input-3-abc>", "<cell abc 1>": "<ipython-input-9-abc>"}


@pytest.mark.parametrize("data", [b"", b"ML\xefR", b"ML\xefR" + b"\xff" * 50, b"ML\xefR\x0d\0\0" + b"\x00" * 9])
def test_bytes_that_are_no_program_have_a_digest_all_the_same(data):
    assert len(file_names.read(data).digest) == 64


def test_bytecode_cut_off_anywhere_is_read_as_bytes():
    whole = lowered_in("/tmp/ipykernel_7/2871.py").stablehlo
    digests = {file_names.read(whole[:end]).digest for end in range(0, len(whole), 97)}
    assert len(digests) == len(range(0, len(whole), 97))
