"""Compiles the programs of published measurements, and others, for their chips and keeps the compiler's text of each.

Run with libtpu on a machine without a TPU: ``python make.py [NAME …]``; without names, what is not there yet. What it
writes is what ``estimate`` reads: the program after code generation. Of ``backend_config`` only the compiler's cycle
counts and trip counts are kept. Compiled with jax 0.10.2 and libtpu 0.0.42.1.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(
    JAX_PLATFORMS="cpu",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

HERE = Path(__file__).parent
TOPOLOGIES: dict[str, tuple[str, dict[str, str]]] = {
    "v2": ("v2:2x2", {}),
    "v3": ("v3:2x2", {}),
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x2", {}),
    "v5p": ("v5p:2x2x1", {}),
    "v6e": ("v6e:2x2", {}),
    "tpu7x": ("tpu7x:2x2x1", {}),
}
BF16, F32, F8, I8, I32 = jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn, jnp.int8, jnp.int32
Shape = tuple
"""Dimensions, type and, for a program of all devices of the topology, the mesh axes that its dimensions are split over."""
PROGRAMS: dict[str, tuple[str, Callable, tuple[Shape, ...]]] = {}
"""Name of the file -> chip, function, shapes and types of its arguments."""


def program(chip: str, name: str, *shapes: Shape) -> Callable[[Callable], Callable]:
    def keep(function: Callable) -> Callable:
        PROGRAMS[f"{chip}_{name}"] = (chip, function, shapes)
        return function

    return keep


def matmul(a, b):
    integers = jnp.issubdtype(a.dtype, jnp.integer)
    return jax.lax.dot(a, b, preferred_element_type=jnp.int32 if integers else a.dtype)


for n in (1024, 4096, 8192, 16384, 32768):
    program("v5e", f"matmul_bf16_{n}", ((n, n), BF16), ((n, n), BF16))(matmul)
program("v5e", "matmul_int8_32768", ((32768, 32768), I8), ((32768, 32768), I8))(matmul)
program("v5e", "matmul_f32_8192", ((8192, 8192), F32), ((8192, 8192), F32))(matmul)
program("v5e", "matmul_int32", ((512, 2048), I32), ((2048, 2048), I32))(lambda a, b: a @ b)
for m, k, n in (
    (256, 8192, 8192),
    (512, 8192, 8192),
    (1024, 8192, 8192),
    (2048, 8192, 8192),
    (4096, 8192, 8192),
    (8192, 8192, 8192),
    (2048, 4096, 4096),
):
    program("v6e", f"matmul_bf16_{m}x{k}x{n}", ((m, k), BF16), ((k, n), BF16))(matmul)
for m in (256, 2048):
    program("v6e", f"matmul_f32_{m}x8192x8192", ((m, 8192), F32), ((8192, 8192), F32))(matmul)
for m in (1024, 8192):
    program("v6e", f"matmul_int8_{m}x8192x8192", ((m, 8192), I8), ((8192, 8192), I8))(matmul)


@program("v5e", "matmul_of_a_layer", ((10, 1024, 2048), BF16), ((18, 2048, 8192), BF16), ((), I32))
def matmul_of_a_layer(x, w, i):
    return jax.lax.dot_general(
        x, jax.lax.dynamic_index_in_dim(w, i, keepdims=False), (((2,), (0,)), ((), ())), preferred_element_type=BF16
    )


@program("v5e", "matmul_transposed", ((32, 32, 8192), BF16), ((16384, 8192), BF16))
def matmul_transposed(x, w):
    return jnp.einsum("abd,fd->abf", x, w)


@program("v5e", "two_matrix_vector_products", ((1, 4096), BF16), ((4096, 8192), BF16), ((8192, 4096), BF16))
def two_matrix_vector_products(x, a, b):
    return (x @ a) @ b


@program("v2", "feed_forward_up", ((8, 1024, 8192), BF16), ((8192, 16384), BF16))
def feed_forward_up(x, w):
    return x @ w


@program("v2", "query_projection", ((8, 1024, 8192), BF16), ((8192, 8, 256), BF16))
def query_projection(x, w):
    return jnp.einsum("btd,dnh->btnh", x, w)


@program("v2", "attention_scores", ((8, 8, 1024, 256), BF16), ((8, 8, 1024, 256), BF16))
def attention_scores(q, k):
    return jnp.einsum("bnth,bnsh->bnts", q, k)


@program("v2", "softmax", ((8, 8, 1024, 1024), BF16))
def softmax(s):
    return jax.nn.softmax(s, axis=-1)


@program("v2", "attention_values", ((8, 8, 1024, 1024), BF16), ((8, 8, 1024, 256), BF16))
def attention_values(p, v):
    return jnp.einsum("bnts,bnsh->bnth", p, v)


@program("v2", "matrix_vector_product", ((1, 4096), BF16), ((4096, 8192), BF16))
def matrix_vector_product(x, w):
    return x @ w


@program("v2", "column_sum", ((64, 256, 50257), F32))
def column_sum(x):
    return x.sum((0, 1))


@program("v4", "cross_entropy", ((32768, 512), BF16), ((512, 128256), BF16), ((32768,), I32))
def cross_entropy(x, w, labels):
    logits = jax.lax.dot(x, w, preferred_element_type=F32)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


@program("v4", "cross_entropy_streaming", ((32768, 512), BF16), ((512, 129024), BF16), ((32768,), I32))
def cross_entropy_streaming(x, w, labels):
    block = 1024

    def body(i, carry):
        largest, total, picked = carry
        part = jax.lax.dynamic_slice_in_dim(w, i * block, block, 1)
        logits = jax.lax.dot(x, part, preferred_element_type=F32)
        logits = jnp.where(i * block + jnp.arange(block) < 128256, logits, -jnp.inf)
        new = jnp.maximum(largest, logits.max(-1))
        total = total * jnp.exp(largest - new) + jnp.exp(logits - new[:, None]).sum(-1)
        here = labels[:, None] == i * block + jnp.arange(block)
        return new, total, picked + jnp.where(here, logits, 0).sum(-1)

    zeros = jnp.zeros(x.shape[0])
    largest, total, picked = jax.lax.fori_loop(0, 126, body, (zeros - jnp.inf, zeros, zeros))
    return jnp.mean(jnp.log(total) + largest - picked)


@program("v4", "updates_in_a_loop", ((100, 32), F32), ((100, 100), F32))
def updates_in_a_loop(state, values):
    def body(i, state):
        return jax.vmap(lambda row, value: jax.lax.dynamic_update_slice(row, value[None], (i % 32,)))(state, values[i])

    return jax.lax.fori_loop(0, 100, body, state)


# Programs that no measurement is known of.

convolve = functools.partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"), padding="SAME")

program("v5e", "sort", ((1000000,), F32))(jnp.sort)
program("v5e", "top_k", ((64, 32000), F32))(lambda a: jax.lax.top_k(a, 16))
program("v5e", "gather", ((32000, 512), F32), ((4096,), I32))(lambda table, i: table[i])
program("v6e", "gather_scalars", ((100000,), I32), ((32768,), I32))(lambda table, i: table[i])
program("v5e", "scatter", ((32000, 512), F32), ((4096,), I32), ((4096, 512), F32))(lambda a, i, v: a.at[i].add(v))
program("v5e", "cumulative_sum", ((4096, 4096), F32))(lambda a: jnp.cumsum(a, 1))
program("v6e", "softmax_f32", ((8192, 4096), F32))(lambda x: jax.nn.softmax(x, -1))
program("v5e", "transpose", ((4096, 8192), F32))(lambda x: x.T + 0)
program("v5e", "transpose_outer", ((128, 64, 4096), BF16))(lambda x: x.transpose(1, 0, 2) * 2)
program("v5e", "precision_highest", ((2048, 2048), F32), ((2048, 2048), F32))(
    lambda a, b: jnp.dot(a, b, precision="highest")
)
program("v5e", "precision_high", ((2048, 2048), F32), ((2048, 2048), F32))(lambda a, b: jnp.dot(a, b, precision="high"))
program("tpu7x", "matmul_fp8", ((4096, 4096), F8), ((4096, 4096), F8))(
    lambda a, b: jax.lax.dot(a, b, preferred_element_type=F32)
)
program("v6e", "batched_matrix_vector", ((64, 1, 4096), BF16), ((64, 4096, 1024), BF16))(
    lambda a, b: jnp.einsum("bij,bjk->bik", a, b)
)
program("v6e", "batched_small_matmuls", ((4096, 64, 64), F32), ((4096, 64, 64), F32))(lambda a, b: a @ b)
program("v5e", "convolution", ((32, 56, 56, 64), BF16), ((3, 3, 64, 64), BF16))(
    lambda x, w: convolve(x, w, window_strides=(1, 1))
)
program("v5e", "convolution_gradient", ((32, 56, 56, 64), F32), ((3, 3, 64, 128), F32))(
    jax.grad(lambda x, w: (convolve(x, w, window_strides=(2, 2)) ** 2).sum(), argnums=(0, 1))
)
program("v5e", "convolution_depthwise", ((32, 56, 56, 256), BF16), ((3, 3, 1, 256), BF16))(
    lambda x, w: convolve(x, w, window_strides=(1, 1), feature_group_count=256)
)
program("v5e", "cholesky", ((256, 256), F32))(jnp.linalg.cholesky)
program("v5e", "random_normal", ((2,), jnp.uint32))(
    lambda key: jax.random.normal(jax.random.wrap_key_data(key), (4096, 4096))
)


@program("v6e", "layer_norm", ((8192, 4096), BF16), ((4096,), BF16))
def layer_norm(x, gain):
    scale = jax.lax.rsqrt(x.astype(F32).var(-1, keepdims=True) + 1e-6).astype(BF16)
    return (x - x.mean(-1, keepdims=True)) * scale * gain


@program("v5e", "max_pool_gradient", ((32, 112, 112, 64), F32))
def max_pool_gradient(x):
    def pooled(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").sum()

    return jax.grad(pooled)(x)


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / 8
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


for chip in ("v5p", "v6e", "tpu7x"):
    program(chip, "attention", *[((8, 1024, 16, 64), BF16)] * 3)(attention)


def layers(w, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]


program("v5e", "one_layer", ((2048, 2048), BF16), ((2048, 2048), BF16))(lambda w, x: jnp.tanh(x @ w))
program("v5e", "scan", ((24, 2048, 2048), BF16), ((2048, 2048), BF16))(layers)
program("v5e", "scan_in_loop", ((8, 2048, 2048), BF16), ((2048, 2048), BF16))(
    lambda w, x: jax.lax.fori_loop(0, 5, lambda _, x: layers(w, x), x)
)
program("v5e", "unknown_loop", ((2048, 2048), F32))(
    lambda x: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ x, x)
)
program("v5e", "conditional", ((), jnp.bool_), ((2048, 2048), BF16))(
    lambda which, x: jax.lax.cond(which, lambda x: x @ x, lambda x: x + 1, x)
)


@program("v5e", "pallas", ((2048, 2048), F32))
def pallas(x):
    def doubled(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    kernel = pl.pallas_call(
        doubled, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(8,),
        in_specs=[pl.BlockSpec((256, 2048), lambda i: (i, 0))], out_specs=pl.BlockSpec((256, 2048), lambda i: (i, 0)),
    )  # fmt: skip
    return kernel(x) @ x


@program("v5e", "collectives", ((2048, 8192), BF16, None, "x"), ((8192, 2048), BF16, "x", None))
def collectives(x, w):
    return x @ w


@program("v5e", "small_collective", ((32768, 8192), BF16, "x", None), ((8192, 8192), BF16, None, None))
def small_collective(x, w):
    return (x @ w).astype(F32).sum()


@program("v6e", "embedding_gradient", ((32000, 1024), BF16), ((8, 1024), I32))
def embedding_gradient(table, tokens):
    return jax.grad(lambda table: (table[tokens].astype(F32) ** 2).sum())(table)


def slimmed(text: str) -> str:
    """A program without those parts of ``backend_config`` that an estimate does not read."""

    def kept(line: str) -> str:
        start = line.find(", backend_config={")
        if start < 0:
            return line
        facts = re.findall(r'"estimated_cycles":"\d+"|"known_trip_count":\{"n":"\d+"\}', line[start:])
        return line[:start] + (f", backend_config={{{','.join(facts)}}}" if facts else "")

    text = re.sub(r', frontend_attributes=\{(?:[^{}"]|"[^"]*"|\{[^{}]*\})*\}', "", text)
    return "\n".join(map(kept, text.replace(str(HERE), "/example").split("\n")))


def compiled(chip: str, function: Callable, shapes: tuple[Shape, ...]) -> str:
    """The text of a function's program for one device of a chip, after code generation."""
    topology, options = TOPOLOGIES[chip]
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    mesh = Mesh(np.array(devices), ("x",))

    def argument(shape, dtype, *split):
        sharding = NamedSharding(mesh, PartitionSpec(*split)) if split else SingleDeviceSharding(devices[0])
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    arguments = [argument(*shape) for shape in shapes]
    return jax.jit(function).lower(*arguments).compile().as_text()


def main(names: list[str]) -> None:
    for name, (chip, function, shapes) in PROGRAMS.items():
        path = HERE / f"{name}.txt.gz"
        if name in names or (not names and not path.exists()):
            begin = time.monotonic()
            text = slimmed(compiled(chip, function, shapes))
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
            print(f"{name}: {time.monotonic() - begin:.1f} s, {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
