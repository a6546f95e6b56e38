"""What the observer sees of real JAX programs, on every supported version."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tpumagic.backends import Observation
    from tpumagic.events import Program

pytest.importorskip("jax", reason="these are tests of the JAX backend")


def named(observation: Observation, name: str) -> list[Program]:
    return [program for program in observation.programs if program.name == name]


def compiles(observation: Observation, name: str) -> int:
    return sum(len(program.compiles) for program in named(observation, name))


def places() -> tuple[object, ...]:
    """What stands where our hooks go."""
    import jax
    import jax.numpy as jnp
    from jax._src import array, compiler, dtypes, pjit, stages

    return (pjit._infer_params, pjit._pjit_call_impl_python, pjit._get_fastpath_data, compiler.compile_or_get_cached,
            stages.Compiled.call, array.ArrayImpl._value, array.ArrayImpl.item, array.ArrayImpl.block_until_ready,
            dtypes.check_and_canonicalize_user_dtype, jnp.array, jnp.asarray, jax.device_put)  # fmt: skip


def test_the_memory_of_an_executable_is_asked_for_once(notebook, monkeypatch) -> None:
    from tpumagic.backends.jax import programs

    asked = []
    ask = programs._memory
    monkeypatch.setattr(programs, "_memory", lambda loaded: asked.append(loaded) or ask(loaded))
    first = notebook.run("@jax.jit\ndef f(v):\n    return v + 1\ny = f(x)")
    count = len(asked)
    again = notebook.run("y = f(x)")
    assert len(asked) == count
    assert named(first, "f")[0].memory == named(again, "f")[0].memory is not None


def test_a_jitted_call_gives_name_sites_signature_and_times(notebook) -> None:
    seen = notebook.run("@jax.jit\ndef step(w, batch):\n    return w @ batch['x']\nstep(x, {'x': x})")
    (program,) = named(seen, "step")
    assert program.kind == "jit"
    assert (program.site.cell, program.site.line) == (2, 4)
    assert program.definition.line in (1, 2)
    assert str(program.signature) == "step(w: float32[4,4], batch['x']: float32[4,4])"
    (compiled,) = program.compiles
    assert compiled.trace_s > 0
    assert compiled.lower_s > 0
    assert compiled.compile_s > 0
    assert compiled.cache is None
    assert program.memory.argument_bytes == 128
    assert [operation.name for operation in program.graph.operations] == ["dot_general"]
    assert program.graph.operations[0].site.line == 3


def test_a_program_compiled_in_an_earlier_cell_is_seen_and_not_compiled_again(notebook) -> None:
    notebook.run("f = jax.jit(lambda v: v * 2)\nf(x)")
    seen = notebook.run("f(x)")
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    assert program.compiles == ()
    assert len(program.calls) == 1


def test_the_first_three_calls_of_a_loop_are_seen(notebook) -> None:
    seen = notebook.run("f = jax.jit(lambda v: v + 1)\nfor _ in range(50):\n    x = f(x)")
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    assert len(program.calls) == 3
    first, second, third = program.calls
    assert second.inputs[0].identity == first.outputs[0]
    assert third.inputs[0].identity == second.outputs[0]


def test_calls_are_fast_again_after_the_third(notebook) -> None:
    notebook.run(
        "import jax._src.pjit as pjit\nfrom tpumagic.backends.jax.observer import Observer\n"
        "seen = []\noriginal = Observer.inspect\n"
        "def counted(self, *a):\n    seen.append(1)\n    return original(self, *a)\n"
        "f = jax.jit(lambda v: v + 1)\nf(x)"
    )
    notebook.run("Observer.inspect = counted")
    notebook.run("for _ in range(1000):\n    f(x)")
    notebook.run("Observer.inspect = original")
    assert len(notebook.namespace["seen"]) < 10


@pytest.mark.parametrize(
    ("definition", "call", "name", "leaves"),
    [
        ("def g(v): return v.sum()\nf = jax.grad(jax.jit(g))", "f(x)", "g", 1),
        ("def g(v): return v * 2\nf = jax.vmap(jax.jit(g))", "f(x)", "g", 1),
        ("class M:\n    @partial(jax.jit, static_argnums=0)\n    def step(self, v): return v\nm = M()", "m.step(x)", "step", 1),
        ("def body(c, v): return c + v, c\nf = jax.jit(lambda c, v: jax.lax.scan(body, c, v))", "f(x[0], x)", "<lambda>", 2),
        ("f = jax.jit(jax.checkpoint(lambda v: v * 3))", "f(x)", "<lambda>", 1),
        ("f = jax.jit(partial(lambda v, n: v * n, n=3))", "f(x)", "<lambda>", 1),
        ("f = jax.pmap(lambda v: v * 3)", "f(x[:1])", None, None),
        (
            ("from jax.experimental import pallas as pl\ndef k(a, o): o[...] = a[...]\n"
            "f = jax.jit(lambda a: pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct(a.shape, a.dtype), interpret=True)(a))"),
            "f(x)",
            "<lambda>",
            1,
        ),
        (
            ("mesh = jax.make_mesh((1,), ('d',))\nP = jax.sharding.PartitionSpec\n"
            "f = jax.jit(jax.shard_map(lambda a: a * 3, mesh=mesh, in_specs=P('d'), out_specs=P('d')))\n"
            "x = jax.device_put(x, jax.sharding.NamedSharding(mesh, P('d')))"),
            "f(x)",
            "<lambda>",
            1,
        ),
    ],
    ids=["grad", "vmap", "method", "scan", "remat", "partial", "pmap", "pallas", "shard_map"],
)  # fmt: skip
def test_programs_of_every_shape_are_seen_at_the_calling_line(
    notebook, definition: str, call: str, name: str | None, leaves: int | None
) -> None:
    notebook.run(definition)
    seen = notebook.run(f"\n{call}")
    programs = [p for p in seen.programs if p.kind != "eager" and p.compiles]
    if name is not None:
        programs = [p for p in programs if p.name == name]
    assert programs
    assert all(p.site.line == 2 for p in programs)
    if leaves is not None:
        assert any(p.signature is not None and len(p.signature.leaves) == leaves for p in programs)


def test_ahead_of_time_programs_are_seen_at_compilation_and_at_the_first_call(notebook) -> None:
    seen = notebook.run("def f(v): return v * 5\nahead = jax.jit(f).lower(x).compile()\nahead(x)\nahead(x)")
    (program,) = [p for p in seen.programs if p.kind == "aot"]
    assert program.name == "f"
    assert len(program.compiles) == 1
    assert [call.stack[-1].line for call in program.calls] == [3]  # the second one needs no Python


def test_flax_nnx_arguments_have_the_modules_names(notebook) -> None:
    pytest.importorskip("flax", reason="flax is not installed here")
    seen = notebook.run(
        "from flax import nnx\nmodel = nnx.Linear(4, 2, rngs=nnx.Rngs(0))\n"
        "@nnx.jit\ndef step(model, v): return model(v)\nstep(model, x)"
    )
    (program,) = named(seen, "step")
    assert {leaf.path for leaf in program.signature.leaves} == {"model.bias", "model.kernel", "v"}
    kind = dict(program.signature.structure)["model"]
    assert kind.kind == "Linear"
    assert ("in_features", "4") in kind.aux


def test_equinox_arguments_have_the_users_names_and_static_parts(notebook) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed here")
    seen = notebook.run(
        "import equinox as eqx\nmodel = eqx.nn.Linear(4, 2, key=jax.random.key(0))\n"
        "@eqx.filter_jit\ndef step(model, v, train=True): return jax.vmap(model)(v)\nstep(model, x, False)"
    )
    (program,) = named(seen, "step")
    assert {leaf.path for leaf in program.signature.leaves} == {"model.weight", "model.bias", "v"}
    assert [(s.name, s.text) for s in program.signature.statics] == [("train", "False")]
    assert program.signature.function.definition.line in (3, 4)


def test_a_second_signature_knows_the_first(notebook) -> None:
    notebook.run("f = jax.jit(lambda v: v * 2)\nf(x)")
    seen = notebook.run("f(jnp.ones(7))")
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    (compiled,) = program.compiles
    assert [leaf.shape for leaf in compiled.earlier[-1].leaves] == [(4, 4)]
    assert compiled.earlier[-1].site.cell == 2


def test_an_evicted_program_says_so(notebook) -> None:
    notebook.run("f = jax.jit(lambda v: v * 2)\nf(x)")
    seen = notebook.run("jax.clear_caches()\nf(x)")
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    assert program.compiles[0].evicted


def test_donation_is_told_by_argument(notebook) -> None:
    seen = notebook.run("f = jax.jit(lambda a, b: b + 1, donate_argnums=1)\nf(x, jnp.ones(3))")
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    assert [program.inputs[i].path for i in program.donated] == ["b"]


def test_the_persistent_cache_tells_stored_and_hit(notebook, tmp_path) -> None:
    notebook.namespace["folder"] = str(tmp_path)
    notebook.run(
        "from jax.experimental.compilation_cache import compilation_cache as cc\n"
        "keys = ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs', 'jax_persistent_cache_min_entry_size_bytes')\n"
        "before = [getattr(jax.config, k) for k in keys]\n"
        "for k, v in zip(keys, (folder, 0, -1)): jax.config.update(k, v)\ncc.reset_cache()"
    )  # fmt: skip
    try:
        text = "f = jax.jit(lambda v: v * 3 + 1)\nf(x)"
        (first,) = [p for p in notebook.run(text).programs if p.kind == "jit"]
        (second,) = [p for p in notebook.run("jax.clear_caches()\n" + text).programs if p.kind == "jit"]
    finally:
        notebook.run("for k, v in zip(keys, before): jax.config.update(k, v)\ncc.reset_cache()")
    assert (first.compiles[0].cache, first.compiles[0].cache_stored) == ("miss", True)
    assert second.compiles[0].cache == "hit"


def test_a_captured_array_is_named_with_the_line_that_uses_it(notebook) -> None:
    seen = notebook.run(
        "table = jnp.ones((512, 512))\n@jax.jit\ndef look(v):\n    return v[0, 0] * 2 + (\n        table[0])\nlook(x)"
    )
    (program,) = named(seen, "look")
    (constant,) = program.constants
    assert (constant.name, constant.shape, constant.bytes) == ("table", (512, 512), 1048576)
    assert constant.site.line in (4, 5)


def test_a_captured_part_of_a_model_is_named_by_its_path(notebook) -> None:
    seen = notebook.run(
        "model = {'layers': [{'w': jnp.ones((512, 512))}]}\n"
        "f = jax.jit(jax.vmap(lambda v: v @ model['layers'][0]['w']))\nf(jnp.ones((2, 512)))"
    )
    (program,) = [p for p in seen.programs if p.kind == "jit"]
    assert [constant.name for constant in program.constants] == ["model['layers'][0]['w']"]


@pytest.mark.parametrize(
    "read",
    ["float(loss)", "int(loss)", "bool(loss)", "loss.item()", "loss.tolist()", "print(loss)", "f'{loss}'", "[][:loss]", "jax.device_get(loss)"],
)  # fmt: skip
def test_reads_of_device_values_are_seen_with_the_variable(notebook, read: str) -> None:
    notebook.run("loss = jnp.int32(3) + 0")
    seen = notebook.run(f"\n{read}")
    reads = [t for t in seen.transfers if t.how == "read"]
    assert len(reads) == 1
    assert (reads[0].name, reads[0].stack[-1].line, reads[0].shape) == ("loss", 2, ())


def test_a_million_reads_are_counted_not_listed(notebook) -> None:
    seen = notebook.run("loss = jnp.float32(3) + 0\nfor _ in range(500):\n    float(loss)")
    reads = [t for t in seen.transfers if t.how == "read"]
    assert len(reads) < 12
    assert sum(t.count for t in reads) == 500


def test_a_wait_is_seen(notebook) -> None:
    seen = notebook.run("y = x * 2\ny.block_until_ready()")
    assert [(t.how, t.name) for t in seen.transfers] == [("wait", "y")]


def test_the_same_host_array_given_twice_has_one_identity(notebook) -> None:
    seen = notebook.run(
        "f = jax.jit(lambda v: v * 2)\nbatch = np.ones(9, np.float32)\nfor _ in range(3): f(batch)\nf(np.ones(9, np.float32))"
    )
    given = [t for t in seen.transfers if t.how == "argument" and t.stack[-1].line == 3]
    assert {t.name for t in given} == {"v"}
    assert len(given) == 3
    assert len({t.identity for t in given}) == 1


@pytest.mark.parametrize(
    ("statement", "old", "new", "requested", "lost"),
    [
        ("jnp.asarray(np.array([5, 3_000_000_000]))", "int64", "int32", False, ("3000000000", "-1294967296")),
        ("jnp.array(np.array([5, 3_000_000_000]))", "int64", "int32", False, ("3000000000", "-1294967296")),
        ("jax.device_put(np.array([5, 3_000_000_000]))", "int64", "int32", False, ("3000000000", "-1294967296")),
        ("jax.jit(lambda v: v)(np.array([5, 3_000_000_000]))", "int64", "int32", False, ("3000000000", "-1294967296")),
        ("jnp.ones(2) + np.array([1.5, 2.5])", "float64", "float32", False, None),
        ("jnp.asarray(np.array([1.7e9 + 1]))", "float64", "float32", False, ("1700000001", "1700000000")),
        ("jnp.array(1.0 + 1e-10, dtype=jnp.float64)", "float64", "float32", True, None),
        ("x.astype('float64')", "float64", "float32", True, None),
        ("jnp.zeros(3, dtype=np.int64)", "int64", "int32", True, None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is not available.*")
def test_64_bit_values_that_become_32_bit_are_seen(notebook, statement, old, new, requested, lost) -> None:
    seen = notebook.run(f"\nr = {statement}")
    (conversion,) = [c for c in seen.conversions if c.requested == requested]
    assert (conversion.old_dtype, conversion.new_dtype, conversion.lost) == (old, new, lost)
    assert conversion.stack[-1].line == 2


@pytest.mark.parametrize(
    "statement",
    [
        "jnp.asarray(np.ones(3, np.float32))",
        "jnp.zeros(3, dtype=float)",
        "jnp.arange(3)",
        "x.astype(int)",
        "jnp.float32(1)",
        "x.sum()",
    ],
)
def test_ordinary_conversions_are_not_told(notebook, statement: str) -> None:
    assert notebook.run(f"r = {statement}").conversions == ()


def test_an_exception_leaves_the_observer_and_jax_in_order(notebook) -> None:
    import jax

    notebook.run("@jax.jit\ndef bad(v):\n    raise RuntimeError('no')", raises=None)
    notebook.run("bad(x)", raises=RuntimeError)
    seen = notebook.run("y = jax.jit(lambda v: v - 1)(x)")
    assert compiles(seen, "<lambda>") == 1
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda v: 1 if v > 0 else 0)(1.0)


def test_every_hook_is_gone_after_the_cell(notebook) -> None:
    before = places()
    notebook.run("x + 1")
    notebook.run("1 / 0", raises=ZeroDivisionError)
    notebook.run("raise KeyboardInterrupt", raises=KeyboardInterrupt)
    assert places() == before


def test_nothing_of_the_users_is_kept_alive(notebook) -> None:
    notebook.run(
        "class Config:\n    scale = 2.0\nconfig = Config()\nbig = jnp.ones((64, 64))\n"
        "f = jax.jit(lambda v, c: v * c.scale + big, static_argnums=1)\nout = f(jnp.ones((64, 64)), config)"
    )
    namespace = notebook.namespace
    watched = [weakref.ref(namespace[name]) for name in ("config", "big", "out", "f")]
    import jax

    for name in ("config", "big", "out", "f", "Config"):
        del namespace[name]
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


def test_what_runs_outside_the_cell_is_listed_as_outside(notebook) -> None:
    import jax

    jax.jit(lambda v: v * 11 + 4)(1.0)
    seen = notebook.run("x + 1")
    assert "<lambda>" in [p.name for p in seen.programs if p.outside]


def test_a_call_that_is_not_the_cells_is_not_recorded(notebook) -> None:
    notebook.backend.start(lambda: False)
    try:
        exec("f = jax.jit(lambda v: v * 13)\nf(x)", notebook.namespace)
    finally:
        notebook.backend.stop()
    seen = notebook.backend.observation(notebook.namespace, out=None, traceback=None)
    assert all(p.outside for p in seen.programs)


def test_a_missing_place_for_reads_takes_the_others_back(notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import array, dtypes

    before = array.ArrayImpl._value
    monkeypatch.delattr(dtypes, "check_and_canonicalize_user_dtype")
    notebook.backend.start(lambda: True)
    try:
        assert array.ArrayImpl._value is before
    finally:
        notebook.backend.stop()
    seen = notebook.backend.observation(notebook.namespace, out=None, traceback=None)
    assert [u.what for u in seen.unavailable] == ["reads of device values"]


def test_a_missing_hook_is_said_and_the_rest_goes_on(notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpumagic.backends.jax import hooks

    def missing(observer: object) -> None:
        raise AttributeError("gone in this version")

    monkeypatch.setattr(hooks, "_compilations", missing)
    seen = notebook.run("jax.jit(lambda v: v * 17)(x)")
    version = sys.modules["jax"].__version__
    assert [(u.what, u.why) for u in seen.unavailable] == [("compilations", f"not observable on jax {version}")]
    assert any(p.name == "<lambda>" for p in seen.programs)


def test_without_jaxs_word_on_tracing_the_cell_runs_and_is_seen(notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax._src

    # Not in the module itself: JAX goes on asking its own.
    monkeypatch.setattr(jax._src, "core", types.ModuleType("jax._src.core"))
    seen = notebook.run("result = jax.jit(lambda v: v * 19)(x)")
    assert any(p.name == "<lambda>" for p in seen.programs)


def test_frames_that_cannot_be_hidden_cost_no_report(notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpumagic.backends.jax import hooks

    def missing() -> None:
        raise AttributeError("gone in this version")

    before = places()
    monkeypatch.setattr(hooks, "_hide_our_frames", missing)
    seen = notebook.run("jax.jit(lambda v: v * 23)(x)")
    assert any(p.name == "<lambda>" for p in seen.programs)
    assert places() == before


def test_an_ordinary_cell_ends_without_a_search_through_all_objects(notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: searched.extend(objects) or [])
    notebook.run("y = jnp.asarray([1.0]) + 1\nfloat(y[0])")
    assert searched == []
