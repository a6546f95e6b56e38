"""Python loops that were unrolled into a program: the same operations again and again, one copy for each turn.

Operations of one turn and the next come from the same lines by the same path of calls, so their stacks are equal; a
function called from several places has several stacks. The bodies of ``scan``, ``while`` and their like stand in the
program once, whatever their trip count. A line of a library call can make many operations by itself (an optimiser,
one for each parameter), so a loop has to stand in the source around one of the lines; where the text is not known,
the copies have to depend on each other, as the turns of a recurrence do.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, Program, SourceSite, Stack
from tpumagic.findings import UNROLLED_COPIES, UNROLLED_COPIES_HEAVY, Finding, by_cost, quantity
from tpumagic.graph import Graph
from tpumagic.numbers import seconds_text
from tpumagic.passes.source_lookup import distinct_lines, source_of

FEWEST_TURNS = 3
"""Less often an operation also stands in a program for other reasons. All others are counted: in a loop of 12 turns
some lines make 24 operations of a kind, and most make 12."""


@dataclass(frozen=True)
class Loop:
    """A loop around lines of a program. site: its header; line: the line repeated most; copies: how often the lines
    are in the program; operations: how many there are of them in all; kind: ``for``, ``while``, ``comprehension``,
    ``reduce`` or None where the text is not known; inner: headers of loops inside it."""

    site: SourceSite
    line: SourceSite
    copies: int
    operations: int
    kind: str | None
    inner: tuple[SourceSite, ...] = ()


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each loop, also when several programs hold it."""
    found: dict[tuple[SourceSite, str], tuple[list[Program], Loop]] = {}
    for program in record.programs:
        # A program compiled by an earlier cell was told about there.
        if program.kind == "eager" or program.graph is None or not program.compiles:
            continue
        for loop in loops_of(program, program.graph, record):
            programs, largest = found.setdefault((loop.site, program.name), ([], loop))
            programs.append(program)
            if loop.copies > largest.copies:
                found[loop.site, program.name] = (programs, loop)
    for programs, loop in found.values():
        yield _finding(programs, loop, record)


def loops_of(program: Program, graph: Graph, record: CellRecord) -> list[Loop]:
    """Loops with at least UNROLLED_COPIES copies of their lines, outermost of nested ones only."""
    repeated: dict[tuple[SourceSite, str | None], Counter[tuple[SourceSite, str]]] = defaultdict(Counter)
    total: Counter[tuple[SourceSite, str | None]] = Counter()
    inner: dict[tuple[SourceSite, str | None], list[SourceSite]] = defaultdict(list)
    for scope in _scopes(graph):
        counts = Counter((operation.stack, operation.name) for operation in scope.operations if operation.stack)
        if not counts or max(counts.values()) < UNROLLED_COPIES:
            continue
        for (stack, name), count in counts.items():
            if count < FEWEST_TURNS:
                continue
            own = _inside(stack, program)
            headers = _headers(own, record)
            if headers is None:
                if _longest_chain(scope, stack, name) < UNROLLED_COPIES_HEAVY:
                    continue
                headers = [(own[-1], None)]
            if headers:
                # Gradients and recomputation repeat the same loop in other bodies: that is no more turns.
                lines = repeated[headers[0]]
                lines[own[-1], name] = max(count, lines[own[-1], name])
                total[headers[0]] += count
                inner[headers[0]] += [site for site, _ in headers[1:]]
    loops = [
        _loop(header, kind, lines, total[header, kind], tuple(dict.fromkeys(inner[header, kind])))
        for (header, kind), lines in repeated.items()
    ]
    return [loop for loop in loops if loop.copies >= UNROLLED_COPIES]


def _loop(
    header: SourceSite, kind: str | None, lines: Counter[tuple[SourceSite, str]], total: int, inner: Stack
) -> Loop:
    # A turn makes one of some operations and several of others, gradients twice as many: what most kinds of
    # operations have in common is the number of turns.
    common = Counter(lines.values())
    most = max(common.values())
    copies = min(count for count, times in common.items() if times == most)
    line = max(lines, key=lambda key: lines[key])[0]
    return Loop(header, line, copies, total, kind, inner)


def _scopes(graph: Graph) -> Iterator[Graph]:
    """The graph and the bodies in it, each once: a body shared by several calls is one piece of program text."""
    waiting, seen = [graph], set[int]()
    while waiting:
        scope = waiting.pop()
        if id(scope) in seen:
            continue
        seen.add(id(scope))
        yield scope
        waiting += [body for operation in scope.operations for body in operation.bodies]


def _inside(stack: Stack, program: Program) -> Stack:
    """The frames inside the traced function: a loop around the call runs the program, it is not in it."""
    for outer in (program.stack, *(one.stack for one in program.compiles)):
        if outer and len(stack) > len(outer) and stack[: len(outer)] == outer:
            return stack[len(outer) :]
    function = program.signature.function if program.signature is not None else None
    if function is not None and function.definition is not None:
        for i, frame in enumerate(stack):
            where = function.definition
            if frame.function == where.function and (frame.cell, frame.file) == (where.cell, where.file):
                return stack[i:]
    return stack[-1:]


def _headers(frames: Stack, record: CellRecord) -> list[tuple[SourceSite, str]] | None:
    """Headers of the loops around any of the frames, outermost first; None if the text of no frame is known."""
    found: list[tuple[SourceSite, str]] = []
    known = False
    for frame in frames:
        source = source_of(frame, record)
        if source is None:
            continue
        known = True
        found += [
            (SourceSite(loop.first, frame.cell, frame.file, frame.function), loop.kind)
            for loop in source.loops(frame.line)
            if not _runs_once(loop.node, frame.line)
        ]
        if any(source.resolve(call.callee) in ("functools.reduce", "reduce") for call in source.calls(frame.line)):
            found.append((frame, "reduce"))
    return list(dict.fromkeys(found)) if known else None


def _runs_once(node: ast.AST, line: int) -> bool:
    """Whether the line is one of a ``for`` that is evaluated before the first turn."""
    if not isinstance(node, ast.For | ast.AsyncFor):
        return False
    return node.iter.lineno <= line <= (node.iter.end_lineno or line) and line < node.body[0].lineno


def _longest_chain(graph: Graph, stack: Stack, name: str) -> int:
    """How many operations of this line and name depend on each other, one after the other."""
    depth: dict[int, int] = {}
    for operation in graph.operations:
        below = max((depth.get(value, 0) for value in operation.inputs), default=0)
        below += operation.name == name and operation.stack == stack
        depth.update(dict.fromkeys(operation.outputs, below))
    return max(depth.values(), default=0)


def _finding(programs: list[Program], loop: Loop, record: CellRecord) -> Finding:
    seconds = sum(one.seconds for program in programs for one in program.compiles)
    name = programs[0].name
    severity = "warning" if loop.copies >= UNROLLED_COPIES_HEAVY else by_cost(seconds, record.wall_s)
    what = {
        "comprehension": "comprehension",
        "reduce": "`functools.reduce`",
        "while": "Python `while` loop",
        "for": "Python `for` loop",
    }
    subject = (
        f"The {what[loop.kind]} at {loop.site}" if loop.kind is not None else f"Something that repeats {loop.line}"
    )
    places = [
        loop.line,
        *loop.inner,
        *(site for site in (programs[0].site, programs[0].definition) if site is not None),
    ]
    compiles = sum(len(program.compiles) for program in programs)
    return Finding(
        kind="compile.unrolled_loop",
        severity=severity,
        title=f"{subject} was unrolled into `{name}`: {loop.copies} copies of {loop.line}.",
        detail=(
            f"{loop.operations:,} operations come from it; "
            f"{quantity(compiles, 'compilation')} of `{name}` took {seconds_text(seconds)}."
        ),
        fix=_fix(loop),
        site=loop.site,
        related=distinct_lines(places, but=loop.site),
        program=name,
        count=loop.copies,
        seconds=seconds,
        facts={"copies": loop.copies, "operations": loop.operations, "function": name},
    )


def _fix(loop: Loop) -> str:
    if loop.kind == "comprehension":
        return (
            "If the turns do the same to parts of one array, use `jax.vmap` (or `jax.lax.map`, which needs less memory): "
            "the body is compiled once."
        )
    if loop.kind == "while":
        return "Use `jax.lax.while_loop` or `jax.lax.fori_loop`: the body is compiled once."
    return (
        "Use `jax.lax.scan` over the stacked inputs or parameters (`jax.lax.fori_loop` where there are none): "
        "the body is compiled once."
    )
