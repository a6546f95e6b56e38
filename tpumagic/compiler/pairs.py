"""Which pairs of JAX and libtpu compile, and which crash: remembered on the disk until one of the two changes."""

from __future__ import annotations

import json
from typing import Literal, cast

from tpumagic.compiler import folders
from tpumagic.compiler.libraries import Library

State = Literal["works", "crashes"]

MOST = 50
"""Pairs remembered; nobody has more."""


_here: dict[str, State] = {}
"""What this process found out, for disks that keep nothing."""


def state(jax: str, library: Library) -> State | None:
    """What is known of a pair; None if it was never tried."""
    key = _key(jax, library)
    known = _here.get(key) or _read().get(key)
    return known if known in ("works", "crashes") else None


def remember(jax: str, library: Library, what: State) -> None:
    """Keep what was found out. Where that cannot be written it will be found out again."""
    key = _key(jax, library)
    _here[key] = what
    known = _read()
    if known.get(key) == what:
        return
    known.pop(key, None)
    kept = dict(list(known.items())[-(MOST - 1) :]) | {key: what}
    try:
        folders.write_whole(folders.pairs(), json.dumps(kept))
    except OSError:
        pass


def _key(jax: str, library: Library) -> str:
    return f"jax {jax}, {library.identity}"


def _read() -> dict[str, str]:
    try:
        data: object = json.loads(folders.pairs().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    items = cast("dict[object, object]", data).items()
    return {key: value for key, value in items if isinstance(key, str) and isinstance(value, str)}
