"""Communication between devices, read from the optimised HLO text of a program that runs on several.

The text is read once, line by line; a line that is not understood is skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tpumagic.events import Collective, SourceSite
from tpumagic.graph import Graph, Value

SiteOf = Callable[[str, int, str | None], SourceSite | None]
"""File, line and function of a frame -> where that is for the user; None if it is not the user's code."""

_KINDS = (
    "all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast",
    "reduce-scatter",
)  # fmt: skip
_COPIES = frozenset(
    {"copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element", "copy-start", "copy-done"}
)
_WORK = re.compile(r" (?:dot|convolution|reduce|reduce-window|scatter|sort|custom-call)\(")
_DTYPES = {
    "pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s4": "int4", "s8": "int8",
    "s16": "int16", "s32": "int32", "s64": "int64", "u4": "uint4", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}

_COMPUTATION = re.compile(r"^(ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\([^=]*?\)|\S+) (?P<op>[\w\-]+)\((?P<rest>.*)$"
)
_ARRAY = re.compile(r"(?P<type>[a-z]\w*)\[(?P<shape>[\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"^(?P<number>\d+) (?P<text>.*)$")
_MAX_STEPS = 6


@dataclass(frozen=True)
class Communication:
    """partitioned: as in Program; None for a program on one device, or a text that was not understood."""

    collectives: tuple[Collective, ...] = ()
    partitioned: bool | None = None


def communication(hlo_text: str, graph: Graph | None, site_of: SiteOf) -> Communication:
    """What the devices of a program send each other, and whether they share its work at all.

    hlo_text: ``executable.hlo_modules()[0].to_string()``. graph: what the program computes, before it was partitioned.
    """
    header = hlo_text[: hlo_text.find("\n")]
    partitions = int(match[1]) if (match := re.search(r"num_partitions=(\d+)", header)) else 1
    replicas = int(match[1]) if (match := re.search(r"replica_count=(\d+)", header)) else 1
    if partitions * replicas < 2:
        return Communication()
    module = _read(hlo_text)
    if module.entry is None:
        return Communication()
    logical = {(value.shape, value.dtype) for value in _values(graph)}
    found: list[Collective] = []
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            kind = instruction.op.removesuffix("-start")
            if kind not in _KINDS:
                continue
            dtype, shape, size = _result(instruction)
            whole = kind == "all-gather" and (shape, dtype) in logical
            resliced = whole and _is_resliced(instruction, computation, module)
            site = _site(instruction, module, site_of)
            found.append(Collective(kind, shape, dtype, size, site, gathers_whole=whole, resliced=resliced))
    return Communication(tuple(found), replicas > 1 or bool(found) or _splits(module, graph))


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    op: str
    operands: tuple[str, ...]
    rest: str


@dataclass
class _Computation:
    """instructions in their order; text: all of them, to search for operations."""

    instructions: dict[str, _Instruction] = field(default_factory=dict[str, _Instruction])
    text: list[str] = field(default_factory=list[str])


@dataclass
class _Module:
    computations: dict[str, _Computation] = field(default_factory=dict[str, _Computation])
    entry: _Computation | None = None
    tables: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])


def _read(hlo_text: str) -> _Module:
    module = _Module({}, None, {name: {} for name in _TABLES})
    current: _Computation | None = None
    table: dict[int, str] | None = None
    for line in hlo_text.splitlines():
        if line in module.tables:
            table, current = module.tables[line], None
        elif current is None and (match := _COMPUTATION.match(line)):
            table, current = None, module.computations.setdefault(match["name"], _Computation())
            if match[1]:
                module.entry = current
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            operands = tuple(_OPERAND.findall(_inside(match["rest"])))
            current.instructions[match["name"]] = _Instruction(
                match["name"], match["type"], match["op"], operands, match["rest"]
            )
            current.text.append(line)
        elif table is not None and (match := _ENTRY.match(line)):
            table[int(match["number"])] = match["text"]
    return module


def _inside(rest: str) -> str:
    """The operands: what stands before the parenthesis that closes them."""
    depth = 1
    for position, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return rest[:position]
    return rest


def _values(graph: Graph | None) -> Iterator[Value]:
    if graph is not None:
        yield from graph.values
        for _, operation in graph.walk():
            for body in operation.bodies:
                yield from body.values


def _arrays(type_text: str) -> list[tuple[str, tuple[int, ...], int]]:
    """dtype, shape and bytes of each array in a type."""
    found: list[tuple[str, tuple[int, ...], int]] = []
    for match in _ARRAY.finditer(type_text):
        shape = tuple(int(size) for size in match["shape"].split(",") if size)
        name = match["type"]
        digits = re.search(r"\d+", name)
        bits = _BITS.get(name) or (int(digits[0]) if digits else 8)
        found.append((_DTYPES.get(name, name), shape, math.ceil(math.prod(shape) * bits / 8)))
    return found


def _result(instruction: _Instruction) -> tuple[str, tuple[int, ...], int]:
    """Dtype and shape of a collective's result (of several, the largest), and the bytes of all of them."""
    arrays = _arrays(instruction.type)
    if not arrays:
        return "", (), 0
    if instruction.op.endswith("-start") and len(arrays) > 1:
        arrays = arrays[len(arrays) // 2 :]  # operands first, then results
    dtype, shape, _ = max(arrays, key=lambda one: one[2])
    return dtype, shape, sum(size for _, _, size in arrays)


def _site(instruction: _Instruction, module: _Module, site_of: SiteOf) -> SourceSite | None:
    """The innermost user line of an instruction, from its frame or, in older texts, from its file and line."""
    if match := re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.rest):
        return site_of(match[1], int(match[2]), None)
    match = re.search(r"stack_frame_id=(\d+)", instruction.rest)
    frame = int(match[1]) if match else 0
    for _ in range(64):
        text = module.tables["StackFrames"].get(frame)
        numbers = _numbers(text)
        location = _numbers(module.tables["FileLocations"].get(numbers.get("file_location_id", 0)))
        file = module.tables["FileNames"].get(location.get("file_name_id", 0), "").strip('"')
        if file:
            function = module.tables["FunctionNames"].get(location.get("function_name_id", 0), "").strip('"')
            site = site_of(file, location.get("line", 0), function.rpartition(".")[2] or None)
            if site is not None:
                return site
        parent = numbers.get("parent_frame_id", frame)
        if parent == frame:
            return None
        frame = parent
    return None


def _numbers(text: str | None) -> dict[str, int]:
    """``{file_name_id=1 line=10}`` as a dictionary."""
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text or "")}


def _splits(module: _Module, graph: Graph | None) -> bool | None:
    """Whether the devices of a program without communication do different things: they know who they are, or get only
    parts of the arguments."""
    if any(
        i.op in ("partition-id", "replica-id") for c in module.computations.values() for i in c.instructions.values()
    ):
        return True
    if module.entry is None or graph is None:
        return None
    shapes = [graph.values[i].shape for i in graph.inputs]
    for instruction in module.entry.instructions.values():
        if instruction.op != "parameter":
            continue
        if "sharding={devices=" in instruction.rest:
            return True
        arrays = _arrays(instruction.type)
        if len(arrays) == 1 and arrays[0][1] in shapes:
            shapes.remove(arrays[0][1])
        else:
            return True
    return False


def _is_resliced(gather: _Instruction, computation: _Computation, module: _Module) -> bool:
    """Whether each device, having received the whole array, cuts its own part out of it again."""
    users: dict[str, list[_Instruction]] = {}
    own: set[str] = set()
    for instruction in computation.instructions.values():
        for operand in dict.fromkeys(instruction.operands):
            users.setdefault(operand, []).append(instruction)
        # Offsets that depend on the device: integers computed from its number.
        integers = re.match(r"[su]\d+\[", instruction.type) is not None
        if instruction.op == "partition-id" or (integers and own.intersection(instruction.operands)):
            own.add(instruction.name)
    size = math.prod(_result(gather)[1])
    frontier = [gather.name]
    for _ in range(_MAX_STEPS):
        following: list[str] = []
        for user in (one for name in frontier for one in users.get(name, ())):
            mine = bool(own.intersection(user.operands))
            if user.op == "dynamic-slice" and mine:
                return True
            called = re.search(r"calls=%?([\w.\-]+)", user.rest)
            body = module.computations.get(called[1]) if called else None
            if body is not None and mine and _slices(body, size):
                return True
            harmless = body is not None and not any(map(_WORK.search, body.text))
            if user.op in _COPIES or user.op == gather.op.replace("-start", "-done") or harmless:
                following.append(user.name)
        frontier = following
    return False


def _slices(body: _Computation, size: int) -> bool:
    """Whether a fusion cuts a part out of something of this many elements."""
    for instruction in body.instructions.values():
        if instruction.op == "dynamic-slice" and instruction.operands:
            whole = body.instructions.get(instruction.operands[0])
            arrays = _arrays(whole.type) if whole is not None else []
            if arrays and math.prod(arrays[0][1]) == size:
                return True
    return False
