"""Whether the TPU compiler can run on this machine now."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from tpumagic.compiler.libraries import Library
from tpumagic.numbers import bytes_text

NEEDED_BYTES = 2 * 10**9
"""What must be free: the compiler itself takes 0.9 to 1.6 GB."""

PROGRAM_LIMIT_BYTES = 512 * 2**20
"""StableHLO of a program; a larger one carries its data as constants and would take the compiler many times that."""

INSTALL = "`tpumagic compiler install` fetches it"


def why_never(jax: str | None, libraries: tuple[Library, ...]) -> str | None:
    """One sentence why there is no TPU compiler for this kernel; None if there is one."""
    if why := wrong_machine():
        return why
    if not sys.executable:
        return "The TPU compiler needs a Python of its own, and this kernel does not say which program Python is."
    if jax is None:
        return "The TPU compiler is asked through JAX, which this Python does not have: pip install jax."
    if not libraries:
        return f"The TPU compiler, libtpu, is not installed: {INSTALL}, or pip install libtpu."
    return None


def wrong_machine() -> str | None:
    """One sentence why there is no TPU compiler for this kind of machine; None if there is one."""
    if sys.platform != "linux":
        name = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        return f"The TPU compiler runs on Linux alone, and this is {name}."
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"The TPU compiler runs on x86_64 alone, and this machine is {platform.machine()}."
    return None


def why_not_now(root: Path = Path("/")) -> str | None:
    """One sentence why it should not run just now; None if it can."""
    free = free_bytes(root)
    if free is None or free >= NEEDED_BYTES:
        return None
    return f"The TPU compiler was not started: {bytes_text(free)} of memory are free, and it needs {bytes_text(NEEDED_BYTES)}."


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that a new process may take, within the limits of its container; None if nothing says it."""
    free = _meminfo(root, "MemAvailable")
    for limit, used, stat, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        folder = root / "sys/fs/cgroup"
        limit_bytes, used_bytes = _number(folder / limit), _number(folder / used)
        if limit_bytes is not None and used_bytes is not None:
            # The kernel gives up cached files before it refuses memory.
            left = max(0, limit_bytes - used_bytes + _row(folder / stat, cached))
            free = left if free is None else min(free, left)
    return free


def _meminfo(root: Path, name: str) -> int | None:
    for words in _rows(root / "proc/meminfo"):
        if words[0] == f"{name}:" and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    rows = _rows(path)
    return int(rows[0][0]) if rows and rows[0][0].isdigit() else None


def _row(path: Path, name: str) -> int:
    return next((int(words[1]) for words in _rows(path) if len(words) == 2 and words[0] == name), 0)


def _rows(path: Path) -> list[list[str]]:
    try:
        return [words for text in path.read_text().splitlines() if (words := text.split())]
    except (OSError, UnicodeDecodeError):
        return []
