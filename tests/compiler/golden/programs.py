"""Programs as people write them, small enough to be compiled as a whole in seconds.

Each is a function of a mesh that gives a jitted function and the types of its arguments; those of one device do not use
the mesh. Run as a script it lowers all of them for TPUs on the CPU and pickles what the compiler is to be asked:
``python programs.py DEVICES FILE``.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

Program = Callable[[Mesh], tuple[Callable, tuple]]


def on_one(mesh: Mesh, tree):
    """Types of a tree of (shape, type), all on the first device."""
    sharding = SingleDeviceSharding(mesh.devices.flat[0])
    return jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding),
        tree,
    )


def array(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(mesh: Mesh, batch: int = 512):
    """Three layers, mean square, plain gradient descent in donated memory."""

    def loss(params, x, y):
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = params[-1]
        return jnp.mean((x @ w + b - y) ** 2)

    def step(params, x, y):
        gradients = jax.grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)

    sizes = (784, 1000, 1000, 10)
    params = [(array(n, m), array(m)) for n, m in itertools.pairwise(sizes)]
    return jax.jit(step, donate_argnums=0), on_one(mesh, (params, array(batch, 784), array(batch, 10)))


def normalized(x, gain):
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16) * gain


def block(x, layer):
    """A transformer block of four heads."""
    batch, length, width = x.shape
    h = normalized(x, layer["gain"])
    q, k, v = (part.reshape(batch, length, 4, width // 4) for part in jnp.split(h @ layer["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / np.sqrt(width // 4)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores).astype(jnp.bfloat16)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["out"]
    return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def layers(*lead: int, width: int = 256) -> dict:
    shapes = {"gain": (width,), "qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    return {name: array(*lead, *shape, dtype=jnp.bfloat16) for name, shape in shapes.items()}


def transformer_scanned(mesh: Mesh):
    """Training step of six layers in a scan, checkpointed, with momentum."""

    def loss(params, x):
        x, _ = jax.lax.scan(lambda x, layer: (jax.checkpoint(block)(x, layer), None), x, params)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(params, momentum, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), momentum, gradients)
        return jax.tree.map(lambda p, m: (p - 0.01 * m).astype(p.dtype), params, momentum), momentum, value

    params = layers(6)
    momentum = jax.tree.map(lambda one: array(*one.shape), params)
    x = array(8, 256, 256, dtype=jnp.bfloat16)
    return jax.jit(step, donate_argnums=(0, 1)), on_one(mesh, (params, momentum, x))


def transformer_unrolled(mesh: Mesh):
    """Gradient of two layers written one after the other."""

    def loss(params, x):
        for layer in params:
            x = block(x, layer)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(loss)), on_one(mesh, ([layers(), layers()], array(4, 256, 256, dtype=jnp.bfloat16)))


def cnn(mesh: Mesh):
    """Two convolutions with pooling and a classifier, on images with three channels."""

    def logits(params, images):
        for kernel in params["kernels"]:
            images = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            images = jax.nn.relu(images)
            images = jax.lax.reduce_window(images, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return images.reshape(images.shape[0], -1) @ params["head"]

    def step(params, images, labels):
        def loss(params):
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits(params, images)) * labels, -1))

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    params = {"kernels": [array(3, 3, 3, 32), array(3, 3, 32, 64)], "head": array(8 * 8 * 64, 10)}
    return jax.jit(step), on_one(mesh, (params, array(64, 32, 32, 3), array(64, 10)))


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(784, 512, rngs=rngs)
        self.norm = nnx.LayerNorm(512, rngs=rngs)
        self.head = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.hidden(x))))


def flax_with_optax(mesh: Mesh):
    """A flax model trained with Adam, its state split off as flax's guides do it."""
    graph, params = nnx.split(nnx.eval_shape(lambda: Classifier(nnx.Rngs(0))))
    params = nnx.to_pure_dict(params)
    optimizer = optax.adam(1e-3)

    def step(params, state, x, labels):
        def loss(params):
            logits = nnx.call((graph, params))(x)[0]
            return optax.softmax_cross_entropy(logits, labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.eval_shape(optimizer.init, params)
    arguments = on_one(mesh, (params, state, array(256, 784), array(256, 10)))
    return jax.jit(step, donate_argnums=(0, 1)), arguments


def pallas_kernel(mesh: Mesh):
    """A kernel of the user's own between two products."""

    def scaled(x_ref, o_ref):
        o_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])

    def swish(x):
        tile = pl.BlockSpec((256, 1024), lambda i: (i, 0))
        kernel = pl.pallas_call(
            scaled, out_shape=array(*x.shape, dtype=x.dtype), grid=(x.shape[0] // 256,), in_specs=[tile], out_specs=tile
        )
        return kernel(x)

    def forward(x, up, down):
        return swish(x @ up) @ down

    return jax.jit(forward), on_one(mesh, (array(1024, 1000), array(1000, 1024), array(1024, 300)))


def sharded_block(mesh: Mesh):
    """Gradient of two layers whose weights are split over the mesh, batch whole."""

    def loss(params, x):
        for up, down in params:
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def split(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    params = [(split((512, 2048), None, "x"), split((2048, 512), "x", None)) for _ in range(2)]
    return jax.jit(jax.value_and_grad(loss)), (params, split((1024, 512), None, None))


def softmax_table(mesh: Mesh, batch: int = 64):
    """Normalized similarities of all pairs, which grow with the square of the batch."""

    def similarities(x):
        table = jax.nn.softmax(x @ x.T)
        return table @ x, table

    return jax.jit(similarities), on_one(mesh, (array(batch, 256),))


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        mlp,
        transformer_scanned,
        transformer_unrolled,
        cnn,
        flax_with_optax,
        pallas_kernel,
        sharded_block,
        softmax_table,
    )
}

GROWING: dict[str, tuple[Program, int, int, int]] = {
    "mlp": (mlp, 16384, 65536, 4194304),
    "softmax_table": (softmax_table, 1024, 4096, 131072),
}
"""Programs that stop fitting a v5e at some batch size: step of the size, and sizes between which that lies."""


def lowered(program: Program, mesh: Mesh, name: str, **sizes: int):
    from tpumagic.backends.jax.lowering import of_module

    function, arguments = program(mesh, **sizes)
    return of_module(name, function.trace(*arguments).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo"))


def main(file: Path, sizes: dict[str, list[int]]) -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",))
    asked = {name: lowered(program, mesh, name) for name, program in PROGRAMS.items()}
    for name, batches in sizes.items():
        for batch in batches:
            asked[f"{name} {batch}"] = lowered(GROWING[name][0], mesh, name, batch=batch)
    file.write_bytes(pickle.dumps(asked))


if __name__ == "__main__":
    main(Path(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
