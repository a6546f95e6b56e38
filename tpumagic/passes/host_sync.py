"""Loops in which the host stops at every step to wait for a value of the device.

A read counts only where its own loop dispatches jitted work and makes the value: losses collected first and read after
the loop, a read every hundredth step, and a value read once per epoch are as it should be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, SourceSite, Stack, Transfer
from tpumagic.findings import REPETITIONS, Finding, quantity
from tpumagic.graph import Operation
from tpumagic.passes.clocks import has_clock
from tpumagic.passes.host_lines import (
    CALLBACKS,
    CellLines,
    Repeat,
    call_stacks,
    first_name,
    jitted,
    loaded,
    made_in_loop,
    sometimes,
)
from tpumagic.sources import FUNCTIONS, CallText, Source, bound_names, dotted, names_in, span_of

_LONGEST_NAME = 40
_MAPS = ("jax.tree.map", "jax.tree_map", "jax.tree_util.tree_map")
_NO_READ = ("numpy.shape", "numpy.ndim", "numpy.size", "numpy.dtype", "numpy.random.", "numpy.testing.")


@dataclass(frozen=True)
class Read:
    """All reads at one line. around: the header of the loop that repeats it; through: the line of
    that loop that calls the function in which the read stands, None where it stands in the loop itself. count: None if they could not be counted."""

    site: SourceSite
    around: SourceSite
    through: SourceSite | None
    names: tuple[str, ...]
    how: str
    count: int | None
    shape: tuple[int, ...] | None
    dtype: str | None
    bytes: int | None


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each line, in the order in which the lines were first reached."""
    lines = CellLines(record)
    seen: set[SourceSite] = set()
    for site, transfers in _by_line(record).items():
        read = _repeated(lines, site, transfers)
        if read is not None:
            seen.add(site)
            yield _finding(lines, read)
    for read in _array_reads(lines):
        if read.site not in seen:
            seen.add(read.site)
            yield _finding(lines, read)


def _by_line(record: CellRecord) -> dict[SourceSite, list[Transfer]]:
    found: dict[SourceSite, list[Transfer]] = {}
    for transfer in record.transfers:
        if transfer.direction == "to_host" and transfer.how in ("read", "wait") and transfer.stack:
            found.setdefault(transfer.stack[-1], []).append(transfer)
    return found


def _repeated(lines: CellLines, site: SourceSite, transfers: list[Transfer]) -> Read | None:
    count = sum(one.count for one in transfers)
    if count < REPETITIONS:
        return None
    first = transfers[0]
    repeat = _waiting_loop(lines, first.stack)
    if repeat is None or not _is_result(lines, repeat, first):
        return None
    reads = [one for one in transfers if one.how == "read"]
    if _measures(lines, first.stack, waits=not reads):
        return None
    names = tuple(dict.fromkeys(one.name for one in reads or transfers if one.name is not None))
    dispatching = lines.dispatch_lines(repeat, first.stack)
    results = frozenset[str]().union(*(repeat.source.assigned(line) for line in dispatching))
    written = _written(lines, site, results)
    if not (names or written) and _calls_back(lines, first.stack):
        return None
    shape, dtype = (first.shape, first.dtype) if names else (None, None)
    names = written if len(written) > len(names) else names
    counted = sum(one.count for one in reads) if reads else count
    around = _header(repeat, first.stack[repeat.position])
    frame = first.stack[repeat.position]
    through = frame if frame != site else None
    return Read(site, around, through, names, "read" if reads else "wait", counted, shape, dtype, first.bytes)


def _waiting_loop(lines: CellLines, stack: Stack) -> Repeat | None:
    """The innermost loop around a read that dispatches jitted work itself and comes by the read each time; None where
    that is a loop over epochs."""
    for repeat in lines.repeats(stack):
        line = stack[repeat.position].line
        if sometimes(repeat.loop, line):
            return None
        dispatching = lines.dispatch_lines(repeat, stack)
        if dispatching:
            epochs = lines.has_steps_inside(repeat, stack) or _runs_many_steps(lines, repeat, stack, dispatching)
            return None if epochs else repeat
    return None


def _runs_many_steps(lines: CellLines, repeat: Repeat, stack: Stack, dispatching: frozenset[int]) -> bool:
    """Whether a program that the loop runs returns what a ``scan`` over data or with an output for each step gave: a
    whole epoch in one call."""
    position = repeat.position
    for program in jitted(lines.record):
        stacks = [one for one in call_stacks(program) if len(one) > position and one[:position] == stack[:position]]
        if any(one[position].line in dispatching for one in stacks) and program.graph is not None:
            results = set(program.graph.outputs)
            if any(
                one.name == "scan" and _has_steps(one) and results & set(one.outputs)
                for one in program.graph.operations
            ):
                return True
    return False


def _has_steps(scan: Operation) -> bool:
    carries, constants = scan.attributes.get("carry_count"), scan.attributes.get("constant_count")
    if not isinstance(carries, int) or not isinstance(constants, int):
        return False
    return len(scan.outputs) > carries or len(scan.inputs) > constants + carries


def _is_result(lines: CellLines, repeat: Repeat, transfer: Transfer) -> bool:
    """Whether the loop's body makes what is read."""
    made = made_in_loop(repeat.loop)
    line = transfer.stack[repeat.position].line
    direct = repeat.position == len(transfer.stack) - 1
    if direct and transfer.name is not None and first_name(ast.Name(transfer.name)) in made:
        return True
    span = repeat.source.span(line)
    statements = [one for one in repeat.source.statements if span.first <= one.lineno <= span.last]
    read = frozenset[str]().union(*(loaded(part) for one in statements for part in _own_parts(one)))
    if read & made:
        return True
    return bool(lines.dispatch_lines(repeat, transfer.stack) & set(range(span.first, span.last + 1)))


def _own_parts(node: ast.stmt) -> Iterator[ast.AST]:
    return (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def _measures(lines: CellLines, stack: Stack, waits: bool) -> bool:
    """Whether the waiting is there for a clock: a wait, or a value that is read and thrown away, beside a clock."""
    for site in stack:
        source = lines.source(site)
        if source is None:
            continue
        if any(magic.name == "timeit" and (magic.cell or magic.line == site.line) for magic in source.magics):
            return True
        function = source.function(site.line)
        if not has_clock(source, function.node if function is not None else source.tree):
            continue
        node = source.statement(site.line)
        thrown_away = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and dotted(node.value.func) != "print"
        )
        if waits or (thrown_away and site == stack[-1] and not _is_append(node)):
            return True
    return False


def _is_append(node: ast.stmt | None) -> bool:
    """``log.append(float(loss))`` keeps what it reads."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and bool(node.value.args) and isinstance(
        node.value.func, ast.Attribute
    )  # fmt: skip


def _written(lines: CellLines, site: SourceSite, results: frozenset[str]) -> tuple[str, ...]:
    """What the line reads as it is written there: ``metrics['loss']`` of ``float(metrics['loss'])``; of a condition
    the results that it looks at."""
    source = lines.source(site)
    if source is None:
        return ()
    found: list[str] = []
    for call in source.calls(site.line):
        receiver, _, method = call.callee.rpartition(".")
        if call.callee in ("float", "int", "bool", "jax.block_until_ready") and call.arguments:
            found.append(call.arguments[0])
        elif method in ("item", "tolist", "block_until_ready") and receiver:
            found.append(receiver)
        elif (argument := _array_argument(source, call)) is not None and _root(source, call, argument) is not None:
            found.append(ast.unparse(argument))
    condition = _condition(source, site.line)
    if not found and condition is not None:
        found = [one.id for one in ast.walk(condition.test) if isinstance(one, ast.Name) and one.id in results]
    return tuple(one for one in dict.fromkeys(found) if len(one) <= _LONGEST_NAME)


def _condition(source: Source, line: int) -> ast.If | ast.While | None:
    """The ``if`` or ``while`` whose condition stands on the line."""
    for node in source.statements:
        if isinstance(node, ast.If | ast.While) and node.lineno <= line <= (node.test.end_lineno or node.lineno):
            return node
    return None


def _calls_back(lines: CellLines, stack: Stack) -> bool:
    """Whether a program called there reads values itself, for a callback of its own."""
    return any(
        stack in call_stacks(program) and any(one.name in CALLBACKS for _, one in program.graph.walk())
        for program in jitted(lines.record)
        if program.graph is not None
    )


def _array_reads(lines: CellLines) -> Iterator[Read]:
    """``np.asarray(loss)`` and its like: NumPy takes the buffer without asking JAX, so the source has to tell."""
    source = lines.own
    for call in source.all_calls:
        argument = _array_argument(source, call)
        root = _root(source, call, argument) if argument is not None else None
        if argument is None or root is None:
            continue
        site = lines.site(call.line)
        repeat = _waiting_loop(lines, (site,))
        if repeat is None or call.line == repeat.loop.first or _measures(lines, (site,), waits=False):
            continue
        if _from_dispatch(lines, repeat, site, root):
            text = ast.unparse(argument)
            name = text if first_name(argument) == root and len(text) <= _LONGEST_NAME else root
            yield Read(site, _header(repeat, site), None, (name,), "read", lines.times(repeat.loop, source), None, None, None)  # fmt: skip


def _array_argument(source: Source, call: CallText) -> ast.expr | None:
    """What a call reads from the device: the argument of a NumPy function or ``jax.device_get``, or the tree that
    ``jax.tree.map`` applies one to."""
    resolved, arguments = source.resolve(call.callee), call.node.args
    if resolved in _MAPS and len(arguments) > 1:
        resolved, arguments = source.resolve(dotted(arguments[0]) or ""), arguments[1:]
    reads = resolved == "jax.device_get" or (resolved.startswith("numpy.") and not resolved.startswith(_NO_READ))
    return arguments[0] if reads and arguments else None


def _root(source: Source, call: CallText, argument: ast.expr) -> str | None:
    """The variable that the argument is part of: ``metrics`` of ``metrics['loss']``, and of ``v`` in
    ``[np.asarray(v) for v in metrics.values()]``; None for any other expression."""
    node = argument
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    statement = source.statement(call.line)
    for one in ast.walk(statement) if statement is not None else ():
        if isinstance(one, ast.comprehension) and node.id in names_in(one.target):
            return first_name(one.iter)
    return node.id


def _header(repeat: Repeat, frame: SourceSite) -> SourceSite:
    return SourceSite(repeat.loop.first, frame.cell, frame.file, frame.function)


def _from_dispatch(lines: CellLines, repeat: Repeat, site: SourceSite, name: str) -> bool:
    """Whether the name is bound, by nothing but lines that dispatch, and (where that can be asked) to an array."""
    source = repeat.source
    bound = [
        span_of(one)
        for one in source.statements
        if one.lineno in repeat.loop and not isinstance(one, FUNCTIONS) and name in bound_names(one)
    ]
    others = [span for span in bound if site.line not in span]
    if site.function is None and name not in lines.record.array_names and others == bound:
        # No array itself: a tree of arrays if a jitted function returned it.
        values = [one.value for one in _assignments(repeat, name)]
        if not values or any(_callee(value) not in lines.jitted_callees for value in values):
            return False
    dispatching = lines.dispatch_lines(repeat, (site,))
    return bool(others) and all(any(line in span for line in dispatching) for span in others)


def _assignments(repeat: Repeat, name: str) -> list[ast.Assign]:
    """The assignments of a loop that bind the name."""
    statements = [one for one in repeat.source.statements if isinstance(one, ast.Assign)]
    return [one for one in statements if one.lineno in repeat.loop and name in bound_names(one)]


def _callee(node: ast.expr) -> str | None:
    return dotted(node.func) if isinstance(node, ast.Call) else None


def _finding(lines: CellLines, read: Read) -> Finding:
    quoted = [f"`{name}`" for name in read.names[:3]]
    what = " and ".join(quoted) if len(quoted) < 3 else f"{quoted[0]}, {quoted[1]} and {quoted[2]}"
    what = what or "a value of the device"
    count = read.count
    each = ""
    if count is not None and len(read.names) > 1 and count % len(read.names) == 0:
        count, each = count // len(read.names), " each"
    verb = "Reading" if read.how == "read" else "Waiting for"
    title = f"{verb} {what} stops the host in every step of the loop"
    title += f" ({quantity(count, 'time')}{each})." if count is not None else "."
    array = (
        f" ({read.dtype}[{','.join(map(str, read.shape))}])"
        if read.dtype is not None and read.shape is not None
        else ""
    )
    detail = (
        f"The host waits at this line until the device has computed {what}{array}, and only then prepares and dispatches "
        "the next step: the device stands idle in between."
    )
    source = lines.source(read.through) if read.through is not None else None
    node = source.statement(read.through.line) if source is not None and read.through is not None else None
    call = ast.unparse(node).splitlines()[0] if node is not None else None
    if call is not None and read.through is not None:
        detail += f" The loop comes here through `{call}` (line {read.through.line})."
    related = [one for one in (read.through, read.around) if one is not None and one != read.site]
    return Finding(
        kind="host.sync",
        severity="warning",
        title=title,
        detail=detail,
        fix=_fix(lines, read, what),
        site=read.site,
        related=tuple(dict.fromkeys(related)),
        count=read.count,
        bytes=read.bytes * read.count if read.bytes is not None and read.count is not None else None,
        facts={
            "names": ", ".join(read.names),
            "how": read.how,
            "reads": read.count,
            "shape": str(read.shape) if read.shape is not None else None,
            "dtype": read.dtype,
        },
    )


def _fix(lines: CellLines, read: Read, what: str) -> str:
    if read.how == "wait":
        return "Take the wait out of the loop and wait once, after the last step."
    source = lines.source(read.site)
    condition = _condition(source, read.site.line) if source is not None else None
    if isinstance(condition, ast.While):
        return "Write the loop as jax.lax.while_loop, or test the condition only every N steps."
    if condition is not None:
        return "Decide on the device with jnp.where or jax.lax.cond, or look at the value only every N steps."
    them = "them" if len(read.names) > 1 else "it"
    return f"Keep {what} on the device: collect {them} in a list and read the list after the loop, or read {them} every N steps."
