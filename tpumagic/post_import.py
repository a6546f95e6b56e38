"""Call a function once a module has been imported: a cell may import its framework on its own first line."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any


class PostImport(MetaPathFinder):
    """While installed, runs ``callbacks[name]()`` right after module ``name`` has been executed."""

    def __init__(self, callbacks: dict[str, Callable[[], None]]) -> None:
        self._callbacks = callbacks
        self._finding: set[str] = set()
        self._path: list[Any] = []

    def install(self) -> None:
        """Start watching imports."""
        self._path = sys.meta_path
        self._path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; modules imported meanwhile keep no trace of it."""
        self._callbacks = {}
        # The user may have replaced the list, and may put the old one back.
        for path in (self._path, sys.meta_path):
            path[:] = [finder for finder in path if finder is not self]
        self._path = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find ``fullname`` as if this finder were not here, with a loader that calls back."""
        if fullname not in self._callbacks or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._callbacks[fullname])
        return spec


class _CallingLoader(Loader):
    def __init__(self, loader: Loader, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        # Whoever only asks where a module is gets the answers of the real loader.
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module shall look as if it had been imported without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()
