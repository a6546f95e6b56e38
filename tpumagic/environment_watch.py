"""Sees which environment variables a cell sets, on which line, and whether it was too late."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from tpumagic.events import EnvironmentSet
from tpumagic.user_code import UserCode

_PREFIXES = ("XLA_", "LIBTPU_", "JAX_", "TPU_", "PJRT_", "KERAS_", "TF_", "TORCH_", "PT_XLA_")


class EnvironmentWatch:
    """Wraps ``os.putenv``, through which every assignment to ``os.environ`` goes."""

    def __init__(
        self, user_code: UserCode, started: Callable[[], bool], imported: Callable[[], tuple[str, ...]]
    ) -> None:
        self._user_code = user_code
        self._started = started
        self._imported = imported
        self._putenv: Callable[..., None] | None = None
        self._replacement: Callable[..., None] | None = None
        self.sets: list[EnvironmentSet] = []

    def install(self) -> None:
        """Start watching."""
        original = self._putenv = os.putenv

        def putenv(key: str | bytes, value: str | bytes, /) -> None:
            if self._putenv is not None:
                # A value that cannot be described is the user's to set all the same.
                with suppress(Exception):
                    self._record(key, value)
            original(key, value)

        os.putenv = self._replacement = putenv

    def remove(self) -> None:
        """Stop watching; if the user has replaced the function since, theirs stays."""
        if self._putenv is not None and os.putenv is self._replacement:
            os.putenv = self._putenv
        self._putenv = self._replacement = None

    def _record(self, key: str | bytes, value: str | bytes) -> None:
        name = os.fsdecode(key)
        if not name.startswith(_PREFIXES):
            return
        text = os.fsdecode(value)
        if os.environ.get(name) == text:
            return
        frame = _setter(sys._getframe(2))
        # Frameworks set variables of their own while they are imported: only the user's own lines are told.
        if frame is None or not (self._user_code.is_user(frame.f_code.co_filename) or _is_magic(frame)):
            return
        stack = self._user_code.stack(frame)
        if stack:
            self.sets.append(
                EnvironmentSet(name=name, value=text, stack=stack, started=self._started(), imported=self._imported())
            )


def _setter(frame: FrameType | None) -> FrameType | None:
    """The frame that assigned to ``os.environ`` or called ``os.putenv``."""
    while frame is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        frame = frame.f_back
    return frame


def _is_magic(frame: FrameType) -> bool:
    """IPython's %env and %set_env."""
    return str(frame.f_globals.get("__name__", "")).startswith("IPython.core.magics")
