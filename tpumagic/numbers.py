"""How tpumagic writes quantities: the one place where numbers become text.

Every function takes None (or a number that no quantity can be: negative, NaN, infinite) as "not known" and writes "—".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

UNKNOWN = "—"
GIB = 2**30


def bytes_text(size: float | None) -> str:
    """Bytes in binary units with three digits: ``512 B``, ``1.5 KiB``, ``15.7 GiB``."""
    if not _known(size):
        return UNKNOWN
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    position = 0
    while _digits(size) >= 1024 and position < len(units) - 1:
        size /= 1024
        position += 1
    return f"{_three_digits(size)} {units[position]}"


def capacity_text(size: float | None) -> str:
    """Memory as chips' is told, gibibytes with two decimals: ``15.75 GiB``; below and above as ``bytes_text``."""
    if not _known(size) or _digits(size / GIB) < 1 or _digits(size / GIB) >= 1024:
        return bytes_text(size)
    return f"{_gibibytes(size, 2)} GiB"


def needed_text(needed: float | None, available: float | None) -> str:
    """What is needed of what is there: ``9.4 of 15.75 GiB``, ``1.2 MiB of 15.75 GiB``. Two different amounts never look
    the same: they get as many decimals as tell them apart."""
    if not _known(needed) or not _known(available):
        return f"{capacity_text(needed)} of {capacity_text(available)}"
    texts = capacity_text(needed), capacity_text(available)
    if texts[0] == texts[1] and needed != available:
        texts = next(
            (pair for decimals in range(3, 10) if (pair := _in_gibibytes(needed, available, decimals)) is not None),
            (f"{needed:,.0f} B", f"{available:,.0f} B"),
        )
    number, _, unit = texts[0].partition(" ")
    return f"{number if texts[1].endswith(f' {unit}') else texts[0]} of {texts[1]}"


def factor_text(factor: float | None) -> str:
    """How many times as much, with three digits: ``1.33×``, ``48×``."""
    if not _known(factor):
        return UNKNOWN
    return f"{factor:,.0f}×" if factor >= 1000 else f"{_three_digits(factor)}×"


def seconds_text(seconds: float | None) -> str:
    """A duration with three digits: ``350 µs``, ``12 ms``, ``1.84 s``; from a minute on ``2 min 5 s``, ``1 h 3 min``."""
    if not _known(seconds):
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    if seconds < 1e-6:
        return "<1 µs"
    if _digits(seconds * 1e6) < 1000:
        return f"{_three_digits(seconds * 1e6)} µs"
    if _digits(seconds * 1e3) < 1000:
        return f"{_three_digits(seconds * 1e3)} ms"
    if _digits(seconds) < 60:
        return f"{_three_digits(seconds)} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def count_text(count: int | None) -> str:
    """A number of things: ``1,234``."""
    return f"{count:,}" if _known(count) else UNKNOWN


def flops_text(flops: float | None) -> str:
    """Arithmetic operations per second as chips' peaks are told: ``61.5 TFLOP/s``."""
    return f"{_rounded(flops / 1e12)} TFLOP/s" if _known(flops) else UNKNOWN


def bandwidth_text(bytes_per_s: float | None) -> str:
    """Bytes per second in decimal units, as bandwidths are published: ``819 GB/s``."""
    return f"{_rounded(bytes_per_s / 1e9)} GB/s" if _known(bytes_per_s) else UNKNOWN


def percent_text(share: float | None) -> str:
    """A share (1 is all) in percent: ``42 %``, ``5.4 %``, ``<0.1 %``."""
    if not _known(share):
        return UNKNOWN
    percent = share * 100
    if 0 < percent < 0.1:
        return "<0.1 %"
    if percent >= 1000:
        return f"{percent:,.0f} %"
    return f"{_three_digits(percent) if percent >= 10 else _trimmed(f'{percent:.1f}')} %"


def bar_text(share: float | None, width: int = 12) -> str:
    """A share (1 is all) as a bar of block characters, always ``width`` long; empty when not known."""
    if not _known(share):
        return ""
    filled = min(width, round(share * width))
    if share > 0:
        filled = max(1, filled)
    return "█" * filled + "░" * (width - filled)


def trend_text(shares: Sequence[float | None], width: int = 24) -> str:
    """Shares (1 is all) over time as at most ``width`` blocks of eight heights, the highest of each stretch; a space
    where one is not known, empty where none is."""
    step = max(1, math.ceil(len(shares) / width))
    highest = [max(filter(_known, shares[n : n + step]), default=None) for n in range(0, len(shares), step)]
    if all(share is None for share in highest):
        return ""
    return "".join(" " if share is None else "▁▂▃▄▅▆▇█"[min(7, int(share * 8))] for share in highest)


def _known(number: float | None) -> TypeGuard[float]:
    return number is not None and math.isfinite(number) and number >= 0


def _gibibytes(size: float, decimals: int) -> str:
    return _trimmed(f"{size / GIB:.{decimals}f}")


def _in_gibibytes(needed: float, available: float, decimals: int) -> tuple[str, str] | None:
    """Both amounts with so many decimals, None if they look the same."""
    texts = _gibibytes(needed, decimals), _gibibytes(available, decimals)
    return (f"{texts[0]} GiB", f"{texts[1]} GiB") if texts[0] != texts[1] else None


def _digits(number: float) -> float:
    """The number as it will be written, so that 1023.9 KiB becomes 1 MiB and not 1024 KiB."""
    return float(f"{number:.3g}") if number < 1000 or math.isinf(number) else round(number)


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else _three_digits(number)


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:.0f}"
    return _trimmed(f"{number:#.3g}") if number >= 1 else _trimmed(f"{number:.2f}")


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
