"""What a TPU's own compiler says of a program that is compiled already: nothing has to be compiled for it."""

from __future__ import annotations

from tpumagic.backends.jax.recording import RawProgram
from tpumagic.compiler.cost import estimate
from tpumagic.compiler.plan import plan_of_executable
from tpumagic.events import Program
from tpumagic.graph import Graph
from tpumagic.plans import Answer, Target


def answer(raw: RawProgram, program: Program, target: Target) -> Answer | None:
    """Plan and cost of an executable from its own text; None where the runtime keeps that to itself."""
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
