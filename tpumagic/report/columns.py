"""Plain text in 100 columns: labels in a gutter, texts wrapped beside them."""

from __future__ import annotations

import re
import textwrap

WIDTH = 100
GUTTER = 9

DURATION = re.compile(r"(?<![\w.])<?\d[\d,]*(?:\.\d+)? (?:µs|ms|s|min(?: \d+ s)?|h(?: \d+ min)?)(?!\w)")
SIZE = re.compile(r"(\d) ([KMGTP]iB|B|%)(?!\w)")
"""Not to be torn apart at the end of a line."""
PLACEHOLDER = "\ue000" * 8
"""Stands for a time while lines are broken; a character for private use, 8 as in ``12.3 ms`` and a bit."""


def fixed(text: str, width: int) -> str:
    """The text in exactly so many columns."""
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}…"


def wrapped(label: str, text: str, *, indent: str | None = None, gutter: int = GUTTER) -> str:
    """Text beside a label in the gutter; the lines of a text stay lines, their indentation too. indent: of all lines
    but the first, where there is no gutter.

    Times are wrapped as if all had the same length: a slower run must not break lines elsewhere.
    """
    first = f"{label:<{gutter}}" if indent is None else label
    rest = " " * gutter if indent is None else indent
    text = SIZE.sub("\\1\u00a0\\2", text)
    durations = DURATION.findall(text)
    filled = _filled(DURATION.sub(PLACEHOLDER, text), first, rest, WIDTH - 6)
    for duration in durations:
        filled = filled.replace(PLACEHOLDER, duration, 1)
    if PLACEHOLDER[0] in filled or any(len(line) > WIDTH for line in filled.split("\n")):
        return _filled(text, first, rest, WIDTH)
    return filled


def _filled(text: str, first: str, rest: str, width: int) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        inner = line[: len(line) - len(line.lstrip(" "))][:40]
        lines += textwrap.wrap(
            line.strip(" "),
            width,
            initial_indent=(rest if lines else first) + inner,
            subsequent_indent=rest + inner,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).replace("\u00a0", " ")
