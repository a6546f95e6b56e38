"""HLO text into a :class:`Module`, line by line. No expression in here can look at a character more than a few times,
so the time is proportional to the length of the text whatever that holds."""

from __future__ import annotations

import gc
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from tpumagic.hlo.frames import FrameTable
from tpumagic.hlo.model import Instruction, Module
from tpumagic.hlo.types import elements

_INSTRUCTION = re.compile(
    r"\s++(ROOT )?%?([^\s=]++) = (\(.*?\)(?= [a-z])|[^\s(]\S*+|\(\)) ([a-z][\w\-]*+)\((?:([^()\"]*+)\))?"
)
"""Root or not, name, type, opcode, and arguments where these hold no brackets or strings."""
_BRACKETS = re.compile(r'[()"]')
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_OPERAND = re.compile(r"%([^\s,(){}]++)")
_BARE_OPERAND = re.compile(r"([A-Za-z_][\w.\-#]*+)(?=,|$)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations|select|scatter|comparator)=(\{[^{}]*+\}|%?[\w.\-]++)"
)
_NAME = re.compile(r"[^\s,{}%]++")
_METADATA = re.compile(r'metadata=\{op_name="([^"\\]*+)" stack_frame_id=(\d{1,18})\}')
_OP_NAME = re.compile(r'op_name="([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_FRAME = re.compile(r"stack_frame_id=(\d{1,18})")
_SOURCE = re.compile(r'source_file="([^"\\]*+(?:\\.[^"\\]*+)*+)"(?: source_line=(\d{1,18}))?')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d{1,18})')
_TUPLE_DEPTH = 32
_AT_ONCE = 1 << 18
_NO_OPERANDS = frozenset({"constant", "parameter", "iota"})


def parse(text: str) -> Module:
    """The module that a text holds. Never raises: of a text that is no HLO the module is empty."""
    with _collector_paused():
        return _parse(text)


@contextmanager
def _collector_paused() -> Generator[None]:
    """Nothing here refers to itself, and looking through a hundred thousand instructions again and again for what does
    takes as long as reading them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _parse(text: str) -> Module:
    header = entry = name = ""
    computations: dict[str, tuple[Instruction, ...]] = {}
    frames = FrameTable()
    current: list[Instruction] | None = None
    unread = 0
    elements_read = _ElementsRead()
    reader = _InstructionReader(frames)
    for line in _lines(text):
        if current is not None:
            if line.startswith("}"):
                computations[name] = tuple(current)
                current = None
                continue
            instruction = reader.read(line, name)
            if instruction is not None:
                current.extend(elements_read.before(instruction))
                current.append(instruction)
            elif " = " in line[:4096]:
                unread += 1
        elif line.startswith("HloModule "):
            header = header or line
        elif line.endswith("{") and not line[0].isspace() and not line[0].isdigit():
            is_entry = line.startswith("ENTRY ")
            name = line[6 if is_entry else 0 :].split(None, 1)[0].lstrip("%")
            entry = name if is_entry else entry
            current = []
            elements_read = _ElementsRead()
        else:
            frames.read(line)
    if current is not None:
        computations[name] = tuple(current)
    used = {instruction.frame for body in computations.values() for instruction in body}
    title = header[len("HloModule ") :].split(",", 1)[0].split(" ", 1)[0]
    return Module(title, header, entry, computations, frames.stacks(used), unread)


def _lines(text: str) -> Iterator[str]:
    """Lines that hold something, some at a time: a second copy of the whole text would double the memory."""
    start, end = 0, len(text)
    while start < end:
        stop = text.find("\n", start + _AT_ONCE)
        stop = end if stop < 0 else stop
        yield from filter(None, text[start:stop].split("\n"))
        start = stop + 1


class _ElementsRead:
    """Elements of tuples that instructions of one computation read as ``%fusion.3#1``, as newer compilers write
    ``get-tuple-element``. They become such instructions again, named as they are written."""

    def __init__(self) -> None:
        self._tuples: dict[str, str] = {}

    def before(self, instruction: Instruction) -> list[Instruction]:
        """The elements that an instruction is the first to read."""
        found: list[Instruction] = []
        if "#" in instruction.argument_text:
            for operand in instruction.operands:
                if "#" in operand:
                    self._read(operand, instruction.computation, found)
        if instruction.shape.startswith("("):
            self._tuples[instruction.name] = instruction.shape
        return found

    def _read(self, operand: str, computation: str, found: list[Instruction]) -> None:
        name, *indices = operand.split("#")
        for index in indices[:_TUPLE_DEPTH]:
            element = f"{name}#{index}"
            if element not in self._tuples:
                inner = elements(self._tuples.get(name, ""))
                shape = inner[int(index)] if index.isdecimal() and len(index) < 10 and int(index) < len(inner) else ""
                self._tuples[element] = shape
                found.append(
                    Instruction(
                        element, "get-tuple-element", shape, (name,), f"%{name}", f", index={index}", computation
                    )
                )
            name = element


class _InstructionReader:
    """Reads instruction lines; equal texts become one object."""

    def __init__(self, frames: FrameTable) -> None:
        self._frames = frames
        self._texts: dict[str, str] = {}

    def read(self, line: str, computation: str) -> Instruction | None:
        match = _INSTRUCTION.match(line)
        if match is None:
            return None
        root, name, shape, opcode, arguments = match.groups()
        start = match.end()
        if arguments is None:
            stop = _closing(line, start)
            arguments, attributes = line[start:stop], line[stop + 1 :]
        else:
            attributes = line[start:]
        operands: tuple[str, ...] = ()
        if "%" in arguments:
            operands = tuple(_OPERAND.findall(arguments)) if opcode not in _NO_OPERANDS else ()
        elif arguments and opcode not in _NO_OPERANDS:
            operands = tuple(_BARE_OPERAND.findall(arguments))
        called: tuple[str, ...] = ()
        op_name, frame, cycles = "", 0, None
        if attributes:
            end = len(attributes)
            metadata = attributes.find("metadata={")
            config = attributes.find("backend_config=", max(metadata, 0))
            config = end if config < 0 else config
            plain = metadata if 0 <= metadata < config else config
            if "=%" in attributes or "={%" in attributes or (plain and "%" not in line):
                called = tuple(found for text in _CALLED.findall(attributes, 0, plain) for found in _NAME.findall(text))
            if metadata >= 0:
                op_name, frame = self._metadata(attributes, metadata, config)
            if config < end and (cycle := _CYCLES.search(attributes, config)):
                cycles = int(cycle[1])
        texts = self._texts
        return Instruction(
            name,
            texts.setdefault(opcode, opcode),
            texts.setdefault(shape, shape),
            operands,
            arguments,
            texts.setdefault(attributes, attributes) if len(attributes) < 200 else attributes,
            computation,
            root is not None,
            called,
            op_name,
            frame,
            cycles,
        )

    def _metadata(self, attributes: str, start: int, end: int) -> tuple[str, int]:
        if (usual := _METADATA.match(attributes, start)) is not None:
            op_name, frame = usual.groups()
            return self._texts.setdefault(op_name, op_name), int(frame)
        op_name = ""
        if found := _OP_NAME.search(attributes, start, end):
            op_name = self._texts.setdefault(found[1], found[1])
        if found := _FRAME.search(attributes, start, end):
            return op_name, int(found[1])
        if found := _SOURCE.search(attributes, start, end):
            return op_name, self._frames.inline(found[1], int(found[2] or 0))
        return op_name, 0


def _closing(line: str, start: int) -> int:
    """Where the parenthesis that was opened before start closes; the end of the line if it never does."""
    depth = 1
    position = start
    while found := _BRACKETS.search(line, position):
        position = found.end()
        if found[0] == '"':
            string = _STRING.match(line, found.start())
            if string is None:
                return len(line)
            position = string.end()
        elif found[0] == "(":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return found.start()
    return len(line)
