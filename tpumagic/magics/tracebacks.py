"""Tracebacks as the user's own code would give them."""

from __future__ import annotations

import os
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The same traceback with the frames of this package left out."""
    if traceback is None:
        return None
    rest = without_our_frames(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


class UsersTraceback:
    """``with UsersTraceback():`` around a call of the user's code: what it raises goes on without our frames."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            error.__traceback__ = without_our_frames(traceback)
