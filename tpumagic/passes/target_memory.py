"""What the TPU compiler's plan of a program that fits says of wasted memory: padding, and arguments not donated."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tpumagic import sources
from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import (
    DONATION_BYTES,
    MEMORY_SHARE,
    MIB,
    PADDING_BYTES,
    PADDING_FACTOR,
    PADDING_FACTOR_OF_MUCH,
    PADDING_FACTOR_TOLD,
    Finding,
    Severity,
)
from tpumagic.graph import Graph
from tpumagic.numbers import bytes_text, capacity_text, factor_text
from tpumagic.passes.oom_causes import waste
from tpumagic.passes.oom_texts import donate_option, padding_fix, root_of
from tpumagic.passes.wording import (
    array_type,
    code,
    distinct_lines,
    function_name,
    is_gradient,
    listing,
    source_line,
)
from tpumagic.plans import Answer, Buffer, Donation, Plan

_MAX_RELATED = 5
_LANES = 128
"""A tile is so wide."""


def find(record: CellRecord) -> Iterator[Finding]:
    """Padding once for each line and shape, missed donations once for each call."""
    padded: set[tuple[object, ...]] = set()
    donated: set[tuple[object, ...]] = set()
    for program in record.programs:
        planned = next((one for one in program.answers if one.plan is not None), None)
        if program.outside or planned is None or planned.plan is None:
            continue
        for finding in _padding(record, program, planned, planned.plan):
            key = finding.site, finding.facts["array"]
            if key not in padded:
                padded.add(key)
                yield finding
        if planned.plan.fits and (program.name, program.site) not in donated:
            for finding in _donation_missed(record, program, planned, planned.plan):
                donated.add((program.name, program.site))
                yield finding


def _padding(record: CellRecord, program: Program, answer: Answer, plan: Plan) -> Iterator[Finding]:
    """One finding for the padded arrays of a line. An argument belongs to the first line that uses it."""
    lines: dict[SourceSite | None, list[Buffer]] = defaultdict(list)
    for buffer in plan.padded:
        if buffer.logical_bytes and waste(buffer) >= MIB and _factor(buffer) >= PADDING_FACTOR_TOLD:
            lines[_site(program, buffer)].append(buffer)
    for site, buffers in lines.items():
        worst = max(buffers, key=waste)
        lost = waste(worst)
        what = code(worst.name) + " " if worst.name is not None else ""
        array = array_type(worst.dtype, worst.shape)
        more = f" {len(buffers) - 1} more of this line likewise." if len(buffers) > 1 else ""
        tiles = f" (`{worst.tiling}`)" if worst.tiling else ""
        small = [size for size in worst.shape[-3:] if size < _LANES] or list(worst.shape[-1:])
        axes = f"its axes {' and '.join(map(str, small))} fill" if len(small) > 1 else f"its axis of {small[0]} fills"
        where = distinct_lines([site, program.site, program.definition])
        yield Finding(
            kind="memory.padding",
            severity=_padding_severity(worst, plan),
            title=f"{what}{array} takes {bytes_text(worst.bytes)} on {answer.target.name} for {bytes_text(worst.logical_bytes)} "
            f"of elements, {_times(worst)} as much, by padding",
            detail=f"A TPU keeps arrays in tiles{tiles}, and {axes} only a part of each.{more}",
            fix=padding_fix(worst),
            site=where[0] if where else None,
            related=where[1 : _MAX_RELATED + 1],
            program=function_name(record, program),
            count=len(buffers),
            bytes=lost,
            facts={
                "array": array,
                "name": worst.name,
                "factor": round(_factor(worst), 2),
                "bytes": worst.bytes,
                "logical_bytes": worst.logical_bytes,
                "target": answer.target.name,
            },
        )


def _factor(buffer: Buffer) -> float:
    return buffer.bytes / buffer.logical_bytes if buffer.logical_bytes else 1.0


def _times(buffer: Buffer) -> str:
    factor = _factor(buffer)
    return f"{factor_text(factor).removesuffix('×')} times"


def _padding_severity(buffer: Buffer, plan: Plan) -> Severity:
    if not plan.fits:
        return "info"  # where it is much of what is too much, that finding says so
    factor, lost = _factor(buffer), waste(buffer)
    if factor >= PADDING_FACTOR and lost >= PADDING_BYTES:
        return "warning"
    much = lost >= MEMORY_SHARE * plan.available_bytes
    return "warning" if much and factor >= PADDING_FACTOR_OF_MUCH else "info"


def _site(program: Program, buffer: Buffer) -> SourceSite | None:
    if buffer.stack:
        return buffer.stack[-1]
    used = _first_use(program, buffer.name) if buffer.kind == "argument" else None
    return used or program.site


def _first_use(program: Program, name: str | None) -> SourceSite | None:
    """The first line that uses an argument; None if the program's graph does not say."""
    graph = program.graph
    place = next((n for n, leaf in enumerate(program.inputs) if leaf.path == name), None)
    if graph is None or place is None or place >= len(graph.inputs):
        return None
    return _use_of(graph, graph.inputs[place])


def _use_of(graph: Graph, value: int) -> SourceSite | None:
    for operation in graph.operations:
        if value in operation.inputs and operation.site is not None:
            return operation.site
    return None


def _donation_missed(record: CellRecord, program: Program, answer: Answer, plan: Plan) -> Iterator[Finding]:
    """Arguments that the call replaces by results of the same type: the old ones could give their memory."""
    if is_gradient(program) or program.kind == "eager":
        return
    ahead = program.kind == "aot"
    replaced = None if ahead else _replaced(record, program)
    donations = [one for one in plan.donations if replaced is None or root_of(one.argument) in replaced]
    if ahead:
        donations = _whole(program, donations)
    total = sum(one.bytes for one in donations)
    if not donations or total < DONATION_BYTES:
        return
    name = function_name(record, program)
    roots = list(dict.fromkeys(root_of(one.argument) for one in donations))
    option = donate_option(roots, program.signature.positional if program.signature is not None else ())
    large = total >= MEMORY_SHARE * plan.available_bytes
    verb = "have" if len(roots) > 1 else "has"
    if ahead:
        title = f"{code(name)} returns new arrays of the types of {listing(roots)} ({capacity_text(total)}), and nothing is donated"
        detail = "Both are in memory at the same time."
        fix = f"If the old ones are not needed after the call, give `jit` {code(option)}."
    else:
        title = (
            f"{listing(roots)} {verb} {capacity_text(total)} that {code(name)} replaces, and the old and the new are in memory "
            "at the same time"
        )
        detail = "The call assigns its results to the same names, but the arguments are not donated."
        fix = f"Donate what is replaced: {code(f'jax.jit({name}, {option})')}. No other variable may need the old arrays then."
    where = distinct_lines([program.site, program.definition])
    yield Finding(
        kind="memory.donation_missed",
        severity="warning" if large and not ahead else "info",
        title=title,
        detail=f"{detail} On {answer.target.name} the program needs {capacity_text(plan.needed_bytes)}.",
        fix=fix,
        site=where[0] if where else None,
        related=where[1 : _MAX_RELATED + 1],
        program=name,
        count=len(donations),
        bytes=total,
        facts={"arguments": [one.argument for one in donations[:8]], "option": option, "target": answer.target.name},
    )


def _replaced(record: CellRecord, program: Program) -> frozenset[str]:
    """Parameters whose argument at the call is a variable that the same statement assigns: ``w`` of ``w = f(w)``."""
    line = source_line(record, program.site)
    statement = sources.parse(record.source, record.source_lines_start).statement(line) if line is not None else None
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    signature = program.signature
    if statement is None or not isinstance(value, ast.Call) or signature is None:
        return frozenset()
    assigned = sources.bound_names(statement) | _attributes(statement)
    if any(isinstance(one, ast.Starred) for one in value.args):
        return frozenset()
    given = dict(zip(signature.positional, value.args, strict=False))
    given |= {one.arg: one.value for one in value.keywords if one.arg is not None}
    return frozenset(name for name, passed in given.items() if sources.dotted(passed) in assigned)


def _attributes(statement: ast.stmt) -> frozenset[str]:
    """``self.params`` and its like among the targets of an assignment."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    nodes = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Attribute)]
    return frozenset(name for node in nodes if (name := sources.dotted(node)) is not None)


def _whole(program: Program, donations: list[Donation]) -> list[Donation]:
    """Without a call to read: only arguments all of whose leaves come back, since a single array of the same type may be
    anything."""
    leaves: dict[str, int] = defaultdict(int)
    for leaf in program.inputs:
        leaves[root_of(leaf.path)] += 1
    matching: dict[str, int] = defaultdict(int)
    for one in donations:
        matching[root_of(one.argument)] += 1
    return [one for one in donations if 1 < leaves[root_of(one.argument)] == matching[root_of(one.argument)]]
