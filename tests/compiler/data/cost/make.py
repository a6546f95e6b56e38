"""Compiles the programs of published measurements for their chips and keeps the compiler's text of each.

Run with libtpu on a machine without a TPU: ``python make.py [NAME …]``. What it writes is what ``estimate`` reads:
the program after code generation. Of ``backend_config`` only the compiler's cycle counts and trip counts are kept.
"""

from __future__ import annotations

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
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

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
BF16, F32, I8, I32 = jnp.bfloat16, jnp.float32, jnp.int8, jnp.int32
Shape = tuple[tuple[int, ...], object]
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
    device = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices[0]
    sharding = SingleDeviceSharding(device)
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in shapes]
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
