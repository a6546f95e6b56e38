"""Of what a program's need of memory is made: the causes that matter, from the compiler's plan or, where there is none,
from the program itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpumagic.events import Leaf, Program
from tpumagic.passes.wording import is_gradient
from tpumagic.plans import Buffer, Donation, Plan

CauseName = Literal["no_donation", "residuals", "padding", "broadcast", "x64", "arguments", "temp"]

SUBSTANTIAL = 0.1
"""A cause counts from a tenth of what is needed: without less than that nobody would change the program."""
_NOTABLE = 0.02
"""One that alone is more than what is missing counts from 2 %: a program may fail by little."""
_LARGE_VALUE = 0.25
"""Without a plan an array counts as a cause from a quarter of the memory there is: it is not known when it lives."""


@dataclass(frozen=True)
class Cause:
    """One reason. bytes: what it takes of the need; causes overlap, since an argument may be padded. buffers: those
    that it is made of, largest first. donations: for ``no_donation``."""

    name: CauseName
    bytes: int
    buffers: tuple[Buffer, ...] = ()
    donations: tuple[Donation, ...] = ()


def of_plan(plan: Plan, needed: int, available: int, program: Program) -> tuple[Cause, ...]:
    """Causes that matter, largest first; those that differ by less than 1 % of the need in the order of CauseName."""
    temporaries = [one for one in plan.holders if one.kind == "temporary"]
    arguments = tuple(one for one in plan.holders if one.kind == "argument")
    donations = () if is_gradient(program) else plan.donations
    given = sum(one.bytes for one in donations)
    results = [one for one in plan.holders if one.kind == "output" and not one.donated]
    made = temporaries if 2 * given > sum(one.bytes for one in results) else temporaries + results
    special = [one for one in made if one.residual or one.repeated or one.x64]
    plain = [one for one in made if one not in special]
    padded = tuple(sorted((one for one in plan.holders if waste(one)), key=waste, reverse=True))
    temp = _of_buffers("temp", plain)
    if plan.temp_bytes is not None and not temporaries:
        temp = replace(temp, bytes=temp.bytes + plan.temp_bytes)
    found = [
        Cause("no_donation", given, donations=donations),
        _of_buffers("residuals", [one for one in temporaries if one.residual]),
        Cause("padding", sum(map(waste, padded)), padded),
        _of_buffers("broadcast", [one for one in made if one.repeated and not one.residual]),
        _of_buffers("x64", [one for one in plan.holders if one.x64]),
        Cause("arguments", plan.argument_bytes or sum(one.bytes for one in arguments), arguments),
        temp,
    ]
    return _ordered([one for one in found if matters(one.bytes, needed, available)], needed)


def of_program(program: Program, needed: int, available: int) -> tuple[Cause, ...]:
    """The same without a plan: arguments, results that could take their memory, and the largest arrays that the program
    makes. Bytes are those of the elements."""
    inputs = [
        Buffer("argument", leaf_bytes(leaf), leaf_bytes(leaf), leaf.dtype, leaf.shape, leaf.path)
        for leaf in program.inputs
    ]
    donations = () if is_gradient(program) else _donations(program)
    values = [one for one in _values(program) if one.bytes >= _LARGE_VALUE * available]
    found = [
        Cause("no_donation", sum(one.bytes for one in donations), donations=donations),
        _of_buffers("arguments", inputs),
    ]
    found = [one for one in found if matters(one.bytes, needed, available)]
    if values:
        found.append(Cause("temp", values[0].bytes, tuple(values[:8])))
    return _ordered(found, needed)


def waste(buffer: Buffer) -> int:
    """Bytes that a buffer takes beyond its elements; 0 if those are not known."""
    return max(0, buffer.bytes - buffer.logical_bytes) if buffer.logical_bytes is not None else 0


def matters(size: int, needed: int, available: int) -> bool:
    """Whether the program would need noticeably less without so many bytes, or would fit."""
    return size > 0 and (size >= SUBSTANTIAL * needed or (size >= needed - available and size >= _NOTABLE * needed))


def leaf_bytes(leaf: Leaf) -> int:
    """Bytes of an array's elements, also of one that exists only as shape and type."""
    return leaf.bytes or math.prod(leaf.shape) * item_bytes(leaf.dtype)


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a type by NumPy's name, or ``float8_…`` and ``int4``."""
    bits = {"bool": 8, "complex64": 64, "complex128": 128, "bfloat16": 16}.get(dtype)
    if bits is None:
        digits = "".join(c if c.isdigit() else " " for c in dtype.partition("_")[0]).split()
        bits = int(digits[0]) if digits else 32
    return max(1, bits // 8)


def _of_buffers(name: CauseName, buffers: Sequence[Buffer]) -> Cause:
    ordered = tuple(sorted(buffers, key=lambda one: -one.bytes))
    return Cause(name, sum(one.bytes for one in ordered), ordered)


def _ordered(found: list[Cause], needed: int) -> tuple[Cause, ...]:
    """Padding counts once, as padding: where it is most of an array, another layout helps and smaller blocks do not."""

    def percent(cause: Cause) -> int:
        own = cause.bytes if cause.name == "padding" else cause.bytes - sum(map(waste, cause.buffers))
        return round(100 * own / max(1, needed))

    return tuple(sorted(found, key=lambda one: -percent(one)))


def _donations(program: Program) -> tuple[Donation, ...]:
    """Arguments, not donated, that a result of the same shape and type could replace, each result once."""
    results = Counter((leaf.shape, leaf.dtype) for leaf in program.outputs)
    for place in program.donated:
        if place < len(program.inputs):
            results[program.inputs[place].shape, program.inputs[place].dtype] -= 1
    found: list[Donation] = []
    for place, leaf in enumerate(program.inputs):
        alike = (leaf.shape, leaf.dtype)
        if place not in program.donated and results[alike] > 0:
            results[alike] -= 1
            index = next(n for n, one in enumerate(program.outputs) if (one.shape, one.dtype) == alike)
            found.append(Donation(leaf.path, index, leaf_bytes(leaf)))
    return tuple(found)


def _values(program: Program) -> list[Buffer]:
    """Arrays that operations of the program make, largest first, each shape of a line once."""
    found: dict[tuple[object, ...], Buffer] = {}
    for graph, operation in program.graph.walk() if program.graph is not None else ():
        for place in operation.outputs:
            value = graph.values[place]
            size = value.size * item_bytes(value.dtype)
            key = (operation.site, value.shape, value.dtype)
            if not operation.bodies:
                buffer = Buffer(
                    "temporary", size, size, value.dtype, value.shape, None, operation.stack, operation.name
                )
                found.setdefault(key, buffer)
    return sorted(found.values(), key=lambda one: -one.bytes)
