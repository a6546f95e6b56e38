"""Programs as users write them, whose plans the tests know. ``# <- name`` marks the lines that tests speak of."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def scanned(array, devices):
    def layer(x, w):
        h = jax.nn.gelu(x @ w.astype(jnp.float32))  # <- gelu
        return x + h @ w.T.astype(jnp.float32), None  # <- add

    def loss(w, x):
        return jax.lax.scan(layer, x, w)[0].sum()  # <- scan

    return jax.grad(loss), (array(48, 2048, 8192, dtype="bfloat16"), array(8192, 2048))


def scanned_remat(array, devices):
    def layer(x, w):
        h = jax.nn.gelu(x @ w)  # <- remat gelu
        return x + h @ w.T, None  # <- remat add

    def loss(w, x):
        return jax.lax.scan(jax.checkpoint(layer), x, w)[0].sum()

    return jax.grad(loss), (array(24, 1024, 4096), array(8192, 1024))


def adam(array, devices):
    def step(state, g):
        p, m, v = state
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        return p - m / (jnp.sqrt(v) + 1e-8), m, v  # <- adam

    return step, (tuple(array(1 << 30) for _ in range(3)), array(1))


def adam_donated(array, devices):
    return jax.jit(adam(array, devices)[0], donate_argnums=0), adam(array, devices)[1]


def logits(array, devices):
    def loss(h, w, y):
        logits = (h @ w).astype(jnp.float32)  # <- logits
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    arguments = array(65536, 2048, dtype="bfloat16"), array(2048, 256000, dtype="bfloat16"), array(65536, dtype="int32")
    return jax.grad(loss, (0, 1)), arguments


def regroup(array, devices):
    def regroup(x):
        return x.reshape(-1, 8, 4).transpose(2, 0, 1).sum(0)  # <- regroup

    return regroup, (array(4_000_000, 8),)


def points(array, devices):
    def centred(p):
        return p - p.mean(0)  # <- centred

    return centred, (array(30_000_000, 3),)


def lstm(array, devices):
    def cell(carry, x, w):
        h, c = carry
        z = jnp.concatenate([x, h], -1) @ w["kernel"] + w["bias"]  # <- gates
        i, f, g, o = jnp.split(z, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)  # <- cell state
        h = jax.nn.sigmoid(o) * jnp.tanh(c)  # <- hidden state
        return (h, c), h

    def loss(w, xs, ys):
        z = jnp.zeros((xs.shape[1], 512))
        _, hs = jax.lax.scan(lambda c, x: cell(c, x, w), (z, z), xs)
        return jnp.mean((hs @ w["out"] - ys) ** 2)  # <- readout

    weights = {"kernel": array(128 + 512, 2048), "bias": array(2048), "out": array(512, 32)}
    return jax.value_and_grad(loss), (weights, array(200, 256, 128), array(200, 256, 32))


def network(array, devices):
    """Layers one by one, so large that the compiler repeats some of them."""

    def layer(x, w):
        return jnp.tanh(x @ w) + x  # <- layer

    def loss(ws, x):
        for w in ws:
            x = layer(x, w)
        return (x**2).sum()

    return jax.grad(loss), ([array(4096, 4096) for _ in range(24)], array(65536, 4096))


def widened(array, devices):
    def f(x, index):
        wide = jnp.broadcast_to(x[:, None, :], (4096, 1024, 128))  # <- wide
        return wide.at[index, 0].add(1.0).sum(0)

    return f, (array(4096, 128), array(4096, dtype="int32"))


def zeros(array, devices):
    def f(index, rows):
        table = jnp.zeros((100_000, 512))
        return jnp.sort(table.at[index].add(rows), axis=0)[-8:]  # <- table

    return f, (array(4096, dtype="int32"), array(4096, 512))


def callbacks(array, devices):
    def f(x, w):
        y = x @ w  # <- product
        jax.debug.print("norm {} of {}", jnp.sum(y), jnp.max(y))  # <- print
        kept = jax.ShapeDtypeStruct((256, 256), "float32", sharding=y_sharding)
        z = jax.pure_callback(lambda a: np.asarray(a) * 2, kept, y)  # <- pure
        return z + 1

    arguments = array(256, 256), array(256, 256)
    y_sharding = arguments[0].sharding
    return f, arguments


def kernels(array, devices):
    def twice_kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2 + 1

    def f(x):
        block = pl.BlockSpec((64, 512), lambda i: (i, 0))
        call = partial(pl.pallas_call, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(4,))
        y = call(twice_kernel, in_specs=[block], out_specs=block)(x)  # <- twice
        return call(twice_kernel, in_specs=[block], out_specs=block, name="second")(y)  # <- second

    return f, (array(256, 512),)


def decompositions(array, devices):
    def f(a, x):
        c = jnp.linalg.cholesky(a)  # <- cholesky
        q = jnp.linalg.qr(a)[0]  # <- qr
        w = jnp.linalg.eigh(a)[0]  # <- eigh
        t = jax.lax.top_k(x, 8)[0]  # <- top_k
        s = jnp.sort(x, -1)  # <- sort
        return c, q, w, t, s, jnp.abs(jnp.fft.fft(x))

    return f, (array(256, 256), array(128, 4096))


def precisions(array, devices):
    def f(a, b, v, c):
        default = a @ b  # <- default
        highest = jnp.dot(a, b, precision="highest")  # <- highest
        high = jnp.dot(a, b, precision="high")  # <- high
        half = a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)  # <- half
        vector = a @ v  # <- vector
        kernel = jnp.ones((3, 3, 64, 64))
        conv = jax.lax.conv_general_dilated(  # <- convolution
            c, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        ints = jax.lax.dot(a.astype(jnp.int8), b.astype(jnp.int8), preferred_element_type=jnp.int32)  # <- ints
        return default, highest, high, half, vector, conv, ints

    return f, (array(1024, 1024), array(1024, 1024), array(1024), array(8, 32, 32, 64))


def sixty_four(array, devices):
    def f(x, n, a):
        y = jnp.sort(x * 2.0 + 1.0, axis=0)  # <- double
        return y.sum(), n * 3, a @ a.T  # <- double product

    return f, (array(8192, 8192, dtype="float64"), array(1_000_000, dtype="int64"), array(512, 512, dtype="float64"))


def sharded_weights(array, devices):
    mesh = Mesh(np.array(devices), ("x",))

    def placed(shape, *axes):
        return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*axes)))

    def layer(x, w):
        return jnp.tanh(x @ w), None  # <- sharded layer

    def loss(w, x):
        return jax.lax.scan(layer, x, w)[0].sum()

    return jax.grad(loss), (placed((12, 2048, 2048), None, "x"), placed((8192, 2048), "x"))


def accumulated(array, devices):
    def loss(w, x, y):
        h = jax.nn.relu(x @ w["in"])  # <- hidden
        return ((h @ w["out"] - y) ** 2).mean()

    def step(w, m, xs, ys):
        def body(g, xy):
            return jax.tree.map(jnp.add, g, jax.grad(loss)(w, *xy)), None

        g, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, w), (xs, ys))
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return jax.tree.map(lambda w, m: w - 0.01 * m, w, m), m

    w = {"in": array(512, 4096), "out": array(4096, 256)}
    return jax.jit(step, donate_argnums=1), (w, dict(w), array(16, 8192, 512), array(16, 8192, 256))


X64 = {"sixty_four"}
EIGHT_DEVICES = {"sharded_weights"}
