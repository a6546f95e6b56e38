"""How much of the HBM is in use at every step of a program's schedule."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpumagic.hlo import BufferAssignment, LiveRanges, Value

POINTS = 240


@dataclass(frozen=True)
class Live:
    """A value in shared memory, alive from one step to another, both included."""

    value: Value
    allocation: int
    first: int
    last: int


@dataclass(frozen=True)
class Timeline:
    """points: (position from 0 to 1, bytes). step: of the peak, position: the same from 0 to 1. at_peak: values alive
    then, those that share bytes together, largest first."""

    points: tuple[tuple[float, int], ...]
    peak_bytes: int
    step: int
    position: float
    at_peak: tuple[tuple[Live, ...], ...]


def moving_values(assignment: BufferAssignment, ranges: LiveRanges) -> tuple[Live, ...]:
    """The values in HBM that come and go. What is in VMEM, and what stays from start to end, is left out."""
    found: list[Live] = []
    for allocation in assignment.allocations:
        if allocation.color != 0 or not allocation.temporary:
            continue
        for value in allocation.values:
            span = ranges.ranges.get((value.name, value.index))
            if span is not None and value.size:
                found.append(Live(value, allocation.number, *span))
    return tuple(found)


def timeline(constant_bytes: int, live: Sequence[Live], steps: int) -> Timeline:
    """constant_bytes: in use all the time. Bytes that several values share count once."""
    starts = _taken(live)
    ends = sorted(starts, key=lambda span: span.last)
    memory = _Memory()
    steps = max(steps, ends[-1].last + 1 if ends else 1)
    changes: list[tuple[int, int]] = [(0, constant_bytes)]
    peak, peak_step = 0, 0
    begun = ended = 0
    while begun < len(starts) or ended < len(ends):
        step = starts[begun].first if begun < len(starts) else steps
        if ended < len(ends):
            step = min(step, ends[ended].last + 1)
        while ended < len(ends) and ends[ended].last < step:
            memory.remove(ends[ended])
            ended += 1
        while begun < len(starts) and starts[begun].first == step:
            memory.add(starts[begun])
            begun += 1
        if changes[-1][0] == step:
            changes.pop()
        changes.append((step, constant_bytes + memory.used))
        if memory.used > peak:
            peak, peak_step = memory.used, step
    at_peak = _groups([one for one in live if one.first <= peak_step <= one.last])
    return Timeline(_sampled(changes, steps), constant_bytes + peak, peak_step, peak_step / steps, at_peak)


@dataclass(eq=False, slots=True)
class _Span:
    """The same bytes in use from one step to another, by one value after another."""

    allocation: int
    start: int
    end: int
    first: int
    last: int


def _taken(live: Iterable[Live]) -> list[_Span]:
    """Values that lie in the very same bytes and follow each other become one; in the order of their first steps."""
    spans: list[_Span] = []
    latest: dict[tuple[int, int, int], _Span] = {}
    for one in sorted(live, key=lambda one: one.first):
        place = (one.allocation, one.value.offset, one.value.offset + one.value.size)
        before = latest.get(place)
        if before is not None and one.first <= before.last:
            before.last = max(before.last, one.last)
        elif one.first <= one.last:
            latest[place] = span = _Span(*place, one.first, one.last)
            spans.append(span)
    return spans


@dataclass(slots=True)
class _Block:
    """Bytes of one allocation from start to end that spans use together."""

    allocation: int
    start: int
    end: int
    members: list[_Span]

    @property
    def key(self) -> tuple[int, int]:
        return self.allocation, self.start


class _Memory:
    """The bytes in use, as blocks that do not touch one another's bytes, in order."""

    def __init__(self) -> None:
        self.used = 0
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._home: dict[_Span, _Block] = {}

    def add(self, span: _Span) -> None:
        block = _Block(span.allocation, span.start, span.end, [span])
        for other in self._overlapping(block):
            self._drop(other)
            block.start, block.end = min(block.start, other.start), max(block.end, other.end)
            block.members += other.members
        self._keep(block)

    def remove(self, span: _Span) -> None:
        block = self._home.pop(span)
        self._drop(block)
        rest: _Block | None = None
        for member in sorted((one for one in block.members if one is not span), key=lambda one: one.start):
            if rest is not None and member.start < rest.end:
                rest.end = max(rest.end, member.end)
                rest.members.append(member)
                continue
            if rest is not None:
                self._keep(rest)
            rest = _Block(member.allocation, member.start, member.end, [member])
        if rest is not None:
            self._keep(rest)

    def _overlapping(self, block: _Block) -> list[_Block]:
        at = bisect_left(self._keys, block.key)
        found: list[_Block] = []
        if at > 0:
            before = self._blocks[self._keys[at - 1]]
            if before.allocation == block.allocation and before.end > block.start:
                found.append(before)
        while at < len(self._keys):
            after = self._blocks[self._keys[at]]
            if after.allocation != block.allocation or after.start >= block.end:
                break
            found.append(after)
            at += 1
        return found

    def _keep(self, block: _Block) -> None:
        insort(self._keys, block.key)
        self._blocks[block.key] = block
        self.used += block.end - block.start
        for member in block.members:
            self._home[member] = block

    def _drop(self, block: _Block) -> None:
        del self._keys[bisect_left(self._keys, block.key)]
        del self._blocks[block.key]
        self.used -= block.end - block.start


def _groups(live: Iterable[Live]) -> tuple[tuple[Live, ...], ...]:
    """Values that share bytes, directly or through others, together; the groups of most bytes first."""
    groups: list[list[Live]] = []
    sizes: list[int] = []
    end = 0
    for one in sorted(live, key=lambda one: (one.allocation, one.value.offset)):
        start = one.value.offset
        if groups and groups[-1][0].allocation == one.allocation and start < end:
            groups[-1].append(one)
            sizes[-1] += max(0, start + one.value.size - end)
            end = max(end, start + one.value.size)
        else:
            groups.append([one])
            sizes.append(one.value.size)
            end = start + one.value.size
    order = sorted(range(len(groups)), key=lambda number: -sizes[number])
    return tuple(tuple(groups[number]) for number in order)


def _sampled(changes: Sequence[tuple[int, int]], steps: int) -> tuple[tuple[float, int], ...]:
    """At most POINTS of the changes: of each stretch of the schedule the highest."""
    if len(changes) <= POINTS:
        chosen = changes
    else:
        highest: dict[int, tuple[int, int]] = {}
        for step, used in changes:
            stretch = step * POINTS // (steps + 1)
            if stretch not in highest or used > highest[stretch][1]:
                highest[stretch] = (step, used)
        chosen = [highest[stretch] for stretch in sorted(highest)]
    return tuple((step / steps, used) for step, used in chosen)
