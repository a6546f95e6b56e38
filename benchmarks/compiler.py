"""How long the TPU compiler takes to answer, how much of that is tpumagic's own, and what it takes of memory.

usage: compiler.py [ROUNDS]

The program is the training step of a transformer of 24 layers in a scan, for v5e-1. Times are the median of the rounds,
each with an empty cache; the processor time of tpumagic's own is told against that of the whole compile. Nothing is
asserted: it prints what it is. The goal is a plan within 3 s of a process that stands by, and a share below 5 %.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax._src.interpreters import mlir

from tpumagic.compiler import protocol
from tpumagic.compiler.compiles import Compile, Limits
from tpumagic.compiler.process import Worker
from tpumagic.compiler.service import BACKEND, Compiler
from tpumagic.compiler.targets import parse_target
from tpumagic.plans import Lowered

LAYERS, WIDTH, HEADS, SEQUENCE, BATCH, WORDS = 24, 1024, 16, 1024, 4, 32_000
TARGET = parse_target("v5e-1")


def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    """Attention and feed-forward."""

    def heads(name: str) -> jax.Array:
        return (x @ w[name]).reshape(*x.shape[:2], HEADS, -1)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("q"), heads("k")) / (WIDTH // HEADS) ** 0.5
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads("v")).reshape(x.shape)
    x = x + mixed @ w["o"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None


def loss(params: dict, tokens: jax.Array) -> jax.Array:
    """Of the next word."""
    x, _ = jax.lax.scan(jax.checkpoint(layer), params["words"][tokens], params["layers"])
    logits = jax.nn.log_softmax(x @ params["words"].T)
    return -jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], axis=-1).mean()


def step(params: dict, tokens: jax.Array) -> dict:
    """Gradient descent."""
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, tokens))


def lowered() -> tuple[Lowered, float]:
    """The program and how long it took to lower."""
    array = jax.ShapeDtypeStruct
    square, bf16 = (LAYERS, WIDTH, WIDTH), jnp.bfloat16
    layers = {name: array(square, bf16) for name in "qkvo"}
    layers |= {"up": array((LAYERS, WIDTH, 4 * WIDTH), bf16), "down": array((LAYERS, 4 * WIDTH, WIDTH), bf16)}
    params = {"words": array((WORDS, WIDTH), bf16), "layers": layers}
    began_s = time.perf_counter()
    traced = jax.jit(step, donate_argnums=0).trace(params, array((BATCH, SEQUENCE), jnp.int32))
    text: Any = traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    return Lowered("step", mlir.module_to_bytecode(text)), time.perf_counter() - began_s


def peak_bytes(pid: int) -> int:
    """The most memory a process had at once."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM"))


class Measured(Worker):
    """A process that remembers what it said of its own work."""

    own_s: float = 0.0

    def receive(self, timeout_s: float) -> protocol.Reply:
        reply = super().receive(timeout_s)
        self.own_s = reply.own_s if reply.own_s is not None else self.own_s
        return reply


def whole(program: Lowered) -> tuple[float, float, float, float, int, int]:
    """Of one compile to its cost: seconds to be ready, to the plan, to the cost; own processor time of plan and cost
    together; processor time of the process; its peak of memory."""
    began_s = time.perf_counter()
    worker = Measured(BACKEND)
    try:
        worker.make_ready(120)
        ready_s = time.perf_counter() - began_s
        one = Compile(worker, program, TARGET, None, Limits())
        began_s = time.perf_counter()
        answer = one.plan()
        plan_s = time.perf_counter() - began_s
        one.cost(answer, 600)
        cost_s = time.perf_counter() - began_s
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()
        processor_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return ready_s, plan_s, cost_s, worker.own_s, round(processor_s * 1000), peak_bytes(worker.pid)
    finally:
        worker.end()


def asked(program: Lowered, wait_s: float | None) -> tuple[float, float]:
    """Seconds of ``ask`` to the plan, and again from the disk. wait_s: a process stands by for so long before."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        compiler = Compiler()
        try:
            if wait_s is not None:
                compiler.stand_by()
                time.sleep(wait_s)
            began_s = time.perf_counter()
            (answer,) = compiler.ask([(program, TARGET)])
            first_s = time.perf_counter() - began_s
            if answer.plan is None:
                raise SystemExit(answer.why)
            began_s = time.perf_counter()
            compiler.ask([(program, TARGET)])
            return first_s, time.perf_counter() - began_s
        finally:
            compiler.close()


def main() -> None:
    """Prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    program, lowering_s = lowered()
    print(f"{LAYERS} layers in a scan for {TARGET.name}: {len(program.stablehlo)} bytes, lowered in {lowering_s:.2f} s")
    cold = [asked(program, None) for _ in range(rounds)]
    standing_by = [asked(program, 15.0) for _ in range(rounds)]
    compiles = [whole(program) for _ in range(rounds)]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    print(f"plan, cold                        {median([first for first, _ in cold]):8.2f} s")
    print(f"plan, with a process standing by  {median([first for first, _ in standing_by]):8.2f} s")
    print(f"plan, from the disk               {median([again for _, again in cold + standing_by]) * 1e3:8.1f} ms")
    ready_s, plan_s, cost_s, own_s, processor_ms, peak = (
        median(list(column)) for column in zip(*compiles, strict=True)
    )
    print(f"process ready                     {ready_s:8.2f} s")
    print(f"compile to the plan, to the cost  {plan_s:8.2f} s {cost_s:8.2f} s")
    print(
        f"tpumagic's own processor time     {own_s:8.3f} s of {processor_ms / 1e3:.1f} s: {own_s / processor_ms * 1e3:.1%}"
    )
    print(f"memory: process                   {peak / 2**20:8.0f} MiB")
    print(f"memory: kernel with JAX           {peak_bytes(os.getpid()) / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
