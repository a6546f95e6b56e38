"""Operations whose time nothing predicts, and how long each may take at worst.

Published measurements of them lie up to 277 times above what the compiler's figures and the bytes come to. The worst
case is never shown: it only decides whether the rest of a program may still be called its time. It is infinite where
nothing bounds it.
"""

from __future__ import annotations

import math
import re

from tpumagic.compiler.program_facts import Program, called, operation, target
from tpumagic.compiler.targets import Chip
from tpumagic.compiler.traffic import moved_bytes, touches_host
from tpumagic.hlo import Instruction, arrays

COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
FREE_CALLS = frozenset(
    {
        "AllocateBuffer",
        "AssumeGatherIndicesInBound",
        "ConcatBitcast",
        "GatherScatterIndicesBitpacked",
        "LayoutConstraint",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
    }
)
"""Custom calls that only tell the compiler something."""

_COPYING_CALLS = frozenset({"X64Combine", "X64SplitHigh", "X64SplitLow"})
_HOST = frozenset({"infeed", "outfeed", "recv", "send"})
_INDEXED = frozenset({"gather", "scatter"})

_INDEX_S = 100e-9
"""Of a gather or scatter, for each index: the slowest published takes 22 ns."""
_SLOWER = 4
"""What moves at random or several times over, against the same bytes in one stream."""
_LAUNCH_S = 20e-6
_SLOWEST_LINK = 45e9
"""Bytes a second one way, of the generations whose links are published."""
_LINK_SLOWER = 3
"""Measured collectives took 1.0 to 3.0 times what their bytes take over one link."""

_WINDOW_SIZE = re.compile(r"\bsize=([\dx]+)")
_DIMENSION = re.compile(r"\bdimensions=\{(\d+)")
_NUMBERED = re.compile(r"[.\d]+$")


def uncounted_name(program: Program, instruction: Instruction) -> str | None:
    """What an operation is that no estimate is given for; None for those that are counted. The name is HLO's for what
    HLO names itself (``sort``, ``all-reduce``), JAX's for calls of the compiler's own kernels (``top_k``)."""
    inside = opcodes_in(program, instruction)
    for opcode in sorted(inside):
        plain = opcode.removesuffix("-start")
        if plain in COLLECTIVES:
            return plain
    if inside & _HOST or touches_host(program, instruction):
        return "host transfer"
    for opcode in ("sort", "topk", "scatter", "gather", "select-and-scatter"):
        if opcode in inside:
            return "top_k" if opcode == "topk" else opcode
    for call in _custom_calls(program, instruction):
        if target(call) == "tpu_custom_call" and not call.op_name:
            return "kernel of the compiler's own"
        if target(call) == "tpu_custom_call":
            return f"Pallas kernel {_NUMBERED.sub('', call.name)}"
        return operation(call)
    return None


def worst_seconds(program: Program, instruction: Instruction, chip: Chip) -> float:
    """How long an uncounted operation may take; infinite if nothing tells."""
    inside = opcodes_in(program, instruction)
    moved = moved_bytes(program, instruction) / chip.effective_hbm_bytes_per_s
    collectives = [one for one in _inside(program, instruction) if one.opcode.removesuffix("-start") in COLLECTIVES]
    if collectives:
        sizes = [max(_bytes(one.shape), _operand_bytes(program, one)) for one in collectives]
        link = chip.ici_bytes_per_s or _SLOWEST_LINK
        # An all-reduce sends everything twice: once to be added up, once to be handed out.
        sending = len(sizes) * _LAUNCH_S + _LINK_SLOWER * 2 * sum(sizes) / link
        return sending + moved + (instruction.cycles or 0) / chip.clock_hz
    if inside & _HOST or touches_host(program, instruction):
        return math.inf
    # A custom call beside a gather or scatter in one fusion only says something of the indices.
    if not inside & _INDEXED and any(target(call) != "TopK" for call in _custom_calls(program, instruction)):
        return math.inf
    total = _LAUNCH_S + _SLOWER * moved
    for one in _inside(program, instruction):
        if one.opcode in _INDEXED:
            total += _INDEX_S * _indices(program, one)
        elif one.opcode in ("sort", "topk") or target(one) == "TopK":
            total += _sorting_seconds(program, one, chip)
        elif one.opcode == "select-and-scatter":
            size = _WINDOW_SIZE.search(one.attributes)
            total *= math.prod(int(part) for part in size[1].split("x") if part) if size else math.inf
    return total


def is_collective_product(program: Program, body: str) -> bool:
    """A loop's body that sends operands of a product round while it multiplies (a windowed einsum): the sharding
    made it, not the user."""
    return any(
        one.opcode.startswith("collective-permute") and operation(one) in {"conv_general_dilated", "dot_general"}
        for one in program.module.computations.get(body, ())
    )


def opcodes_in(program: Program, instruction: Instruction) -> frozenset[str]:
    """Opcodes of an instruction and of what its fusion or asynchronous computation holds."""
    return frozenset(one.opcode for one in _inside(program, instruction))


def _inside(program: Program, instruction: Instruction) -> list[Instruction]:
    found = [instruction]
    seen: set[str] = set()
    waiting = [instruction]
    while waiting:
        name = called(one, "calls") if (one := waiting.pop()).opcode in ("fusion", "async-start", "call") else ""
        if name and name not in seen:
            seen.add(name)
            body = program.module.computations.get(name, ())
            found.extend(body)
            waiting.extend(body)
    return found


def _custom_calls(program: Program, instruction: Instruction) -> list[Instruction]:
    return [
        one
        for one in _inside(program, instruction)
        if one.opcode.removesuffix("-start") == "custom-call" and target(one) not in FREE_CALLS | _COPYING_CALLS
    ]


def _bytes(shape: str) -> int:
    return sum(array.bytes for array in arrays(shape))


def _operand_bytes(program: Program, instruction: Instruction) -> int:
    operands = (program.operand(instruction, number) for number in range(len(instruction.operands)))
    return sum(_bytes(operand.shape) for operand in operands if operand is not None)


def _indices(program: Program, instruction: Instruction) -> float:
    """How many indices a gather or scatter has, at most."""
    place = 1 if instruction.opcode == "gather" else (len(instruction.operands) - 1) // 2
    operand = program.operand(instruction, place)
    found = arrays(operand.shape) if operand is not None else ()
    return math.prod(found[0].shape) if found else math.inf


def _sorting_seconds(program: Program, instruction: Instruction, chip: Chip) -> float:
    """A sorting network goes over everything log²(n)/2 times."""
    operand = program.operand(instruction)
    found = arrays(operand.shape) if operand is not None else ()
    if not found or not found[0].shape:
        return math.inf
    dimension = _DIMENSION.search(instruction.attributes)
    number = int(dimension[1]) if dimension else len(found[0].shape) - 1
    length = found[0].shape[min(number, len(found[0].shape) - 1)]
    levels = math.ceil(math.log2(max(length, 2)))
    size = 2 * _operand_bytes(program, instruction)
    return _SLOWER * levels * (levels + 1) / 2 * size / chip.effective_hbm_bytes_per_s
