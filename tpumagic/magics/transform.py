"""The text of a cell: where ``%%tpu_profile`` stands in it, and the same cell without that line.

IPython itself runs what is left, so everything a cell can do it does as before. Nothing here has side effects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from IPython.core.inputtransformer2 import classic_prompt, ipython_prompt, leading_empty_lines, leading_indent

from tpumagic.magics.options import VALUED

CELL_MAGIC = "%%tpu_profile"
DRY_RUN_MAGIC = "%%tpu_dryrun"
LINE_MAGIC = "%tpu_profile"
OWN_LINE = re.compile(r"%(tpu_\w+|(re|un)?load_ext\s+tpumagic\b)")

# The body of these is a text for another program, in which a magic of ours has no place; it is taken out.
_SCRIPTS = frozenset({"bash", "sh", "script", "system", "sx", "!"})
# The body of these is data and is left alone, whatever it says.
_DATA = frozenset({"writefile", "file", "html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"})
_OPTION = re.compile(rf"""(?:{"|".join(VALUED)})(?:\s+|=)(?:'[^']*'|"[^"]*"|\S+)(?=\s|$)|--[\w-]*(?:=\S*)?(?=\s|$)""")


@dataclass(frozen=True)
class Request:
    """What a cell asks for. options: the text behind the magic's name; above: names of cell magics that stand above
    it; statement: the Python of a cell that is one ``%tpu_profile STATEMENT``, else None."""

    options: str
    above: tuple[str, ...] = ()
    statement: str | None = None


def clean(cell: str) -> list[str]:
    """The lines of a cell as IPython's own first step leaves them: no empty lines on top, indentation or prompts."""
    lines = (cell if cell.endswith("\n") else cell + "\n").splitlines(keepends=True)
    for step in (leading_empty_lines, leading_indent, classic_prompt, ipython_prompt):
        lines = step(lines)
    return lines


def empty_lines(lines: list[str]) -> int:
    """How many empty lines there are on top."""
    return next((number for number, line in enumerate(lines) if line.strip()), len(lines))


def cell_options(line: str) -> str | None:
    """The options on a ``%%tpu_profile`` line; None for any other line and for ``%%tpu_profile?``."""
    line = line.rstrip("\r\n")
    if not line.startswith(CELL_MAGIC):
        return None
    rest = line[len(CELL_MAGIC) :]
    return rest.strip() if not rest or rest[0] in " \t" else None


def split_statement(text: str) -> tuple[str, str]:
    """What follows ``%tpu_profile`` or ``%tpu_dryrun``, as options and the statement behind them."""
    rest = text.strip()
    options: list[str] = []
    while found := _OPTION.match(rest):
        options.append(found.group())
        rest = rest[found.end() :].lstrip()
    return " ".join(options), rest


def find_request(cell: str) -> Request | None:
    """What a whole cell, as typed, asks for; None if it has no magic of ours on top (other cell magics may precede)."""
    lines = clean(cell)
    statement = _only_statement(lines)
    if statement is not None:
        return Request(options=statement[0], statement=statement[1])
    above: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip() and above:
            continue
        options = cell_options(line)
        if options is not None:
            # Without a body there is nothing to run: IPython says so itself.
            return Request(options=options, above=tuple(above)) if lines[number + 1 :] else None
        if not line.startswith("%%"):
            return None
        name = (line[2:].split() or [""])[0]
        if name in _DATA:
            return None
        above.append(name)
    return None


def only_own_magics(cell: str) -> bool:
    """Whether a cell consists of ``%tpu_…`` lines alone, or of a call under ``%%tpu_dryrun``: nobody wants to see them
    profiled."""
    lines = [line for line in clean(cell) if line.strip()]
    if lines and lines[0].startswith(DRY_RUN_MAGIC):
        return True
    return all(OWN_LINE.match(line) and not line.startswith(LINE_MAGIC) for line in lines)


class StripMagic:
    """The step that takes the magic off a cell. valid: whether text is a right set of options."""

    # Tells IPython to leave this step out when it asks whether typed text is complete: as under every cell magic, a
    # terminal then reads on until an empty line.
    has_side_effects = True

    def __init__(self, valid: Callable[[str], bool]) -> None:
        self._valid = valid

    def __call__(self, lines: list[str]) -> list[str]:
        """See ``strip_magic``."""
        try:
            return strip_magic(lines, self._valid)
        except Exception:  # a fault here must not cost the user the cell: IPython then calls the magic itself
            return lines


class PrefilterSingleLine:
    """The step that gives a one-line body what IPython does to one-line cells only: ``cd ..`` without a percent sign,
    ``exit`` without parentheses. prefilter: the shell's own way of doing it."""

    def __init__(self, prefilter: Callable[[str], str]) -> None:
        self._prefilter = prefilter

    def __call__(self, lines: list[str]) -> list[str]:
        """Rewrite the one line under a magic of ours; anything else stays."""
        if len(lines) != 2 or not lines[0].startswith("#") or cell_options(lines[0][1:]) is None:
            return lines
        return [lines[0], self._prefilter(lines[1].rstrip("\n")) + "\n"]


def strip_magic(lines: list[str], valid: Callable[[str], bool]) -> list[str]:
    """The cell without the magic: its line becomes a comment, so line numbers stay.

    Where the options are not valid the magic stays, so that IPython calls it: it raises the usage error, and the body
    does not run.
    """
    if not lines:
        return lines
    statement = _only_statement(lines)
    if statement is not None:
        return [statement[1] + "\n"] if valid(statement[0]) else lines
    options = cell_options(lines[0])
    if options is None:
        return _strip_from_script(lines, valid)
    body = lines[1:]
    if not body or not valid(options):
        return lines
    top = empty_lines(body)
    inner = clean("".join(body))
    if inner and inner[0].startswith("%%"):
        return strip_magic(inner, valid)  # a cell magic is one only on the first line
    return ["#" + lines[0], *body[:top], *inner]


def _strip_from_script(lines: list[str], valid: Callable[[str], bool]) -> list[str]:
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        options = cell_options(line)
        if options is not None:
            rest = lines[:number] + lines[number + 1 :]
            return rest if valid(options) else [line, *rest]
        if not line.startswith("%%") or (line[2:].split() or [""])[0] not in _SCRIPTS:
            break
    return lines


def _only_statement(lines: list[str]) -> tuple[str, str] | None:
    """Options and statement of a cell that is nothing but one ``%tpu_profile`` line."""
    text = "".join(lines).strip()
    if "\n" in text or not text.startswith(LINE_MAGIC + " ") or text.endswith("?"):
        return None
    options, statement = split_statement(text[len(LINE_MAGIC) :])
    return (options, statement) if statement else None
