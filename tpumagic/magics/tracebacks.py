"""Tracebacks as the user's own code would give them."""

from __future__ import annotations

import os
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback with the frames of this package left out."""
    entries: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(traceback)
        traceback = traceback.tb_next
    # Not by recursion: the traceback of an endless recursion is as long as the stack may be deep.
    rest = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


class UsersTraceback:
    """``with UsersTraceback():`` around a call of the user's code: what it raises goes on without our frames."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            error.__traceback__ = without_our_frames(traceback)
