"""Whole cells through real JAX: what is told about the host, and what is not."""

from __future__ import annotations

import itertools
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

pytest.importorskip("jax")

from tpumagic.session import Cell, Session
from tpumagic.user_code import UserCode

SETUP = """
import contextlib, io, time
import numpy as np
import jax
import jax.numpy as jnp
step = jax.jit(lambda w: (w * 0.9, (w ** 2).mean()))
feed = jax.jit(lambda w, x: w + 1e-3 * (x @ w).mean())
w = v = jnp.ones(16)
log = []
step(w)
"""

_names = itertools.count()


def profile(source: str):
    """Findings of the family in a cell that runs after SETUP."""
    user_code, namespace = UserCode(), {"__name__": "__main__"}
    session = Session(user_code, lambda: namespace)
    report = None
    try:
        for count, text in enumerate((SETUP, source), 1):
            filename = f"<host cell of the test {next(_names)}>"
            user_code.add_cell(filename, count, text)
            session.start(Cell(text, count))
            exec(compile(text, filename, "exec"), namespace)
            report = session.finish()
    finally:
        session.close()
    assert report.unavailable == ()
    return [one for one in report.findings if one.kind.startswith("host.")]


LOUD = {
    "float": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    log.append(float(loss))  #!"),
    "item": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    log.append(loss.item())  #!"),
    "format": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    log.append(f'{loss:.3f}')  #!"),
    "asarray": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    log.append(np.asarray(loss))  #!"),
    "device_get": (
        "host.sync",
        "loss",
        "for _ in range(5):\n    w, loss = step(w)\n    log.append(jax.device_get(loss))  #!",
    ),
    "tree of metrics": (
        "host.sync",
        "metrics",
        (
            "score = jax.jit(lambda w: (w * 0.9, {'loss': w.mean(), 'top': w.max()}))\nfor _ in range(5):\n"
            "    w, metrics = score(w)\n    log.append({k: np.asarray(v) for k, v in metrics.items()})  #!"
        ),
    ),
    "device_get of metrics": (
        "host.sync",
        "metrics",
        (
            "score = jax.jit(lambda w: (w * 0.9, {'loss': w.mean(), 'top': w.max()}))\nfor _ in range(5):\n"
            "    w, metrics = score(w)\n    log.append(jax.device_get(metrics))  #!"
        ),
    ),
    "if": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    if loss > 9: break  #!"),
    "while": ("host.sync", "loss", "loss = 1.0\nwhile loss > 0.2:  #!\n    w, loss = step(w)"),
    "wait": ("host.sync", "loss", "for _ in range(5):\n    w, loss = step(w)\n    loss.block_until_ready()  #!"),
    "function": (
        "host.sync",
        "loss",
        "def fit(w, n):\n    for _ in range(n):\n        w, loss = step(w)\n        log.append(float(loss))  #!\nfit(w, 6)",
    ),
    "callback": (
        "host.callback",
        "host_sin",
        (
            "def host_sin(x): return np.sin(x).astype(x.dtype)\n@jax.jit\ndef g(x):\n"
            "    return jax.pure_callback(host_sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  #!\ng(w).block_until_ready()"
        ),
    ),
    "debug print": (
        "host.callback",
        "jax.debug.print",
        (
            "@jax.jit\ndef g(x):\n    jax.debug.print('{x}', x=x)  #!\n    return x * 2\n"
            "with contextlib.redirect_stdout(io.StringIO()):\n    for _ in range(3): y = g(w)\n    jax.effects_barrier()"
        ),
    ),
    "update": (
        "host.op_by_op",
        "update",
        (
            "def update(w, m, g):\n    m = 0.9 * m + 0.1 * g  #!\n    w = w - 0.01 * m / (jnp.sqrt((m * m).sum()) + 1e-6)\n"
            "    return jnp.clip(w, -1, 1), m\nm = g = w\nfor _ in range(3):\n    w, m = update(w, m, g)"
        ),
    ),
    "simulation": (
        "host.op_by_op",
        "The loop at line 3",
        (
            "x = w\nv = w * 0\nfor _ in range(6):\n    a = -jnp.sin(x) * 2.0  #!\n    v = v + 0.01 * a\n    x = x + 0.01 * v\n"
            "    e = 0.5 * (v ** 2).sum() + jnp.cos(x).sum()"
        ),
    ),
    "load": (
        "host.input_bound",
        "load",
        (
            "def load(i):\n    time.sleep(0.2)\n    return np.full((8, 16), i, np.float32)\n"
            "for i in range(5):\n    x = load(i)  #!\n    w = feed(w, x)"
        ),
    ),
    "generator": (
        "host.input_bound",
        "batches",
        (
            "def batches():\n    for i in range(5):\n        time.sleep(0.2)\n        yield np.full((8, 16), i, np.float32)\n"
            "for x in batches():  #!\n    w = feed(w, x)"
        ),
    ),
    "timer": ("host.timing_no_block", "step", "t = time.time()\nout = step(w)  #!\ntook = time.time() - t"),
    "timer that prints": (
        "host.timing_no_block",
        "step",
        (
            "@contextlib.contextmanager\ndef timer():\n    t = time.time()\n    yield\n    print(time.time() - t)\n"
            "with contextlib.redirect_stdout(io.StringIO()):\n    with timer():\n        out = step(w)  #!"
        ),
    ),
    "same input": (
        "host.input_transfer",
        "X",
        "X = np.ones((512, 16), np.float32)\nfor _ in range(5):\n    w = feed(w, X)  #!",
    ),
    "large input": ("host.implicit_transfer", "X", "X = np.ones((65536, 16), np.float32)\nw = feed(w, X)  #!"),
}


@pytest.mark.parametrize("case", LOUD)
def test_the_fault_is_found_on_its_line(case: str):
    kind, name, source = LOUD[case]
    (found,) = profile(source)
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "#!" in text)
    assert (found.kind, found.severity) == (kind, "warning")
    assert found.site is not None
    assert (found.site.cell, found.site.line) == (2, line)
    assert name in found.title


QUIET = {
    "losses read after the loop": (
        "losses = []\nfor _ in range(6):\n    w, loss = step(w)\n    losses.append(loss)\n"
        "for l in losses: log.append(float(l))\nlog.append(np.asarray(jnp.stack(losses)))"
    ),
    "every tenth step": "for i in range(40):\n    w, loss = step(w)\n    if i % 10 == 0: log.append(float(loss))",
    "once per epoch": (
        "for epoch in range(4):\n    for _ in range(3):\n        w, loss = step(w)\n    log.append(f'{epoch} {loss:.3f}')"
    ),
    "an evaluation per epoch": (
        "X = np.ones((64, 16), np.float32)\naccuracy = jax.jit(lambda w, X: (X @ w > 0).mean())\nfor epoch in range(4):\n"
        "    for _ in range(3):\n        w, loss = step(w)\n    acc = accuracy(w, X)\n    log.append(f'{epoch} {acc}')"
    ),
    "an epoch in one call": (
        "@jax.jit\ndef epoch(w, xs):\n    def body(w, x):\n        l = (x @ w) ** 2\n        return w - 0.01 * l, l\n"
        "    return jax.lax.scan(body, w, xs)\nxs = jnp.ones((8, 16))\nfor e in range(5):\n    w, losses = epoch(w, xs)\n"
        "    log.append(f'{losses.mean():.3f}')"
    ),
    "captured in a function made again": (
        "for i in range(4):\n    value, g = jax.jit(jax.value_and_grad(lambda w: (w * v).sum()))(w)\n    w = w - 0.1 * g"
    ),
    "layers made in a list": (
        "def block(k):\n    return {'a': jax.random.normal(k, (8, 24)) * 0.1, 'b': jnp.eye(8) + 0.0, 'c': jnp.ones((8, 3)) * 0.01,"
        " 'd': jnp.zeros(3) - 1, 'e': jnp.ones((3, 8)) * 2.0}\n"
        "blocks = [block(k) for k in jax.random.split(jax.random.key(0), 12)]"
    ),
    "a benchmark": (
        "for _ in range(6):\n    t = time.perf_counter()\n    jax.block_until_ready(step(w))\n    log.append(time.perf_counter() - t)"
    ),
    "setting up": (
        "key, params = jax.random.PRNGKey(0), []\nfor m, n in zip([8, 16, 16, 16], [16, 16, 16, 4]):\n"
        "    key, k = jax.random.split(key)\n"
        "    params.append((jax.random.normal(k, (m, n)) * jnp.sqrt(2.0 / m), jnp.zeros(n)))"
    ),
    "batches by index": (
        "xs = jnp.ones((64, 16))\nkey = jax.random.PRNGKey(0)\nfor i in range(5):\n    key, k = jax.random.split(key)\n"
        "    xb = xs[jax.random.permutation(k, 64)[:8]]\n    w = feed(w, xb)\n    m = w.mean()"
    ),
    "computed once": "x = jnp.linspace(0, 1, 50)\ny = jnp.sin(x) + 0.1 * jnp.cos(3 * x) - x ** 2 / 7\nlog.append(float(y.std()))",
    "batches made before": (
        "def load(i):\n    time.sleep(0.15)\n    return np.full((8, 16), i, np.float32)\n"
        "data = [load(i) for i in range(5)]\nfor x in data: w = feed(w, x)"
    ),
    "sleeping for another reason": "for _ in range(4):\n    w, loss = step(w)\n    time.sleep(0.2)",
    "timing that waits": "t = time.time()\nout = jax.block_until_ready(step(w))\ntook = time.time() - t",
    "slices of a small host array": "data = np.ones((96, 16), np.float32)\nfor i in range(0, 96, 32):\n    w = feed(w, data[i:i + 32])",
}


@pytest.mark.parametrize("case", QUIET)
def test_code_without_the_fault_is_quiet(case: str):
    assert profile(QUIET[case]) == []
