"""Which arguments a result is the next value of: ``w - 0.1 * g`` of ``w``, a cache with one more row of that cache."""

from __future__ import annotations

from math import prod

from tpumagic.compiler.origins import JOINED, Index
from tpumagic.compiler.program_facts import Program, called, element, target
from tpumagic.hlo import Instruction, arrays

_ARITHMETIC = frozenset(
    {
        "add", "subtract", "multiply", "divide", "select", "convert", "copy", "bitcast", "maximum", "minimum", "clamp",
        "negate", "and", "or", "xor", "not", "shift-left", "shift-right-logical", "reshape", "copy-done",
        "optimization-barrier", "opt-barrier", "round-nearest-even", "reduce-precision",
    }
)  # fmt: skip
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
_STEPS = 2000


def updated_arguments(program: Program, name: str, index: Index) -> set[int]:
    """Numbers of the arguments that reach a result element by element, through arithmetic alone."""
    found: set[int] = set()
    seen: set[tuple[str, Index]] = set()
    todo = [(name, index)]
    while todo and len(seen) < _STEPS:
        name, index = todo.pop()
        instruction = program.instructions.get(name)
        if instruction is None or (name, index) in seen:
            continue
        seen.add((name, index))
        if instruction.opcode == "parameter" and instruction.computation == program.module.entry:
            found.add(int(instruction.argument_text))
        else:
            todo += _before(program, instruction, index)
    return found


def _before(program: Program, instruction: Instruction, index: Index) -> list[tuple[str, Index]]:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "get-tuple-element":
        return [(name, (element(instruction), *index)) for name in operands[:1]]
    if opcode == "tuple":
        return [(operands[index[0]], index[1:])] if index and index[0] < len(operands) else []
    if (
        opcode in ("copy-start", "slice-start", "slice-done", "async-start", "async-done")
        or target(instruction) == JOINED
    ):
        return [(name, ()) for name in operands[:1]]
    if opcode == "while":
        root = program.roots.get(called(instruction, "body"))
        return [(name, index) for name in (*operands[:1], *([root.name] if root is not None else []))]
    if opcode in ("fusion", "call", "conditional"):
        return [(program.roots[one].name, index) for one in instruction.called if one in program.roots]
    if opcode == "parameter":
        return _given(program, instruction, index)
    if opcode in _IN_PLACE:
        return [(name, index) for name in operands[:1]]
    if opcode in _ARITHMETIC:
        return [(name, ()) for name in operands if _count(program.instructions.get(name)) == _count(instruction)]
    return []


def _given(program: Program, parameter: Instruction, index: Index) -> list[tuple[str, Index]]:
    caller = program.callers.get(parameter.computation)
    if caller is None or not parameter.argument_text.isdecimal():
        return []
    number = int(parameter.argument_text)
    if caller.opcode == "conditional":
        number = 1 + caller.called.index(parameter.computation)
    return [(caller.operands[number], index)] if number < len(caller.operands) else []


def _count(instruction: Instruction | None) -> int:
    return prod(arrays(instruction.shape)[0].shape) if instruction is not None and arrays(instruction.shape) else -1
