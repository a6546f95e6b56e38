"""What is read from a failed cell while its objects are alive."""

from __future__ import annotations

import gc
import linecache
import weakref

import jax
import jax.numpy as jnp
import pytest

from tpumagic.backends.jax.failures import failure
from tpumagic.user_code import UserCode


def facts(record) -> dict[str, str]:
    return dict(record.failure.facts)


@pytest.mark.parametrize(
    ("cell", "expression", "statement"),
    [
        ("x = jnp.ones(3)\nx.reshape(2,\n          2)\n", "x.reshape(2, 2)", "x.reshape(2,\n          2)"),
        ("for i in range(3):\n    if {}['a']:\n        pass\n", "{}['a']", "if {}['a']:"),
        ("größe = 1; größe + 'é' + 2\n", "größe + 'é'", "größe = 1; größe + 'é' + 2"),
        ("a = [k for k in [1]\n     if k / 0]\n", "k / 0", "a = [k for k in [1]\n     if k / 0]"),
    ],
)  # fmt: skip
def test_the_raising_expression_and_its_statement_are_quoted(failed_cell, cell, expression, statement):
    found = facts(failed_cell(cell))
    assert (found["expression"], found["statement"]) == (expression, statement)


def test_the_innermost_line_of_the_user_is_quoted_not_the_librarys(failed_cell):
    found = facts(failed_cell("def f(a):\n    return jnp.concatenate([a, 1])\n\nf(jnp.ones(3))\n"))
    assert found["expression"] == "jnp.concatenate([a, 1])"


def test_traced_names_are_told_with_their_types(failed_cell):
    cell = "@jax.jit\ndef f(x, p):\n    return x[p['mask']]\n\nf(jnp.ones((2, 3)), {'mask': jnp.ones((2, 3), bool)})\n"
    assert facts(failed_cell(cell))["traced"] == "x: float32[2,3]; p['mask']: bool[2,3]"


def test_deleted_arrays_are_found_inside_what_the_line_mentions(failed_cell):
    cell = (
        "step = jax.jit(lambda s: jax.tree.map(lambda a: a + 1, s), donate_argnums=0)\n"
        "state = {'params': {'w': jnp.ones(8), 'b': jnp.ones(4)}, 'lr': 0.1}\n"
        "step(state['params'])\nprint(state['params']['w'] + state['lr'])\n"
    )
    assert facts(failed_cell(cell))["deleted"] == "state['params']['w']"


def test_a_chained_exception_tells_its_cause(failed_cell):
    found = facts(failed_cell("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('outer') from e\n"))
    assert (found["cause_type"], found["cause"]) == ("KeyError", "'a'")


def test_properties_are_not_read_to_explain_a_failure(failed_cell):
    cell = (
        "class Trap:\n    @property\n    def params(self):\n        raise SystemExit\n"
        "    def __getattr__(self, name):\n        raise SystemExit\n"
        "trap = Trap()\nx = jnp.ones(3)\nx.delete()\nprint((lambda t: x + 1)(trap), trap)\n"
    )
    assert facts(failed_cell(cell))["deleted"] == "x"


def test_an_exception_that_cannot_print_itself_is_still_recorded(failed_cell):
    cell = "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError\n\nraise Odd\n"
    record = failed_cell(cell)
    assert (record.failure.type_name, record.failure.message) == ("Odd", "")


@pytest.mark.parametrize("mode", ["off", "tracebackhide", "remove_frames", "quiet_remove_frames"])
def test_every_way_of_filtering_tracebacks_gives_the_same_facts(failed_cell, mode):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        record = failed_cell("@jax.jit\ndef f(n):\n    return jnp.zeros(n)\n\nf(3)\n")
    finally:
        jax.config.update("jax_traceback_filtering", before)
    found = facts(record)
    assert (found["expression"], found["traced"]) == ("jnp.zeros(n)", "n: int32[]")
    assert "cause_type" not in found
    assert [site.line for site in record.failure.stack] == [5, 3]


def test_devices_are_told_apart_from_other_lists(failed_cell):
    import numpy as np

    cell = "devices = np.array(jax.devices())\ndevices.reshape(7, 9)\n"
    assert facts(failed_cell(cell))["device_list"] == "devices"
    assert "device_list" not in facts(failed_cell("numbers = np.arange(3)\nnumbers.reshape(7, 9)\n", np=np))


def test_nothing_of_the_user_is_kept():
    source = "def f(a):\n    return a + jnp.ones(7)\n\nf(x)\n"
    linecache.cache["/nonexistent/kept.py"] = (len(source), None, source.splitlines(True), "/nonexistent/kept.py")
    user_code = UserCode()
    user_code.add_cell("/nonexistent/kept.py", 1, source)
    namespace = {"jnp": jnp, "x": jnp.ones(3)}
    reference = weakref.ref(namespace["x"])
    try:
        exec(compile(source, "/nonexistent/kept.py", "exec"), namespace)
    except TypeError as error:
        told = failure(error, user_code.traceback_stack(error.__traceback__), namespace, user_code, id)
    assert told.type_name == "TypeError"
    namespace.clear()
    gc.collect()
    assert reference() is None
