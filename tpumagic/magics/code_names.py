"""The file names that IPython gives to the code of cells, so that a line of code can be told as ``In [5] line 3``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpumagic.magics.transform import empty_lines

if TYPE_CHECKING:
    from tpumagic.user_code import UserCode

Compiled = Callable[[str, int, str], None]

_NAMES_OF_BODIES = {"time": ("<timed exec>", "<timed eval>"), "timeit": ("<magic-timeit>",)}
"""Cell magics that compile the body themselves, always under the same file names."""


class CodeNames:
    """Wraps the method by which a shell names the code of a cell.

    That is the one place where the file name and the execution count of a cell are known before it runs, in IPython
    7.34 as in 9 and with every kernel's way of naming. compiled: called with file name, count and text of each cell.
    """

    def __init__(self, shell: Any, compiled: Compiled) -> None:
        self._compiler = shell.compile
        self._compiled = compiled
        self._wrapper: Callable[..., str] | None = None

    def install(self) -> None:
        """Start listening."""
        original = self._compiler.cache

        def cache(transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
            name = original(transformed_code, number, raw_code=raw_code)
            self._compiled(name, number, transformed_code if raw_code is None else raw_code)
            return name

        self._wrapper = cache
        self._compiler.cache = cache

    def remove(self) -> None:
        """Stop listening; if somebody wrapped the method after us, only our part falls silent."""
        self._compiled = _ignore
        if self._wrapper is not None and self._compiler.__dict__.get("cache") is self._wrapper:
            del self._compiler.cache
        self._wrapper = None


def _ignore(name: str, count: int, text: str) -> None:
    pass


def add_earlier_cells(shell: Any, user_code: UserCode) -> None:
    """Register the cells that ran before tpumagic was loaded."""
    history: list[str] = list(getattr(shell.history_manager, "input_hist_raw", ()))
    known: dict[str, int] | None = getattr(shell.compile, "_filename_map", None)
    if known is None:  # IPython 7
        parsed: list[str] = list(getattr(shell.history_manager, "input_hist_parsed", ()))
        pairs = list(zip(history, parsed, strict=False))
        known = {shell.compile.get_code_name(raw, code, n): n for n, (raw, code) in enumerate(pairs) if n > 0}
    for name, count in known.items():
        source = history[count] if 0 <= count < len(history) else ""
        user_code.add_cell(name, count, source, 1 + empty_lines(source.splitlines()))


def add_cell(user_code: UserCode, name: str, count: int | None, text: str, whole: str) -> None:
    """Register code that is about to run. text: what was compiled; whole: the cell it is a part of (``%%capture`` runs
    its body as a cell of its own), or the same."""
    lines_above = empty_lines(text.splitlines())
    position = whole.find(text.rstrip("\n"))
    if position < 0:  # a text that the user's code made
        user_code.add_cell(name, None, text, 1 + lines_above)
        return
    lines_above += whole.count("\n", 0, position)
    user_code.add_cell(name, count, whole, 1 + lines_above)


def add_bodies(user_code: UserCode, count: int | None, whole: str) -> None:
    """Register the bodies that ``%%time`` and its like in this cell compile themselves, and forget those of the last
    cell: their file names are the same in every cell."""
    for names in _NAMES_OF_BODIES.values():
        for name in names:
            user_code.remove_cell(name)
    lines = whole.splitlines()
    number = empty_lines(lines)
    while number < len(lines) and (lines[number].startswith("%%") or not lines[number].strip()):
        magic = (lines[number][2:].split() or [""])[0]
        number += 1
        first = number + empty_lines(lines[number:]) + 1
        for name in _NAMES_OF_BODIES.get(magic, ()):
            user_code.add_cell(name, count, whole, first)
