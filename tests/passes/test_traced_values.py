"""Code that needs a value while JAX only knows its shape: real exceptions, explained with the line's own words."""

from __future__ import annotations

import pytest

from tpumagic.passes import errors


def only(record):
    findings = list(errors.find(record))
    assert len(findings) == 1
    return findings[0]


def jitted(body: str, call: str, arguments: str = "x, n") -> str:
    """A cell with one jitted function; its body starts on line 3."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"@jax.jit\ndef f({arguments}):\n{lines}\n{call}\n"


def test_a_boolean_mask_in_jit_is_quoted_with_two_ways_out(failed_cell):
    finding = only(failed_cell(jitted("return x[x > 0].mean()", "f(jnp.arange(-4.0, 4.0))", "x")))
    assert (finding.kind, finding.severity) == ("unsupported.dynamic_shape", "error")
    assert finding.title == "`x[x > 0]` keeps what a boolean mask selects, so its size depends on the values"
    assert (
        finding.detail
        == "Every shape must be known before the program runs; values are not known yet. Traced here: x float32[8]."
    )
    assert finding.fix == (
        "Keep the shape with `jnp.where(x > 0, x, 0)` and count with `(x > 0).sum()`; or select with "
        "`jnp.nonzero(x > 0, size=…)`."
    )
    assert finding.site.line == 3
    assert [site.line for site in finding.related] == [5]


def test_an_update_through_a_mask_gets_where(failed_cell):
    finding = only(failed_cell(jitted("return x.at[x > 0].set(x)", "f(jnp.ones(4))", "x")))
    assert (
        finding.title
        == "`x.at[x > 0].set(x)` updates the elements that a mask selects, whose number depends on the values"
    )
    assert finding.fix == "Use `jnp.where(mask, new, old)`: it keeps the shape."


@pytest.mark.parametrize(
    ("expression", "argument"),
    [
        ("jnp.nonzero(x)", "size"), ("jnp.unique(x)", "size"), ("jnp.argwhere(x > 0)", "size"),
        ("jnp.flatnonzero(x)", "size"), ("jnp.extract(x > 0, x)", "size"), ("jnp.setdiff1d(x, x)", "size"),
        ("jnp.bincount(x)", "length"),
    ],
)  # fmt: skip
def test_results_as_large_as_their_data_get_the_argument_that_fixes_the_size(failed_cell, expression, argument):
    finding = only(failed_cell(jitted(f"return {expression}", "f(jnp.arange(4))", "x")))
    assert finding.kind == "unsupported.dynamic_shape"
    assert finding.title == f"The size of `{expression}` depends on the values of `x`"
    filled = " (unused places are filled)" if argument == "size" else ""
    assert finding.fix == f"Fix the size with `{argument}=…`{filled}."


def test_where_with_one_argument_is_pointed_to_the_form_with_three(failed_cell):
    finding = only(failed_cell(jitted("return jnp.where(x > 0)", "f(jnp.ones(4))", "x")))
    assert finding.fix == (
        "Fix the size with `size=…` (unused places are filled). Or use the form with three arguments, "
        "`jnp.where(mask, x, 0)`, which keeps the shape."
    )


@pytest.mark.parametrize(
    "expression",
    [
        "jnp.zeros((n, 3))", "jnp.ones(n)", "jnp.arange(n)", "x.reshape(n, -1)", "jnp.eye(n)", "jnp.linspace(0, 1, n)",
        "jnp.full((n,), 1.0)", "jax.nn.one_hot(x, n)", "jnp.broadcast_to(x, (n, 4))", "jax.lax.top_k(x, n)",
        "jax.random.normal(jax.random.key(0), (n,))",
    ],
)  # fmt: skip
def test_a_shape_from_an_argument_is_told_to_be_static(failed_cell, expression):
    finding = only(failed_cell(jitted(f"return {expression}", "f(jnp.ones(4), 2)")))
    assert finding.kind == "unsupported.dynamic_shape"
    assert finding.title == f"The shape of `{expression}` depends on the value of `n`, which is traced"
    assert finding.fix == "Make `n` static: `static_argnames='n'`; each new value then compiles once."
    assert finding.site.line == 3


@pytest.mark.parametrize("expression", ["x[:n]", "jnp.tile(x, n)"])
def test_slices_and_repetitions_of_a_traced_length_are_shapes_too(failed_cell, expression):
    finding = only(failed_cell(jitted(f"return {expression}", "f(jnp.ones(4), 2)")))
    assert finding.kind == "unsupported.dynamic_shape"
    assert finding.title == f"The shape of `{expression}` depends on the value of `n`, which is traced"


def test_an_if_on_a_traced_value_is_quoted_with_where_and_cond(failed_cell):
    cell = "@jax.jit\ndef guard(loss):\n    if loss > 10:\n        return loss * 0\n    return loss\n\nguard(jnp.float32(3))\n"
    finding = only(failed_cell(cell))
    assert (finding.kind, finding.severity) == ("unsupported.traced_control_flow", "error")
    assert finding.title == "`if loss > 10` needs the value of `loss`, which is not known while `guard` is traced"
    assert finding.detail == (
        "Python runs once, while tracing; it cannot decide on, convert or print values that only the device will know. "
        "Traced here: loss float32[]."
    )
    assert finding.fix == (
        "Choose between values with `jnp.where(loss > 10, …, …)`, between computations with `jax.lax.cond`, or test "
        "outside the jitted function."
    )
    assert finding.site.line == 3
    assert [site.line for site in finding.related] == [7]


@pytest.mark.parametrize(
    ("body", "place", "fix"),
    [
        ("while n < 3:\n    n = n + 1\nreturn n", "while n < 3",
         "Use `jax.lax.while_loop(condition, body, start)`, or run the loop outside the jitted function."),
        ("if x.sum() > 0:\n    return x\nelif n > 0:\n    return n\nreturn x", "if x.sum() > 0",
         ("Choose between values with `jnp.where(x.sum() > 0, …, …)`, between computations with `jax.lax.cond`, or test "
         "outside the jitted function.")),
        ("return x if n > 0 else -x", "x if n > 0 else -x", "Use `jnp.where(n > 0, x, -x)`."),
        ("for i in range(n):\n    x = x + i\nreturn x", "range(n)",
         ("Use `jax.lax.fori_loop(0, n, body, start)`. Make `n` static: `static_argnames='n'`; each new value then compiles "
         "once.")),
        ("assert n > 0\nreturn x", "assert n > 0",
         "Check the result outside the jitted function, or use `checkify.check` of `jax.experimental.checkify`."),
        ("return n > 0 and n < 3", "n > 0 and n < 3",
         "Use `&`, `|` and `~` on arrays in place of `and`, `or` and `not`; mind the parentheses."),
        ("return float(n)", "float(n)",
         "Keep it an array (`.astype(jnp.float32)` changes its type), or convert outside the jitted function."),
        ("return x.sum().item()", "x.sum().item()",
         "Leave out `.item()` here; read the value outside the jitted function."),
        ("return np.sin(x)", "np.sin(x)", "Use JAX's function: `jnp.sin` instead of `np.sin`."),
        ("return np.array(x)", "np.array(x)", "Use JAX's function: `jnp.asarray` instead of `np.array`."),
        ("import math\nreturn math.sqrt(n)", "math.sqrt(n)", "Use JAX's function: `jnp.sqrt` instead of `math.sqrt`."),
        ("return [1, 2, 3][n]", "[1, 2, 3][n]", "Index an array: `jnp.asarray([1, 2, 3])[n]`."),
        ("return max(n, 3)", "max(n, 3)", "Use `jnp.maximum(a, b)`."),
        ("return n in [1, 2]", "n in [1, 2]", "Use `jnp.isin(x, values)`."),
    ],
)  # fmt: skip
def test_each_python_decision_on_a_traced_value_gets_its_own_way_out(failed_cell, body, place, fix):
    finding = only(failed_cell(jitted(body, "f(jnp.ones(4), 2)")))
    assert finding.kind == "unsupported.traced_control_flow"
    name = "x" if "x.sum()" in place or "np." in place else "n"
    assert finding.title == f"`{place}` needs the value of `{name}`, which is not known while `f` is traced"
    assert finding.fix == fix


def test_writing_a_traced_value_into_a_numpy_array_is_explained(failed_cell):
    finding = only(failed_cell(jitted("a = np.zeros(3)\na[0] = x.sum()\nreturn a", "f(jnp.ones(3))", "x")))
    assert finding.kind == "unsupported.traced_control_flow"
    assert finding.fix == "Build it with JAX: `a = jnp.zeros(…)`, then `a = a.at[i].set(x)`."
    assert finding.site.line == 4


def test_formatting_a_traced_value_is_pointed_to_debug_print(failed_cell):
    finding = only(failed_cell(jitted("print(f'{n:.3f}')\nreturn n", "f(jnp.ones(3), 2.0)")))
    assert finding.kind == "unsupported.traced_control_flow"
    assert (
        finding.fix == "Print while it runs with `jax.debug.print('{}', x)`, or return the value and print it outside."
    )


def test_the_body_of_a_scan_and_a_gradient_are_named(failed_cell):
    cell = "def body(c, x):\n    if c > 0:\n        return c, x\n    return c + 1, x\n\njax.lax.scan(body, 0.0, jnp.ones(3))\n"
    assert (
        only(failed_cell(cell)).title == "`if c > 0` needs the value of `c`, which is not known while `body` is traced"
    )


def test_a_decision_in_a_helper_points_at_the_helper_and_relates_the_callers(failed_cell):
    cell = "def clip(g):\n    if g > 1:\n        return g / g\n    return g\n\n@jax.jit\ndef step(w):\n    return clip((w * w).sum())\n\nstep(jnp.ones(3))\n"
    finding = only(failed_cell(cell))
    assert finding.title == "`if g > 1` needs the value of `w`, which is not known while `step` is traced"
    assert finding.site.line == 2
    assert [site.line for site in finding.related] == [8, 10]


@pytest.mark.parametrize(
    ("setup", "expression"),
    [
        ("TABLE = {0: jnp.sin, 1: jnp.cos}", "TABLE[n](x)"),
        ("import functools\n@functools.lru_cache\ndef table(n): return n", "x + table(n)"),
    ],
)
def test_looking_a_traced_value_up_in_a_dict_or_cache_is_explained(failed_cell, setup, expression):
    finding = only(
        failed_cell(f"{setup}\n@jax.jit\ndef f(x, n):\n    return {expression}\nf(jnp.ones(3), jnp.int32(1))\n")
    )
    assert (finding.kind, finding.severity) == ("unsupported.traced_control_flow", "error")
    assert "`n`" in finding.title
    assert finding.title.endswith("not known while `f` is traced")
    assert finding.fix.startswith(
        "Only a value known while tracing can be looked up in a dict, a set or a cache: choose between computations with "
        "`jax.lax.switch`, between numbers by indexing an array, or make it known."
    )


def test_an_unhashable_key_of_the_users_own_is_none_of_this(failed_cell):
    assert list(errors.find(failed_cell("d = {}\nd[[1, 2]] = 3\n"))) == []


def test_a_traced_value_sought_in_a_set_is_pointed_to_isin(failed_cell):
    finding = only(failed_cell("KNOWN = {0, 1}\n" + jitted("return n in KNOWN", "f(jnp.int32(1))", "n")))
    assert (finding.kind, finding.fix) == ("unsupported.traced_control_flow", "Use `jnp.isin(x, values)`.")
