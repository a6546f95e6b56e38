"""What stands at the instruction of a frame that raised, and what its names hold.

Names are resolved without executing anything: no property, no ``__getattr__``, subscripts of plain containers only.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType, TracebackType
from typing import Any

from tpumagic.user_code import UserCode

MISSING = object()
"""What ``Raising.resolve`` gives for something that cannot be told without executing it."""


@dataclass(frozen=True, eq=False)
class Raising:
    """One user frame of a traceback. expression: the source of the instruction that raised (``x[x > 0]``); statement:
    the statement it belongs to, of a compound one the header; both empty if the source is not known. scope: names
    visible there. Holds the user's objects: not to be kept."""

    expression: str
    statement: str
    scope: tuple[Any, ...]

    def tree(self) -> ast.expr | None:
        """The expression as syntax, of an assertion what it asserts; None if it is none."""
        try:
            return ast.parse(f"({self.expression.removeprefix('assert ')})", mode="eval").body
        except (SyntaxError, ValueError):
            return None

    def resolve(self, node: ast.AST) -> Any:
        """The object behind ``a``, ``a.b`` or ``a['b'][0]``; MISSING for anything else."""
        if isinstance(node, ast.Name):
            return next((names[node.id] for names in self.scope if node.id in names), MISSING)
        if isinstance(node, ast.Attribute):
            return _attribute(self.resolve(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            holder, key = self.resolve(node.value), node.slice.value
            try:
                return holder[key] if type(holder) in (dict, list, tuple) else MISSING
            except (LookupError, TypeError):
                return MISSING
        return MISSING

    def variables(self) -> Iterator[tuple[str, Any]]:
        """What the expression mentions, as written: ``state.params``, ``x``; the longest chains that can be told."""
        tree: ast.AST | None = self.tree() or _syntax(self.statement)
        seen: set[str] = set()
        for text, value in self._chains(tree) if tree is not None else ():
            if text not in seen:
                seen.add(text)
                yield text, value

    def _chains(self, node: ast.AST) -> Iterator[tuple[str, Any]]:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            value = self.resolve(node)
            if value is not MISSING and not _is_code(value):
                yield ast.unparse(node), value
                return
        for child in ast.iter_child_nodes(node):
            yield from self._chains(child)


def raising_frames(traceback: TracebackType | None, user_code: UserCode) -> list[Raising]:
    """The user's frames, innermost first."""
    found: list[Raising] = []
    running = running_frames()
    while traceback is not None:
        frame = traceback.tb_frame
        if user_code.is_user(frame.f_code.co_filename):
            found.append(_raising(traceback, user_code, running))
        traceback = traceback.tb_next
    found.reverse()
    return found[:16]


def running_frames() -> frozenset[int]:
    """Ids of the frames of functions that have not returned, in this thread."""
    found: set[int] = set()
    frame = sys._getframe(1)
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return frozenset(found)


def locals_of(frame: FrameType, running: frozenset[int]) -> Mapping[str, Any]:
    """A frame's variables; none of a function that still runs, since Python before 3.13 would keep the copy made here,
    and with it the exception, until that function returns."""
    if id(frame) in running and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    return frame.f_locals


def _raising(traceback: TracebackType, user_code: UserCode, running: frozenset[int]) -> Raising:
    frame = traceback.tb_frame
    code = frame.f_code
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    if not lines:
        lines = (user_code.source(code.co_filename) or "").splitlines(keepends=True)
    expression = _segment(lines, traceback)
    statement = _statement(lines, traceback.tb_lineno or 0)
    scope = (locals_of(frame, running), frame.f_globals, vars(builtins))
    return Raising(expression, statement, scope)


def _statement(lines: list[str], line: int) -> str:
    """The innermost statement on a line, of one with a body the header only; empty if the source is no Python."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return ""
    found = ""
    for node in ast.walk(tree):  # breadth first: the last one found is the innermost
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                found = textwrap.dedent("".join(lines[node.lineno - 1 : last])).strip()
    return found


def _syntax(statement: str) -> ast.AST | None:
    for text in (statement, f"{statement} pass"):
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError):
            continue
    return None


def _segment(lines: list[str], traceback: TracebackType) -> str:
    """The text of the instruction at which the frame stands, on one line."""
    positions = list(traceback.tb_frame.f_code.co_positions())
    index = traceback.tb_lasti // 2
    first, last, start, end = positions[index] if 0 <= index < len(positions) else (None, None, None, None)
    if first is None or last is None or start is None or end is None or last > len(lines):
        return ""
    rows = [row.encode() for row in lines[first - 1 : last]]
    rows[-1] = rows[-1][:end]
    rows[0] = rows[0][start:]
    return " ".join(row.decode(errors="replace").strip() for row in rows)


def _is_code(value: Any) -> bool:
    """Functions, classes and modules; what binds itself to an instance is a function."""
    cls = type(value)
    return issubclass(cls, (type, ModuleType)) or hasattr(cls, "__get__") or inspect.isbuiltin(value)


def _attribute(holder: Any, name: str) -> Any:
    if holder is MISSING:
        return MISSING
    value = inspect.getattr_static(holder, name, MISSING)
    if inspect.ismemberdescriptor(value):
        try:
            return value.__get__(holder)
        except (AttributeError, TypeError):
            return MISSING
    return MISSING if inspect.isdatadescriptor(value) else value
