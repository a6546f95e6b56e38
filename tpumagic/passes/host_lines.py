"""Sites and stacks of a record seen in the user's source: which loop runs a line again, and where work is dispatched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpumagic.events import CellRecord, Program, SourceSite, Stack
from tpumagic.findings import REPETITIONS
from tpumagic.sources import Loop, Source, dotted, names_in, parse

JIT_MAKERS = frozenset(
    {"jax.jit", "jax.pmap", "flax.nnx.jit", "nnx.jit", "flax.linen.jit", "equinox.filter_jit", "eqx.filter_jit"}
)
CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
"""Operations by which a program calls Python on the host."""
_BARE_MAKERS = frozenset({"jit", "pmap", "filter_jit"})


@dataclass(frozen=True)
class Repeat:
    """A loop that runs the frame at ``position`` of a stack again and again."""

    position: int
    loop: Loop
    source: Source


class CellLines:
    """The sources of one record, asked by site. A site of unknown text stands in no loop and no function."""

    def __init__(self, record: CellRecord) -> None:
        self.record = record
        self.own = parse(record.source, record.source_lines_start)
        self._last_own = record.source_lines_start + record.source.count("\n")

    @cached_property
    def all_sources(self) -> tuple[Source, ...]:
        """The cell's own text first, then the others that the record carries."""
        return (self.own, *(parse(other.text, other.first_line) for other in self.record.other_sources))

    def is_own(self, site: SourceSite) -> bool:
        """Whether the site stands in the cell itself."""
        record = self.record
        if site.cell is not None or site.file is not None:
            same = site.cell == record.cell if site.cell is not None else site.file == record.file
            if not same:
                return False
        return record.source_lines_start <= site.line <= self._last_own

    @cached_property
    def _example(self) -> SourceSite | None:
        stacks = [stack for program in self.record.programs for stack in call_stacks(program)]
        return next((site for stack in stacks for site in stack if self.is_own(site)), None)

    def site(self, line: int) -> SourceSite:
        """The site of one of the cell's lines, written as the other sites of the record."""
        function = self.own.function(line)
        like = self._example or SourceSite(
            line, self.record.cell, self.record.file if self.record.cell is None else None
        )
        return SourceSite(line, like.cell, like.file, function.name if function is not None else None)

    def source(self, site: SourceSite) -> Source | None:
        """The text that a site stands in, None if the record does not carry it."""
        if self.is_own(site):
            return self.own
        for other in self.record.other_sources:
            last = other.first_line + other.text.count("\n")
            if (site.cell, site.file) == (other.cell, other.file) and other.first_line <= site.line <= last:
                return parse(other.text, other.first_line)
        return None

    def repeats(self, stack: Stack) -> Iterator[Repeat]:
        """The loops around a stack's frames, innermost first; those known to run less than three times left out."""
        for position in reversed(range(len(stack))):
            source = self.source(stack[position])
            if source is None:
                continue
            for loop in reversed(source.loops(stack[position].line)):
                times = self.times(loop, source)
                if times is None or times >= REPETITIONS:
                    yield Repeat(position, loop, source)

    def times(self, loop: Loop, source: Source) -> int | None:
        """How often the loop runs, where its header says so with a number; else None."""
        iterable = loop.node.iter if isinstance(loop.node, ast.For) else None
        if isinstance(iterable, ast.List | ast.Tuple):
            return len(iterable.elts)
        if isinstance(iterable, ast.Call) and dotted(iterable.func) == "range" and not iterable.keywords:
            numbers = [self.number(one, source) for one in iterable.args]
            if all(one is not None for one in numbers) and (len(numbers) < 3 or numbers[2]):
                return len(range(*[one for one in numbers if one is not None]))
        return None

    def number(self, node: ast.expr, source: Source) -> int | None:
        """The value of a whole number, or of a name that is bound once, to a whole number."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.number(node.operand, source)
            return -value if value is not None else None
        if isinstance(node, ast.Name):
            bound = [one for one in source.statements if isinstance(one, ast.Assign) and node.id in stored(one)]
            if len(bound) == 1 and isinstance(bound[0].value, ast.Constant) and type(bound[0].value.value) is int:
                return bound[0].value.value
        return None

    @cached_property
    def dispatching_stacks(self) -> tuple[Stack, ...]:
        """Every stack that was seen to run a jitted program."""
        return tuple(dict.fromkeys(stack for one in jitted(self.record) for stack in call_stacks(one)))

    @cached_property
    def jitted_callees(self) -> frozenset[str]:
        """Texts of callees that are jitted functions: by the namespace, by the source, and by the calls seen."""
        found = set(self.record.jitted_names)
        for source in self.all_sources:
            for node in source.statements:
                if isinstance(node, ast.FunctionDef) and any(
                    self.makes_jit(one, source) for one in node.decorator_list
                ):
                    found.add(node.name)
                elif isinstance(node, ast.Assign) and self.makes_jit(node.value, source):
                    found |= {text for target in node.targets if (text := dotted(target)) is not None}
        for program in jitted(self.record):
            for stack in call_stacks(program):
                source = self.source(stack[-1]) if stack else None
                if source is not None:
                    span = source.span(stack[-1].line)
                    calls = source.calls(span.first, span.last)
                    found |= {call.callee for call in calls if call.callee.rpartition(".")[2] == program.name}
        return frozenset(found)

    def name_of(self, program: Program) -> str:
        """The program's name as the user calls it: a jitted lambda has that of the variable it is called by."""
        if program.name != "<lambda>":
            return program.name
        for stack in call_stacks(program):
            source = self.source(stack[-1])
            if source is not None:
                span = source.span(stack[-1].line)
                callees = {call.callee for call in source.calls(span.first, span.last)} & self.jitted_callees
                if len(callees) == 1:
                    return callees.pop()
        return program.name

    def makes_jit(self, node: ast.expr, source: Source) -> bool:
        """Whether an expression is ``jax.jit``, a partial of it, a call of one, or ``….lower(…).compile()``."""
        name = dotted(node)
        if name is not None:
            resolved = source.resolve(name)
            return resolved in JIT_MAKERS or (resolved == name and name in _BARE_MAKERS)
        if not isinstance(node, ast.Call):
            return False
        callee = dotted(node.func)
        if callee is not None and callee.rpartition(".")[2] == "partial":
            return bool(node.args) and self.makes_jit(node.args[0], source)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            inner = node.func.value
            return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "lower"
        return self.makes_jit(node.func, source)

    def dispatch_lines(self, repeat: Repeat, stack: Stack) -> frozenset[int]:
        """Lines of a loop's own body (not of loops within it, nor of loops in functions that it calls) that run a
        jitted program: seen to do so, or calling one by name. stack: the one that the repeat was found for."""
        position, loop, source = repeat.position, repeat.loop, repeat.source
        lines: set[int] = set()
        for other in self.dispatching_stacks:
            if len(other) <= position or other[:position] != stack[:position]:
                continue
            site = other[position]
            if self.source(site) is not source or site.line not in loop or not _is_innermost(loop, site.line, source):
                continue
            deeper = [(one, self.source(one)) for one in other[position + 1 :]]
            if all(text is not None and not text.loops(one.line) for one, text in deeper):
                lines.add(site.line)
        for call in source.calls(loop.first, loop.last):
            if call.callee in self.jitted_callees and _is_innermost(loop, call.line, source):
                lines.add(call.line)
        return frozenset(lines)

    def has_steps_inside(self, repeat: Repeat, stack: Stack) -> bool:
        """Whether jitted work is also done by a ``for`` or ``while`` loop within this one: the outer loop then counts
        epochs and the inner one steps. stack: the one that the repeat was found for."""
        position, loop, source = repeat.position, repeat.loop, repeat.source
        inner = [
            one
            for one in source.all_loops
            if one != loop
            and one.first in loop
            and one.kind in ("for", "while")
            and (self.times(one, source) or REPETITIONS) >= REPETITIONS
        ]
        called = {call.line for call in source.calls(loop.first, loop.last) if call.callee in self.jitted_callees}
        if any(line in one and line != one.first for one in inner for line in called):
            return True
        for other in self.dispatching_stacks:
            if len(other) <= position or other[:position] != stack[:position]:
                continue
            site = other[position]
            if self.source(site) is not source or site.line not in loop:
                continue
            if any(site.line in one and site.line != one.first for one in inner):
                return True
            deeper = [(one, self.source(one)) for one in other[position + 1 :]]
            if any(
                text is not None and any(found.kind in ("for", "while") for found in text.loops(one.line))
                for one, text in deeper
            ):
                return True
        return False


def _is_innermost(loop: Loop, line: int, source: Source) -> bool:
    """Whether the loop is the innermost around the line; the header of a loop within it runs as part of it."""
    around = [one for one in source.loops(line) if one.first != line or one == loop]
    return bool(around) and around[-1] == loop


def jitted(record: CellRecord) -> Iterator[Program]:
    """The cell's programs that the user asked for with jit or compiled ahead of time."""
    return (one for one in record.programs if one.kind != "eager" and not one.outside)


def call_stacks(program: Program) -> tuple[Stack, ...]:
    """Where a program was seen to be called, each place once."""
    stacks = [call.stack for call in program.calls] or [program.stack]
    return tuple(dict.fromkeys(stack for stack in stacks if stack))


def stored(node: ast.AST) -> frozenset[str]:
    """Names that a statement, its body included, writes to: bound names, and the first name of ``x[i] = …``,
    ``self.w = …``."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name | ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store):
            root = first_name(one)
            if root is not None:
                found.add(root)
    return frozenset(found)


def loaded(node: ast.AST) -> frozenset[str]:
    """Names that are read anywhere below a node."""
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def first_name(node: ast.AST) -> str | None:
    """``metrics`` of ``metrics['loss'].mean()``; None where the expression starts with no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def made_in_loop(loop: Loop) -> frozenset[str]:
    """Names that the body of a loop writes to, without the loop's own targets."""
    body: list[ast.stmt] = getattr(loop.node, "body", [])
    return frozenset[str]().union(*(stored(one) for one in body)) - loop.targets


def sometimes(loop: Loop, line: int) -> bool:
    """Whether the loop runs this line only now and then: under an ``if`` on its counter (``i % 100 == 0``), or behind
    an ``if … : continue`` of that kind."""
    body: list[ast.stmt] = getattr(loop.node, "body", [])
    return _sometimes(body, line, loop.targets)


def _sometimes(body: list[ast.stmt], line: int, counters: frozenset[str]) -> bool:
    for node in body:
        if isinstance(node, ast.If):
            counted = _counts(node.test, counters)
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                inside = line > (node.test.end_lineno or node.lineno) or node.lineno == node.end_lineno
                return (
                    (counted and inside)
                    or _sometimes(node.body, line, counters)
                    or _sometimes(node.orelse, line, counters)
                )
            if counted and node.lineno < line and isinstance(node.body[-1], ast.Continue):
                return True
        elif node.lineno <= line <= (node.end_lineno or node.lineno):
            parts: list[ast.stmt] = [*getattr(node, "body", []), *getattr(node, "orelse", [])]
            return _sometimes(parts, line, counters)
    return False


def _counts(test: ast.expr, counters: frozenset[str]) -> bool:
    if names_in(test) & counters:
        return True
    return any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod | ast.BitAnd) for one in ast.walk(test))
