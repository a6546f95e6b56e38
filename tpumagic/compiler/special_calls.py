"""What a program does that is no ordinary arithmetic: kernels and library routines, calls of the host, emulated types."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tpumagic.compiler.program_facts import Program, operation, target
from tpumagic.compiler.written import Written
from tpumagic.events import Stack
from tpumagic.hlo import Instruction
from tpumagic.plans import SpecialCall

PALLAS = "tpu_custom_call"
_NAMED = {
    "TopK": "TopK",
    "PartialReduce": "ApproxTopK",
    "Cholesky": "Cholesky",
    "QrDecompositionBlock": "QrDecompositionBlock",
    "LuDecompositionBlock": "LuDecompositionBlock",
    "EighTpu": "EighTpu",
}
"""Custom calls of the compiler that the user knows as an operation; all others of its own serve these or its plan."""

_MARKS = re.compile(
    r"^(?:X64|Sharding|SPMD|xla\.|mhlo\.|annotate|MoveTo|LayoutConstraint|Qr$|Eigh$|LuDecomposition$|Product|PartialReduce"
    r"|AllocateBuffer|shape_assertion|Resize|SetBound|PadToStatic|SliceToDynamic)"
)
"""Custom calls of a program as JAX writes it that are marks, or that become others."""

_KERNEL = re.compile(r'kernel_name = "([^"]*)"')
_SCOPE = re.compile(
    r"^(?:while|body|cond|checkpoint|rematted_computation|closed_call|core_call|remat\d*|custom_\w+|branch_\w+|shard_map|pjit|jit)$"
)
_HOST_CALLS = frozenset({"send", "recv", "infeed", "outfeed"})


def special_calls(
    program: Program, reached: Iterable[str], written: Written | None, stablehlo: str
) -> tuple[SpecialCall, ...]:
    """stablehlo: text of the program as JAX gave it, for the names of kernels; may be empty."""
    kernels = frozenset(_KERNEL.findall(stablehlo))
    kernels -= {part for one in program.instructions.values() if target(one) == PALLAS for part in _scopes(one)}
    counted: dict[tuple[str, str, Stack], int] = {}
    sent: dict[tuple[str, Stack], list[int]] = {}
    for name in reached:
        for instruction in program.module.computations.get(name, ()):
            if instruction.opcode in _HOST_CALLS and _goes_to_host(instruction):
                directions = sent.setdefault((operation(instruction), program.stack(instruction)), [0, 0])
                directions[instruction.opcode in ("recv", "infeed")] += 1
            elif (title := _title(instruction, kernels, written)) is not None:
                key = ("custom", title, program.stack(instruction))
                counted[key] = counted.get(key, 0) + 1
    for (title, stack), directions in sent.items():
        # A call sends each of its operands and receives each of its results.
        counted["host", title, stack] = min(number for number in directions if number)
    for title, stack in _wide(program, written):
        counted["x64", title, stack] = counted.get(("x64", title, stack), 0) + 1
    order = {"host": 0, "custom": 1, "x64": 2}
    calls = [SpecialCall(kind, title, count, stack) for (kind, title, stack), count in counted.items()]  # type: ignore[arg-type]
    return tuple(sorted(calls, key=lambda call: order[call.kind]))


def _goes_to_host(instruction: Instruction) -> bool:
    return instruction.opcode in ("infeed", "outfeed") or "is_host_transfer=true" in instruction.attributes


def _title(instruction: Instruction, kernels: Collection[str], written: Written | None) -> str | None:
    """Name of a custom call worth naming; None for anything else."""
    if instruction.opcode == "sort":
        # The compiler sorts for scatters and decompositions too.
        return "sort" if operation(instruction) == "sort" else None
    called = target(instruction)
    if called == PALLAS:
        # The compiler makes such kernels itself (of attention, for example), and says nothing of where they come from.
        return _kernel(instruction, kernels) if instruction.op_name else None
    if called in _NAMED:
        return _NAMED[called]
    users = written is not None and called in written.calls and not _MARKS.match(called)
    return called if users else None


def _kernel(instruction: Instruction, kernels: Collection[str]) -> str:
    """Name of a Pallas kernel: where the call is, else the only one of the program that is named nowhere."""
    scopes = _scopes(instruction)
    if scopes:
        return scopes[-1]
    return next(iter(kernels)) if len(kernels) == 1 else "pallas_call"


def _scopes(instruction: Instruction) -> list[str]:
    """Names in the path of an operation that the user gave."""
    return [part for part in instruction.op_name.split("/")[1:-1] if part.isidentifier() and not _SCOPE.match(part)]


def _wide(program: Program, written: Written | None) -> Iterable[tuple[str, Stack]]:
    if written is not None:
        for dtype, name, stack in written.wide:
            yield f"{dtype} {name}", stack
        return
    for instruction in program.instructions.values():
        if target(instruction) == "X64Combine":
            source = program.operand(instruction)
            yield "X64Combine", program.stack(instruction) or (program.stack(source) if source is not None else ())
