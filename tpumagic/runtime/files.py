"""Reading what may not be there or may not be read: it counts as empty."""

from __future__ import annotations

import os
from pathlib import Path

LIMIT_BYTES = 4096


def names(folder: str | Path) -> list[str]:
    """The entries of a folder, in no order; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def entries(folder: Path) -> list[Path]:
    """The same as sorted paths."""
    return [folder / name for name in sorted(names(folder))]


def head(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes | None:
    """The beginning of a file, None if it cannot be read. What would make a reader wait, a pipe, reads as empty."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError):
        return None
    parts: list[bytes] = []
    try:
        # Files in /proc give a page at a time.
        while limit_bytes > 0 and (part := os.read(file, limit_bytes)):
            parts.append(part)
            limit_bytes -= len(part)
    except OSError:
        return b"".join(parts) or None
    finally:
        os.close(file)
    return b"".join(parts)


def text(path: Path, limit_bytes: int = LIMIT_BYTES) -> str:
    """The same as text, ``""`` if it cannot be read."""
    return (head(path, limit_bytes) or b"").decode(errors="replace")


def exists(path: Path) -> bool:
    """It is there, as far as this user may see it."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
