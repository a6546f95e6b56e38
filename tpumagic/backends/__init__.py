"""One package per framework; each yields events and programs and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from tpumagic.events import (
    Backend,
    Conversion,
    DeviceMemory,
    Doing,
    Failure,
    MemorySample,
    Program,
    Stack,
    Transfer,
    Unavailable,
)
from tpumagic.plans import Answer, Lowered, Remedy, Target
from tpumagic.stack_dump import CodeLine
from tpumagic.user_code import UserCode


@dataclass(frozen=True)
class Request:
    """A program to be compiled for a target that is not there. program: its place among the observation's programs."""

    program: int
    lowered: Lowered
    target: Target


@dataclass(frozen=True)
class Variant:
    """A program changed so that it may need less memory; lowered is None where it could not be made, and the remedy
    says why."""

    remedy: Remedy
    lowered: Lowered | None = None


@dataclass(frozen=True)
class Observation:
    """What one framework did during one cell. requests: what the TPU compiler is to be asked."""

    programs: tuple[Program, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    unavailable: tuple[Unavailable, ...] = ()
    requests: tuple[Request, ...] = ()


class Observing(Protocol):
    """What a framework's package offers to the session."""

    @property
    def loaded(self) -> bool:
        """The framework has been imported, whole."""
        ...

    def start(self, mine: Callable[[], bool], target: Target | None = None) -> None:
        """Begin to observe. target: the cell's programs are going to be compiled for it."""
        ...

    def stop(self) -> None:
        """Take every hook away."""
        ...

    def wait(self) -> None:
        """Until everything dispatched is done."""
        ...

    def observation(
        self, namespace: Mapping[str, object], *, out: Mapping[int, object] | None, traceback: TracebackType | None
    ) -> Observation:
        """What was seen since ``start``."""
        ...

    def dry_run(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], target: Target
    ) -> Observation:
        """The program of a call, without running it, and the request for the TPU compiler. Raises what tracing the
        user's function raises."""
        ...

    def variants(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        lowered: Lowered,
        answer: Answer,
    ) -> Iterable[Variant]:
        """Changes to a program that can be made without knowing what it is for. answer: to the program as it is."""
        ...

    def describe(self) -> Backend | None:
        """What the framework says of itself, None if it is not imported."""
        ...

    def started(self) -> bool:
        """Its devices are in use."""
        ...

    def failure(self, error: BaseException, stack: Stack, namespace: Mapping[str, object]) -> Failure:
        """An exception with what can be read from the live objects."""
        ...

    def doing(self, lines: Sequence[CodeLine]) -> Doing:
        """What a thread with these lines on its stack, innermost first, is doing."""
        ...

    def idle(self, namespace: Mapping[str, object], names: frozenset[str]) -> bool | None:
        """Whether the device has nothing to do."""
        ...

    def memory_in_use(self) -> tuple[MemorySample, ...]:
        """Memory of each device of this process now, ``at_s`` 0; empty where none tells. Called in any thread."""
        ...

    def named_values(self, namespace: Mapping[str, object]) -> tuple[frozenset[str], frozenset[str]]:
        """Variables that are jitted functions, and variables that are device arrays."""
        ...

    def close(self) -> None:
        """Nothing of ours is left in the framework."""
        ...


def backends(user_code: UserCode) -> dict[str, Observing]:
    """Every framework's observer, by the name of the module that makes it observable."""
    from tpumagic.backends.jax import MODULE, JaxBackend

    return {MODULE: JaxBackend(user_code)}
