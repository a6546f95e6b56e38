"""64-bit values that became 32-bit on their way into the framework."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tpumagic.events import CellRecord, Conversion, SourceSite
from tpumagic.findings import Finding

EXACT_INTEGERS = 2.0**24
"""Above this, float32 no longer holds every integer."""


def find(record: CellRecord) -> Iterator[Finding]:
    """Findings ``int64_truncated`` and ``f64_truncated``, one for each line."""
    groups: dict[tuple[str, SourceSite | None], list[Conversion]] = {}
    for conversion in record.conversions:
        kind = "int64_truncated" if "int" in conversion.old_dtype else "f64_truncated"
        site = conversion.stack[-1] if conversion.stack else None
        groups.setdefault((kind, site), []).append(conversion)
    for (kind, site), group in groups.items():
        telling = [one for one in group if _changes_values(one)] or [one for one in group if one.requested]
        if telling:
            yield _finding(kind, site, telling)


def _changes_values(conversion: Conversion) -> bool:
    """Whether a value is no longer what it meant: any changed integer; a float by more than rounding to 7 digits."""
    if conversion.lost is None:
        return False
    if "int" in conversion.old_dtype or conversion.requested:
        return True
    try:
        old, new = (float(text) for text in conversion.lost)
    except ValueError:
        return False
    if math.isfinite(old) and (not math.isfinite(new) or (old != 0.0 and new == 0.0)):
        return True
    # Identifiers and times: as float32, 1.7e9 seconds come in steps of two minutes.
    return abs(old) >= EXACT_INTEGERS and abs(old - new) >= 0.5


def _finding(kind: str, site: SourceSite | None, group: list[Conversion]) -> Finding:
    one = group[0]
    array = f"{one.old_dtype}[{','.join(map(str, one.shape))}]" if one.shape else one.old_dtype
    name = f"`{one.name}` ({array})" if one.name is not None else array
    lost = f": {one.lost[0]} is now {one.lost[1]}" if one.lost is not None and one.lost[0] != one.lost[1] else ""
    verb = "was asked for and became" if one.requested else "became"
    title = f"{name} {verb} {one.new_dtype}{lost}."
    return Finding(
        f"precision.{kind}",
        "warning",
        title,
        f"64-bit types are off (`jax_enable_x64`), so {one.old_dtype} is shortened without an error.",
        _fix(one),
        site=site,
        count=len(group),
        facts={
            "name": one.name,
            "old_dtype": one.old_dtype,
            "new_dtype": one.new_dtype,
            "old": one.lost[0] if one.lost is not None else None,
            "new": one.lost[1] if one.lost is not None else None,
        },
    )


def _fix(conversion: Conversion) -> str:
    if "int" not in conversion.old_dtype:
        if conversion.requested:
            return (
                f"Ask for {conversion.new_dtype}, or do this step in NumPy; `jax_enable_x64` gives {conversion.old_dtype}, "
                "which a TPU only imitates."
            )
        return "Subtract a common offset in NumPy before the conversion, or keep these values in NumPy."
    if conversion.lost is None:
        return f"Ask for {conversion.new_dtype} if its range is enough, or keep these values in NumPy."
    try:
        value = int(conversion.lost[0])
    except ValueError:
        value = -1
    if 0 <= value < 2**32:
        return "Make it `uint32`, if all values lie between 0 and 4,294,967,295, or keep these values in NumPy."
    return "Keep these values in NumPy, or split them into two 32-bit halves; `jax_enable_x64` gives int64."
