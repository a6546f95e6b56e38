"""Whole cells through real JAX: where precision is lost, and code like it where it is not."""

import itertools
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

pytest.importorskip("jax")

from tpumagic.session import Cell, Session
from tpumagic.user_code import UserCode

SETUP = """
import numpy as np
import jax
import jax.numpy as jnp
bf = jnp.bfloat16
key = jax.random.key(0)
w16 = jnp.ones((16, 16), bf) * 0.1
h16 = jnp.ones((8, 16), bf)
x16 = jnp.ones((64, 64), bf)
a = jnp.ones((256, 64)); b = jnp.ones((100, 64))
@jax.jit
def add(total, loss): return total + loss
def squared_error(p, x, y): return jnp.mean((x @ p['w'] + p['b'] - y).astype(jnp.float32) ** 2)
"""

_names = itertools.count()


def profile(source: str):
    """Findings of the family in a cell, after SETUP in the same notebook."""
    user_code, namespace = UserCode(), {}
    session = Session(user_code, lambda: namespace)
    report = None
    try:
        for count, text in enumerate((SETUP, source), 1):
            filename = f"<precision cell {next(_names)}>"
            user_code.add_cell(filename, count, text)
            session.start(Cell(text, count))
            exec(compile(text, filename, "exec"), namespace)
            report = session.finish()
    finally:
        session.close()
    return [one for one in report.findings if one.kind.startswith("precision.")]


def loud(source: str):
    return [one for one in profile(source) if one.severity != "info"]


SUMS = {
    "jitted": "total = jnp.zeros((), bf)\nfor _ in range(1000):\n    total = add(total, jnp.bfloat16(1))",
    "eager": "total = jnp.zeros((), bf)\nfor _ in range(200):\n    total += jnp.bfloat16(0.5)  #!",
    "unknown length": "total = jnp.bfloat16(0)\nfor v in iter([jnp.bfloat16(0.4)] * 80):\n    total = total + v  #!",
    "scan": "def f(xs):\n    def body(total, x):\n        return total + x, None  #!\n"
    "    return jax.lax.scan(body, jnp.zeros((), bf), xs)[0]\njax.jit(f)(jnp.ones(1000, bf))",
    "dictionary": "def f(x):\n    def body(i, s):\n        return {'total': s['total'] + x[i], 'n': s['n'] + 1}  #!\n"
    "    return jax.lax.fori_loop(0, x.shape[0], body, {'total': jnp.zeros((), bf), 'n': 0})\njax.jit(f)(jnp.ones(512, bf))",
    "while": "@jax.jit\ndef f(x, stop):\n    def body(s):\n        n, total = s\n        return n + 1, total + x  #!\n"
    "    return jax.lax.while_loop(lambda s: s[0] < stop, body, (0, jnp.zeros((), bf)))[1]\nf(jnp.bfloat16(0.1), 9)",
    "state": "@jax.jit\ndef update(state, loss):\n    return {'total': state['total'] + loss, 'n': state['n'] + 1}  #!\n"
    "state = {'total': jnp.zeros((), bf), 'n': 0}\nfor _ in range(100):\n    state = update(state, jnp.bfloat16(1))",
    "attribute": "class Meter: pass\nmeter = Meter(); meter.total = jnp.zeros((), bf)\nfor _ in range(200):\n"
    "    meter.total = meter.total + jnp.bfloat16(0.5)  #!",
    "gradients": "@jax.jit\ndef f(w, xs):\n    def body(total, x):\n        g = jax.grad(lambda w: (x @ w).sum())(w)\n"
    "        total = total + g  #!\n        return total, None\n    return jax.lax.scan(body, jnp.zeros_like(w), xs)[0]\n"
    "f(w16, jnp.ones((256, 8, 16), bf))",
}  # fmt: skip


@pytest.mark.parametrize("case", SUMS)
def test_a_long_running_sum_in_16_bits_is_told_at_its_line(case) -> None:
    (finding,) = loud(SUMS[case])
    assert finding.kind == "precision.bf16_accumulate"
    assert "total" in finding.title
    if case != "jitted":
        assert finding.site.line == 1 + next(n for n, line in enumerate(SUMS[case].splitlines()) if "#!" in line)


NO_SUMS = {
    "float32": "total = jnp.zeros(())\nfor _ in range(200):\n    total = add(total, jnp.bfloat16(1))",
    "python float": "total = 0.0\nfor _ in range(200):\n    total += float(jnp.bfloat16(1))",
    "integer": "n = jnp.zeros((), jnp.int32)\nfor _ in range(200):\n    n = n + 1",
    "few microbatches": "g = w16\nfor x in range(8):\n    g = add(g, w16)",
    "few microbatches in a list": "batches = jnp.split(h16, 4)\ng = jnp.zeros((2, 16), bf)\nfor x in batches:\n    g = add(g, x)",
    "short scan": "jax.jit(lambda xs: jax.lax.scan(lambda g, x: (g + x, None), jnp.zeros(4, bf), xs)[0])(jnp.ones((16, 4), bf))",
    "residual in a scan": "jax.jit(lambda h, ws: jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), h, ws)[0])(h16, jnp.ones((128, 16, 16), bf))",
    "residual through another carry": "def f(h):\n    def body(i, s):\n        h, y = s\n        return h + y, jnp.sin(h)\n"
    "    return jax.lax.fori_loop(0, 100, body, (h, h))\njax.jit(f)(h16)",
    "residual outside": "h = h16\nfor _ in range(100):\n    y = jnp.tanh(h @ w16)\n    h = h + y",
    "residual through a list": "h, outs = h16, []\nfor _ in range(100):\n    outs.append(jnp.sin(h))\n    h = h + outs[-1]",
    "residual through a jitted add": "h = h16\nfor _ in range(100):\n    y = jnp.tanh(h @ w16)\n    h = add(h, y)",
    "compensated": "def f(xs):\n    def body(c, x):\n        s, e = c\n        y = x - e\n        t = s + y\n        return (t, (t - s) - y), None\n"
    "    return jax.lax.scan(body, (jnp.zeros((), bf), jnp.zeros((), bf)), xs)[0][0]\njax.jit(f)(jnp.ones(1000, bf))",
    "jnp.sum": "jax.jit(lambda x: (x.sum(), x.mean(), jnp.var(x), jax.nn.softmax(x)))(jnp.ones(5000, bf))",
    "gradient of a long scan": "def f(w, xs):\n    def cell(h, x): return jnp.tanh(h @ w + x), None\n"
    "    return jax.lax.scan(cell, h16, xs)[0].astype(jnp.float32).sum()\njax.jit(jax.grad(f))(w16, jnp.ones((100, 8, 16), bf))",
    "cache": "@jax.jit\ndef decode(cache, i): return cache.at[i].set(i * 2)\nc = jnp.zeros((128, 16), bf)\nfor i in range(100):\n    c = decode(c, i)",
    "one call": "add(jnp.zeros((), bf), jnp.bfloat16(1))",
}  # fmt: skip


@pytest.mark.parametrize("case", NO_SUMS)
def test_what_only_looks_like_a_running_sum_is_not_told(case) -> None:
    assert loud(NO_SUMS[case]) == []


STEP = """@jax.jit
def step(params, x, y):
    grads = jax.grad(squared_error)(params, x, y)
    return jax.tree.map(lambda p, g: p - {rate} * g, params, grads)
params = {{'w': jnp.ones((16, 4), {dtype}), 'b': jnp.zeros(4, {dtype})}}
for _ in range(10):
    params = step(params, h16, jnp.ones((8, 4), bf))
"""

UPDATES = {
    "loop": "def train(w):\n    return jax.lax.fori_loop(0, 100, lambda i, w: w - jnp.asarray(1e-3, w.dtype) * jnp.sign(w), w)\njax.jit(train)(w16)",
    "training step": STEP.format(rate=0.01, dtype="bf"),
    "average": "@jax.jit\ndef average(ema, w): return 0.999 * ema + 0.001 * w\nema = w16\nfor _ in range(20):\n    ema = average(ema, w16)",
    "average by difference": "@jax.jit\ndef average(ema, w): return ema + 0.001 * (w - ema)\nema = w16\nfor _ in range(20):\n    ema = average(ema, w16)",
    "in float32 and back": "@jax.jit\ndef step(w, g): return (w.astype(jnp.float32) - 1e-3 * g.astype(jnp.float32)).astype(w.dtype)\n"
    "w = w16\nfor _ in range(20):\n    w = step(w, w16)",
    "eager": "rate = 1e-3\nw = w16\nfor _ in range(50):\n    w = w - rate * jnp.ones_like(w)",
    "eager tree": "ps = {'w': w16}\nfor _ in range(50):\n    ps = jax.tree.map(lambda p, g: p - 1e-3 * g, ps, ps)",
}  # fmt: skip


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_below_the_spacing_of_16_bits_is_told(case) -> None:
    (finding,) = loud(UPDATES[case])
    assert finding.kind == "precision.bf16_update_lost"
    assert finding.facts["dtype"] == "bfloat16"


NO_UPDATES = {
    "float32": UPDATES["loop"].replace("(w16)", "(w16.astype(jnp.float32))"),
    "float32 weights, computed in bf16": STEP.format(rate=0.01, dtype="jnp.float32"),
    "large step": STEP.format(rate=0.5, dtype="bf"),
    "one call of a formula": "@jax.jit\ndef axpy(x, y): return x + 1e-3 * y\nz = axpy(h16, h16)",
    "an epsilon": "@jax.jit\ndef norm(x): return x / (jnp.mean(x) + 1e-6)\nz = h16\nfor _ in range(5):\n    z = norm(z)",
    "denoising": "@jax.jit\ndef denoise(x, t): return x - 0.1 * jnp.tanh(x) * t\nx = h16\nfor i in range(20):\n    x = denoise(x, jnp.bfloat16(i / 50))",
}  # fmt: skip


@pytest.mark.parametrize("case", NO_UPDATES)
def test_other_updates_are_not_told(case) -> None:
    assert loud(NO_UPDATES[case]) == []


SCHEDULES = {
    "cosine": "def rate(i): return 1e-3 * 0.5 * (1 + jnp.cos(jnp.pi * i / 1000))",
    "linear": "def rate(i): return 1e-3 * (1 - jnp.clip(i, 0, 100) / 100)",
    "warm-up": "def rate(i): return jnp.where(i < 10, 1e-4 * jnp.minimum(i, 10), 1e-3)",
    "decay": "def rate(i): return 1e-3 * 0.9 ** (i / 100)",
}
STEP = """
@jax.jit
def step(w, i, x):
    g = jax.grad(lambda w: jnp.mean((x * w) ** 2))(w)
    return (w - rate(i) * g).astype(w.dtype)  #!
w = jnp.ones(16, bf)
for i in range(8):
    w = step(w, i, h16)
"""


@pytest.mark.parametrize("case", SCHEDULES)
def test_a_learning_rate_of_a_schedule_is_taken_at_its_largest(case) -> None:
    (finding,) = loud(SCHEDULES[case] + STEP)
    assert (finding.kind, finding.site.line) == ("precision.bf16_update_lost", 5)
    assert finding.facts["factor"] == 0.001


@pytest.mark.parametrize("rate", ["i", "jnp.exp(i)", "0.5 * (1 + jnp.cos(i))"])
def test_a_rate_that_is_large_or_has_no_bound_is_not_told(rate) -> None:
    assert loud(f"def rate(i): return {rate}" + STEP) == []


def test_a_learning_rate_that_is_passed_is_read_at_the_call() -> None:
    source = (
        "@jax.jit\ndef step(w, x, lr):\n    g = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)\n    return (w - lr * g).astype(bf)\n"
        "RATE = 1e-3\nw = jnp.ones((16, 2), bf)\nfor i in range(20):\n    w = step(w, h16, RATE)"
    )
    (finding,) = loud(source)
    assert (finding.kind, finding.site.line, finding.facts["factor"]) == ("precision.bf16_update_lost", 4, 0.001)
    assert loud(source.replace("RATE = 1e-3", "RATE = 0.5")) == []


def test_weights_and_optimizer_state_make_one_finding() -> None:
    pytest.importorskip("optax")
    (finding,) = loud(
        "import optax\ntx = optax.adamw(1e-3)\nparams = {'w': jnp.ones((16, 4), bf), 'b': jnp.zeros(4, bf)}\n"
        "opt = tx.init(params)\n@jax.jit\ndef train(params, opt, x, y):\n"
        "    loss, grads = jax.value_and_grad(squared_error)(params, x, y)\n"
        "    updates, opt = tx.update(grads, opt, params)\n    return optax.apply_updates(params, updates), opt, loss\n"
        "for _ in range(5):\n    params, opt, loss = train(params, opt, h16, jnp.ones((8, 4), bf))"
    )
    assert finding.title == (
        "`params['w']` and 3 more are updated in bfloat16 by something scaled with 0.001: a change below 1/256 of a "
        "value is rounded away."
    )
    assert finding.site.line == 9
    assert [site.line for site in finding.related] == [11, 8]
    assert "a float32 copy of `params`" in finding.fix


CANCELLATIONS = {
    "powers": "@jax.jit\ndef f(x, y): return (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T\nf(a, b)",
    "to itself": "@jax.jit\ndef f(x):\n    sq = jnp.sum(x * x, axis=1)\n    d = sq[:, None] - 2 * jnp.dot(x, x.T) + sq[None, :]\n    return jnp.sqrt(jnp.maximum(d, 0))\nf(a)",
    "einsum": "@jax.jit\ndef f(x, y):\n    xx, yy = jnp.einsum('id,id->i', x, x), jnp.einsum('jd,jd->j', y, y)\n"
    "    return jnp.exp(-(xx[:, None] + yy[None] - 2.0 * jnp.einsum('id,jd->ij', x, y)))\nf(a, b)",
    "vmap": "def f(x, y): return jnp.sum(jnp.square(x)) + jnp.sum(jnp.square(y)) - 2 * jnp.dot(x, y)\n"
    "jax.jit(jax.vmap(jax.vmap(f, (None, 0)), (0, None)))(a, b)",
}  # fmt: skip


@pytest.mark.parametrize("case", CANCELLATIONS)
def test_squared_distances_by_a_product_are_told(case) -> None:
    (finding,) = loud(CANCELLATIONS[case])
    assert finding.kind == "precision.matmul_cancellation"
    assert finding.title == (
        "`f` takes squared distances as |x|² + |y|² - 2xy, and on a TPU the product xy is multiplied in bfloat16: small "
        "distances drown in its error and can come out negative."
    )


@pytest.mark.parametrize(
    "source",
    [
        "@jax.jit\ndef f(x, y): return (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * jnp.dot(x, y.T, precision='highest')\nf(a, b)",
        "@jax.jit\ndef f(x, y): return ((x[:, None] - y[None]) ** 2).sum(-1)\nf(a, b)",
        "@jax.jit\ndef f(w, x, y): return ((x @ w - y) ** 2).sum() + 0.1 * (w**2).sum()\njax.grad(f)(jnp.ones((64, 3)), a, jnp.ones((256, 3)))",
        "@jax.jit\ndef f(x, y): return (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 3 * x @ y.T\nf(a, b)",
    ],
)
def test_other_products_and_distances_are_not(source) -> None:
    assert loud(source) == []


def test_a_float32_product_at_default_precision_is_an_info_at_its_line() -> None:
    (finding,) = profile("@jax.jit\ndef f(x, y):\n    return x @ y\nf(a, b.T)")
    assert (finding.kind, finding.severity, finding.count) == ("precision.default_matmul", "info", 1)
    assert (finding.site.line, [site.line for site in finding.related]) == (3, [4])
    assert finding.title == (
        "`f` multiplies float32 in bfloat16 on a TPU: 1 product at default precision (the sums stay float32)."
    )
    assert finding.detail == (
        "Largest: float32[256,64] × float32[64,100]. The relative error is about 2e-3, where a CPU has about 1e-7."
    )
    assert finding.fix == (
        "Where that matters, give this product `precision='highest'` (4 to 6 times slower there) or set "
        "`jax.default_matmul_precision('float32')` around the call; training seldom needs it."
    )


def test_forty_shapes_of_one_product_make_one_finding() -> None:
    source = "@jax.jit\ndef f(x, y): return x @ y\nfor n in range(2, 10):\n    f(jnp.ones((n, 4)), jnp.ones((4, 4)))"
    assert [finding.kind for finding in profile(source)] == ["precision.default_matmul"]


@pytest.mark.parametrize(
    "source",
    [
        "jax.jit(lambda x, y: jnp.dot(x, y, precision='highest'))(a, b.T)",
        "with jax.default_matmul_precision('float32'):\n    jax.jit(lambda x, y: x @ y)(a, b.T)",
        "jax.jit(lambda x: x @ x)(x16)",
        "jax.jit(lambda x, v: x @ v)(a, b[0])",
        "jax.jit(lambda x: x * 2 + 1)(a)",
        "jnp.linalg.inv(jnp.eye(8)); jax.random.normal(key, (8, 8))",
    ],
)
def test_products_that_are_precise_or_meant_to_be_bf16_are_not_told(source) -> None:
    assert profile(source) == []


PROMOTIONS = {
    "numpy number": "@jax.jit\ndef f(x):\n    return x * np.float32(0.5)\nf(x16)",
    "argument": "@jax.jit\ndef f(x, s):\n    return x * s + 1\nf(x16, jnp.float32(0.5))",
    "eager": "\n\ny = x16 * np.float32(0.5)",
}


@pytest.mark.parametrize("case", PROMOTIONS)
def test_an_array_raised_to_float32_by_one_number_is_told(case) -> None:
    (finding,) = loud(PROMOTIONS[case])
    assert (finding.kind, finding.site.line) == ("precision.promotion", 3)
    assert finding.title == "bfloat16[64,64] becomes float32 because it meets a float32 number."
    assert finding.detail == "From here on the result takes twice the bytes."
    assert finding.fix == (
        "Use a plain Python number, which takes the array's type, or convert the number: `.astype(jnp.bfloat16)`."
    )


def test_an_array_that_meets_a_float32_array_is_an_info() -> None:
    (finding,) = profile("@jax.jit\ndef f(h, x): return h + x\nf(jnp.ones((64, 64)), x16)")
    assert (finding.kind, finding.severity) == ("precision.promotion", "info")
    assert finding.title == "bfloat16[64,64] becomes float32 because it meets float32[64,64]."


BEFORE_WEIGHTS = {
    "mask": "w = jnp.ones((64, 64), bf)\n@jax.jit\ndef f(x, w, mask): return jnp.dot(x * mask, w)  #!\nf(x16, w, jnp.ones((64, 1)))",
    "position table": "pos = np.ones((64, 64), np.float32)\n@jax.jit\ndef f(x, w):\n    h = x + pos  #!\n    return jax.nn.gelu(h) @ w\nf(x16, x16)",
    "norm parameters": "def norm(x, p): return (x - x.mean(-1, keepdims=True)) * p['scale'] + p['bias']  #!\n"
    "@jax.jit\ndef f(x, p, w): return norm(x, p) @ w\nf(x16, {'scale': jnp.ones(64), 'bias': jnp.ones(64)}, x16)",
}  # fmt: skip


@pytest.mark.parametrize("case", BEFORE_WEIGHTS)
def test_an_array_raised_in_front_of_16_bit_weights_is_told(case) -> None:
    source = BEFORE_WEIGHTS[case]
    (finding,) = loud(source)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "#!" in text)
    assert (finding.kind, finding.severity, finding.site.line) == ("precision.promotion", "warning", line)
    assert finding.detail == (
        "From here on the result takes twice the bytes, and a later product raises its bfloat16[64,64] as well."
    )


def test_float32_weights_after_a_raised_array_are_meant() -> None:
    source = "@jax.jit\ndef f(x, mask, w): return (x * mask) @ w\nf(x16, jnp.ones((64, 1)), jnp.ones((64, 64)))"
    assert loud(source) == []


ISLANDS = {
    "python number": "jax.jit(lambda x: x * 0.5)(x16)",
    "layer norm": "@jax.jit\ndef f(x, g):\n    y = x.astype(jnp.float32)\n    m, v = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)\n"
    "    return ((y - m) * jax.lax.rsqrt(v + 1e-6) * g).astype(x.dtype)\nf(x16, jnp.ones(64))",
    "loss": "@jax.jit\ndef f(logits, labels):\n    p = jax.nn.log_softmax(logits.astype(jnp.float32))\n"
    "    return -jnp.take_along_axis(p, labels[:, None], 1).mean()\nf(x16, jnp.zeros(64, jnp.int32))",
    "rounded at once": "jax.jit(lambda x: (x * np.float32(0.5)).astype(bf))(x16)",
    "rounded at once outside": "y = (x16 * np.float32(0.5)).astype(bf)",
    "small": "jax.jit(lambda x: x * np.float32(0.5))(jnp.ones(4, bf))",
    "cast on the line": "jax.jit(lambda x: x.astype(jnp.float32) * np.float32(0.5))(x16)",
}  # fmt: skip


@pytest.mark.parametrize("case", ISLANDS)
def test_float32_that_is_meant_is_not_told(case) -> None:
    assert [one for one in profile(ISLANDS[case]) if one.kind == "precision.promotion"] == []


def test_a_library_that_computes_in_float32_is_not_told() -> None:
    linen = pytest.importorskip("flax.linen")
    assert linen
    source = "import flax.linen as nn\nlayer = nn.LayerNorm(dtype=bf)\nv = layer.init(key, x16)\ny = layer.apply(v, x16)\njax.jit(layer.apply)(v, x16)"
    assert profile(source) == []


def test_a_number_beyond_float16_is_told_with_the_number() -> None:
    found = profile(
        "@jax.jit\ndef mask(s, keep):\n    return jnp.where(keep, s, -1e9)\nmask(jnp.ones((8, 8), jnp.float16), jnp.ones((8, 8), bool))"
    )
    assert [(one.kind, one.severity, one.site.line) for one in found] == [
        ("precision.fp16_overflow", "warning", 3), ("precision.fp16_use", "info", 3),
    ]  # fmt: skip
    assert found[0].title == "1e+09 becomes infinite in float16, which ends at 65,504."
    assert found[0].detail == "`mask` uses it with float16[8,8]."
    assert found[0].fix == (
        "Use bfloat16 or float32 here; to mask values, `jnp.finfo(x.dtype).min` is the lowest finite number."
    )
    assert found[1].title == (
        "`mask` computes in float16 (1 operation): a TPU has no float16 units, and float16 ends at 65,504."
    )


@pytest.mark.parametrize("number", ["-jnp.inf", "jnp.finfo(s.dtype).min", "-6e4"])
def test_an_infinity_that_is_meant_is_not_told(number) -> None:
    assert loud(f"jax.jit(lambda s: jnp.where(s > 0, s, {number}))(jnp.ones((8, 8), jnp.float16))") == []


def test_float64_in_a_program_is_an_info() -> None:
    found = profile("with jax.experimental.enable_x64() if hasattr(jax.experimental, 'enable_x64') else jax.enable_x64(True):\n"
                    "    y = jax.jit(lambda x: jnp.sin(x) * 2)(np.ones(8))")  # fmt: skip
    (finding,) = [one for one in found if one.kind == "precision.f64_emulated"]
    assert finding.severity == "info"
    assert finding.title == (
        "`<lambda>` computes in float64 (2 operations): a TPU has no float64 and imitates it with several float32 "
        "operations each."
    )


@pytest.mark.parametrize(
    "source",
    [
        "\ny = jnp.cumsum(jnp.ones(5000, bf))",
        "@jax.jit\ndef f(p): return jnp.cumsum(p, axis=-1)\nf(jnp.ones((2, 5000), bf))",
    ],
)
def test_a_long_cumulative_sum_in_16_bits_is_told(source) -> None:
    (finding,) = loud(source)
    assert (finding.kind, finding.site.line) == ("precision.bf16_accumulate", 2)
    assert finding.title == (
        "`cumsum` over 5,000 values runs in bfloat16: partial sums have 8 significant bits, so whole numbers above 256 "
        "run together."
    )
    assert finding.fix == "Let it sum in float32: `jnp.cumsum(x, dtype=jnp.float32)`."


@pytest.mark.parametrize(
    "source",
    [
        "jnp.cumsum(jnp.ones(100, bf))",
        "jnp.cumsum(jnp.ones(5000, bf), dtype=jnp.float32)",
        "jnp.cumsum(jnp.ones((5000, 8), bf), axis=1)",
    ],
)
def test_other_cumulative_sums_are_not_told(source) -> None:
    assert loud(source) == []


def test_large_identifiers_in_a_batch_are_told_where_the_batch_is_placed() -> None:
    (finding,) = loud(
        "batch = {'id': np.array([10_000_000_000, 3], np.int64), 'x': np.ones(2)}\ndev = jax.device_put(batch)"
    )
    assert (finding.kind, finding.site.line) == ("precision.int64_truncated", 2)


def test_the_texts_of_a_running_sum() -> None:
    (finding,) = loud("total = jnp.zeros((), bf)\nfor _ in range(1000):\n    total = add(total, jnp.bfloat16(1))")
    assert finding.title == (
        "The running sum `total` is kept in bfloat16: once it is 256 times as large as what is added, adding changes "
        "nothing."
    )
    assert finding.detail == "bfloat16[], added to 1,000 times; every addition is rounded to bfloat16."
    assert finding.fix == (
        "Start `total` in float32 (`dtype=jnp.float32`) and convert the result at the end; what is added may stay bfloat16."
    )
    assert [site.line for site in finding.related] == [3]


def test_the_texts_of_a_lost_update() -> None:
    (finding,) = loud(UPDATES["loop"])
    assert finding.title == (
        "`w` is updated in bfloat16 by something scaled with 0.001: a change below 1/256 of a value is rounded away."
    )
    assert finding.detail == (
        "bfloat16[16,16] is rounded to bfloat16 after every update, so steps smaller than its spacing never add up."
    )
    assert finding.fix == "Keep a float32 copy of `w`, update that, and convert to bfloat16 only for the computation."
    assert finding.site.line == 2
    assert [site.line for site in finding.related] == [3]
