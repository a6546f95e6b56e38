"""Answers kept on the disk, so that a program is compiled for a target once.

One JSON file an answer, read as data and nothing else. A file that is damaged or foreign counts as absent; a disk that
is full or read-only means no cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import tpumagic
from tpumagic import codec
from tpumagic.compiler import file_names, folders, sites
from tpumagic.plans import Answer, Lowered, Target

LIMIT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Key:
    """Of an answer. digest: name of its entry. names: neutral file name -> what this kernel calls it."""

    digest: str
    names: dict[str, str]


def key(lowered: Lowered, target: Target, compiler: str, flags: str) -> Key:
    """What an answer depends on. compiler: its identity. flags: of the user, for every program."""
    program = file_names.read(lowered.stablehlo)
    rest = [program.digest, target.name, compiler, flags, lowered.devices, sorted(lowered.options), _readers()]
    return Key(hashlib.sha256(json.dumps(rest).encode()).hexdigest(), program.names)


def find(key: Key) -> Answer | None:
    """The answer kept under a key, with this kernel's file names."""
    path = _path(key)
    try:
        answer = codec.decode(Answer, json.loads(path.read_bytes()), "answer")
    except (OSError, ValueError, RecursionError, TypeError):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    # What was not asked for lately is what goes first.
    with contextlib.suppress(OSError):
        os.utime(path)
    here = sites.with_files(answer, lambda name: key.names.get(name, name))
    return replace(here, cached=True, pending=False)


def store(key: Key, answer: Answer) -> None:
    """Keeps an answer, or does nothing where that cannot be written."""
    neutral = {name: known for known, name in key.names.items()}
    kept = sites.with_files(replace(answer, cached=False, pending=False), lambda name: neutral.get(name, name))
    path = _path(key)
    try:
        folders.write_whole(path, json.dumps(codec.encode(kept), ensure_ascii=False, allow_nan=False))
        _evict(path)
    except OSError:
        pass


def size_bytes() -> int:
    """Of all answers kept."""
    return sum(size for _, size, _ in _entries())


def _path(key: Key) -> Path:
    return folders.plans() / f"{key.digest}.json"


def _evict(newest: Path) -> None:
    entries = sorted(_entries())
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= LIMIT_BYTES:
            return
        if path != newest:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            total -= size


def _entries() -> list[tuple[int, int, Path]]:
    """Last use, size and path of each file."""
    found: list[tuple[int, int, Path]] = []
    try:
        with os.scandir(folders.plans()) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    stat = file.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, Path(file.path)))
    except OSError:
        pass
    return found


@functools.cache
def _readers() -> str:
    """Identifies the code that makes answers: what another version of it has read is not read again."""
    package = Path(tpumagic.__file__).parent
    digest = hashlib.sha256(tpumagic.__version__.encode())
    for path in (package / "plans.py", *sorted(package.glob("hlo/*.py")), *sorted(package.glob("compiler/*.py"))):
        try:
            digest.update(path.read_bytes())
        except OSError:
            digest.update(path.name.encode())
    return digest.hexdigest()
