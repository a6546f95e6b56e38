"""Loops in which the device waits for the host to make the next batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, LineTime, SourceSite
from tpumagic.findings import COST_SECONDS, COST_SHARE, Finding
from tpumagic.numbers import percent_text, seconds_text
from tpumagic.passes.host_lines import CellLines, Repeat, loaded, stored
from tpumagic.sources import dotted, own_expressions, span_of

MOST_OF_THE_LOOP = 0.5
"""From half of the loop's time the batches, not the steps, decide how long it takes."""
BUSY_SHARE = 0.25
"""Without word from the device itself: it had nothing to do if waiting for it took less than this share."""


@dataclass(frozen=True)
class Work:
    """Host time of one statement of a loop. samples: those whose stacks go through it."""

    site: SourceSite
    node: ast.stmt
    samples: tuple[LineTime, ...]
    depth: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(one.seconds for one in self.samples)


def find(record: CellRecord) -> Iterator[Finding]:
    """At most one finding for each loop."""
    lines = CellLines(record)
    told: set[tuple[int, int]] = set()
    for repeat, samples in _loops(lines):
        finding = _judge(lines, repeat, samples)
        inside = any(first <= repeat.loop.first and repeat.loop.last <= last for first, last in told)
        if finding is not None and not inside:
            told.add((repeat.loop.first, repeat.loop.last))
            yield finding


def _loops(lines: CellLines) -> Iterator[tuple[Repeat, list[LineTime]]]:
    """The loops that samples fell into, innermost first, each with its samples."""
    found: dict[tuple[int, int, int], tuple[Repeat, list[LineTime]]] = {}
    for sample in lines.record.lines:
        if sample.doing in ("trace", "compile"):
            continue
        for repeat in lines.repeats(sample.stack):
            key = (repeat.position, repeat.loop.first, repeat.loop.last)
            found.setdefault(key, (repeat, []))[1].append(sample)
    return iter(sorted(found.values(), key=lambda one: (-one[0].position, one[0].loop.last - one[0].loop.first)))


def _judge(lines: CellLines, repeat: Repeat, samples: list[LineTime]) -> Finding | None:
    dispatching = lines.dispatch_lines(repeat, samples[0].stack)
    if not dispatching:
        return None
    works = [work for work in _works(repeat, samples) if _feeds(repeat, work, dispatching)]
    host_s = sum(work.seconds for work in works)
    total_s = sum(sample.seconds for sample in samples)
    enough = host_s >= COST_SECONDS and host_s >= COST_SHARE * lines.record.wall_s
    if not enough or host_s < MOST_OF_THE_LOOP * total_s or not _device_idle(lines, works, host_s):
        return None
    largest = max(works, key=lambda work: work.seconds)
    return _finding(lines, repeat, works, largest, host_s, total_s)


def _works(repeat: Repeat, samples: list[LineTime]) -> list[Work]:
    found: dict[int, Work] = {}
    for sample in samples:
        site = sample.stack[repeat.position]
        node = repeat.source.statement(site.line)
        if sample.doing != "host" or node is None:
            continue
        known = found.get(id(node))
        earlier = known.samples if known is not None else ()
        found[id(node)] = Work(known.site if known is not None else site, node, (*earlier, sample), repeat.position)
    return list(found.values())


def _feeds(repeat: Repeat, work: Work, dispatching: frozenset[int]) -> bool:
    """Whether what the statement makes goes into a jitted call of the loop."""
    body = [node for node in repeat.source.statements if repeat.loop.first <= node.lineno <= repeat.loop.last]
    if any(line in span_of(work.node) for line in dispatching):
        # One statement makes and uses the batch: what runs below its own line is the making; the rest may be the
        # call itself, unless the device was seen idle.
        below = any(_callee_frame(sample, work.depth) is not None for sample in work.samples)
        return below or all(sample.idle_s is not None for sample in work.samples)
    made = set(_stores(work.node))
    while True:
        more = {name for node in body if _loads(node) & made for name in _stores(node)} - made
        if not more:
            break
        made |= more
    users = [node for node in body if any(line in span_of(node) for line in dispatching)]
    return any(_loads(node) & made for node in users)


def _stores(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.For | ast.AsyncFor):
        return frozenset(one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))
    names = stored(node) if not hasattr(node, "body") else frozenset[str]()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        # batch.append(x), buffer.fill_(…): the object changes.
        names |= loaded(node.value.func)
    return names


def _loads(node: ast.stmt) -> frozenset[str]:
    return frozenset[str]().union(*(loaded(part) for part in own_expressions(node)))


def _device_idle(lines: CellLines, works: list[Work], host_s: float) -> bool:
    asked = [sample for work in works for sample in work.samples if sample.idle_s is not None]
    if asked:
        idle_s = sum(sample.idle_s or 0.0 for sample in asked)
        return idle_s >= MOST_OF_THE_LOOP * sum(sample.seconds for sample in asked)
    waited_s = sum(sample.seconds for sample in lines.record.lines if sample.doing == "wait")
    if lines.record.ready_s is not None:
        waited_s += max(0.0, lines.record.ready_s - lines.record.wall_s)
    return waited_s < BUSY_SHARE * host_s


def _callee_frame(sample: LineTime, depth: int) -> SourceSite | None:
    """The user's function that the statement called when the sample was taken."""
    deeper = (site for site in sample.stack[depth + 1 :] if site.function and not site.function.startswith("<"))
    return next(deeper, None)


def _name(lines: CellLines, work: Work) -> str:
    """What makes the batches, as the user wrote it: the called function, else the iterated or assigned expression."""
    calls = [
        one
        for part in own_expressions(work.node)
        for one in ast.walk(part)
        if isinstance(one, ast.Call)
    ]  # fmt: skip
    callees = [callee for one in calls if (callee := dotted(one.func)) and callee not in lines.jitted_callees]
    by_function: dict[str, float] = {}
    for sample in work.samples:
        frame = _callee_frame(sample, work.depth)
        if frame is not None and frame.function is not None:
            by_function[frame.function] = by_function.get(frame.function, 0.0) + sample.seconds
    for function in sorted(by_function, key=lambda name: -by_function[name]):
        for callee in callees:
            if callee.rpartition(".")[2] == function:
                return callee
    dispatches = any(ast.unparse(one.func) in lines.jitted_callees for one in calls)
    if dispatches and callees and not by_function:
        return callees[0]
    expression = _expression(work.node)
    if expression is not None and not dispatches:
        return expression
    return max(by_function, key=lambda name: by_function[name], default="") or ast.unparse(work.node).splitlines()[0]


def _expression(node: ast.stmt) -> str | None:
    if isinstance(node, ast.For | ast.AsyncFor):
        value: ast.expr = node.iter
        while isinstance(value, ast.Call) and value.args and ast.unparse(value.func).rpartition(".")[2] in (
            "enumerate", "tqdm", "zip", "iter", "trange",
        ):  # fmt: skip
            value = value.args[-1]
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        value = node.value
    else:
        return None
    if isinstance(value, ast.Call) and ast.unparse(value.func) != "next":
        return dotted(value.func)
    text = ast.unparse(value)
    return text if len(text) <= 60 else None


def _inner_site(work: Work) -> SourceSite | None:
    """The line that the time went to, inside the called function."""
    seconds: dict[SourceSite, float] = {}
    for sample in work.samples:
        if len(sample.stack) > work.depth + 1:
            seconds[sample.stack[-1]] = seconds.get(sample.stack[-1], 0.0) + sample.seconds
    return max(seconds, key=lambda site: seconds[site], default=None)


def _finding(
    lines: CellLines, repeat: Repeat, works: list[Work], largest: Work, host_s: float, total_s: float
) -> Finding:
    name = _name(lines, largest)
    inner = _inner_site(largest)
    others = [work.site for work in works if work is not largest]
    header = SourceSite(repeat.loop.first, largest.site.cell, largest.site.file, largest.site.function)
    related = [site for site in (inner, *others, header) if site is not None and site != largest.site]
    share = min(1.0, host_s / total_s)
    within = inner.function if inner is not None and not (inner.function or "<").startswith("<") else None
    slowest = ""
    if inner is not None and within is not None and within != name.rpartition(".")[2]:
        slowest = f" Most of that time is spent in `{within}` (line {inner.line})."
    return Finding(
        kind="host.input_bound",
        severity="warning",
        title=(
            f"The device waits for `{name}`: making the input takes {seconds_text(host_s)} of the loop's "
            f"{seconds_text(total_s)} ({percent_text(share)})."
        ),
        detail="While the host makes the next batch, the device has nothing to do; a faster chip would not help."
        + slowest,
        fix=(
            f"Run `{name}` ahead in a thread (a queue of two or three batches), or make the batches once before the loop."
        ),
        site=largest.site,
        related=tuple(dict.fromkeys(related)),
        seconds=host_s,
        facts={"name": name, "spent_in": within, "host_s": host_s, "loop_s": total_s, "share": share},
    )
