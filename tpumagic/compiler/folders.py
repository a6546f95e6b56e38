"""Where the compiler's things lie on the disk, and how a file gets there whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def root() -> Path:
    """The user's cache for tpumagic; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache") / "tpumagic"


def plans() -> Path:
    """Of the answers kept."""
    return root() / "plans"


def libraries() -> Path:
    """Of the TPU compilers fetched, one folder a version."""
    return root() / "libtpu"


def pairs() -> Path:
    """The file that says which pairs of JAX and libtpu work."""
    return root() / "pairs.json"


def write_whole(path: Path, text: str) -> None:
    """Writes so that the file is always the old or the new one. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
