"""A cell read as syntax: lines keep their numbers whatever IPython allows between them."""

from __future__ import annotations

import pytest

from tpumagic.sources import Magic, Span, parse

LOOP = """%%tpu_profile
import jax, numpy as np
from time import perf_counter as pc

@jax.jit
def step(w):
    return w * 2

for i in range(3):
    w = step(
        w,
    )
    log.append(float(w))
%cd /tmp
values = [float(step(v)) for v in vs]
"""


def test_lines_keep_their_numbers_below_a_cell_magic():
    source = parse(LOOP)
    assert source.magics == (Magic(1, "tpu_profile", "", cell=True), Magic(14, "cd", "/tmp"))
    assert source.span(10) == source.span(12) == Span(10, 12)
    assert source.span(9) == Span(9, 9)
    assert source.span(8) == Span(8, 8)


def test_lines_count_from_where_a_part_of_a_file_starts():
    source = parse("x = 1\nfor i in y:\n    f(i)\n", 40)
    assert [call.callee for call in source.calls(42)] == ["f"]
    assert source.loops(42)[0].first == 41


def test_a_loop_holds_its_body_and_comprehensions_count():
    source = parse(LOOP)
    assert [(loop.first, loop.last, loop.kind, loop.targets) for loop in source.loops(13)] == [(9, 13, "for", {"i"})]
    assert [loop.kind for loop in source.loops(15)] == ["comprehension"]
    assert source.loops(7) == ()


def test_a_function_defined_in_a_loop_is_not_run_by_it():
    source = parse("for i in range(3):\n    def f(x):\n        return x\n    for j in y:\n        f(j)\n")
    assert source.loops(3) == ()
    assert [loop.first for loop in source.loops(5)] == [1, 4]


def test_the_function_around_a_line_is_the_innermost():
    source = parse("def a():\n    def b():\n        return 1\n    return b\nx = a()\ndef c(): return 2\n")
    assert [(one.name if (one := source.function(line)) else None) for line in range(1, 7)] == [
        None, "a", "b", "a", None, "c",
    ]  # fmt: skip


def test_calls_are_told_as_written():
    source = parse(LOOP)
    assert [(call.callee, call.arguments) for call in source.calls(13)] == [
        ("float", ("w",)),
        ("log.append", ("float(w)",)),
    ]
    assert [call.callee for call in source.calls(9, 12)] == ["range", "step"]
    (call,) = parse("f(a, *b, c=1, **d)").calls(1)
    assert call.arguments == ("a", "*b", "c=1", "**d")


def test_a_method_call_over_several_lines_stands_where_its_name_stands():
    source = parse("x = (\n    frame\n    .load()\n    .cut(3)\n)\n")
    assert [(call.line, call.callee) for call in source.all_calls] == [(3, "frame.load"), (4, "frame.load().cut")]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("w, (loss, *rest) = step(w)", {"w", "loss", "rest"}),
        ("state['w'] = step(w)", set()),
        ("self.w = step(w)", set()),
        ("x += 1", {"x"}),
        ("x: int = 1", {"x"}),
        ("for a, b in y: pass", {"a", "b"}),
        ("with open(p) as f: pass", {"f"}),
        ("if (n := f()) > 3: pass", {"n"}),
        ("import a.b, c as d", {"a", "d"}),
        ("def g():\n    h = 1", {"g"}),
        ("print(x)", set()),
    ],
)
def test_the_names_that_a_statement_binds(statement: str, names: set[str]):
    assert parse(statement).assigned(1) == names


def test_imports_tell_what_a_short_name_means():
    source = parse(LOOP)
    assert source.resolve("np.asarray") == "numpy.asarray"
    assert source.resolve("pc") == "time.perf_counter"
    assert source.resolve("other.name") == "other.name"


def test_np_and_jnp_mean_what_they_always_mean():
    assert parse("x = 1").resolve("np.asarray") == "numpy.asarray"
    assert parse("x = 1").resolve("jnp.ones") == "jax.numpy.ones"
    assert parse("import other as np").resolve("np.ones") == "other.ones"


@pytest.mark.parametrize(
    ("line", "callees"),
    [
        ("%time y = f(x)", ["f"]),
        ("%timeit -n 10 -r 3 f(x)", ["f"]),
        ("%timeit f(x);", ["f"]),
        ("%tpu_profile --target v5e-8 f(x)", ["f"]),
        ("%prun f(x)", ["f"]),
        ("r = %timeit -o f(x)", []),
        ("!pip install f(x)", []),
        ("files = !ls", []),
        ("f?", []),
        ("?f", []),
        ("%matplotlib inline", []),
    ],
)
def test_a_line_of_ipython_leaves_the_rest_readable(line: str, callees: list[str]):
    source = parse(f"a()\nif b:\n    {line}\n{line}\nc()\n")
    assert [call.callee for call in source.all_calls] == ["a", *callees, *callees, "c"]
    assert source.calls(5)[0].callee == "c"


def test_an_operator_at_the_start_of_a_line_is_no_magic():
    source = parse('x = (a\n  % b)\ntext = """\n%d items\n"""\nf()\n')
    assert source.magics == ()
    assert len(source.tree.body) == 3


def test_an_operator_at_the_start_of_a_line_beside_a_magic():
    source = parse("x = (a\n  % b)\n%cd /tmp\nf()\n")
    assert [magic.name for magic in source.magics] == ["cd"]
    assert source.calls(4)[0].callee == "f"


@pytest.mark.parametrize("text", ["def f(:\n  pass", "x = '\0'", "(" * 5000, "%%bash\nls | wc -l", ""])
def test_what_is_no_python_yields_nothing(text: str):
    source = parse(text)
    assert source.statements == ()
    assert source.statement(1) is None
    assert source.loops(1) == ()
    assert source.span(1) == Span(1, 1)


def test_top_level_await_is_read():
    assert parse("await f()\nasync for x in y():\n    g(x)\n").loops(3)[0].kind == "for"
