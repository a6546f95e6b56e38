"""What holds the memory of a program at its peak, in the user's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import prod

from tpumagic.compiler.donations import Place
from tpumagic.compiler.origins import Index, Origin, origin, uses
from tpumagic.compiler.program_facts import Program, called, element, name_of, operation, target
from tpumagic.compiler.timeline import Live
from tpumagic.hlo import Allocation, Array, BufferAssignment, Instruction, arrays
from tpumagic.plans import Buffer

MOST = 24
WIDENED = 8
"""A value that is at least so many times larger than all it is made of is a repetition of that."""

ANY = "[*]"
"""Stands for several numbers in a name."""

_STEP = re.compile(r"\[[^\]]*\]|\.?[^.\[]+")
_NUMBER = re.compile(r"\[\d+\]|\[\*\]")
_PLAIN = frozenset(
    {
        "broadcast", "iota", "compare", "select", "convert", "bitcast", "copy", "reshape", "transpose", "parameter",
        "constant", "add", "subtract", "multiply", "divide", "negate", "abs", "and", "or", "not", "exponential",
        "maximum", "minimum", "concatenate", "power", "sqrt", "rsqrt", "tanh", "logistic", "clamp", "tuple", "pad",
        "square", "log", "sign", "slice", "exponential-minus-one", "log-plus-one",
    }
)  # fmt: skip
_SPREADS = frozenset({"broadcast", "iota", "concatenate"})

Trips = Callable[[Instruction], int | None]
"""A loop -> how often it runs; None if that is not known."""


def temporaries(program: Program, groups: Sequence[tuple[Live, ...]], trips: Trips) -> tuple[Buffer, ...]:
    """A holder for each stretch of bytes in use at the peak, by the operation that wrote it last."""
    found: list[Buffer] = []
    for group in groups[: MOST * 4]:
        for live, others in _disjoint(group):
            buffer = _temporary(program, live, others, trips)
            if buffer is not None:
                found.append(buffer)
    return tuple(found)


def _disjoint(group: Sequence[Live]) -> Iterable[tuple[Live, tuple[Live, ...]]]:
    """The largest value of a group with those that lie within it, and so on for what sticks out."""
    rest: list[Live] = [live for live in group if not live.value.shape.startswith("(")]
    while rest:
        top = max(rest, key=lambda live: live.value.size)
        start, end = top.value.offset, top.value.offset + top.value.size
        mine = [live for live in rest if live.value.offset >= start and live.value.offset + live.value.size <= end]
        yield top, tuple(mine)
        rest = [live for live in rest if live.value.offset >= end or live.value.offset + live.value.size <= start]


def _temporary(program: Program, top: Live, group: tuple[Live, ...], trips: Trips) -> Buffer | None:
    same = sorted(
        (live for live in group if live.value.size == top.value.size), key=lambda live: (live.first, live.last)
    )
    origins = [(live, found) for live in same if (found := origin(program, live.value.name, live.value.index))]
    if not origins:
        return _described(program, top, None, trips)
    # What wrote it last; a value without a line of source only where there is nothing better.
    live, found = max(origins, key=lambda pair: (pair[1].place is not None, pair[1].loop is not None, pair[0].first))
    buffer = _described(program, live, found, trips)
    if buffer is None:
        return None
    residual = any(_is_residual(program, one.value.name, one.value.index, found) for one in same)
    return replace(buffer, residual=residual)


def _described(program: Program, live: Live, found: Origin | None, trips: Trips) -> Buffer | None:
    kinds = arrays(live.value.shape)
    if len(kinds) != 1:
        return None
    buffer = Buffer(
        "temporary", live.value.size, kinds[0].logical_bytes, kinds[0].dtype, kinds[0].shape, tiling=tiling(kinds[0])
    )
    return told(program, buffer, found, trips)


def told(program: Program, buffer: Buffer, found: Origin | None, trips: Trips) -> Buffer:
    """A buffer with what its origin says."""
    if found is None:
        return buffer
    what = operation(found.operation)
    if found.argument is not None:
        what = f"copy of {name_of(found.argument)}"
    return replace(
        buffer,
        stack=program.stack(found.place) if found.place is not None else (),
        operation=what,
        repeated=is_repeated(program, found),
        x64=_is_half(program, buffer, found),
        trips=trips(found.loop) if found.loop is not None else None,
    )


def _is_half(program: Program, buffer: Buffer, found: Origin) -> bool:
    """Whether it is one half of a 64-bit array: cut from one, or made where the user computes with 64 bits."""
    if buffer.dtype not in ("float32", "int32", "uint32"):
        return False
    if target(found.operation).startswith("X64Split"):
        return True
    stack = program.stack(found.place) if found.place is not None else ()
    return bool(stack) and (stack[-1].file, stack[-1].line, operation(found.operation)) in program.wide


def tiling(array: Array) -> str | None:
    """``T(8,128)(2,1)``, as the compiler writes it; None for none."""
    return "T" + "".join(f"({','.join(map(str, tile))})" for tile in array.tiles) if array.tiles else None


def _is_residual(program: Program, name: str, index: Index, found: Origin) -> bool:
    """Whether the forward pass makes it and the backward pass reads it."""
    words = found.operation.op_name or (found.place.op_name if found.place is not None else "")
    if found.loop is not None and "jvp(" not in words:
        words = found.loop.op_name
    if (found.argument is not None and found.loop is None) or "jvp(" not in words or "transpose(" in words:
        return False
    # What the compiler repeats later, to save memory, it repeats in the backward pass.
    return any("transpose(" in use.op_name or ".remat" in use.name for use in uses(program, name, index))


def is_repeated(program: Program, found: Origin) -> bool:
    """Whether a value is made by widening something much smaller, and by nothing else."""
    body = found.body if found.body is not None and found.body.opcode == "fusion" else found.operation
    if found.argument is not None or found.loop is not None:
        return False
    if "threefry" in found.operation.op_name or "random_bits" in found.operation.op_name:
        return False
    parts = program.module.computations.get(called(body, "calls"), ()) if body.opcode == "fusion" else (body,)
    if any(part.opcode not in _PLAIN for part in parts):
        return False
    own = max((prod(array.shape) for array in arrays(body.shape)), default=0)
    read = [array for name in body.operands if (one := program.instructions.get(name)) for array in arrays(one.shape)]
    constant = all(
        one is None or one.opcode == "constant" for one in (program.instructions.get(name) for name in body.operands)
    )
    spreads = [part for part in parts if part.opcode in _SPREADS]
    if constant and not any(part.opcode == "iota" for part in parts):
        return False
    return bool(spreads) and sum(prod(array.shape) for array in read) * WIDENED <= own


def standing(
    program: Program, assignment: BufferAssignment, names: Sequence[str], donated: Collection[Place], trips: Trips
) -> tuple[Buffer, ...]:
    """Arguments, results and constants: what is there from start to end. names: of the results. donated: arguments
    whose memory the user gives away."""
    results = result_allocations(program, assignment)
    found: list[Buffer] = []
    for allocation in assignment.allocations:
        if allocation.color != 0 or allocation.temporary or not allocation.size:
            continue
        if allocation.parameter is not None:
            argument = program.arguments().get(allocation.parameter)
            at = (allocation.parameter, allocation.parameter_index)
            found += _argument(argument, allocation, at in donated)
        elif allocation.constant:
            found += _constant(program, allocation, trips)
        else:
            number = results.get(allocation.number)
            found += _output(program, allocation, number, names, trips) if number is not None else []
    return tuple(found)


def _argument(argument: Instruction | None, allocation: Allocation, donated: bool) -> list[Buffer]:
    if argument is None:
        return []
    kinds = arrays(argument.shape)
    index = allocation.parameter_index
    array = kinds[index[0]] if index and index[0] < len(kinds) else kinds[0] if len(kinds) == 1 else None
    name = name_of(argument) + "".join(f"[{number}]" for number in index)
    if array is None:
        return []
    return [
        Buffer(
            "argument", allocation.size, array.logical_bytes, array.dtype, array.shape, name, tiling=tiling(array),
            donated=donated,
        )
    ]  # fmt: skip


def _constant(program: Program, allocation: Allocation, trips: Trips) -> list[Buffer]:
    for value in allocation.values:
        kinds = arrays(value.shape)
        if len(kinds) == 1:
            array = kinds[0]
            buffer = Buffer(
                "constant", allocation.size, array.logical_bytes, array.dtype, array.shape, tiling=tiling(array)
            )
            return [told(program, buffer, origin(program, value.name, value.index), trips)]
    return []


def _output(program: Program, allocation: Allocation, number: int, names: Sequence[str], trips: Trips) -> list[Buffer]:
    name, index = program.results()[number]
    root = program.instructions.get(name)
    kinds = arrays(root.shape) if root is not None else ()
    array = kinds[index[0]] if index and index[0] < len(kinds) else kinds[0] if len(kinds) == 1 else None
    if array is None:
        return []
    title = names[number] if number < len(names) else f"result[{number}]"
    buffer = Buffer(
        "output", allocation.size, array.logical_bytes, array.dtype, array.shape, title, tiling=tiling(array)
    )
    return [told(program, buffer, origin(program, name, index), trips)]


def result_allocations(program: Program, assignment: BufferAssignment) -> dict[int, int]:
    """Number of an allocation -> number of the result that lies in it."""
    homes = {
        (value.name, value.index): allocation.number
        for allocation in assignment.allocations
        for value in allocation.values
    }
    found: dict[int, int] = {}
    for number, (name, index) in enumerate(program.results()):
        home = _home(program, name, index, homes)
        if home is not None:
            found.setdefault(home, number)
    return found


def _home(program: Program, name: str, index: Index, homes: dict[tuple[str, Index], int]) -> int | None:
    for _ in range(64):
        if (name, index) in homes:
            return homes[name, index]
        instruction = program.instructions.get(name)
        if instruction is None or not instruction.operands:
            return None
        if instruction.opcode == "get-tuple-element":
            name, index = instruction.operands[0], (element(instruction), *index)
        elif instruction.opcode == "copy-done":
            name, index = instruction.operands[0], (0,)
        elif instruction.opcode == "tuple" and index:
            name, index = instruction.operands[index[0]], index[1:]
        else:
            name = instruction.operands[0]
    return None


def folded(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """The largest, those alike together: the same line and type, arguments and results whose names differ in a number
    only. Results of a program that returns several things are alike within one of these."""
    together: dict[object, Buffer] = {}
    for buffer in buffers:
        key = replace(buffer, name=_general(buffer), bytes=0, logical_bytes=None, count=1)
        before = together.get(key)
        if before is None:
            together[key] = buffer
            continue
        together[key] = replace(
            before,
            name=_common(before.name, buffer.name),
            bytes=before.bytes + buffer.bytes,
            logical_bytes=(before.logical_bytes or 0) + (buffer.logical_bytes or 0),
            count=before.count + buffer.count,
        )
    return tuple(sorted(together.values(), key=lambda one: -one.bytes))


def _general(buffer: Buffer) -> str | None:
    if buffer.name is None:
        return None
    steps = _STEP.findall(buffer.name)
    kept = 2 if buffer.kind == "output" and len(steps) > 2 else 1
    return "".join(steps[:kept] + [ANY if _NUMBER.fullmatch(step) else step for step in steps[kept:]])


def _common(first: str | None, second: str | None) -> str | None:
    """Two names that differ in numbers, with a star for these."""
    if first is None or second is None:
        return first
    pairs = zip(_STEP.findall(first), _STEP.findall(second), strict=False)
    return "".join(left if left == right else ANY for left, right in pairs)
