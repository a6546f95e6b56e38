"""How much of the HBM is in use at every step of a program's schedule."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    starts = sorted(live, key=lambda one: one.first)
    ends = sorted(live, key=lambda one: one.last)
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
            if starts[begun].last >= step:
                memory.add(starts[begun])
            begun += 1
        changes.append((step, constant_bytes + memory.used))
        if memory.used > peak:
            peak, peak_step = memory.used, step
    at_peak = _groups([one for one in live if one.first <= peak_step <= one.last])
    peak_bytes = constant_bytes + peak
    return Timeline(_sampled(changes, steps), peak_bytes, peak_step, peak_step / steps, at_peak)


@dataclass
class _Block:
    """Bytes of one allocation from start to end that values use together."""

    allocation: int
    start: int
    end: int
    members: list[Live] = field(default_factory=list[Live])

    @property
    def key(self) -> tuple[int, int]:
        return self.allocation, self.start


class _Memory:
    """The bytes in use, as blocks that do not touch one another's bytes, in order."""

    def __init__(self) -> None:
        self.used = 0
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._home: dict[int, _Block] = {}

    def add(self, live: Live) -> None:
        block = _Block(live.allocation, live.value.offset, live.value.offset + live.value.size, [live])
        for other in self._overlapping(block):
            self._drop(other)
            block.start, block.end = min(block.start, other.start), max(block.end, other.end)
            block.members += other.members
        self._keep(block)

    def remove(self, live: Live) -> None:
        block = self._home.pop(id(live), None)
        if block is None:
            return
        self._drop(block)
        for members in _groups([one for one in block.members if one is not live]):
            start = min(one.value.offset for one in members)
            end = max(one.value.offset + one.value.size for one in members)
            self._keep(_Block(block.allocation, start, end, list(members)))

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
            self._home[id(member)] = block

    def _drop(self, block: _Block) -> None:
        del self._keys[bisect_left(self._keys, block.key)]
        del self._blocks[block.key]
        self.used -= block.end - block.start


def _groups(live: Sequence[Live]) -> tuple[tuple[Live, ...], ...]:
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
