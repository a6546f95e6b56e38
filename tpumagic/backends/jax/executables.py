"""What a TPU's own compiler says of a program that is compiled already: nothing has to be compiled for it."""

from __future__ import annotations

from typing import Any

from tpumagic.backends.jax.recording import RawProgram
from tpumagic.compiler.targets import target_for
from tpumagic.events import Program
from tpumagic.graph import Graph
from tpumagic.plans import Answer, Target


def target_of(raw: RawProgram, devices: int) -> Target | None:
    """The TPU that a program was made for; None if it was made for something else."""
    kind = raw.device_kind or _device_kind(raw.loaded)
    return target_for(kind, devices) if kind is not None else None


def answer(raw: RawProgram, program: Program, target: Target) -> Answer | None:
    """Plan and cost of an executable from its own text; None where the runtime keeps that to itself."""
    # Not sooner: most programs are not for TPUs.
    from tpumagic.compiler.cost import estimate
    from tpumagic.compiler.plan import plan_of_executable

    try:
        text = str(raw.loaded.hlo_modules()[0].to_string())
    except Exception:  # some plug-ins do
        return None
    plan = plan_of_executable(text, program.memory, target, _shapes(program.graph))
    return Answer(target, "planned", plan, estimate(text, target))


def _shapes(graph: Graph | None) -> frozenset[tuple[int, ...]]:
    """Of all arrays of a program as it was written, for all devices together."""
    owners = [graph, *(owner for owner, _ in graph.walk())] if graph is not None else []
    return frozenset(value.shape for owner in {id(one): one for one in owners}.values() for value in owner.values)


def _device_kind(loaded: Any) -> str | None:
    try:
        device = loaded.local_devices()[0]
        return str(device.device_kind) if device.platform == "tpu" else None
    except Exception:  # an ahead-of-time program has no devices
        return None
