"""Which code is the user's, and where: from Python frames to source sites.

The user's code is the cells, the files named with ``add_file`` and every other file that is neither the standard
library, an installed package nor tpumagic itself.
"""

from __future__ import annotations

import linecache
import os
import site
import sysconfig
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from tpumagic.events import SourceSite, Stack
from tpumagic.stack_dump import CodeLine

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = tuple(
    {os.path.realpath(path) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts") if (path := sysconfig.get_paths().get(name))}
    | {os.path.realpath(path) + os.sep for path in (*site.getsitepackages(), site.getusersitepackages())}
)  # fmt: skip
_MAX_STACK = 16


class UserCode:
    """Knows the cells of a notebook by the file names of their code, and classifies every other file once."""

    def __init__(self) -> None:
        self._cells: dict[str, int | None] = {}
        self._sources: dict[str, str] = {}
        self._first_lines: dict[str, int] = {}
        self._user_files: dict[str, bool] = {}

    def add_cell(self, filename: str, count: int | None, source: str, first_line: int = 1) -> None:
        """Register the code file name of a cell; count is its execution count, None where cells are not counted.

        first_line: the line of ``source`` on which this code starts, where it is only a part of the cell.
        """
        self._cells[filename] = count
        self._sources[filename] = source
        self._first_lines[filename] = first_line
        self._user_files[filename] = True

    def remove_cell(self, filename: str) -> None:
        """Forget a cell whose file name is going to mean something else."""
        for known in (self._cells, self._sources, self._first_lines, self._user_files):
            known.pop(filename, None)

    def add_file(self, path: str) -> None:
        """Count this file as the user's wherever it lies."""
        self._user_files[path] = True

    def source(self, filename: str) -> str | None:
        """The text of a cell, None for anything else."""
        return self._sources.get(filename)

    def text_of(self, cell: int | None, file: str | None) -> tuple[str, int] | None:
        """The text in which a site of this cell or file stands and the number of its first line; None if it is gone."""
        if file is not None:
            lines = linecache.getlines(file)
            return ("".join(lines), 1) if lines else None
        for filename, count in reversed(self._cells.items()):
            if count == cell and cell is not None:
                return self._sources[filename], 1
        return None

    def is_user(self, filename: str) -> bool:
        """Whether code of this file name is the user's."""
        known = self._user_files.get(filename)
        if known is None:
            known = self._user_files[filename] = _is_user_file(filename)
        return known

    def site(self, filename: str, line: int, function: str | None = None) -> SourceSite:
        """The site of a line in a file that ``is_user``."""
        name = None if function in (None, "<module>") else function
        if filename in self._cells:
            line += self._first_lines[filename] - 1
            return SourceSite(line=line, cell=self._cells[filename], function=name)
        return SourceSite(line=line, file=filename, function=name)

    def user_site(self, filename: str, line: int, function: str | None = None) -> SourceSite | None:
        """The site of a line, None where the file is not the user's."""
        return self.site(filename, line, function) if self.is_user(filename) else None

    def stack(self, frame: FrameType | None) -> Stack:
        """The user's frames among the callers of ``frame`` (itself included), outermost first."""
        sites: list[SourceSite] = []
        while frame is not None and len(sites) < _MAX_STACK:
            code = frame.f_code
            if self._user_files.get(code.co_filename) is not False and self.is_user(code.co_filename):
                sites.append(self.site(code.co_filename, frame.f_lineno or 1, code.co_name))
            frame = frame.f_back
        sites.reverse()
        return tuple(sites)

    def lines_stack(self, lines: Sequence[CodeLine]) -> Stack:
        """The user's sites among the lines of a thread's stack (innermost first), outermost first."""
        sites = [self.site(*line) for line in lines if self.is_user(line.filename)]
        return tuple(reversed(sites[:_MAX_STACK]))

    def user_frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """The user's frames themselves, innermost first."""
        while frame is not None:
            if self.is_user(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back

    def traceback_stack(self, traceback: TracebackType | None) -> Stack:
        """The user's frames of a traceback, outermost first."""
        sites: list[SourceSite] = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if self.is_user(code.co_filename):
                sites.append(self.site(code.co_filename, traceback.tb_lineno or 1, code.co_name))
            traceback = traceback.tb_next
        return tuple(sites[-_MAX_STACK:])


def _is_user_file(filename: str) -> bool:
    if not filename or filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    return not (path.startswith((*_INSTALLED, _PACKAGE)) or "site-packages" in path or "dist-packages" in path)
