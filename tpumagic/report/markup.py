"""Pieces of the HTML report: every text escaped, no ids, no scripts, nothing that needs its styles."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from tpumagic.numbers import bar_text, bytes_text, percent_text, seconds_text


def escaped(text: str) -> str:
    """Any text as text."""
    return html.escape(text, quote=True)


def prose(text: str) -> str:
    """Escaped, with `code` between backticks set as code and line breaks and indentation kept."""
    marked = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escaped(text))
    lines = (re.sub(r"^ +", lambda spaces: "&nbsp;" * len(spaces.group()), line) for line in marked.split("\n"))
    return "<br>".join(lines)


def section(name: str, content: str, *, opened: bool = False) -> str:
    """A part that folds. name, content: HTML."""
    return f"<details{' open' if opened else ''}><summary><b>{name}</b></summary>{content}</details>"


def table(head: str, lines: Iterable[str], kind: str = "") -> str:
    """A table that scrolls sideways where it must. head, lines: HTML of cells and rows; kind: further classes."""
    heading = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="tm-wide"><table class="tm-table{kind}">{heading}<tbody>{"".join(lines)}</tbody></table></div>'


def numbers(*texts: str, more: bool = False) -> str:
    """Cells of numbers. more: left out where there is little room."""
    return "".join(f'<td class="tm-number{" tm-more" if more else ""}">{text}</td>' for text in texts)


def share(part: int | None, whole: int | None, of: str = "") -> str:
    """A bar and a percentage; empty where one is not known."""
    return bar(part / whole, of) if part is not None and whole else ""


def bar(portion: float, of: str = "") -> str:
    """A share (1 is all) as a bar and a percentage."""
    drawn = f'<span class="tm-bar tm-more" aria-hidden="true">{bar_text(portion)}</span>'
    return f"{drawn} {whole(percent_text(portion))} {of}".rstrip()


def time(seconds: float | None) -> str:
    """A duration in one piece."""
    return whole(seconds_text(seconds))


def size(bytes_: int | None) -> str:
    """Bytes in one piece."""
    return whole(bytes_text(bytes_))


def whole(text: str) -> str:
    """Escaped, and not broken at its spaces."""
    return escaped(text).replace(" ", "&nbsp;")
