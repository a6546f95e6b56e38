"""State kept in 16-bit floats: running sums that stop growing, and updates too small to change anything."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import Finding
from tpumagic.passes import precision_source as written
from tpumagic.passes.precision_flow import Flow, FlowOf, site_of, terms, types_of
from tpumagic.passes.precision_state import LOW_PRECISION, Fault, State, addition_of, from_gradients, judge, loops
from tpumagic.sources import Source, names_in

LONG_SUM = 64
"""Additions from which a 16-bit running sum is told: 64 equal ones make it wrong by up to an eighth; the handful of
an accumulation over microbatches does no more harm than storing the result."""
SHORT_LOOP = 10
"""Turns below which even a lost update is not told."""
NAMES_SHOWN = 5
MAX_DEPENDENCIES = 64
"""Questions of dependence asked per program: each walks through it once."""


@dataclass(frozen=True)
class Low:
    """A 16-bit state at fault with what is known of it. name: the user's, None if not known; turns as in State."""

    kind: str
    name: str | None
    dtype: str
    shape: tuple[int, ...]
    site: SourceSite | None
    program: Program
    turns: int | None
    factor: float | None = None
    decayed: bool = False


def find(record: CellRecord, flow_of: FlowOf) -> Iterator[Finding]:
    """Findings ``bf16_accumulate``, one for each line, and ``bf16_update_lost``, one for each program's name."""
    sums: dict[SourceSite | None, list[Low]] = {}
    updates: dict[str, list[Low]] = {}
    for program in record.programs:
        if program.graph is None or program.outside or not types_of(program.graph) & LOW_PRECISION.keys():
            continue
        for low in (
            _eager(record, program) if program.kind == "eager" else _compiled(record, program, flow_of(program.graph))
        ):
            if low.kind == "sum":
                sums.setdefault(low.site, []).append(low)
            else:
                updates.setdefault(program.name, []).append(low)
    for group in sums.values():
        yield _sum_finding(group)
    for group in updates.values():
        yield _update_finding(sorted(group, key=lambda low: (low.decayed, -math.prod(low.shape))))


def _compiled(record: CellRecord, program: Program, flow: Flow) -> Iterator[Low]:
    """Faults of a compiled program: in the carries of its loops, and in what it hands back to its next call."""
    left = MAX_DEPENDENCIES
    for around, body, states in loops(flow):
        gradients: set[int] | None = None
        for state in states:
            before = body.values[state.before]
            if before.dtype not in LOW_PRECISION or (state.turns is not None and state.turns < SHORT_LOOP):
                continue
            gradients = from_gradients(body) if gradients is None else gradients
            long = state.turns is None or state.turns >= LONG_SUM
            fault = judge(body, states, state, gradients, long and left > 0)
            left -= 1
            if fault is not None:
                name = _written_name(record, fault)
                if name is None and around is flow and state.outer is not None:
                    name = _leaf_path(program, flow, state.outer)
                yield _low(fault, name, body, state, program, state.turns)
    yield from _handed_back(record, program, flow)


def _handed_back(record: CellRecord, program: Program, flow: Flow) -> Iterator[Low]:
    """Faults in a program's own results that become its arguments again."""
    pairs: list[tuple[int, int, State]] = []
    candidates = {place: index for index, place in enumerate(flow.inputs)}
    for position, after in enumerate(flow.outputs):
        top = addition_of(flow, State(-1, after, None))
        if top is None or flow.values[after].dtype not in LOW_PRECISION:
            continue
        for term in terms(flow, top.outputs[0]):
            before = flow.values[term.value]
            same = (before.shape, before.dtype) == (flow.values[after].shape, flow.values[after].dtype)
            if term.value in candidates and same:
                pairs.append((candidates[term.value], position, State(term.value, after, None)))
                break
    if not pairs:
        return
    gradients = from_gradients(flow)
    lines = list(_lines(record, program))
    states = [state for _, _, state in pairs]
    numbers = _passed_numbers(program, flow, lines)
    for index, position, state in pairs[: MAX_DEPENDENCIES * 8]:
        path = _leaf_path(program, flow, state.before)
        evidence = _evidence(program, lines, index, position, path)
        is_long = evidence is not None and evidence.is_long and index < MAX_DEPENDENCIES
        fault = judge(flow, states, state, gradients, is_long, numbers)
        if fault is None or (evidence is None and not (fault.kind == "update" and _is_step(flow, fault, gradients))):
            continue
        turns = evidence.turns if evidence is not None else None
        yield _low(fault, path or _written_name(record, fault), flow, state, program, turns)


def _is_step(flow: Flow, fault: Fault, gradients: set[int]) -> bool:
    """A gradient that reaches the addition proves a training step, even if the cell makes only one."""
    return any(one in gradients for one in fault.node.outputs)


@dataclass(frozen=True)
class Evidence:
    """That a program's result becomes its argument again; is_long: often enough to be a long sum."""

    turns: int | None
    is_long: bool


@dataclass(frozen=True)
class Line:
    """A line of the cell that calls a program, read once: what it assigns to and gives back, and how often it runs."""

    number: int
    source: Source
    given: tuple[tuple[ast.Call, int | str, ast.expr], ...]
    in_loop: bool
    turns: int | None


def _lines(record: CellRecord, program: Program) -> Iterator[Line]:
    for site in _call_lines(program):
        if written.is_in_cell(record, site):
            source = written.source_of(record)
            in_loop, turns = written.turns(record, site.line)
            yield Line(site.line, source, tuple(written.fed_back(source, site.line)), in_loop, turns)


def _evidence(program: Program, lines: list[Line], index: int, position: int, path: str | None) -> Evidence | None:
    """From the line that calls the program, else from the identities of what went in and came out."""
    for line in lines:
        for call, key, argument in line.given:
            if not _is_parameter(program, key, path):
                continue
            turns = line.turns
            if program.calls_complete and program.calls and turns is None:
                turns = len(program.calls)
            name = next(iter(sorted(names_in(argument))), "")
            again = {id(node) for one, _, node in line.given if one is call}
            rest = [one for one in [*call.args, *(word.value for word in call.keywords)] if id(one) not in again]
            tainted = any(written.comes_from(line.source, line.number, name, one) for one in rest)
            return Evidence(turns, line.in_loop and not tainted and (turns is None or turns >= LONG_SUM))
    links = 0
    for earlier, later in zip(program.calls, program.calls[1:], strict=False):
        if index < len(later.inputs) and position < len(earlier.outputs):
            made, used = earlier.outputs[position], later.inputs[index].identity
            links += made is not None and made == used
    if links < 2:
        return None
    scalar = index < len(program.inputs) and program.inputs[index].shape == ()
    often = len(program.calls) >= LONG_SUM or not program.calls_complete
    return Evidence(len(program.calls) if program.calls_complete else None, scalar and often)


def _passed_numbers(program: Program, flow: Flow, lines: list[Line]) -> dict[int, float]:
    """Scalar inputs whose number is written at the call: the 0.001 of ``step(w, x, lr)`` with ``lr = 1e-3``."""
    found: dict[int, float] = {}
    positional = program.signature.positional if program.signature is not None else ()
    places = {path: value for value in flow.inputs if (path := _leaf_path(program, flow, value)) is not None}
    for line in lines:
        for call in {id(call): call for call, _, _ in line.given}.values():
            named = [*zip(positional, call.args, strict=False), *((one.arg, one.value) for one in call.keywords)]
            for parameter, argument in named:
                value = places.get(parameter or "")
                number = written.number(line.source, argument) if value is not None else None
                if value is not None and number is not None and flow.values[value].size == 1:
                    found[value] = number
    return found


def _call_lines(program: Program) -> list[SourceSite]:
    stacks = [program.stack, *(call.stack for call in program.calls)]
    return list(dict.fromkeys(stack[-1] for stack in stacks if stack))


def _is_parameter(program: Program, key: int | str, path: str | None) -> bool:
    """Whether the argument at this place or keyword is the one that the leaf belongs to; True where it is not known."""
    if path is None:
        return True
    parameter = _variable(path)
    if isinstance(key, str):
        return key == parameter
    positional = program.signature.positional if program.signature is not None else ()
    return positional[key] == parameter if key < len(positional) else True


def _eager(record: CellRecord, program: Program) -> Iterator[Low]:
    """``total += loss`` outside of any program, by the text of its line: nothing else tells that it is a sum."""
    graph = program.graph
    if graph is None or len(graph.outputs) != 1 or graph.values[graph.outputs[0]].dtype not in LOW_PRECISION:
        return
    adding = [operation.name for _, operation in graph.walk() if operation.name in ("add", "subtract")]
    if len(adding) != 1:
        return
    value = graph.values[graph.outputs[0]]
    for site in _call_lines(program):
        if not written.is_in_cell(record, site) or not _all_low(record, site):
            continue
        source = written.source_of(record)
        in_loop, turns = written.turns(record, site.line)
        if not in_loop or (turns is not None and turns < SHORT_LOOP):
            continue
        statement = source.statement(site.line)
        names = written.targets(statement)
        kind = ast.Add if adding[0] == "add" else ast.Sub
        for left, operator, right in written.additions(source, site.line):
            name = ast.unparse(left)
            mapped = not isinstance(statement, ast.AugAssign) and name not in names and _maps(statement, names)
            if not isinstance(operator, kind) or not (name in names or mapped):
                continue
            factor = written.factor(source, right)
            spacing = LOW_PRECISION[value.dtype]
            shown = names[0] if mapped else name
            if factor is not None and factor <= 2 * spacing and value.size > 1:
                yield Low("update", shown, value.dtype, value.shape, site, program, turns, factor)
            elif not mapped and (turns is None or turns >= LONG_SUM) and not _is_tainted(source, site, name, right):
                yield Low("sum", shown, value.dtype, value.shape, site, program, turns)
            break


def _is_tainted(source: Source, site: SourceSite, name: str, added: ast.expr) -> bool:
    return written.comes_from(source, site.line, _variable(name), added)


def _all_low(record: CellRecord, site: SourceSite) -> bool:
    """Whether every eager addition of a line is in 16 bits: else it is not known which of them is the sum."""
    for program in record.programs:
        if program.kind == "eager" and program.graph is not None and site in _call_lines(program):
            names = {operation.name for _, operation in program.graph.walk()}
            outputs = [program.graph.values[one].dtype for one in program.graph.outputs]
            if names & {"add", "subtract"} and any(dtype not in LOW_PRECISION for dtype in outputs):
                return False
    return True


def _maps(statement: ast.stmt | None, names: list[str]) -> bool:
    """``params = jax.tree.map(lambda p, g: p - lr * g, params, grads)``: a function applied to what is assigned."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    return bool(names) and any(isinstance(one, ast.Lambda) for one in call.args) and any(
        ast.unparse(one) in names for one in call.args
    )  # fmt: skip


def _low(fault: Fault, name: str | None, flow: Flow, state: State, program: Program, turns: int | None) -> Low:
    value = flow.values[state.before]
    site = site_of(program, fault.node)
    return Low(fault.kind, name, value.dtype, value.shape, site, program, turns, fault.factor, fault.decayed)


def _written_name(record: CellRecord, fault: Fault) -> str | None:
    node = fault.node
    return written.operand_text(record, node.operation.site, node.operation.name, fault.position, fault.by_number)


def _leaf_path(program: Program, flow: Flow, value: int) -> str | None:
    """What the user calls the argument of a program; None if the value is none of them."""
    if value not in flow.inputs:
        return None
    for leaves in (program.inputs, program.signature.leaves if program.signature is not None else ()):
        if len(leaves) == len(flow.inputs):
            return leaves[flow.inputs.index(value)].path
    return None


def _variable(path: str) -> str:
    """``params`` of ``params['w']``."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _names(group: list[Low], otherwise: str, before: str = "") -> str:
    """``w``, or ``params['w']`` and 3 more; otherwise, where no name is known."""
    names = list(dict.fromkeys(low.name for low in group if low.name is not None))
    if not names:
        return otherwise
    return f"{before}`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _related(group: list[Low]) -> tuple[SourceSite, ...]:
    site = group[0].site
    lines = [line for low in group for line in (low.site, *_call_lines(low.program)) if line is not None]
    return tuple(one for one in dict.fromkeys(lines) if one != site)


def _times(turns: int | None) -> str:
    return f"{turns:,} times" if turns is not None else "in a loop of unknown length"


def _array(low: Low) -> str:
    return f"{low.dtype}[{','.join(map(str, low.shape))}]"


def _sum_finding(group: list[Low]) -> Finding:
    low = group[0]
    limit = round(1 / LOW_PRECISION[low.dtype])
    name = low.name or "the sum"
    return Finding(
        "precision.bf16_accumulate",
        "warning",
        f"{_names(group, 'A running sum', 'The running sum ')} is kept in {low.dtype}: once it is {limit:,} times as "
        "large as what is added, adding changes nothing.",
        f"{_array(low)}, added to {_times(low.turns)}; every addition is rounded to {low.dtype}.",
        f"Start {name if low.name is None else f'`{name}`'} in float32 (`dtype=jnp.float32`) and convert the result at "
        f"the end; what is added may stay {low.dtype}.",
        site=low.site,
        related=_related(group),
        program=low.program.name,
        count=low.turns,
        facts={"name": low.name, "dtype": low.dtype, "additions": low.turns, "stalls_at_ratio": limit},
    )


def _update_finding(group: list[Low]) -> Finding:
    low = group[0]
    ratio = round(1 / LOW_PRECISION[low.dtype])
    factor = max(one.factor or 0.0 for one in group if one.decayed == low.decayed)
    names = list(dict.fromkeys(one.name for one in group if one.name is not None))
    name = "it" if low.name is None else f"`{low.name if len(names) == 1 else _variable(low.name)}`"
    verb = "are" if len(names) > 1 else "is"
    return Finding(
        "precision.bf16_update_lost",
        "warning",
        f"{_names(group, 'A state')} {verb} updated in {low.dtype} by something scaled with {factor:.2g}: a change below "
        f"1/{ratio:,} of a value is rounded away.",
        f"{_array(low)} is rounded to {low.dtype} after every update, so steps smaller than its spacing never add up.",
        f"Keep a float32 copy of {name}, update that, and convert to {low.dtype} only for the computation.",
        site=low.site,
        related=_related(group),
        program=low.program.name,
        count=len(names) or 1,
        facts={
            "names": ", ".join(names[:NAMES_SHOWN]),
            "dtype": low.dtype,
            "factor": float(f"{factor:.2g}"),
            "lost_below": 1 / ratio,
        },
    )
