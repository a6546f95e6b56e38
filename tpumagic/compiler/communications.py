"""What the devices of a program send each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from tpumagic.compiler.origins import size
from tpumagic.compiler.program_facts import Program
from tpumagic.events import Stack
from tpumagic.hlo import Array, Instruction, arrays
from tpumagic.plans import Communication

KINDS = frozenset(
    {
        "all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast",
        "reduce-scatter",
    }
)  # fmt: skip
_COPIES = frozenset(
    {"copy", "bitcast", "transpose", "reshape", "convert", "get-tuple-element", "copy-start", "copy-done", "async-done"}
)
_WORK = frozenset({"dot", "convolution", "reduce", "reduce-window", "scatter", "sort", "custom-call"})
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=")
_MESH = re.compile(r"replica_groups=\S*?mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'(?:(?::\(\d+\)|=)(\d+))?")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_STEPS = 6


def communications(
    program: Program, times: Mapping[str, int | None], whole_shapes: frozenset[tuple[int, ...]]
) -> tuple[Communication, ...]:
    """The collectives of the computations that the program reaches, largest first. times: how often each computation
    runs. whole_shapes: of the user's arrays before they were split, as far as they are known."""
    found: list[Communication] = []
    seen: set[tuple[str, str]] = set()
    for name, trips in times.items():
        for instruction in program.module.computations.get(name, ()):
            kind = instruction.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            # One that overlaps with work stands in each fusion that has a part of it, with the same channel.
            channel = _CHANNEL.search(instruction.attributes)
            if channel is not None and (kind, channel[1]) in seen:
                continue
            seen.add((kind, channel[1] if channel is not None else instruction.name))
            outer = _fusion_around(program, name)
            results = _results(instruction)
            if outer is not None and kind == "all-reduce" and _scatters(program, name):
                kind, results = "reduce-scatter", list(arrays(outer.shape))
            if not results:
                continue
            largest = max(results, key=lambda array: array.logical_bytes)
            together = _together(program, instruction, largest, whole_shapes) if kind == "all-gather" else None
            whole = together is not None
            found.append(
                Communication(
                    kind=kind,
                    dtype=largest.dtype,
                    shape=together or largest.shape,
                    bytes=sum(array.logical_bytes for array in results),
                    trips=trips,
                    group=_group(instruction),
                    stack=_stack(program, instruction, outer),
                    whole=whole,
                    resliced=whole and _is_resliced(program, instruction),
                )
            )
    return tuple(sorted(found, key=lambda one: -one.bytes * (one.trips or 1)))


def _stack(program: Program, instruction: Instruction, outer: Instruction | None) -> Stack:
    """Of the collective; of one that the compiler put in, of what it collects or of who uses that."""
    operands = [one for name in instruction.operands if (one := program.instructions.get(name)) is not None]
    operands.sort(key=lambda one: -size(one))
    if len(operands) > 1:
        near = [*operands[:1], instruction]
    else:
        near = [instruction, *([outer] if outer is not None else []), *operands]
    near += program.users.get(instruction.name, [])
    return next((stack for one in near if (stack := program.stack(one))), ())


def _results(instruction: Instruction) -> list[Array]:
    """The arrays that a collective yields, without those it starts from and its counters."""
    found = list(arrays(instruction.shape))
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start" and len(found) > 1:
        found = [array for array in found if array.shape or not array.dtype.startswith("uint")]
        found = found[len(found) // 2 :]
    return found


def _together(
    program: Program, gather: Instruction, result: Array, whole_shapes: frozenset[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The shape of the user's whole array that a gather brings; None if it brings a part. Parts that come from several
    axes of the mesh are gathered one after the other and put in order by copies."""
    if result.shape in whole_shapes:
        return result.shape
    frontier = [gather.name]
    for _ in range(_STEPS):
        users = [one for name in frontier for one in program.users.get(name, ()) if one.opcode in _COPIES]
        for user in users:
            for form in arrays(user.shape)[:1]:
                if form.shape in whole_shapes and prod(form.shape) == prod(result.shape):
                    return form.shape
        frontier = [one.name for one in users]
    return None


def _group(instruction: Instruction) -> int | None:
    if found := _LISTED.search(instruction.attributes):
        return len(found[1].split(","))
    if found := _COUNTED.search(instruction.attributes):
        return int(found[1].split(",")[-1])
    if found := _MESH.search(instruction.attributes):
        sizes = {axis: int(size) for axis, size in _AXIS.findall(found[1]) if size}
        return prod(int(size) if size else sizes.get(axis, 1) for axis, size in _AXIS.findall(found[2]))
    return None


def _fusion_around(program: Program, computation: str) -> Instruction | None:
    caller = program.callers.get(computation)
    return caller if caller is not None and caller.opcode in ("fusion", "async-start") else None


def _scatters(program: Program, computation: str) -> bool:
    """Whether a fusion keeps only a part of what it reduces over the devices."""
    root = program.roots.get(computation)
    return root is not None and root.opcode == "dynamic-slice"


def _is_resliced(program: Program, gather: Instruction) -> bool:
    """Whether each device, having received the whole array, cuts its own part out of it again."""
    own: set[str] = set()
    for instruction in program.module.computations[gather.computation]:
        # Offsets that depend on the device: integers computed from its number.
        integers = instruction.shape.startswith(("s32", "u32", "s64", "u64"))
        if instruction.opcode == "partition-id" or (integers and own.intersection(instruction.operands)):
            own.add(instruction.name)
    size = max(prod(array.shape) for array in _results(gather))
    frontier = [gather.name]
    for _ in range(_STEPS):
        following: list[str] = []
        for user in (one for name in frontier for one in program.users.get(name, ())):
            mine = bool(own.intersection(user.operands))
            if user.opcode == "dynamic-slice" and mine:
                return True
            body = program.module.computations.get(user.called[0]) if user.called else None
            if body is not None and mine and _slices(program, body, size):
                return True
            harmless = body is not None and not any(one.opcode in _WORK for one in body)
            if user.opcode in _COPIES or user.opcode == gather.opcode.replace("-start", "-done") or harmless:
                following.append(user.name)
        frontier = following
    return False


def _slices(program: Program, body: tuple[Instruction, ...], size: int) -> bool:
    """Whether a fusion cuts a part out of something of this many elements."""
    for instruction in body:
        whole = program.operand(instruction) if instruction.opcode == "dynamic-slice" else None
        kinds = arrays(whole.shape) if whole is not None else ()
        if kinds and prod(kinds[0].shape) == size:
            return True
    return False
