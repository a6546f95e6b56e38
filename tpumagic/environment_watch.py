"""Sees which environment variables a cell sets, on which line, and whether it was too late."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tpumagic.events import EnvironmentSet
from tpumagic.user_code import UserCode

_PREFIXES = ("XLA_", "LIBTPU_", "JAX_", "TPU_", "PJRT_", "KERAS_", "TF_", "TORCH_", "PT_XLA_")


class EnvironmentWatch:
    """Wraps ``os.putenv``, through which every assignment to ``os.environ`` goes."""

    def __init__(self, user_code: UserCode, started: Callable[[], bool]) -> None:
        self._user_code = user_code
        self._started = started
        self._putenv: Callable[..., None] | None = None
        self.sets: list[EnvironmentSet] = []

    def install(self) -> None:
        """Start watching."""
        original = self._putenv = os.putenv

        def putenv(key: str | bytes, value: str | bytes, /) -> None:
            self._record(key, value)
            original(key, value)

        os.putenv = putenv

    def remove(self) -> None:
        """Stop watching."""
        if self._putenv is not None:
            os.putenv = self._putenv
            self._putenv = None

    def _record(self, key: str | bytes, value: str | bytes) -> None:
        name = os.fsdecode(key)
        if not name.startswith(_PREFIXES):
            return
        text = os.fsdecode(value)
        if os.environ.get(name) == text:
            return
        stack = self._user_code.stack(sys._getframe(2))
        if stack:
            self.sets.append(EnvironmentSet(name=name, value=text, stack=stack, started=self._started()))
