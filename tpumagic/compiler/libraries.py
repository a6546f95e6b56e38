"""Which libtpu compiles: the kernel's own, or one that ``tpumagic compiler install`` has fetched.

Nothing is loaded or imported: versions come from what the package index left on the disk.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpumagic.compiler import folders


@dataclass(frozen=True)
class Library:
    """A libtpu.so. origin: the kernel's package, the user's TPU_LIBRARY_PATH, or fetched by tpumagic. version: of its
    package, None if it came without one."""

    path: Path
    origin: Literal["package", "variable", "installed"]
    version: str | None
    bytes: int
    modified_ns: int

    @property
    def name(self) -> str:
        """As people call it, ``libtpu 0.0.42.1``."""
        return f"libtpu {self.version}" if self.version else f"the libtpu of {self.path}"

    @property
    def identity(self) -> str:
        """Differs for any two libraries that differ."""
        return f"{self.version or self.path} {self.bytes} {self.modified_ns}"


def candidates() -> tuple[Library, ...]:
    """What there is, best first: the one the user names, then the newest."""
    fetched = folders.libraries().glob("*/libtpu/libtpu.so")
    found = [
        _library(_from_package(), "package"),
        *(_library(path, "installed", path.parent.parent.name) for path in fetched),
    ]
    newest = sorted((one for one in found if one), key=lambda one: _numbers(one.version or ""), reverse=True)
    named = _library(_from_variable(), "variable")
    return (named, *newest) if named else tuple(newest)


def jax_version() -> str | None:
    """Of the kernel's JAX; None without one."""
    return _version("jax")


def _from_variable() -> Path | None:
    path = os.environ.get("TPU_LIBRARY_PATH")
    return Path(path) if path else None


def _from_package() -> Path | None:
    try:
        spec = importlib.util.find_spec("libtpu")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) / "libtpu.so" if places else None


def _library(
    path: Path | None, origin: Literal["package", "variable", "installed"], version: str | None = None
) -> Library | None:
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    if version is None:
        version = _version_beside(path)
    return Library(path, origin, version, stat.st_size, stat.st_mtime_ns)


def _version_beside(path: Path) -> str | None:
    """Of the package that a library came in, from the folder that pip leaves beside it."""
    found = sorted(path.parent.parent.glob("libtpu*.dist-info"))
    match = re.match(r"libtpu(?:_nightly)?-([\w.+]+)\.dist-info", found[-1].name) if found else None
    return match[1] if match else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
