"""What a program does that is no ordinary arithmetic: kernels and library routines, calls of the host, emulated types."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpumagic.compiler.program_facts import Program, operation, target
from tpumagic.compiler.written import Written
from tpumagic.events import SourceSite, Stack
from tpumagic.hlo import Instruction
from tpumagic.plans import SpecialCall

PALLAS = "tpu_custom_call"
_NAMED = {
    "TopK": "TopK",
    "PartialReduce": "PartialReduce",
    "Cholesky": "Cholesky",
    "QrDecompositionBlock": "QrDecompositionBlock",
    "LuDecompositionBlock": "LuDecompositionBlock",
    "EighTpu": "EighTpu",
    "Eigh": "EighTpu",
}
"""Custom calls of the compiler that the user knows as an operation; all others of its own serve these or its plan."""

_OWN = re.compile(
    r"^(?:X64|AllocateBuffer|Concat|Assume|Slice|Bitcast|Compact|InvertDiag|Householder|Move|Pin|Unpin|Annotate|Sharding"
    r"|SPMD|xla\.sdy|LayoutConstraint|Product|MoveTo|Resize|Pad|Dynamic|SetBound|GetDimension|Tpu|Alloc|Barrier)"
)
_KERNEL = re.compile(r'kernel_name = "([^"]*)"')
_SCOPE = re.compile(r"^(?:jit|pjit|jvp|transpose|vmap|checkpoint|remat|shard_map|custom_\w+)\(|^(?:while|body|cond)$")
_HOST_CALLS = frozenset({"send", "recv", "infeed", "outfeed"})


def special_calls(
    program: Program, reached: Iterable[str], written: Written | None, stablehlo: str
) -> tuple[SpecialCall, ...]:
    """stablehlo: text of the program as JAX gave it, for the names of kernels; may be empty."""
    kernels = tuple(dict.fromkeys(_KERNEL.findall(stablehlo)))
    counted: dict[tuple[str, str, Stack], int] = {}
    sent: dict[tuple[str, Stack], list[int]] = {}
    for name in reached:
        for instruction in program.module.computations.get(name, ()):
            if instruction.opcode in _HOST_CALLS and _goes_to_host(instruction):
                directions = sent.setdefault((operation(instruction), program.stack(instruction)), [0, 0])
                directions[instruction.opcode in ("recv", "infeed")] += 1
            elif (title := _title(instruction, kernels)) is not None:
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


def _title(instruction: Instruction, kernels: tuple[str, ...]) -> str | None:
    """Name of a custom call worth naming; None for anything else."""
    if instruction.opcode == "sort":
        return "sort"
    called = target(instruction)
    if called == PALLAS:
        return _kernel(instruction, kernels)
    if called in _NAMED:
        return _NAMED[called]
    return called if called and not _OWN.match(called) else None


def _kernel(instruction: Instruction, kernels: tuple[str, ...]) -> str:
    """Name of a Pallas kernel: where the call is, else the only one that is named nowhere."""
    path = instruction.op_name.split("/")
    for part in reversed(path[:-1]):
        if part in kernels or (not _SCOPE.match(part) and part.isidentifier() and not kernels):
            return part
    if len(kernels) == 1:
        return kernels[0]
    own = re.sub(r"[.\d]+$", "", instruction.name)
    return own if own in kernels else path[-1] or PALLAS


def _wide(program: Program, written: Written | None) -> Iterable[tuple[str, Stack]]:
    if written is None or written.module is None:
        for instruction in program.instructions.values():
            if target(instruction) == "X64Combine":
                source = program.operand(instruction)
                stack = program.stack(instruction) or (program.stack(source) if source is not None else ())
                yield "X64Combine", stack
        return
    for dtype, instruction in written.wide:
        frames = written.module.stack(instruction)
        stack = tuple(
            SourceSite(frame.line, file=frame.file, function=frame.function.rpartition(".")[2] or None)
            for frame in frames
        )
        yield f"{dtype} {operation(instruction)}", stack
