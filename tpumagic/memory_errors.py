"""Reads the texts in which a TPU's compiler and runtime say that memory ran out, those of 2019 to today.

Their units are binary: ``15.75G`` is 15.75 GiB. What a text does not say is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Allocation:
    """A row of the compiler's table of the largest allocations.

    bytes: with padding; logical_bytes: its elements alone. shape: type and layout in the compiler's words
    (``f32[32,4096]{1,0:T(8,128)}``). op_name, source_file, source_line: of the operation that makes it. label: the
    instruction. kind: the type of allocation (``HLO temp``, ``scoped``). expansion: bytes as a multiple of
    logical_bytes, where the compiler says that padding matters. tag: what a kernel uses it for; window, whole: of a
    Pallas block, the types of block and array (``f32[4096,4096]``); buffering: how often the block is held.
    """

    bytes: int
    logical_bytes: int | None = None
    shape: str | None = None
    op_name: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    label: str | None = None
    kind: str | None = None
    expansion: float | None = None
    tag: str | None = None
    window: str | None = None
    whole: str | None = None
    buffering: int | None = None


@dataclass(frozen=True)
class OutOfMemory:
    """What a text says.

    space: memory that ran out, as the compiler calls it (``hbm``, ``vmem``, ``smem``); None if the text does not say
    it. when: the compiler refused the program, or a device could not serve a request. needed_bytes: by the whole
    program, or asked for in one request. available_bytes: what there is for it. free_bytes: free in all, at run time;
    largest_free_bytes: in one piece, where fragments are the reason. reserved_bytes: kept by the system.
    program_bytes, argument_bytes, output_bytes: parts of needed_bytes. utilization: share (1 is all) of the temporary
    memory that holds something. module: the HLO module. code: the compiler's error code. allocations: largest first, at most 100.
    """

    space: str | None
    when: Literal["compile", "runtime"]
    needed_bytes: int | None = None
    available_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    reserved_bytes: int | None = None
    program_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    utilization: float | None = None
    module: str | None = None
    code: str | None = None
    allocations: tuple[Allocation, ...] = ()


_MOST = 100
"""Rows of a table that are read; the compiler writes about twenty."""

_SIZE = r"(\d{1,15}(?:\.\d{1,6})?[KMGTP]?)(?:i?B)?\b"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

_USED = re.compile(rf"Used {_SIZE} of {_SIZE}")
_SPACE = re.compile(r"Ran out of memory (?:in memory space |on )(\w{1,20})", re.IGNORECASE)
_TEMPORARIES = re.compile(
    rf"total memory required for HLO temporaries \({_SIZE}\) exceeds available (\w{{1,20}}) \({_SIZE}\)"
)
_EARLY = re.compile(rf"Requires {_SIZE}, has {_SIZE} available")
_SCOPED = re.compile(rf"Scoped allocation with size {_SIZE} and limit {_SIZE} exceeded scoped (\w{{1,20}}) limit")
_ONE_TOO_LARGE = re.compile(r"Allocation \(size=(\d{1,18})\) would exceed memory \(size=(\d{1,18})\)")
_ONE_SPACE = re.compile(r"space=(\w{1,20})")
_ONE_SHAPE = re.compile(r"shape = '([^']{1,300})'")
_ONE_TAG = re.compile(r"tag = '([^']{1,600})'")
_RESERVE = re.compile(rf"Attempting to reserve {_SIZE} at the bottom of memory")
_RESERVABLE = re.compile(rf"There are {_SIZE} free, {_SIZE} reserved, and {_SIZE} reservable")
_ALLOCATE = re.compile(rf"Attempting to allocate {_SIZE}\.")
_FREE = re.compile(rf"There are {_SIZE} free")
_CONTIGUOUS = re.compile(rf"largest contiguous region of free memory is {_SIZE}")
_HOST = re.compile(r"Out of memory (?:allocating|while trying to allocate) (\d{1,18}) bytes")
_DEVICE_SPACE = re.compile(r"\(0x\d{1,3}x\d{1,3}_([A-Z]{2,8})\d{0,2}\)")
_MODULE = re.compile(r"HLO module: ([\w.$-]{1,200}?)\.?(?=[\s\"']|$)")
_CODE = re.compile(r"\b(E\d{4}): CompileTime")

_PART = re.compile(rf"^ {{2,8}}(reserved|program|arguments) +{_SIZE} *$")
_OUTPUT = re.compile(rf"^Output size {_SIZE};")
_UTILIZATION = re.compile(r"HLO temp .{0,40}\((\d{1,3}(?:\.\d{1,3})?)% utilization")
_ROW = re.compile(rf"^ *\d{{1,4}}\. Size: {_SIZE} *$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SOURCE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d{1,9}))?')
_EXPANSION = re.compile(r"\((\d{1,9}(?:\.\d{1,3})?)x expansion\)")
_WINDOW = re.compile(
    r"window shape is (\w{1,16}\[[\d,]{0,200}\])(?:, while the full shape is (\w{1,16}\[[\d,]{0,200}\]))?"
)
_BUFFERING = re.compile(r"has (\d{1,4}) buffering level")


def parse(message: str) -> OutOfMemory | None:
    """What a message says of memory that ran out; None if it says nothing of the kind."""
    return _compile_time(message) or _run_time(message)


def size_bytes(text: str) -> int:
    """``15.75G`` in bytes."""
    unit = _UNITS.get(text[-1:])
    return round(float(text[:-1]) * unit) if unit else round(float(text))


def _compile_time(message: str) -> OutOfMemory | None:
    space = _SPACE.search(message)
    name = space[1].lower() if space else None
    if match := _USED.search(message):
        needed, available = match[1], match[2]
    elif match := _TEMPORARIES.search(message):
        needed, name, available = match[1], match[2].lower(), match[3]
    elif match := _SCOPED.search(message):
        needed, available, name = match[1], match[2], match[3].lower()
    elif match := _ONE_TOO_LARGE.search(message):
        needed, available = match[1], match[2]
        where = _ONE_SPACE.search(message, match.end())
        name = where[1].lower() if where else name
    elif (match := _EARLY.search(message)) and "Aborting compilation early" in message:
        needed, available, name = match[1], match[2], name or "hbm"
    elif space is not None and (_CODE.search(message) or "compile" in message.lower()):
        needed = available = None
    else:
        return None
    if space is None and match is not None and match.re is _USED:
        return None
    one = _one_allocation(message, match) if match is not None and match.re is _ONE_TOO_LARGE else ()
    parts = _parts(message)
    utilization = _UTILIZATION.search(message)
    code, module = _CODE.search(message), _MODULE.search(message)
    return OutOfMemory(
        space=name,
        when="compile",
        needed_bytes=size_bytes(needed) if needed else None,
        available_bytes=size_bytes(available) if available else None,
        reserved_bytes=parts.get("reserved"),
        program_bytes=parts.get("program"),
        argument_bytes=parts.get("arguments"),
        output_bytes=parts.get("output"),
        utilization=float(utilization[1]) / 100 if utilization else None,
        module=module[1] if module else None,
        code=code[1] if code else None,
        allocations=_allocations(message) or one,
    )


def _run_time(message: str) -> OutOfMemory | None:
    where = _DEVICE_SPACE.search(message)
    space = where[1].lower() if where else "hbm"
    if match := _RESERVE.search(message):
        rest = _RESERVABLE.search(message, match.end())
        free, reserved, available = (size_bytes(rest[n]) for n in (1, 2, 3)) if rest else (None, None, None)
        return OutOfMemory(
            space,
            "runtime",
            needed_bytes=size_bytes(match[1]),
            available_bytes=available,
            free_bytes=free,
            reserved_bytes=reserved,
        )
    if match := _ALLOCATE.search(message):
        free = _FREE.search(message, match.end())
        largest = _CONTIGUOUS.search(message, match.end())
        there = largest or free
        return OutOfMemory(
            space,
            "runtime",
            needed_bytes=size_bytes(match[1]),
            available_bytes=size_bytes(there[1]) if there else None,
            free_bytes=size_bytes(free[1]) if free else None,
            largest_free_bytes=size_bytes(largest[1]) if largest else None,
        )
    if match := _HOST.search(message):
        return OutOfMemory(where[1].lower() if where else None, "runtime", needed_bytes=int(match[1]))
    return None


def _one_allocation(message: str, match: re.Match[str]) -> tuple[Allocation, ...]:
    """The only allocation of a text that names just one."""
    shape, tag = (pattern.search(message, match.end()) for pattern in (_ONE_SHAPE, _ONE_TAG))
    window, whole, buffering = _window(tag[1] if tag else "")
    return (
        Allocation(
            int(match[1]),
            shape=shape[1] if shape else None,
            tag=tag[1] if tag else None,
            window=window,
            whole=whole,
            buffering=buffering,
        ),
    )


def _window(tag: str) -> tuple[str | None, str | None, int | None]:
    """Types of block and array and how often the block is held, of what a kernel's allocation is said to be for."""
    found, buffering = _WINDOW.search(tag), _BUFFERING.search(tag)
    return (
        found[1] if found else None,
        found[2] if found else None,
        int(buffering[1]) if buffering else None,
    )


def _parts(message: str) -> dict[str, int]:
    """The first table of a long text: what is reserved, program, arguments and output."""
    parts: dict[str, int] = {}
    for line in message.splitlines():
        if match := _PART.match(line):
            parts.setdefault(match[1], size_bytes(match[2]))
        elif match := _OUTPUT.match(line):
            parts.setdefault("output", size_bytes(match[1]))
    return parts


def _allocations(message: str) -> tuple[Allocation, ...]:
    """The rows of the table of largest allocations, in its order."""
    rows: list[tuple[int, list[str]]] = []
    for line in message.splitlines():
        if match := _ROW.match(line):
            rows.append((size_bytes(match[1]), []))
        elif rows and line.strip().startswith("===="):
            rows[-1][1].append("")
        elif rows and "" not in rows[-1][1]:
            rows[-1][1].append(line.strip())
    return tuple(_allocation(size, lines) for size, lines in rows[:_MOST])


def _allocation(size: int, lines: list[str]) -> Allocation:
    said = {key: rest.strip() for line in lines for key, colon, rest in [line.partition(":")] if colon}
    operator, tag = said.get("Operator", ""), said.get("Tag")
    name, source = _OP_NAME.search(operator), _SOURCE.search(operator)
    expansion = _EXPANSION.search(said.get("Extra memory due to padding", ""))
    logical = re.match(_SIZE, said.get("Unpadded size", ""))
    window, whole, buffering = _window(tag or "")
    return Allocation(
        bytes=size,
        logical_bytes=size_bytes(logical[1]) if logical else None,
        shape=said.get("Shape"),
        op_name=name[1] if name else None,
        source_file=source[1] if source else None,
        source_line=int(source[2]) if source and source[2] else None,
        label=said.get("XLA label"),
        kind=said.get("Allocation type"),
        expansion=float(expansion[1]) if expansion else None,
        tag=tag,
        window=window,
        whole=whole,
        buffering=buffering,
    )
