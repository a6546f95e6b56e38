"""An HLO module and its plan of memory, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Frame:
    """One line of source, as the compiler was told it."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Array:
    """An array type with its layout. dtype: NumPy's name (``bfloat16``). minor_to_major: dimensions, fastest first.
    tiles: ``((8, 128), (2, 1))``, empty for none. memory_space: 0 is HBM, 1 VMEM, others are the chip's own.
    bytes: as laid out, logical_bytes: of the elements alone."""

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    memory_space: int
    logical_bytes: int
    bytes: int


class Instruction(NamedTuple):
    """One instruction. shape: its type as text. operands: names. argument_text: what stands in its parentheses;
    attributes: what stands behind them, as text. called: computations it names. frame: id of its innermost stack
    frame, 0 for none. cycles: the compiler's ``estimated_cycles``, None before code generation."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    argument_text: str
    attributes: str
    computation: str
    is_root: bool = False
    called: tuple[str, ...] = ()
    op_name: str = ""
    frame: int = 0
    cycles: int | None = None


@dataclass(frozen=True)
class Module:
    """A module. header: its first line. computations: by name, instructions in the order of their schedule. unread:
    lines that look like instructions and could not be read."""

    name: str
    header: str
    entry: str
    computations: dict[str, tuple[Instruction, ...]]
    stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict[int, tuple[Frame, ...]])
    unread: int = 0

    @cached_property
    def by_name(self) -> dict[str, dict[str, Instruction]]:
        """Instructions by computation and name."""
        return {name: {one.name: one for one in body} for name, body in self.computations.items()}

    @cached_property
    def callers(self) -> dict[str, tuple[Instruction, ...]]:
        """Instructions that name a computation, by computation."""
        found: dict[str, list[Instruction]] = {}
        for body in self.computations.values():
            for one in body:
                for called in one.called:
                    found.setdefault(called, []).append(one)
        return {name: tuple(callers) for name, callers in found.items()}

    def root(self, computation: str) -> Instruction | None:
        """What a computation returns; None if there is no such computation or it is empty."""
        body = self.computations.get(computation, ())
        return next((one for one in reversed(body) if one.is_root), body[-1] if body else None)

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """Where an instruction comes from, outermost first; empty if the compiler does not say."""
        return self.stacks.get(instruction.frame, ())


@dataclass(frozen=True)
class Value:
    """A value in an allocation. name: of its instruction; index: within its tuple, ``{0}`` as (0,). offset: in bytes."""

    name: str
    index: tuple[int, ...]
    size: int
    offset: int
    shape: str


@dataclass(frozen=True)
class Allocation:
    """A piece of memory of the plan. color: memory space, 0 is HBM. parameter: number of the argument, None if it is
    none. constant, output, live_out, temporary: what the compiler says it is for."""

    number: int
    size: int
    color: int = 0
    parameter: int | None = None
    parameter_index: tuple[int, ...] = ()
    constant: bool = False
    output: bool = False
    live_out: bool = False
    temporary: bool = False
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class BufferAssignment:
    """All allocations of a program."""

    allocations: tuple[Allocation, ...]


@dataclass(frozen=True)
class LiveRanges:
    """When values are alive. sequence: instructions in the order in which they run, loops' bodies in their place.
    ranges: (instruction, tuple index) -> first and last position in it."""

    sequence: tuple[str, ...]
    ranges: dict[tuple[str, tuple[int, ...]], tuple[int, int]]


@dataclass(frozen=True)
class LiveValue:
    """A piece of HBM that a program needs from one position of its sequence to another, both included, as worked out
    from its text. name, index: of a value in it, one with a source line if there is one; shape: its type. bytes: as
    laid out."""

    name: str
    index: tuple[int, ...]
    shape: str
    bytes: int
    kind: Literal["argument", "output", "constant", "temporary"]
    first: int
    last: int
