"""Texts and numbers made harmless: nothing steers a terminal, a browser or the order of reading, and all fit in JSON."""

from __future__ import annotations

import math
import numbers
import re

from tpumagic.events import SourceSite

WHOLE_LIMIT = 2**63
"""Larger whole numbers are no counts or bytes, and other readers of JSON cannot hold them."""

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
UNPRINTABLE = (
    *range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFEFF, 0xFFFE, 0xFFFF,
)  # fmt: skip
SPELLED = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in UNPRINTABLE}
"""Control characters but for the line feed, direction and byte order marks, lone surrogates: as Python writes them."""
MORE_CHARACTERS = re.compile(r"… (\d{1,18}) more characters\Z")


def prose(text: str, limit: int) -> str:
    """The first ``limit`` characters without anything that could steer a terminal, a browser or the order of reading,
    and how many characters more there were.

    Colours are removed; other control characters, lone surrogates and direction marks are spelled out.
    """
    already = 0
    if len(text) > limit and (before := MORE_CHARACTERS.search(text[-40:])):
        text, already = text[: len(text) - len(before.group())], int(before.group(1))
    kept = _printable(text[:limit])
    missing = already + max(0, len(text) - limit) + max(0, len(kept) - limit)
    return f"{kept[:limit]}… {missing} more characters" if missing else kept


def line(text: str, limit: int) -> str:
    """The same in one line."""
    cleaned = prose(text, limit)
    return " ".join(cleaned.split("\n")) if "\n" in cleaned else cleaned


def optional_line(text: str | None, limit: int) -> str | None:
    """The same for a text that may not be known."""
    return None if text is None else line(text, limit)


def site(where: SourceSite | None, limit: int) -> SourceSite | None:
    """A line of the user's code whose names are cleaned."""
    if where is None:
        return None
    return SourceSite(
        whole(where.line) or 0,
        whole(where.cell),
        optional_line(where.file, limit),
        optional_line(where.function, limit),
    )


def seconds(duration: float | None) -> float | None:
    """Seconds to the nanosecond; None for what is no duration."""
    if duration is None or not math.isfinite(duration) or duration < 0:
        return None
    return round(float(duration), 9)


def share(part: float | None) -> float | None:
    """A number that is not negative, to four decimals; None for what is none."""
    if part is None or not math.isfinite(part) or part < 0:
        return None
    return round(float(part), 4)


def whole(number: int | None) -> int | None:
    """A count or bytes; None for what is neither."""
    if number is None or not 0 <= number < WHOLE_LIMIT:
        return None
    return int(number)


def finite(number: numbers.Real) -> float | None:
    """A number as JSON can hold it."""
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    text = ANSI.sub("", text.replace("\r\n", "\n").replace("\t", "    "))
    return text.translate(SPELLED)
