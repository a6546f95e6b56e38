"""A file as cells: a script cut at its ``# %%`` marks, or the code cells of a notebook."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_MARK = re.compile(r"^#\s?%%(?P<title>.*)$")
_NO_CODE = re.compile(r"\[(markdown|md|raw)\]", re.IGNORECASE)


@dataclass(frozen=True)
class FileCell:
    """One cell. first_line: the number of its first line in a script; 1 in a notebook, where cells count their own.
    title: what stands behind the mark, None without one. may_fail: a notebook goes on after it if it does."""

    source: str
    first_line: int = 1
    title: str | None = None
    may_fail: bool = False


class UnreadableFileError(ValueError):
    """A file that cannot be run; the message is one sentence for the user."""


def read(path: Path) -> tuple[FileCell, ...]:
    """The cells of a ``.py`` or ``.ipynb`` file, those without code left out.

    Raises UnreadableFileError.
    """
    if path.is_dir():
        raise UnreadableFileError(f"{path} is a folder, not a file.")
    if path.suffix not in (".py", ".ipynb"):
        raise UnreadableFileError(f"{path} is neither a .py nor an .ipynb file.")
    try:
        text = _read_text(path)
    except FileNotFoundError:
        raise UnreadableFileError(f"There is no file {path}.") from None
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UnreadableFileError(
            f"{path} is not UTF-8 text (byte 0x{error.object[error.start]:02x} at offset {error.start}): save it as UTF-8."
        ) from None
    except SyntaxError:
        raise UnreadableFileError(
            f"{path} cannot be read: its coding line names no encoding that Python knows."
        ) from None
    return notebook_cells(text, path) if path.suffix == ".ipynb" else script_cells(text)


def script_cells(text: str) -> tuple[FileCell, ...]:
    """Cut a script at the comment lines ``# %%`` that stand between statements; without any it is one cell."""
    lines = text.split("\n")  # as Python counts: form feeds and their like are no line ends
    inside = _lines_inside_statements(text)
    marks = [
        (number, match["title"].strip())
        for number, line in enumerate(lines, 1)
        if number not in inside and (match := _MARK.match(line))
    ]
    starts = [(1, ""), *marks]
    ends = [number for number, _ in marks] + [len(lines) + 1]
    return tuple(
        FileCell("\n".join(lines[start - 1 : end - 1]).rstrip("\n") + "\n", start, title or None)
        for (start, title), end in zip(starts, ends, strict=True)
        if not _NO_CODE.search(title) and _has_code(lines[start - 1 : end - 1])
    )


def notebook_cells(text: str, path: Path) -> tuple[FileCell, ...]:
    """The code cells of a notebook (nbformat 4). Raises UnreadableFileError."""
    try:
        notebook = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableFileError(f"{path} is not a notebook: its JSON is broken ({error}).") from None
    cells = cast("dict[str, Any]", notebook).get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UnreadableFileError(
            f'{path} is not a notebook of format 4 (it has no list of "cells"): save it anew with Jupyter, or convert it '
            "with `jupyter nbconvert --to notebook`."
        )
    found = ((_notebook_source(cell, path), _may_fail(cell)) for cell in cast("list[Any]", cells))
    return tuple(FileCell(source, may_fail=may) for source, may in found if source is not None and source.strip())


def _notebook_source(cell: Any, path: Path) -> str | None:
    """The text of a code cell, None for any other cell."""
    if isinstance(cell, dict):
        fields = cast("dict[str, Any]", cell)
        source = fields.get("source")
        if fields.get("cell_type") != "code":
            return None
        if isinstance(source, str):
            return source
        if isinstance(source, list) and all(isinstance(line, str) for line in cast("list[Any]", source)):
            return "".join(cast("list[str]", source))
    raise UnreadableFileError(f"{path} is not a notebook: one of its cells has no text as its source.")


def _may_fail(cell: Any) -> bool:
    """Whether a cell of a notebook says so, as it does to nbclient and to Jupyter Book."""
    metadata = cell.get("metadata") if isinstance(cell, dict) else None
    fields = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    tags = fields.get("tags")
    return fields.get("allow_errors") is True or (isinstance(tags, list) and "raises-exception" in tags)


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    encoding = "utf-8"
    if path.suffix == ".py":  # as Python reads it: a byte-order mark or a coding line counts
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError:
            data.decode("utf-8")  # plain bytes that are no text are the likelier fault, and the clearer answer
            raise
    return io.TextIOWrapper(io.BytesIO(data), encoding).read()


def _has_code(lines: list[str]) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def _lines_inside_statements(text: str) -> set[int]:
    """Lines on which a mark is text of the program: within strings, brackets and blocks. Empty if it cannot be parsed:
    then the cells before the fault can still run."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {
        line
        for statement in statements
        for line in range(statement.lineno + 1, (statement.end_lineno or statement.lineno) + 1)
    }
