"""The stack of a running thread, as text that Python's own fault handler writes in one go.

Following another thread's frame objects (``sys._current_frames``) lets that thread run between two steps, and can
crash the interpreter: seen on Python 3.11.2. The fault handler makes no frame object and does not give up the
interpreter's lock while it writes.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
from typing import NamedTuple

_LIMIT = 1 << 20
_LINE = re.compile(r'^  File "(?P<filename>.*)", line (?P<line>\d+) in (?P<function>.*)$')


class CodeLine(NamedTuple):
    """One frame: the file name of its code, the line it is at and the name of its function."""

    filename: str
    line: int
    function: str


class StackDump:
    """Reads stacks through a file in memory. Not for use by several threads at a time."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("tpumagic", os.MFD_CLOEXEC)
        else:
            handle, path = tempfile.mkstemp(prefix="tpumagic")
            os.unlink(path)
            self._descriptor = handle

    def lines(self, thread_ident: int) -> tuple[CodeLine, ...]:
        """The thread's frames, innermost first; at most 100, which is where the fault handler stops. Empty for a thread
        that is gone, or not among the 100 that it tells."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        faulthandler.dump_traceback(self._descriptor, all_threads=True)
        text = os.pread(self._descriptor, _LIMIT, 0).decode("ascii", "replace")
        return parse(text, thread_ident)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)


def parse(text: str, thread_ident: int) -> tuple[CodeLine, ...]:
    """The frames of one thread in what the fault handler wrote."""
    start = re.search(rf"^(?:Current t|T)hread 0x0*{thread_ident:x}\b.*$", text, re.MULTILINE)
    found: list[CodeLine] = []
    for line in text[start.end() + 1 :].split("\n") if start is not None else ():
        match = _LINE.match(line)
        if match is None:
            break
        found.append(CodeLine(_unescaped(match["filename"]), int(match["line"]), _unescaped(match["function"])))
    return tuple(found)


def _unescaped(name: str) -> str:
    r"""The fault handler writes letters outside ASCII as ``\xe4`` or ``\u20ac``."""
    if "\\" not in name:
        return name
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))", lambda m: chr(int(m[1] or m[2] or m[3], 16)), name
    )
