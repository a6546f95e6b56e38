"""What the compiler writes of its plan of the memory: the buffer assignment and the live ranges, as texts."""

from __future__ import annotations

import re

from tpumagic.hlo.model import Allocation, BufferAssignment, LiveRanges, Value

_ALLOCATION = re.compile(r"allocation (\d{1,18}): size (\d{1,18})(.*)")
_COLOR = re.compile(r", color (\d{1,18})")
_PARAMETER = re.compile(r", parameter (\d{1,18}), shape \|.*\| at ShapeIndex \{([\d,]*+)\}")
_VALUE = re.compile(
    r" value: <\d++ ([^\s{]++)(?:\{([\d,]*+)\})?(?: \(phi\))? @\d++> \(size=(\d{1,18}),offset=(\d{1,18})\): (.*)"
)
_STEP = re.compile(r"\s++\d++:(\S++)")
_RANGE = re.compile(r"\s++([^\s{]++)\{([\d,]*+)\}:(\d{1,18})-(\d{1,18})")


def parse_buffer_assignment(text: str) -> BufferAssignment:
    """The allocations of ``*-buffer-assignment.txt``; lines of another form are skipped."""
    allocations: list[Allocation] = []
    head: re.Match[str] | None = None
    values: list[Value] = []
    for line in text.splitlines():
        if found := _ALLOCATION.match(line):
            if head is not None:
                allocations.append(_allocation(head, values))
            head, values = found, []
        elif head is not None and (found := _VALUE.match(line)):
            values.append(Value(found[1], _index(found[2]), int(found[3]), int(found[4]), found[5]))
        elif head is not None and line and not line.startswith(" "):
            break
    if head is not None:
        allocations.append(_allocation(head, values))
    return BufferAssignment(tuple(allocations))


def _allocation(head: re.Match[str], values: list[Value]) -> Allocation:
    about = head[3]
    color = _COLOR.match(about)
    parameter = _PARAMETER.search(about)
    constant = ", constant" in about
    output = ", output shape is |" in about
    live_out = ", maybe-live-out" in about
    return Allocation(
        number=int(head[1]),
        size=int(head[2]),
        color=int(color[1]) if color else 0,
        parameter=int(parameter[1]) if parameter else None,
        parameter_index=_index(parameter[2]) if parameter else (),
        constant=constant,
        output=output,
        live_out=live_out,
        temporary="-temp" in about or not (parameter or constant or output or live_out),
        values=tuple(values),
    )


def _index(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in (text or "").split(",") if number and len(number) < 19)


def parse_live_ranges(text: str) -> LiveRanges:
    """Sequence and ranges of ``*-live-range.txt``; empty if the text holds none."""
    sequence: list[str] = []
    ranges: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            section = line.strip()
        elif section == "InstructionSequence:" and (found := _STEP.match(line)):
            sequence.append(found[1])
        elif section == "BufferLiveRange:" and (found := _RANGE.match(line)):
            ranges[found[1], _index(found[2])] = (int(found[3]), int(found[4]))
    return LiveRanges(tuple(sequence), ranges)
