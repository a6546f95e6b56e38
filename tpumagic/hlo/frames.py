"""Stack frames of a module: the tables in front of its computations, or files and lines at the instructions."""

from __future__ import annotations

import re

from tpumagic.hlo.model import Frame

DEPTH = 64
"""Frames of one stack that are kept, innermost ones first; JAX sends at most ten."""

_SECTIONS = frozenset({"FileNames", "FunctionNames", "FileLocations", "StackFrames"})
_TEXT_ROW = re.compile(r'(\d{1,18}) "(.*)"\s*$')
_FIELDS_ROW = re.compile(r"(\d{1,18}) \{([^{}]*+)\}")
_FIELD = re.compile(r"(\w++)=(\d{1,18})")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


class FrameTable:
    """Collects the rows of the tables. Frames of one file and line without a table get negative ids."""

    def __init__(self) -> None:
        self._section = ""
        self._texts: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self._rows: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
        self._inline: dict[tuple[str, int], int] = {}

    def read(self, line: str) -> None:
        """Takes a line outside of computations; anything but tables is skipped."""
        if line in _SECTIONS:
            self._section = line
        elif self._section in self._texts:
            if found := _TEXT_ROW.match(line):
                self._texts[self._section][int(found[1])] = unescaped(found[2])
        elif self._section and (found := _FIELDS_ROW.match(line)):
            fields = {key: int(value) for key, value in _FIELD.findall(found[2])}
            self._rows[self._section][int(found[1])] = fields

    def inline(self, file: str, line: int) -> int:
        """Id of the frame of a line that an instruction names itself."""
        return self._inline.setdefault((file, line), -1 - len(self._inline))

    def stacks(self, used: set[int]) -> dict[int, tuple[Frame, ...]]:
        """Stack of each used frame, outermost first."""
        stacks: dict[int, tuple[Frame, ...]] = {
            number: (Frame(unescaped(file), line, ""),) for (file, line), number in self._inline.items()
        }
        frames: dict[int, Frame | None] = {}
        for number in used:
            if number > 0 and (stack := self._stack(number, frames)):
                stacks[number] = stack
        return stacks

    def _stack(self, number: int, frames: dict[int, Frame | None]) -> tuple[Frame, ...]:
        rows = self._rows["StackFrames"]
        found: list[Frame] = []
        seen: set[int] = set()
        while number in rows and number not in seen and len(seen) < DEPTH:
            seen.add(number)
            if number not in frames:
                frames[number] = self._frame(rows[number].get("file_location_id", 0))
            if (frame := frames[number]) is not None:
                found.append(frame)
            # The text counts parents from one more than frames: 1 is "none", n + 1 the frame n.
            number = rows[number].get("parent_frame_id", 1) - 1
        return tuple(reversed(found))

    def _frame(self, location_id: int) -> Frame | None:
        location = self._rows["FileLocations"].get(location_id)
        if location is None:
            return None
        file = self._texts["FileNames"].get(location.get("file_name_id", 0))
        if file is None:
            return None
        return Frame(
            file, location.get("line", 0), self._texts["FunctionNames"].get(location.get("function_name_id", 0), "")
        )


def unescaped(text: str) -> str:
    """A quoted text as it was before it was quoted."""
    if "\\" not in text:
        return text
    pieces: list[bytes] = []
    end = 0
    for found in _ESCAPE.finditer(text):
        pieces.append(text[end : found.start()].encode("utf-8", "surrogatepass"))
        code = found[1]
        if len(code) == 3:
            pieces.append(bytes([int(code[1:], 16) if code[0] == "x" else int(code, 8) & 255]))
        else:
            pieces.append(_ESCAPED.get(code, code).encode("utf-8", "surrogatepass"))
        end = found.end()
    pieces.append(text[end:].encode("utf-8", "surrogatepass"))
    return b"".join(pieces).decode("utf-8", "replace")
