"""Saved runs: the reports of a file or a notebook as one JSON document."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, cast

from tpumagic import codec
from tpumagic.report.cleaning import prose
from tpumagic.report.model import VERSION, Report, check_version


@dataclass(frozen=True)
class Run:
    """The reports of one run, in the order of its cells. file: as the user named it, None for a notebook's session."""

    version: int = VERSION
    file: str | None = None
    cells: tuple[Report, ...] = ()


def dumps(run: Run) -> str:
    """The run as JSON text."""
    printable = replace(run, file=run.file and prose(run.file, 1000))
    return json.dumps(codec.encode(printable), ensure_ascii=False, allow_nan=False)


def loads(text: str, source: str = "the run") -> Run:
    """A run from its JSON text; nothing in it is executed. source: what messages call it.

    Raises ValueError, in one sentence, if the text is no run, is damaged or has another version.
    """
    try:
        data: object = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError(f"{source} is not a saved run: it is no JSON, or it was cut off") from None
    check_version(data, source)
    cells = cast("dict[str, object]", data).get("cells")
    for number, cell in enumerate(cast("list[object]", cells) if isinstance(cells, list) else [], 1):
        check_version(cell, f"report {number} in {source}")
    try:
        return codec.decode(Run, data, "run")
    except ValueError as error:
        raise ValueError(f"{source} is damaged: {error}") from None


def save(run: Run, path: Path) -> None:
    """Write the run so that the file is always the old or the new one, whole. Raises OSError."""
    text = dumps(run)
    # Beside the file: only within one file system is replacing atomic.
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(path: Path) -> Run:
    """Read a saved run. Raises OSError if the file cannot be read, ValueError as ``loads`` does."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not a saved run: it is not UTF-8 text") from None
    return loads(text, path.name)


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
