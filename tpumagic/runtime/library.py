"""libtpu.so, the driver of the TPU: which file it is, and whether it can be one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpumagic.runtime.files import exists, head, text

State = Literal["present", "missing", "empty", "no library"]

_ELF = b"\x7fELF"
_MAPPED = re.compile(r"(/[^\n]*/libtpu\.so)( \(deleted\))?$", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """A libtpu.so. origin: who names it: a variable or a package. state: ``no library`` is a file of something else.
    size_bytes: None if it is missing."""

    path: str
    origin: Literal["TPU_LIBRARY_PATH", "libtpu", "torch_xla"]
    state: State
    size_bytes: int | None


@dataclass(frozen=True)
class Loaded:
    """The libtpu.so that this process has loaded. replaced: the file has been removed or written anew since."""

    path: str
    replaced: bool


def find_libraries(
    root: Path, environ: Mapping[str, str], versions: Mapping[str, str], path: Sequence[str]
) -> tuple[Library, ...]:
    """Every libtpu.so that a framework would look for, the one that comes first first. path is the import path."""
    found: list[Library] = []
    named = environ.get("TPU_LIBRARY_PATH")
    if named:
        file = root / named.lstrip("/") if named.startswith("/") else Path(named)
        found.append(_library(file, root, "TPU_LIBRARY_PATH"))
    folders = [folder for folder in path if folder]
    if "libtpu" in versions:
        found += _packaged(root, folders, "libtpu/libtpu.so", "libtpu", "libtpu")
    if "torch_xla" in versions:
        bundled = _packaged(root, folders, "torch_xla/lib/libtpu.so", "torch_xla", "torch_xla")
        found += [one for one in bundled if one.state != "missing"]
    return tuple(found)


def find_loaded(maps: str | None = None) -> Loaded | None:
    """What this process has loaded, from the text of /proc/self/maps; None if nothing."""
    if maps is None:
        maps = text(Path("/proc/self/maps"), 2**23) if sys.platform == "linux" else ""
    match = _MAPPED.search(maps)
    return Loaded(match[1], replaced=match[2] is not None) if match else None


def _packaged(
    root: Path, folders: Sequence[str], name: str, package: str, origin: Literal["libtpu", "torch_xla"]
) -> Iterator[Library]:
    """The file in the first folder that has the package; the package's own folder may be gone."""
    for folder in folders:
        if exists(Path(folder) / package):
            yield _library(Path(folder) / name, root, origin)
            return
    if folders:
        yield Library(name, origin, "missing", None)


def _library(path: Path, root: Path, origin: Literal["TPU_LIBRARY_PATH", "libtpu", "torch_xla"]) -> Library:
    shown = f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)
    start = head(path, len(_ELF))
    if start is None:
        return Library(shown, origin, "missing", None)
    state: State = "empty" if not start else "present" if start == _ELF else "no library"
    return Library(shown, origin, state, path.stat().st_size)
