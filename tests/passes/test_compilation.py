"""Captured arrays, unrolled loops, a cache that is not written and slow programs, word for word; and silence."""

from dataclasses import replace

import pytest

from tpumagic.events import (
    Backend,
    CellRecord,
    Compile,
    Constant,
    FunctionId,
    Leaf,
    Program,
    Signature,
    SourceSite,
    SourceText,
)
from tpumagic.findings import Finding
from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import compilation

CALL = SourceSite(9, cell=3)
DEFINITION = SourceSite(2, cell=3, function="look")
USE = SourceSite(4, cell=3, function="look")
LOOK = FunctionId("look", "look:1", 1, DEFINITION)
SIGNATURE = Signature(LOOK, (Leaf("x", (8,), "float32"),), ())
TABLE = Constant("table", (2048, 2048), "float32", 16 * 2**20, USE)


def program(**fields) -> Program:
    base = Program(
        "look", "jit", (CALL,), DEFINITION, signature=SIGNATURE, compiles=(Compile(SIGNATURE, (CALL,), 0.1, 0.05, 0.2),)
    )
    return replace(base, **fields)


def record(*programs: Program, source: str = "", **fields) -> CellRecord:
    return CellRecord(source=source + "\n" * 12, cell=3, programs=programs, wall_s=10.0, **fields)


def only(of: CellRecord) -> Finding:
    found = list(compilation.find(of))
    assert len(found) == 1, found
    return found[0]


def said(finding: Finding) -> tuple[str, str, str, str]:
    return finding.severity, finding.title, finding.detail, finding.fix


# captured_constant


def test_a_large_captured_array_is_told():
    finding = only(record(program(constants=(TABLE,))))
    assert finding.kind == "compile.captured_constant"
    assert said(finding) == (
        "warning",
        "`table` (float32[2048,2048], 16 MiB) is part of the program `look`, not an argument.",
        (
            "It is copied into every program compiled for this function: compiling takes longer, device memory holds it once "
            "more, and later changes of it are not seen."
        ),
        "Pass `table` to `look` as an argument.",
    )
    assert (finding.site, finding.related, finding.bytes) == (USE, (CALL, DEFINITION), 16 * 2**20)
    assert (finding.facts["name"], finding.facts["bytes"], finding.facts["shape"]) == (
        "table",
        16777216,
        "(2048, 2048)",
    )


def test_without_the_line_of_its_use_the_call_is_the_site():
    assert only(record(program(constants=(replace(TABLE, site=None),)))).site == CALL


def test_a_small_captured_array_is_not_told():
    assert list(compilation.find(record(program(constants=(replace(TABLE, bytes=2**20 - 1),))))) == []


def test_operations_outside_jit_have_no_captured_arrays():
    assert list(compilation.find(record(program(kind="eager", constants=(TABLE,))))) == []


def test_leaves_of_one_variable_are_added_up():
    leaves = [Constant(f"params['w{i}']", (400, 400), "float32", 640_000, USE) for i in range(3)]
    finding = only(record(program(constants=tuple(leaves))))
    assert finding.title == "`params` (3 arrays, 1.83 MiB) is part of the program `look`, not an argument."
    assert list(compilation.find(record(program(constants=(leaves[0],))))) == []


def test_the_programs_of_two_shapes_capture_an_array_once():
    assert only(record(program(constants=(TABLE,)), program(constants=(TABLE,)))).program == "look"


def test_an_array_without_a_name_is_named_by_the_line_of_its_use():
    source = "\n@jax.jit\ndef look(x):\n    return jnp.dot(x, params['w']) + len(x)"
    finding = only(record(program(constants=(replace(TABLE, name=None),)), source=source))
    assert finding.title == "`params` (float32[2048,2048], 16 MiB) is part of the program `look`, not an argument."


@pytest.mark.parametrize(
    ("line", "name"), [("x @ self.table", "self.table"), ("model(x)", "model"), ("jnp.dot(x, self.net.apply(w))", "w")]
)
def test_an_attribute_or_a_model_is_named_where_it_is_the_only_one(line, name):
    source = f"\n@jax.jit\ndef look(self, x):\n    return {line}"
    finding = only(record(program(constants=(replace(TABLE, name=None),)), source=source))
    assert finding.facts["name"] == name


def test_an_array_that_cannot_be_named_is_told_by_its_shape():
    finding = only(record(program(constants=(replace(TABLE, name=None, site=None),))))
    assert finding.title == "1 array (float32[2048,2048], 16 MiB) is part of the program `look`, not an argument."
    assert finding.fix == "Pass it to `look` as an argument."


@pytest.mark.parametrize("made", ["import numpy as onp\n@jax.jit\ndef look(x):\n    mask = onp.tril(onp.ones(9))\n    return x * mask", "\n@jax.jit\ndef look(x):\n    mask = np.tril(np.ones(9))\n    return x * mask"])  # fmt: skip
def test_an_array_made_with_numpy_inside_the_function_is_to_be_made_with_jnp(made):
    finding = only(record(program(constants=(replace(TABLE, name=None, site=replace(USE, line=5)),)), source=made))
    assert finding.title == "`mask` (float32[2048,2048], 16 MiB) is part of the program `look`, not an argument."
    assert finding.fix == (
        "Make `mask` with `jnp` instead of `np` inside `look`, so that the device makes it, or pass it in as an argument."
    )


# unrolled_loop

LOOP = "\n@jax.jit\ndef look(x, ws):\n    for i in range(120):\n        x = jnp.tanh(x @ ws[i])\n    return x\n\n\nlook(x, ws)"
BODY = SourceSite(5, cell=3, function="look")
MODULE = SourceSite(30, file="model.py", function="look")


def chain(copies: int, names: tuple[str, ...] = ("dot_general", "tanh"), stack=(CALL, BODY), **fields) -> Graph:
    """``copies`` turns, each of which needs the one before."""
    operations = [
        Operation(name, (i * len(names) + j,), (i * len(names) + j + 1,), stack)
        for i in range(copies)
        for j, name in enumerate(names)
    ]
    return Graph(
        (Value((8,), "float32"),) * (len(operations) + 1), (0,), (len(operations),), tuple(operations), **fields
    )


def apart(copies: int, stack) -> Graph:
    """``copies`` operations that do not need each other."""
    operations = tuple(Operation("multiply", (0,), (i + 1,), stack) for i in range(copies))
    return Graph((Value((8,), "float32"),) * (copies + 1), (0,), (copies,), operations)


def test_a_python_loop_over_layers_is_told_at_its_header():
    finding = only(record(program(graph=chain(120)), source=LOOP))
    assert finding.kind == "compile.unrolled_loop"
    assert said(finding) == (
        "warning",
        "The Python `for` loop at In [3] line 4 was unrolled into `look`: 120 copies of In [3] line 5.",
        "240 operations come from it; 1 compilation of `look` took 350 ms.",
        (
            "Use `jax.lax.scan` over the stacked inputs or parameters (`jax.lax.fori_loop` where there are none): the body is "
            "compiled once."
        ),
    )
    assert (finding.site.line, finding.count, finding.facts["copies"]) == (4, 120, 120)
    assert finding.related == (BODY, CALL, DEFINITION)


def test_gradients_do_not_count_as_turns():
    forward = chain(120, ("slice", "tanh", "dot_general", "dot_general", "dot_general"))
    assert only(record(program(graph=forward), source=LOOP)).count == 120


def test_the_loop_is_found_around_a_helper_called_in_it():
    source = LOOP.replace("jnp.tanh(x @ ws[i])", "layer(x, ws[i])")
    helper = SourceSite(3, cell=2, function="layer")
    found = only(record(program(graph=chain(48, stack=(CALL, BODY, helper))), source=source))
    assert (found.site.line, found.severity) == (4, "warning")
    assert "48 copies of In [2] line 3" in found.title


def test_a_loop_in_another_cell_is_found_by_its_text():
    other = SourceText(LOOP, cell=1)
    stack = (CALL, replace(BODY, cell=1))
    finding = only(record(program(graph=chain(60, stack=stack)), other_sources=(other,)))
    assert (finding.site.cell, finding.site.line) == (1, 4)


def test_a_comprehension_is_to_become_a_vmap():
    source = "\n@jax.jit\ndef look(x):\n    return jnp.stack([jnp.sin(x * i) for i in range(64)])"
    finding = only(record(program(graph=apart(64, (CALL, USE))), source=source))
    assert finding.title == "The comprehension at In [3] line 4 was unrolled into `look`: 64 copies of In [3] line 4."
    assert finding.fix.startswith("If the turns do the same to parts of one array, use `jax.vmap`")


def test_a_while_loop_is_told_as_such():
    finding = only(record(program(graph=chain(50)), source=LOOP.replace("for i in range(120)", "while i < 50")))
    assert (
        finding.title
        == "The Python `while` loop at In [3] line 4 was unrolled into `look`: 50 copies of In [3] line 5."
    )
    assert finding.fix == "Use `jax.lax.while_loop` or `jax.lax.fori_loop`: the body is compiled once."


def test_a_reduce_is_a_loop_too():
    source = "\n@jax.jit\ndef look(x):\n    return functools.reduce(lambda h, w: jnp.tanh(h @ w), ws, x)"
    inner = replace(USE, function="<lambda>")
    finding = only(record(program(graph=chain(60, stack=(CALL, USE, inner))), source=source))
    assert (
        finding.title == "The `functools.reduce` at In [3] line 4 was unrolled into `look`: 60 copies of In [3] line 4."
    )


def test_nested_loops_are_one_finding_at_the_outer_one():
    source = "\n@jax.jit\ndef look(x):\n    for i in range(12):\n        for j in range(8):\n            x = f(x)"
    finding = only(record(program(graph=chain(96, stack=(CALL, replace(BODY, line=6)))), source=source))
    assert (finding.site.line, finding.related[1].line, finding.count) == (4, 5, 96)


def test_a_few_layers_are_not_told():
    assert list(compilation.find(record(program(graph=chain(12)), source=LOOP))) == []


@pytest.mark.parametrize(("compile_s", "severity"), [(0.2, "info"), (6.0, "warning")])
def test_between_few_and_many_the_cost_decides(compile_s, severity):
    made = program(graph=chain(24), compiles=(Compile(SIGNATURE, (CALL,), compile_s=compile_s),))
    assert only(record(made, source=LOOP)).severity == severity


def test_the_training_loop_around_the_call_is_not_in_the_program():
    source = "\n@jax.jit\ndef look(x):\n    x = f(x)\n    return f(x)\n\n\nfor step in range(1000):\n    look(x)"
    assert list(compilation.find(record(program(graph=apart(100, (CALL, USE))), source=source))) == []


def test_a_trace_from_an_earlier_call_in_a_loop_is_told_by_the_function_itself():
    source = "\n@jax.jit\ndef look(x):\n    return opt.update(x)\n\nfor i in range(3):\n    look(x)\n\nlook(x)"
    traced = (SourceSite(7, cell=3), USE)
    assert list(compilation.find(record(program(graph=apart(100, traced)), source=source))) == []


def test_a_function_called_from_many_places_is_no_loop():
    calls = [
        chain(1, stack=(CALL, SourceSite(line, cell=3), SourceSite(3, cell=2))).operations[0] for line in range(1, 90)
    ]
    graph = Graph((Value((8,), "float32"),) * 2, (0,), (1,), tuple(calls))
    assert list(compilation.find(record(program(graph=graph), source=LOOP))) == []


def test_the_body_of_a_scan_is_there_once():
    scan = Operation("scan", (0,), (1,), (CALL, BODY), {"length": 500}, (chain(1),))
    graph = Graph((Value((8,), "float32"),) * 2, (0,), (1,), (scan,))
    assert list(compilation.find(record(program(graph=graph), source=LOOP))) == []


def test_one_body_shared_by_many_calls_is_there_once():
    body = chain(12)
    calls = tuple(Operation("call", (i,), (i + 1,), (CALL, SourceSite(i, cell=3)), {}, (body,)) for i in range(10))
    graph = Graph((Value((8,), "float32"),) * 11, (0,), (10,), calls)
    assert list(compilation.find(record(program(graph=graph), source=LOOP))) == []


def test_one_line_that_makes_an_operation_for_each_parameter_is_no_loop():
    source = "\n@jax.jit\ndef look(p):\n    return tx.update(p)"
    assert list(compilation.find(record(program(graph=apart(400, (CALL, USE))), source=source))) == []


def test_without_the_text_only_turns_that_need_each_other_are_a_loop():
    assert list(compilation.find(record(program(graph=apart(400, (CALL, MODULE)))))) == []
    finding = only(record(program(graph=chain(100, stack=(CALL, MODULE)))))
    assert (
        finding.title
        == "Something that repeats model.py line 30 was unrolled into `look`: 100 copies of model.py line 30."
    )
    assert finding.site == MODULE


def test_the_line_evaluated_before_the_first_turn_is_not_in_the_loop():
    source = "\n@jax.jit\ndef look(x):\n    for part in jnp.split(f(x), 4):\n        x = x + 1"
    assert list(compilation.find(record(program(graph=apart(100, (CALL, USE))), source=source))) == []


def test_programs_for_two_shapes_are_one_finding():
    finding = only(record(program(graph=chain(120)), program(graph=chain(120)), source=LOOP))
    assert finding.detail == "240 operations come from it; 2 compilations of `look` took 700 ms."


def test_a_program_compiled_by_an_earlier_cell_was_told_there():
    assert list(compilation.find(record(program(graph=chain(120), compiles=()), source=LOOP))) == []


# cache_not_written

SETTINGS = (
    ("jax_compilation_cache_dir", "/cache"),
    ("jax_persistent_cache_min_compile_time_secs", "1.0"),
    ("jax_persistent_cache_min_entry_size_bytes", "0"),
)


def cached(*pairs: tuple[float, bool | None], settings=SETTINGS, **fields) -> CellRecord:
    programs = [
        program(name=f"f{i}", compiles=(Compile(SIGNATURE, (CALL,), compile_s=s, cache="miss", cache_stored=stored),))
        for i, (s, stored) in enumerate(pairs)
    ]
    return record(*programs, backends=(Backend("jax", "0.10.2", settings=settings),), **fields)


def test_a_program_too_quick_for_the_cache_is_told():
    finding = only(cached((0.2, False)))
    assert finding.kind == "compile.cache_not_written"
    assert said(finding) == (
        "info",
        (
            "The persistent cache is on but did not store `f0`: it compiled in less than 1 s, the limit of "
            "jax_persistent_cache_min_compile_time_secs."
        ),
        "After a restart of the kernel 1 compilation (200 ms) will be done again.",
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0), or `%tpu_env jax --cache DIR`, which sets it.",
    )
    assert finding.site == CALL


def test_many_quick_programs_are_one_finding_and_a_minute_is_a_warning():
    finding = only(cached(*((0.9, False),) * 80))
    assert finding.severity == "warning"
    assert finding.title.startswith(
        "The persistent cache is on but did not store `f0`, `f1`, `f2` and 77 more: they compiled"
    )
    assert finding.count == 80


def test_an_entry_too_small_for_the_cache_is_told():
    finding = only(
        cached((2.0, False), settings=(*SETTINGS[:2], ("jax_persistent_cache_min_entry_size_bytes", "4096")))
    )
    assert finding.title == (
        "The persistent cache is on but did not store `f0`: it may be smaller than 4 KiB, the limit of "
        "jax_persistent_cache_min_entry_size_bytes."
    )


@pytest.mark.parametrize(
    "quiet",
    [
        cached((0.2, True)),
        cached((0.2, None)),
        cached((2.0, False)),
        cached((0.2, False), settings=(("jax_compilation_cache_dir", "None"), *SETTINGS[1:])),
        cached((0.2, False), settings=()),
    ],
)
def test_a_stored_program_or_no_cache_is_not_told(quiet):
    assert list(compilation.find(quiet)) == []


# slow


def slow(**fields) -> Program:
    return program(
        compiles=(Compile(SIGNATURE, (CALL,), **{"trace_s": 2.0, "lower_s": 1.0, "compile_s": 57.0, **fields}),)
    )


def test_a_program_that_compiles_for_a_minute_is_told_with_the_cache():
    finding = only(record(slow()))
    assert finding.kind == "compile.slow"
    assert said(finding) == (
        "warning",
        "`look` took 1 min to compile, once.",
        "Tracing 2 s, lowering 1 s, compiling 57 s.",
        (
            "Turn on the persistent compilation cache (`%tpu_env jax --cache DIR`), so that a restart does not compile again; "
            "repeat equal layers with `jax.lax.scan`."
        ),
    )
    assert (finding.site, finding.related) == (CALL, (DEFINITION,))


def test_a_slow_trace_is_python():
    finding = only(record(slow(trace_s=90.0)))
    assert finding.fix == (
        "Most of it is Python running your function: move work that does not depend on the arguments out of it."
    )


def test_a_slow_program_that_the_cache_keeps_is_a_note():
    backends = (Backend("jax", "0.10.2", settings=SETTINGS),)
    finding = only(record(slow(cache="miss", cache_stored=True), backends=backends))
    assert finding.severity == "info"
    assert (
        finding.fix == "Repeat equal layers with `jax.lax.scan`; the persistent cache saves the rest after a restart."
    )


def test_an_ordinary_first_compilation_is_not_told():
    assert list(compilation.find(record(slow(compile_s=20.0)))) == []


def test_an_unrolled_loop_explains_a_slow_program():
    made = replace(slow(), graph=chain(120))
    assert [finding.kind for finding in compilation.find(record(made, source=LOOP))] == ["compile.unrolled_loop"]
