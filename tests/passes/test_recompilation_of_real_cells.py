"""Whole cells through real JAX: what is told about recompilations and compilations, and what is not."""

import itertools
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

pytest.importorskip("jax")

from tpumagic.session import Cell, Session
from tpumagic.user_code import UserCode

SETUP = """
import dataclasses
from functools import partial
import numpy as np
import jax
import jax.numpy as jnp
x = jnp.ones((8, 8))
v = jnp.arange(8.0)
class Cfg:
    def __init__(self, n): self.n = n
def make(n):
    @jax.jit
    def inner(a): return a - n
    return inner
"""

_names = itertools.count()


def profile(*cells: str):
    """Findings of the two families in the last of the cells, all run in one notebook."""
    user_code, namespace = UserCode(), {}
    session = Session(user_code, lambda: namespace)
    report = None
    try:
        for count, source in enumerate((SETUP, *cells), 1):
            filename = f"<cell of the test {next(_names)}>"
            user_code.add_cell(filename, count, source)
            session.start(Cell(source, count))
            exec(compile(source, filename, "exec"), namespace)
            report = session.finish()
    finally:
        session.close()
    return [one for one in report.findings if one.kind.startswith(("recompile.", "compile."))]


LOUD = {
    "recompile.weak_type": "@jax.jit\ndef acc(t, y): return t + y.sum()\nt = 0.0\nfor i in range(3):\n    t = acc(t, v)  #!",
    "recompile.static": "@partial(jax.jit, static_argnames='lr')\ndef sgd(w, lr): return w - lr * w\nfor i in range(3):\n    sgd(v, lr=0.1 / (i + 1))  #!",
    "recompile.static_identity": "@partial(jax.jit, static_argnums=1)\ndef scale(a, cfg): return a * cfg.n\nfor i in range(3):\n    scale(v, Cfg(2))  #!",
    "recompile.new_function": "for i in range(3):\n    make(i)(v)  #!",
    "recompile.evicted": "@jax.jit\ndef triple(a): return a * 3\ntriple(v)\njax.clear_caches()\ntriple(v)  #!",
    "recompile.options": "def double(a): return a * 2\njax.jit(double)(v)\njax.jit(double, donate_argnums=0)(v + 0)  #!",
    "recompile.pytree": "@jax.jit\ndef masked(a, mask=None): return a if mask is None else a * mask\nmasked(v)\nmasked(v, v > 2)  #!",
    "recompile.call_style": "@jax.jit\ndef product(a, b): return a @ b\nproduct(x, x)\nproduct(x, b=x)  #!",
    "recompile.context": "@jax.jit\ndef square(a): return a @ a\nsquare(x)\nwith jax.default_matmul_precision('highest'):\n    square(x)  #!",
    "recompile.committed": "@jax.jit\ndef inc(a): return a + 1\ninc(v)\ninc(jax.device_put(v, jax.devices()[0]))  #!",
    "recompile.dtype": "@jax.jit\ndef score(a): return (a * 2).sum()\nscore(v)\nscore(jnp.arange(8))  #!",
    "recompile.shape": "@jax.jit\ndef total(a): return a.sum()\nfor n in range(3, 8):\n    total(np.ones(n, np.float32))  #!",
    "recompile.static_field": "@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass S:\n    a: jax.Array\n    k: int = dataclasses.field(metadata=dict(static=True))\n@jax.jit\ndef field(s): return s.a * s.k\nfor i in range(3):\n    field(S(v, i))  #!",
    "compile.unrolled_loop": "@jax.jit\ndef deep(a):\n    for i in range(50):  #!\n        a = jnp.tanh(a @ x)\n    return a\ndeep(x)",
    "compile.captured_constant": "table = jnp.ones((1024, 512))\n@jax.jit\ndef look(a): return a @ table  #!\nlook(jnp.ones((2, 1024)))",
}  # fmt: skip


@pytest.mark.parametrize("kind", LOUD)
def test_a_fault_is_told_once_at_its_line_and_nothing_else(kind):
    source = LOUD[kind]
    line = next(i for i, text in enumerate(source.splitlines(), 1) if text.endswith("#!"))
    loud = [one for one in profile(source) if one.severity != "info"]
    assert [(one.kind, one.site.line) for one in loud] == [(kind, line)]


QUIET = {
    "a flag for training": "@partial(jax.jit, static_argnames='train')\ndef fwd(a, train): return a * 2 if train else a\nfor train in (True, False): fwd(v, train=train)",
    "models in a list": "models = [make(n) for n in (1, 2, 3)]\nfor m in models:\n    m(v)",
    "two instances": "class M:\n    def __init__(self, k):\n        self.k = k\n        self.f = jax.jit(self._f)\n    def _f(self, a): return a * self.k\n    @partial(jax.jit, static_argnums=0)\n    def g(self, a): return a + self.k\nfor m in (M(1), M(2)):\n    m.f(v)\n    m.g(v)",
    "different lambdas": "f = jax.jit(lambda a: a + 1)\ng = jax.jit(lambda a: a * 2)\nf(v); g(v)",
    "loss and gradient": "def loss(w): return (w ** 2).sum()\nf = jax.jit(loss)\ng = jax.jit(jax.grad(loss))\nf(v)\ng(v)\njax.grad(f)(v)\njax.jit(jax.vmap(loss))(x)",
    "activations": "for act in (jnp.tanh, jnp.sin):\n    jax.jit(lambda a: act(a) * 2)(v)",
    "warm-up": "@jax.jit\ndef predict(a): return a * 2\n# warm-up\nfor n in (1, 2, 4):\n    predict(jnp.zeros((n, 3)))",
    "ahead of time": "@jax.jit\ndef predict(a): return a * 2\nfor n in (1, 2, 4):\n    predict.lower(jnp.zeros((n, 3))).compile()",
    "one decorator": "def traced(fn):\n    @jax.jit\n    def wrapper(*a): return fn(*a)\n    return wrapper\n@traced\ndef f(a): return a + 1\n@traced\ndef g(a): return a * 3\nf(v)\ng(v)",
    "a train function for two models": "def fit(model, data):\n    @jax.jit\n    def step(p, a): return p - 0.1 * jax.grad(lambda p: model(p, a).sum())(p)\n    p = jnp.ones(8)\n    for a in data: p = step(p, a)\nfit(lambda p, a: p * a, [v, v])\nfit(lambda p, a: p + a, [v, v])",
    "eight micro-batches": "@jax.jit\ndef micro(w, xs): return sum(jax.grad(lambda w, a: (a @ w).sum())(w, xs[i]) for i in range(8))\nmicro(jnp.ones(8), jnp.ones((8, 4, 8)))",
    "loops of the device": "@jax.jit\ndef run(a):\n    a = jax.lax.fori_loop(0, 200, lambda i, a: jnp.sin(a), a)\n    return jax.lax.scan(lambda c, _: (jnp.cos(c), None), a, None, length=300)[0]\nfor i in range(100): run(x)",
    "many parameters": "ps = [jnp.ones(4)] * 100\n@jax.jit\ndef update(ps): return jax.tree.map(lambda p: p * 0.9 - 0.1, ps)\nfor i in range(50): ps = update(ps)",
    "NumPy and JAX arrays": "@jax.jit\ndef f(a): return a * 2\nf(np.ones(3, np.float32))\nf(jnp.ones(3))",
    "eager operations": "for n in range(2, 6): jnp.sum(jnp.ones(n) * 2)",
    "modes": "@partial(jax.jit, static_argnames='mode')\ndef pad(a, mode): return jnp.pad(a, 2, mode=mode)\nfor mode in ('edge', 'reflect', 'wrap'): pad(v, mode=mode)",
}  # fmt: skip


@pytest.mark.parametrize("name", QUIET)
def test_code_that_means_to_compile_is_left_alone(name):
    assert [(one.kind, one.title) for one in profile(QUIET[name]) if one.severity != "info"] == []


def test_running_a_cell_again_unchanged_is_told_and_an_edit_is_not():
    cell = "@jax.jit\ndef step(a): return jnp.sin(a @ a).sum()\nstep(x)"
    assert profile(cell) == []
    again = profile(cell, cell)
    assert [(one.kind, one.severity) for one in again] == [("recompile.redefined", "warning")]
    edited = profile(cell, cell.replace("sin", "cos"))
    assert [(one.kind, one.severity) for one in edited] == [("recompile.redefined", "info")]


def test_a_helper_of_an_earlier_cell_that_jits_anew_is_told_with_the_line_of_this_cell():
    (found,) = profile(
        "def run(a):\n    f = jax.jit(lambda b: jnp.sin(b))\n    return f(a)", "for i in range(3):\n    run(v)"
    )
    assert (found.kind, found.severity) == ("recompile.new_function", "warning")
    assert [(site.cell, site.line) for site in (found.site, *found.related)] == [(2, 3), (3, 2), (2, 2)]


def test_fields_of_other_libraries_classes_are_named():
    equinox = (
        "import equinox as eqx\nclass Net(eqx.Module):\n    a: jax.Array\n    rate: float = eqx.field(static=True)\n"
    )
    own = (
        "@jax.tree_util.register_pytree_node_class\nclass Net:\n    def __init__(self, a, rate): self.a, self.rate = a, rate\n"
        "    def tree_flatten(self): return (self.a,), (self.rate,)\n"
        "    @classmethod\n    def tree_unflatten(cls, aux, children): return cls(*children, *aux)\n"
    )
    pytest.importorskip("equinox")
    for definition, jit in ((equinox, "eqx.filter_jit"), (own, "jax.jit")):
        (found,) = profile(
            f"{definition}@{jit}\ndef drop(net): return net.a * net.rate\nfor r in (0.5, 0.25): drop(Net(v, r))"
        )
        assert found.title == ("`drop` was compiled again because static field `rate` of `net` changed: 0.5 -> 0.25.")


def test_the_line_that_empties_the_caches_is_told():
    (found,) = profile(LOUD["recompile.evicted"])
    assert found.detail.endswith("`jax.clear_caches()` drops it (line 4).")
    assert found.facts["dropped_by"] == "jax.clear_caches()"
    assert [site.line for site in found.related][:1] == [4]


def test_parameters_of_a_lambda_are_not_taken_for_captured_values():
    (found,) = profile(
        "w = v\nfor i in range(3):\n    g = jax.jit(jax.grad(lambda w: (w ** 2).sum()))(w)  #!\n    w = w - g"
    )
    assert (found.kind, "captured" in found.facts) == ("recompile.new_function", False)


def test_a_benchmark_over_sizes_means_to_compile_each():
    quiet = profile(
        "import time\ndouble = jax.jit(lambda a: a * 2)\ndef bench(f, a):\n    jax.block_until_ready(f(a))\n"
        "    t = time.perf_counter()\n    jax.block_until_ready(f(a))\n    return time.perf_counter() - t\n"
        "for n in (8, 16, 32): bench(double, jnp.ones(n))"
    )
    assert [one.kind for one in quiet if one.severity != "info"] == []


def test_the_turns_of_a_short_loop_are_not_counted_twice():
    quiet = profile(
        "ws = [x] * 10\n@jax.jit\ndef deep(a, ws):\n    for w in ws:\n        a = jnp.tanh((a @ w + 1) * (a @ w + 2)) + jnp.sin(a)\n"
        "    return a\ndeep(x, ws)"
    )
    assert quiet == []
