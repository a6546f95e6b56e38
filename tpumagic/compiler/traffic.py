"""Bytes that an operation moves between HBM and the chip: its operands and results there, as laid out, with padding.

Where only a slice of an operand is read, or only a slice of a result written in place, the slice counts.
"""

from __future__ import annotations

from tpumagic.compiler.program_facts import Program
from tpumagic.hlo import Instruction, arrays, elements

HOST = 5
"""Memory space of the host's memory."""

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATE = "dynamic-update-slice"
_DEPTH = 50
"""Fusions within fusions that are followed; below, an operand counts whole."""


def hbm_bytes(shape: str) -> int:
    """Bytes of a type's arrays that lie in HBM."""
    return sum(array.bytes for array in arrays(shape) if array.memory_space == 0)


def touches_host(program: Program, instruction: Instruction) -> bool:
    """It reads or writes the host's memory."""
    shapes = [instruction.shape, *(operand.shape for operand in _operands(program, instruction))]
    return any("S(5)" in shape and any(array.memory_space == HOST for array in arrays(shape)) for shape in shapes)


def moved_bytes(program: Program, instruction: Instruction) -> int:
    """HBM traffic of an operation that runs in the schedule itself."""
    operands = _operands(program, instruction)
    opcode = instruction.opcode
    if opcode in _SLICES and operands:
        taken = min(_all_bytes(instruction.shape), hbm_bytes(operands[0].shape))
        return taken + hbm_bytes(instruction.shape) + sum(hbm_bytes(operand.shape) for operand in operands[1:])
    if opcode == _UPDATE and len(operands) > 1:
        update = operands[1].shape
        in_place = 2 * _all_bytes(update) if hbm_bytes(instruction.shape) else 0
        return in_place + hbm_bytes(update)
    if opcode == "fusion" and instruction.called:
        name = instruction.called[0]
        return _written(program, instruction) + sum(
            _read(program, name, number, hbm_bytes(operand.shape)) for number, operand in enumerate(operands)
        )
    return hbm_bytes(instruction.shape) + sum(hbm_bytes(operand.shape) for operand in operands)


def copied_bytes(program: Program, instruction: Instruction) -> int:
    """HBM traffic of a copy or slice that runs beside the schedule (``copy-start``, ``async-start``)."""
    if instruction.opcode == "copy-start":
        return sum(hbm_bytes(shape) for shape in elements(instruction.shape)[:2])
    root = program.roots.get(instruction.called[0]) if instruction.called else None
    if root is not None:
        return moved_bytes(program, root)
    parts = elements(instruction.shape)
    if len(parts) < 2:
        return 0
    source, taken = hbm_bytes(parts[0]), _all_bytes(parts[1])
    return min(source, taken) + hbm_bytes(parts[1])


def _operands(program: Program, instruction: Instruction) -> list[Instruction]:
    found = (program.operand(instruction, number) for number in range(len(instruction.operands)))
    return [operand for operand in found if operand is not None]


def _all_bytes(shape: str) -> int:
    return sum(array.bytes for array in arrays(shape))


def _read(program: Program, computation: str, number: int, whole: int, depth: int = 0) -> int:
    """Bytes of a fusion's operand that the fusion reads."""
    parameter = program.parameters.get(computation, {}).get(number)
    if parameter is None or whole == 0:
        return whole
    return _used(program, parameter, whole, depth)


def _used(program: Program, value: Instruction, whole: int, depth: int) -> int:
    if value.is_root:
        return whole
    total = 0
    for user in program.users.get(value.name, ()):
        if depth > _DEPTH or total >= whole:
            return whole
        if user.opcode in _SLICES and user.operands[0] == value.name:
            total += _all_bytes(user.shape)
        elif user.opcode == _UPDATE and user.operands[0] == value.name:
            update = program.operand(user, 1)
            total += _all_bytes(update.shape) if update is not None else whole
        elif user.opcode == "bitcast":
            total += _used(program, user, whole, depth + 1)
        elif user.opcode == "fusion" and user.called:
            places = [number for number, name in enumerate(user.operands) if name == value.name]
            total += sum(_read(program, user.called[0], number, whole, depth + 1) for number in places)
        else:
            return whole
    return min(total, whole)


def _written(program: Program, fusion: Instruction) -> int:
    """Bytes of a fusion's results that it writes."""
    root = program.roots.get(fusion.called[0])
    shapes = elements(fusion.shape)
    if root is None or (len(shapes) > 1 and (root.opcode != "tuple" or len(root.operands) != len(shapes))):
        return hbm_bytes(fusion.shape)
    parts = [program.operand(root, number) for number in range(len(shapes))] if root.opcode == "tuple" else [root]
    return sum(
        hbm_bytes(shape) if part is None else _of_result(program, part, hbm_bytes(shape))
        for shape, part in zip(shapes, parts, strict=True)
    )


def _of_result(program: Program, result: Instruction, whole: int) -> int:
    for _ in range(_DEPTH):
        inner = None
        if result.opcode == "bitcast":
            inner = program.operand(result)
        elif result.opcode == "fusion" and result.called:
            inner = program.roots.get(result.called[0])
        elif result.opcode == _UPDATE and _is_parameter(program, program.operand(result)):
            update = program.operand(result, 1)
            return min(_all_bytes(update.shape), whole) if update is not None else whole
        if inner is None:
            break
        result = inner
    return whole


def _is_parameter(program: Program, value: Instruction | None) -> bool:
    while value is not None and value.opcode == "bitcast":
        value = program.operand(value)
    return value is not None and value.opcode == "parameter"
