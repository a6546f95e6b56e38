"""Arrays that take more memory than their elements, because tiles of the chip are filled up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpumagic.compiler.holders import Trips, folded, tiling, told
from tpumagic.compiler.origins import origin
from tpumagic.compiler.program_facts import Program
from tpumagic.compiler.timeline import Live
from tpumagic.hlo import arrays
from tpumagic.plans import Buffer

MOST = 12
LEAST_BYTES = 64 * 1024
"""Waste below this is not worth a line, whatever its factor: every scalar fills a tile."""

_LOOKED_AT = 200


def padded(program: Program, standing: Iterable[Buffer], live: Sequence[Live], trips: Trips) -> tuple[Buffer, ...]:
    """Most waste first. standing: arguments, results and constants. live: the values that come and go."""
    found = [buffer for buffer in standing if _waste(buffer) >= LEAST_BYTES]
    seen: set[object] = set()
    for buffer, one in _wasteful(live):
        # Named places of one value, and later values of the same line in the same bytes, count once.
        place = (one.allocation, one.value.offset, buffer.dtype, buffer.shape)
        made_by = origin(program, one.value.name, one.value.index)
        full = told(program, buffer, made_by, trips)
        key = (place, full.stack, full.operation)
        if key in seen or (made_by is None and (place, None) in seen):
            continue
        seen |= {key, (place, None)}
        found.append(full)
    return tuple(sorted(folded(found), key=lambda one: -_waste(one))[:MOST])


def _wasteful(live: Sequence[Live]) -> list[tuple[Buffer, Live]]:
    found: list[tuple[Buffer, Live]] = []
    for one in live:
        kinds = arrays(one.value.shape) if not one.value.shape.startswith("(") else ()
        if len(kinds) == 1 and kinds[0].bytes - kinds[0].logical_bytes >= LEAST_BYTES:
            array = kinds[0]
            buffer = Buffer(
                "temporary", array.bytes, array.logical_bytes, array.dtype, array.shape, tiling=tiling(array)
            )
            found.append((buffer, one))
    found.sort(key=lambda pair: -_waste(pair[0]))
    return found[:_LOOKED_AT]


def _waste(buffer: Buffer) -> int:
    return buffer.bytes - (buffer.logical_bytes or buffer.bytes)
