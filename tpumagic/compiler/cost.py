"""How long a program takes, by the compiler's cycle counts and the bytes it moves.

Rule R, which 48 published measurements on v2 to v7x were compared with (within a factor of 1.3 for 41 of them):

1. a matrix product or convolution takes its ``estimated_cycles``, even where its bytes would take longer;
2. anything else the longest of its bytes at the bandwidth that the compiler reckons with, a third of its cycles (they
   count issued instructions, two to three times too many for bfloat16 and reductions), and the first 600 of them;
3. bytes are those of padded operands in HBM, of slices where only slices are used;
4. all of it times the trips of the loops around it. Copies that run beside the schedule count only where their bytes
   alone take longer than everything else.

What nothing predicts is named and never guessed (``uncounted``). The program's time is left open where that may come to
more than the estimate's own band. Of a conditional the most expensive branch counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tpumagic.compiler.multiplications import peak_seconds, products_in
from tpumagic.compiler.program_facts import Program, called, index, operation, target
from tpumagic.compiler.targets import Chip, chip
from tpumagic.compiler.traffic import copied_bytes, moved_bytes
from tpumagic.compiler.uncounted import FREE_CALLS, is_collective_product, uncounted_name, worst_seconds
from tpumagic.events import Stack
from tpumagic.hlo import Instruction, parse, trip_count
from tpumagic.plans import Cost, LineCost, NotCounted, Target

PRODUCT_BAND = 1.3
"""Factor within which a product's line, or a program with such lines, usually lies."""
PLAIN_BAND = 1.5
"""The same for elementwise operations and reductions."""

_CYCLES_TOO_MANY = 3
_LEAST_CYCLES = 600
_SHORT_S = 1e-6
"""Operations shorter than this are mostly overhead, which no figure tells; a loop of them was measured at 1.8 times."""
_HBM_BOUND = 0.75
"""Share of an operation's time from which its bytes hold it up: they are certain, a third of its cycles is not."""
_PEAK_MISSED_BY = 6.3
"""How far convolutions were measured above their time at the chip's peak."""
_DEPTH = 100
_UNREADABLE = "unreadable operation"

_FREE = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "domain",
        "get-dimension-size",
        "get-tuple-element",
        "opt-barrier",
        "optimization-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
_BESIDE = frozenset({"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"})
_COPIES = frozenset({"bitcast", "copy", "dynamic-slice", "dynamic-update-slice", "parameter", "slice"})

Bound = Literal["mxu", "hbm", "vpu"]


@dataclass
class _Line:
    """What the operations of one line come to; seconds by what holds them up and by the operation's name."""

    seconds: float = 0.0
    product_s: float = 0.0
    bounds: dict[Bound, float] = field(default_factory=dict[Bound, float])
    operations: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, other: _Line, times: int) -> None:
        self.seconds += other.seconds * times
        self.product_s += other.product_s * times
        for bound, seconds in other.bounds.items():
            self.bounds[bound] = self.bounds.get(bound, 0.0) + seconds * times
        for name, seconds in other.operations.items():
            self.operations[name] = self.operations.get(name, 0.0) + seconds * times


@dataclass
class _Work:
    """One run of a computation with all that it calls.

    lines: by the source. uncounted: by operation, source and trips, how many. worst_s: what these may take. moved,
    copied: bytes of operations and of copies beside them. mxu_s: products at the chip's peak, None if one is not known.
    short_s: what the operations below a microsecond come to; short: how many of them run.
    """

    lines: dict[Stack, _Line] = field(default_factory=dict[Stack, _Line])
    uncounted: dict[tuple[str, Stack, int | None], int] = field(
        default_factory=dict[tuple[str, Stack, int | None], int]
    )
    worst_s: float = 0.0
    moved: int = 0
    copied: int = 0
    mxu_s: float | None = 0.0
    short_s: float = 0.0
    short: int = 0
    loops_known: bool = True

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines.values())

    def add(self, other: _Work, times: int = 1) -> None:
        for stack, line in other.lines.items():
            self.lines.setdefault(stack, _Line()).add(line, times)
        self.add_uncounted(other, times)
        self.worst_s += other.worst_s * times
        self.moved += other.moved * times
        self.copied += other.copied * times
        self.mxu_s = None if self.mxu_s is None or other.mxu_s is None else self.mxu_s + other.mxu_s * times
        self.short_s += other.short_s * times
        self.short += other.short * times
        self.loops_known &= other.loops_known

    def add_uncounted(self, other: _Work, times: int | None) -> None:
        for (name, stack, trips), count in other.uncounted.items():
            key = name, stack, None if trips is None or times is None else trips * times
            self.uncounted[key] = self.uncounted.get(key, 0) + count

    def leave_out(self, name: str, stack: Stack, worst_s: float, trips: int | None = 1) -> None:
        key = name, stack, trips
        self.uncounted[key] = self.uncounted.get(key, 0) + 1
        self.worst_s += worst_s


def estimate(hlo_text: str, target: Target) -> Cost:
    """The cost of a program from its text after code generation. Never raises for damaged text: what cannot be read is
    not counted, and of a program without any readable part nothing is known."""
    program = index(parse(hlo_text))
    work = _Work()
    try:
        work.add(_Reader(program, chip(target.chip)).computation(program.module.entry))
        finite = math.isfinite(work.seconds)
    except OverflowError:
        # Sizes that no machine has: the text is damaged.
        finite = False
    if not finite:
        work = _Work()
    if program.module.unread:
        work.uncounted[_UNREADABLE, (), None] = program.module.unread
        work.worst_s = math.inf
    readable = finite and bool(program.module.computations.get(program.module.entry))
    return _cost(work, chip(target.chip), readable)


def _cost(work: _Work, model: Chip, readable: bool) -> Cost:
    counted = work.seconds
    copying = work.copied / model.effective_hbm_bytes_per_s
    total = max(counted, copying)
    product_s = sum(line.product_s for line in work.lines.values())
    band = PRODUCT_BAND if product_s > 0 and product_s >= total / 4 else PLAIN_BAND
    bounds: dict[Bound, float] = {"hbm": copying} if copying > counted else {}
    if not bounds:
        for line in work.lines.values():
            for bound, seconds in line.bounds.items():
                bounds[bound] = bounds.get(bound, 0.0) + seconds
    known = readable and work.worst_s <= (band - 1) * total
    lines = [_line(stack, line, total) for stack, line in work.lines.items() if line.seconds > 0]
    return Cost(
        seconds=total if known else None,
        band=band,
        bound=_largest(bounds),
        mxu_seconds=work.mxu_s if readable else None,
        hbm_seconds=(work.moved + work.copied) / model.hbm_bytes_per_s if readable else None,
        lines=tuple(sorted(lines, key=lambda line: -line.seconds)),
        not_counted=tuple(
            NotCounted(name, count, trips, stack) for (name, stack, trips), count in work.uncounted.items()
        ),
        loops_known=work.loops_known,
    )


def _line(stack: Stack, line: _Line, total: float) -> LineCost:
    return LineCost(
        seconds=line.seconds,
        share=line.seconds / total,
        band=PRODUCT_BAND if line.product_s >= line.seconds / 2 else PLAIN_BAND,
        stack=stack,
        operation=max(line.operations, key=lambda name: line.operations[name], default=None),
        bound=_largest(line.bounds),
    )


def _largest(bounds: dict[Bound, float]) -> Bound | None:
    return max(bounds, key=lambda bound: bounds[bound], default=None)


class _Reader:
    """Adds up the computations of one program for one chip, each of them once."""

    def __init__(self, program: Program, model: Chip) -> None:
        self._program = program
        self._chip = model
        self._done: dict[str, _Work] = {}
        self._open: set[str] = set()
        self._stacks: dict[int, Stack] = {}

    def computation(self, name: str) -> _Work:
        """One run of a computation."""
        if name in self._done:
            return self._done[name]
        work = _Work()
        if name in self._open or len(self._open) > _DEPTH:
            work.leave_out("call", (), math.inf)
            return work
        self._open.add(name)
        for instruction in self._program.module.computations.get(name, ()):
            self._instruction(work, instruction)
        self._open.discard(name)
        self._done[name] = work
        return work

    def _instruction(self, work: _Work, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith(("-done", "-update")) or target(instruction) in FREE_CALLS:
            return
        if opcode == "while":
            self._loop(work, instruction)
        elif opcode == "call":
            for name in instruction.called:
                work.add(self.computation(name))
        elif opcode == "conditional":
            branches = [self.computation(name) for name in instruction.called]
            if branches:
                work.add(max(branches, key=lambda branch: (branch.worst_s, branch.seconds)))
        elif name := uncounted_name(self._program, instruction):
            worst = worst_seconds(self._program, instruction, self._chip)
            work.leave_out(name, self._stack(instruction), worst)
        elif opcode in _BESIDE or (opcode == "async-start" and self._only_copies(instruction)):
            work.copied += copied_bytes(self._program, instruction)
        else:
            self._operation(work, instruction)

    def _loop(self, work: _Work, loop: Instruction) -> None:
        trips = trip_count(self._program.module, loop)
        if trips == 0:
            return
        name = called(loop, "body")
        body = self.computation(name)
        stack = self._stack(loop)
        if trips is None or name not in self._program.module.computations:
            work.loops_known = False
            work.leave_out("loop of unknown length", stack, math.inf, None)
            work.add_uncounted(body, None)
        elif is_collective_product(self._program, name):
            worst = (_PEAK_MISSED_BY * body.seconds + body.worst_s) * trips
            work.leave_out("collective matrix product", stack, worst, trips)
        elif body.short_s > body.seconds / 2:
            worst = 2 * (body.short * _SHORT_S + body.seconds - body.short_s) + body.worst_s
            work.leave_out("loop of short operations", stack, worst * trips, trips)
            work.add_uncounted(body, trips)
        else:
            work.add(body, trips)

    def _operation(self, work: _Work, instruction: Instruction) -> None:
        model = self._chip
        moved = moved_bytes(self._program, instruction)
        moving = moved / model.effective_hbm_bytes_per_s
        cycles = instruction.cycles
        products = products_in(self._program, instruction)
        work.moved += moved
        if not products:
            issuing = (cycles or 0) / model.clock_hz
            least = min(issuing, _LEAST_CYCLES / model.clock_hz)
            seconds = max(moving, issuing / _CYCLES_TOO_MANY, least)
            bound: Bound = "hbm" if moving >= _HBM_BOUND * seconds else "vpu"
            self._add(work, instruction, seconds, bound)
            return
        peaks = [peak_seconds(self._program, product, model) for product in products]
        known = [peak for peak in peaks if peak is not None]
        peak = sum(known) if len(known) == len(peaks) else None
        work.mxu_s = None if work.mxu_s is None or peak is None else work.mxu_s + peak
        main = products[max(range(len(products)), key=lambda number: peaks[number] or 0.0)]
        source = main if main.frame else instruction
        if cycles is None:
            worst = max(moving, peak) if peak is not None else math.inf
            work.leave_out(operation(main), self._stack(source), _PEAK_MISSED_BY * worst)
            return
        bound = "hbm" if peak is not None and moved / model.hbm_bytes_per_s > peak else "mxu"
        self._add(work, source, cycles / model.clock_hz, bound, is_product=True)

    def _add(self, work: _Work, source: Instruction, seconds: float, bound: Bound, *, is_product: bool = False) -> None:
        line = work.lines.setdefault(self._stack(source), _Line())
        product_s = seconds if is_product else 0.0
        line.add(_Line(seconds, product_s, {bound: seconds}, {operation(source): seconds}), 1)
        if seconds < _SHORT_S:
            work.short_s += seconds
            work.short += 1

    def _only_copies(self, instruction: Instruction) -> bool:
        name = called(instruction, "calls")
        body = self._program.module.computations.get(name, ())
        return all(one.opcode in _COPIES or one.opcode in _FREE for one in body)

    def _stack(self, instruction: Instruction) -> Stack:
        """Where an operation comes from; of a fusion that does not say it, where its result does."""
        seen = 0
        while not instruction.frame and instruction.opcode == "fusion" and instruction.called and seen < _DEPTH:
            root = self._program.roots.get(instruction.called[0])
            if root is None:
                break
            instruction, seen = root, seen + 1
        if instruction.frame not in self._stacks:
            self._stacks[instruction.frame] = self._program.stack(instruction)
        return self._stacks[instruction.frame]
