"""Functions that were compiled again because they were made or defined again, and those that are meant to be."""

from dataclasses import replace

import pytest
from recompiled import FIRST, LINE, STEP, X, call, compiled, only, said

from tpumagic.events import (
    CellRecord,
    FunctionId,
    Signature,
    SourceSite,
)
from tpumagic.passes import recompilation

# functions made again

LAMBDA = FunctionId("<lambda>", "<lambda>:1", 20, SourceSite(8, cell=5, function="<lambda>"), is_lambda=True)


def made(count: int, function: FunctionId = LAMBDA, captured: list[str] | None = None, **fields) -> list[Signature]:
    """Calls of ``count`` function objects of the same code."""
    closures = [(("n", text),) for text in captured] if captured else [function.closure] * count
    return [call(X, function=replace(function, identity=20 + i, closure=closures[i]), **fields) for i in range(count)]


def at_line_8(source: str) -> str:
    return "\n" * (8 - source.count("\n") - 1) + source


def test_a_lambda_jitted_in_a_loop_is_told():
    source = at_line_8("for k in range(3):\n    y = jax.jit(lambda a: jnp.tanh(a @ a))(x)")
    finding = only(compiled(*made(3), source=source))
    assert finding.kind == "recompile.new_function"
    assert said(finding) == (
        "warning",
        "`<lambda>` was compiled 2 more times because this line makes a new function each time: 3 functions of the same code.",
        "2 extra compilations, 500 ms.",
        "Make and jit a lambda once, outside what is repeated, and call that function each time.",
    )
    assert finding.related == ()
    assert finding.facts == {"function": "<lambda>", "compiles": 2, "functions": 3}


def test_a_captured_number_is_to_become_an_argument():
    source = at_line_8("for i in range(3):\n    jax.jit(partial(step, n=i))(x)")
    partial = replace(STEP, wrapper="partial")
    finding = only(compiled(*made(3, partial, ["0", "1", "2"]), source=source))
    assert said(finding)[:2] == (
        "warning",
        (
            "`step` was compiled 2 more times because this line makes a new function each time: 3 functions of the same "
            "code, with other captured values: n=0 -> n=1 -> n=2."
        ),
    )
    assert finding.fix == (
        "Make and jit `step` once, outside what is repeated, and call that function each time; pass `i` as an argument "
        "instead of capturing it."
    )
    assert finding.facts["captured"] == "i"


MADE_HERE = [
    "for k in r:\n    jax.jit(lambda a: a + 1)(x)",
    "for k in r:\n    f = jax.jit(lambda a: a * k)\n    f(x)",
    "for k in r:\n    @jax.jit\n    def f(a): return a + 1\n    f(x)",
    "for k in r:\n    def f(a): return a + 1\n    jax.jit(f)(x)",
    "for k in r:\n    make_step(k)(x)",
    "def run(x):\n    f = jax.jit(lambda a: a + 1)\n    return f(x)",
    "while True:\n    g = equinox.filter_jit(lambda a: a + 1)\n    g(x)",
    "outs = [jax.jit(lambda a: a + 1)(x) for k in r]",
    "for batch in data:\n    w = jax.jit(lambda w: (w * batch['x']).sum())(w)",
]


@pytest.mark.parametrize("source", MADE_HERE)
def test_a_function_made_where_it_is_called_is_told(source):
    assert only(compiled(*made(2), source=at_line_8(source))).severity == "warning"


KEPT = [
    "for f in models:\n    f(x)",
    "for name, f in models.items():\n    f(x)",
    "for k in r:\n    models[k](x)",
    "for m in models:\n    m.step(x)",
    "for m in models:\n    jax.jit(m)(x)",
    "def fit(step_fn, x):\n    return step_fn(x)",
    "outs = [f(x) for f in models]",
]


@pytest.mark.parametrize("source", KEPT)
def test_functions_kept_in_a_list_an_object_or_by_the_caller_are_meant(source):
    assert list(recompilation.find(compiled(*made(3, captured=["1", "2", "3"]), source=at_line_8(source)))) == []


SELECTS = [
    "for act in (relu, tanh):\n    jax.jit(lambda a: act(a))(x)",
    "for model in models:\n    f = jax.jit(lambda p: model.apply(p, x))\n    f(x)",
    "def fit(model, x):\n    f = jax.jit(lambda p: model(p))\n    return f(x)",
]


@pytest.mark.parametrize("source", SELECTS)
def test_another_model_or_function_captured_is_meant(source):
    finding = only(compiled(*made(2), source=at_line_8(source)))
    assert finding.severity == "info"
    assert (
        finding.fix
        == "Nothing to do where each function is meant to be another one; keep them if they are called again."
    )


@pytest.mark.parametrize("values", [["relu", "tanh"], ["True", "False"], ["'a'", "'b'"]])
def test_a_factory_called_for_other_modes_is_meant(values):
    source = at_line_8("for mode in modes:\n    make_step(mode)(x)")
    assert only(compiled(*made(2, captured=values), source=source)).severity == "info"


def test_a_factory_called_for_objects_that_look_alike_may_be_meant():
    source = at_line_8("for model in models:\n    make_step(model)(x)")
    assert only(compiled(*made(2, captured=["Model", "Model"]), source=source)).severity == "info"
    source = at_line_8("for k in r:\n    make_step()(x)")
    assert only(compiled(*made(2, captured=["Model", "Model"]), source=source)).severity == "warning"


def test_different_functions_of_one_name_have_nothing_to_do_with_each_other():
    other_code = replace(LAMBDA, code_key="<lambda>:2", identity=30)
    assert list(recompilation.find(compiled(call(X, function=LAMBDA), call(X, function=other_code)))) == []
    elsewhere = replace(LAMBDA, identity=30, definition=SourceSite(9, cell=5, function="<lambda>"))
    assert list(recompilation.find(compiled(call(X, function=LAMBDA), call(X, function=elsewhere)))) == []
    gradient = replace(STEP, identity=30, wrapper="grad")
    assert list(recompilation.find(compiled(call(X), call(X, function=gradient)))) == []


def test_one_function_jitted_at_two_lines_is_at_most_a_note():
    again = replace(STEP, identity=30)
    record = compiled(call(X, site=FIRST), call(X, function=again), source=at_line_8("jax.jit(jax.grad(step))(x)"))
    assert all(finding.severity == "info" for finding in recompilation.find(record))


def test_without_the_text_only_a_plain_repetition_is_told():
    elsewhere = SourceSite(40, file="train.py", function="run")
    assert only(compiled(*made(3, STEP, site=elsewhere))).severity == "warning"
    assert only(compiled(*made(2, STEP, site=elsewhere))).severity == "info"
    assert only(compiled(*made(3, STEP, ["1", "2", "3"], site=elsewhere))).severity == "info"


# defined again


def rerun(site: SourceSite = LINE, **fields) -> list[Signature]:
    """The same function by the run of the cell before, In [4], and by this one."""
    before = replace(STEP, identity=9, definition=replace(STEP.definition, cell=4))
    return [call(X, function=before, site=replace(LINE, cell=4)), call(X, function=replace(STEP, **fields), site=site)]


def test_running_the_cell_again_is_told():
    finding = only(compiled(*rerun()))
    assert finding.kind == "recompile.redefined"
    assert said(finding) == (
        "warning",
        (
            "`step` was compiled again because it was defined again at In [5] line 2, with the same source: a new function "
            "has no programs yet."
        ),
        "1 extra compilation, 250 ms. Compared with the call at In [4] line 8.",
        (
            "Define `step` in a cell of its own that is not run again, or turn on JAX's persistent compilation cache "
            "(`%tpu_env jax --cache DIR`)."
        ),
    )
    assert (finding.facts["old"], finding.facts["new"]) == ("In [4] line 2", "In [5] line 2")


def test_edited_source_is_meant():
    finding = only(compiled(*rerun(code_key="step:2")))
    assert said(finding)[:2] == ("info", "`step` was compiled again because its source changed at In [5] line 2.")
    assert finding.fix == "Nothing to do: new code needs a new program."


def test_a_rerun_that_the_persistent_cache_answered_is_mended_already():
    finding = only(compiled(*rerun(), cache="hit"))
    assert finding.severity == "info"
    assert finding.detail == (
        "1 extra compilation, 250 ms. The persistent cache answered: only tracing and lowering had to be done again. "
        "Compared with the call at In [4] line 8."
    )


def test_a_factory_called_again_by_a_rerun_is_told_unless_it_captures_an_object():
    factory = replace(STEP, definition=SourceSite(3, file="model.py", function="step"))

    def again(captured: str) -> CellRecord:
        old, new = (replace(factory, identity=i, closure=(("n", captured),)) for i in (1, 2))
        return compiled(call(X, function=old, site=replace(LINE, cell=4)), call(X, function=new))

    assert said(only(again("0.1")))[:2] == (
        "warning",
        "`step` was compiled again because it was made again from the same source: a new function has no programs yet.",
    )
    assert only(again("Model")).severity == "info"


def test_shapes_after_a_rerun_are_told_beside_it():
    old, new = rerun()
    record = compiled(old, new, replace(new, leaves=(replace(X, shape=(9,)),)))
    assert [finding.kind for finding in recompilation.find(record)] == ["recompile.redefined", "recompile.shape"]
