"""What is noted while a cell runs: raw references, turned into neutral Programs when the cell has ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tpumagic.backends.jax.lowering import Traced
from tpumagic.events import Call as SeenCall
from tpumagic.events import Compile, Signature, SourceSite, Stack
from tpumagic.plans import Lowered

_HISTORY_PER_FUNCTION = 16


@dataclass(eq=False)
class Pending:
    """A call on its way through JAX: from the moment its arguments are looked at until its program has run."""

    name: str
    kind: str
    stack: Stack
    signature: Signature | None
    definition: SourceSite | None = None
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    jaxpr: Any = None
    within_trace: bool = False
    calling: bool = False
    compiled: bool = False
    cache_asked: bool = False
    cache_hit: bool = False
    cache_stored: bool = False
    traced: Traced | None = None
    known: bool = False
    """There is a RawProgram of it."""

    def compile_event(self, earlier: tuple[Signature, ...], evicted: bool) -> Compile:
        """This call's compilation."""
        return Compile(
            signature=self.signature,
            stack=self.stack,
            trace_s=self.trace_s,
            lower_s=self.lower_s,
            compile_s=self.compile_s,
            cache="hit" if self.cache_hit else "miss" if self.cache_asked else None,
            cache_stored=None if self.cache_hit or not self.cache_asked else self.cache_stored,
            earlier=earlier,
            evicted=evicted,
        )


@dataclass(eq=False)
class RawProgram:
    """One executable, or a program that never became one. ``executable`` and ``jaxpr`` are live JAX objects until the
    cell's record is made."""

    name: str
    kind: str
    stack: Stack
    thread: str
    signature: Signature | None
    definition: SourceSite | None
    executable: Any = None
    jaxpr: Any = None
    donated: tuple[int, ...] = ()
    out_avals: tuple[Any, ...] = ()
    compiles: list[Compile] = field(default_factory=list[Compile])
    calls: list[SeenCall] = field(default_factory=list[SeenCall])
    visits: int = 0
    loaded: Any = None
    traced: Traced | None = None
    module: Lowered | None = None
    """Of a program that the compiler refused."""
    device_kind: str | None = None
    device_count: int = 1
    """Both of the TPUs that it was compiled for, there or not."""
    compile_only: bool = False


class Notes(threading.local):
    """Per thread: the calls on their way, and how many argument inspections are active."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.inspecting = 0


class History:
    """Signatures seen in this notebook, by function name, oldest first."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Signature]] = {}

    def earlier(self, signature: Signature) -> tuple[Signature, ...]:
        """Known signatures of functions of this name; the last is the previous call's."""
        return tuple(self._by_name.get(signature.function.name, ()))

    def add(self, signature: Signature) -> None:
        """Remember; a signature equal to a known one moves to the end."""
        known = self._by_name.setdefault(signature.function.name, [])
        key = comparison_key(signature)
        known[:] = [other for other in known if comparison_key(other) != key]
        known.append(signature)
        del known[:-_HISTORY_PER_FUNCTION]

    def knows(self, signature: Signature) -> bool:
        """Whether the same function object was called with the same signature before."""
        key = comparison_key(signature)
        return any(comparison_key(other) == key for other in self._by_name.get(signature.function.name, ()))


def comparison_key(signature: Signature) -> tuple[object, ...]:
    """Equal for two calls that JAX would answer with the same program."""
    leaves = tuple(
        (leaf.path, leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding, leaf.devices, leaf.committed)
        for leaf in signature.leaves
    )
    statics = tuple((static.name, static.key) for static in signature.statics)
    return (signature.function.identity, signature.function.code_key, leaves, signature.structure, statics, signature.positional,
            signature.keywords, signature.context, signature.options, signature.transform)  # fmt: skip
