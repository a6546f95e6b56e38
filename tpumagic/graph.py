"""What a program computes, as a neutral data-flow graph.

Backends fill it from what the framework traced; passes follow values through it. Operation names are StableHLO's
(``dot_general``, ``convert``, ``add``, ``subtract``, ``multiply``, ``custom_call``) where it has one, else the
framework's. Structured operations (``call``, ``scan``, ``while``, ``cond``, ``remat``, ``shard_map``) have bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpumagic.events import SourceSite


@dataclass(frozen=True)
class Value:
    """One value of a graph. literal: the number, where it is a scalar written into the program."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False
    literal: float | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class Operation:
    """One operation. inputs and outputs index ``Graph.values``; stack: user frames, outermost first, innermost last;
    attributes: what passes need (``precision``, ``new_dtype``, ``callback``, ``length``, ``axes``, ``sharding``).

    For ``scan``: attributes ``length``, ``carry_count`` and ``constant_count``; inputs are constants, carries, then
    scanned values, outputs carries then stacked values, the body's inputs and outputs in the same order.
    For ``while``: bodies are (condition, body) and attributes ``condition_constant_count``, ``body_constant_count``;
    ``length`` where the trip count is known.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stack: tuple[SourceSite, ...] = ()
    attributes: dict[str, object] = field(default_factory=dict[str, object])
    bodies: tuple[Graph, ...] = ()

    @property
    def site(self) -> SourceSite | None:
        """The innermost user line that made this operation."""
        return self.stack[-1] if self.stack else None


@dataclass(frozen=True)
class Graph:
    """values[i] describes value i; inputs and outputs are indices. An output may be an input or a literal.

    A value that is no input, no literal and has no producer is a constant that the program carries. truncated: the
    program was too long to be read to its end; what is here is its beginning.
    """

    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: tuple[Operation, ...]
    truncated: bool = False

    def producers(self) -> dict[int, Operation]:
        """Value index -> the operation that made it (inputs and literals are absent)."""
        return {out: operation for operation in self.operations for out in operation.outputs}

    def walk(self) -> Iterator[tuple[Graph, Operation]]:
        """Every operation with the graph it stands in, bodies included, in program order."""
        for operation in self.operations:
            yield self, operation
            for body in operation.bodies:
                yield from body.walk()
