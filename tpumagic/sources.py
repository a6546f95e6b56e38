"""The text of a cell read as syntax: which statement, loop and function a line belongs to, and what is called there.

Nothing is executed and nothing raises: a cell that is no Python yields a Source without statements. Line numbers are
those of the cell or file, as in SourceSite. IPython's own lines (``!ls``, ``%cd``, ``f?``) count as empty; the
Python after ``%time``, ``%timeit``, ``%prun`` and ``%tpu_profile`` is read as if it stood alone on its line.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_CONVENTIONS = {"np": "numpy", "jnp": "jax.numpy"}
_RUNS_ITS_TEXT = frozenset({"time", "timeit", "prun", "tpu_profile"})
_RUNS_ITS_CELL = _RUNS_ITS_TEXT | {"capture"}
_TIMEIT_OPTION = re.compile(r"-(?:[nrp]\s*\d+|[tcqo]+)(?:\s+|$)")
_OTHER_OPTION = re.compile(r"--?\w+(?:[= ](?:v\d\S*|\d+))?(?:\s+|$)")
_LINE_MAGIC = re.compile(r"^(?P<indent>\s*)(?P<target>[\w.,\s]+=\s*)?%(?P<name>\w+)(?P<text>.*)$")
_NO_PYTHON = re.compile(r"^\s*(?:[\w.,\s]+=\s*)?[!%]|^\s*\?|\?\s*$")


@dataclass(frozen=True)
class Magic:
    """A ``%name text`` line, or ``%%name`` (cell is True) with the text behind it on its line."""

    line: int
    name: str
    text: str
    cell: bool = False


@dataclass(frozen=True)
class Span:
    """Lines first to last, both included; of a compound statement (``for``, ``with``, ``def``) its header only."""

    first: int
    last: int

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


@dataclass(frozen=True)
class Loop:
    """A loop with its whole body. kind: ``for``, ``while`` or ``comprehension``; targets: names it binds each time."""

    first: int
    last: int
    kind: str
    targets: frozenset[str]
    node: ast.AST = field(repr=False, compare=False)

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


@dataclass(frozen=True)
class Function:
    """A ``def`` with its whole body; line is that of the ``def``, first that of its first decorator."""

    name: str
    line: int
    first: int
    last: int
    node: ast.FunctionDef | ast.AsyncFunctionDef = field(repr=False, compare=False)

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


@dataclass(frozen=True)
class CallText:
    """A call as written: ``np.asarray(out)`` has callee ``np.asarray`` and arguments ``("out",)``; keyword arguments
    stand as ``name=value``. line is where the callee's last name stands, last where the call ends."""

    callee: str
    arguments: tuple[str, ...]
    line: int
    last: int
    node: ast.Call = field(repr=False, compare=False)


class Source:
    """A parsed cell. Made by ``parse``; shared, so not to be changed."""

    def __init__(self, tree: ast.Module, magics: tuple[Magic, ...]) -> None:
        self.tree = tree
        self.magics = magics

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """All statements, nested ones included, in order of their first line."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset)))

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that stands on this line; None on empty lines and comments between statements."""
        best: ast.stmt | None = None
        for node in self.statements:
            if line in span_of(node):
                best = node
        return best

    def span(self, line: int) -> Span:
        """The lines of the innermost statement on this line; the line alone where there is none."""
        node = self.statement(line)
        return span_of(node) if node is not None else Span(line, line)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every ``def``, in order of lines."""
        return tuple(
            Function(node.name, node.lineno, _first_line(node), _last_line(node), node)
            for node in self.statements
            if isinstance(node, FUNCTIONS)
        )

    def function(self, line: int) -> Function | None:
        """The innermost ``def`` whose body the line stands in; None at the level of the cell."""
        inside = [one for one in self.functions if one.line < line <= one.last or line == one.line == one.last]
        return max(inside, key=lambda one: one.line, default=None)

    @cached_property
    def all_loops(self) -> tuple[Loop, ...]:
        """Every loop and comprehension, outer before inner."""
        found: list[Loop] = []
        for node in ast.walk(self.tree):
            if isinstance(node, LOOPS):
                target = node.target if not isinstance(node, ast.While) else None
                kind = "while" if isinstance(node, ast.While) else "for"
                found.append(Loop(node.lineno, _last_line(node), kind, names_in(target), node))
            elif isinstance(node, COMPREHENSIONS):
                bound = frozenset[str]().union(*(names_in(part.target) for part in node.generators))
                found.append(Loop(node.lineno, _last_line(node), "comprehension", bound, node))
        return tuple(sorted(found, key=lambda loop: (loop.first, -loop.last)))

    def loops(self, line: int) -> tuple[Loop, ...]:
        """Loops and comprehensions around a line, outermost first, up to the function that the line stands in. The
        line of the header counts as inside."""
        function = self.function(line)
        return tuple(
            loop for loop in self.all_loops if line in loop and (function is None or loop.first > function.line)
        )

    @cached_property
    def all_calls(self) -> tuple[CallText, ...]:
        """Every call, in the order of their lines, inner before outer where they share one."""
        found = [call_text(node) for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return tuple(sorted(found, key=lambda call: (call.line, call.last, call.node.end_col_offset or 0)))

    def calls(self, first: int, last: int | None = None) -> tuple[CallText, ...]:
        """Calls whose callee stands on the lines first to last (only first, if last is None)."""
        stop = first if last is None else last
        return tuple(call for call in self.all_calls if first <= call.line <= stop)

    def assigned(self, line: int) -> frozenset[str]:
        """Names that the statements on the line bind; for a ``for`` its targets."""
        here = [bound_names(node) for node in self.statements if line in span_of(node)]
        return frozenset[str]().union(*here)

    @cached_property
    def imports(self) -> dict[str, str]:
        """Name in the cell -> what it stands for: ``{"np": "numpy", "pc": "time.perf_counter"}``."""
        found: dict[str, str] = {}
        for node in self.statements:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def resolve(self, name: str) -> str:
        """``np.asarray`` -> ``numpy.asarray``, by the cell's own imports, else by convention (the import may stand in
        another cell); other names come back as they are."""
        head, dot, rest = name.partition(".")
        return f"{self.imports.get(head) or _CONVENTIONS.get(head, head)}{dot}{rest}"


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorators)])


def _last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def span_of(node: ast.stmt) -> Span:
    """The statement's lines; of one with a body, its header and decorators."""
    first = _first_line(node)
    if isinstance(node, ast.Match):
        return Span(first, max(first, _last_line(node.subject)))
    if isinstance(node, ast.Try | ast.TryStar):
        return Span(first, first)
    body: list[ast.stmt] | None = getattr(node, "body", None)
    if body:
        return Span(first, max(node.lineno, _first_line(body[0]) - 1))
    return Span(first, _last_line(node))


def names_in(node: ast.AST | None) -> frozenset[str]:
    """Every plain name below a node."""
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name)) if node is not None else frozenset()


def bound_names(node: ast.stmt) -> frozenset[str]:
    """Names that a statement itself binds: assignment, ``for``, ``with``, ``import``, ``def``, ``:=``."""
    targets: list[ast.AST] = []
    names: set[str] = set()
    if isinstance(node, ast.Assign):
        targets += node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        targets.append(node.target)
    elif isinstance(node, ast.With | ast.AsyncWith):
        targets += [item.optional_vars for item in node.items if item.optional_vars is not None]
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        names.add(node.name)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    for target in targets:
        names |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    names |= {
        one.target.id for part in own_expressions(node) for one in ast.walk(part) if isinstance(one, ast.NamedExpr)
    }
    return frozenset(names)


def own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions that a statement evaluates itself, without those of the statements in its body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def dotted(node: ast.AST) -> str | None:
    """``jax.block_until_ready`` for an attribute chain of plain names, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        value = dotted(node.value)
        return f"{value}.{node.attr}" if value is not None else None
    return None


def call_text(node: ast.Call) -> CallText:
    """The call's texts; of ``jnp.ones(3).sum()`` the callee is ``jnp.ones(3).sum``."""
    arguments = [ast.unparse(one) for one in node.args]
    arguments += [
        f"{one.arg}={ast.unparse(one.value)}" if one.arg else f"**{ast.unparse(one.value)}" for one in node.keywords
    ]
    line = node.func.end_lineno or node.func.lineno
    return CallText(ast.unparse(node.func), tuple(arguments), line, _last_line(node), node)


def _python_of(text: str) -> str:
    """The statement after a magic's options: ``-n 10 f(x)`` -> ``f(x)``."""
    text = text.strip()
    while match := _TIMEIT_OPTION.match(text) or _OTHER_OPTION.match(text):
        text = text[match.end() :]
    return text.rstrip("; ")


def _without_magic(line: str, number: int, magics: list[Magic]) -> str:
    """The line as Python: the magic's statement where it runs one, else ``pass``."""
    match = _LINE_MAGIC.match(line)
    indent = line[: len(line) - len(line.lstrip())]
    if match is None:
        return indent + "pass"
    magics.append(Magic(number, match["name"], match["text"].strip()))
    body = _python_of(match["text"]) if match["name"] in _RUNS_ITS_TEXT else ""
    if match["target"]:
        return indent + match["target"] + "None"
    return indent + (body or "pass")


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


@lru_cache(maxsize=64)
def parse(text: str, first_line: int = 1) -> Source:
    """Reads a cell whose first line has the number first_line."""
    lines = text.splitlines()
    magics: list[Magic] = []
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        if not line.startswith("%%"):
            break
        name, _, rest = line[2:].partition(" ")
        magics.append(Magic(first_line + index, name, rest.strip(), cell=True))
        lines[index] = ""
        if name not in _RUNS_ITS_CELL:
            return Source(ast.Module([], []), tuple(magics))
    suspects = {index for index, line in enumerate(lines) if _NO_PYTHON.search(line)}
    before = "\n" * (first_line - 1)
    while True:
        try:
            return Source(_parse(before + "\n".join(lines)), tuple(magics))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = (getattr(error, "lineno", None) or 0) - first_line
            chosen = {where} & suspects or suspects
            if not chosen:
                return Source(ast.Module([], []), tuple(magics))
            for index in sorted(chosen):
                lines[index] = _without_magic(lines[index], first_line + index, magics)
            suspects -= chosen
