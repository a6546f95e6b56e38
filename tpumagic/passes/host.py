"""What the host does to the device: callbacks out of programs, waits, transfers, dispatch, input and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import Finding
from tpumagic.graph import Graph, Operation
from tpumagic.passes import host_dispatch, host_input, host_sync, host_transfers, timing
from tpumagic.passes.host_lines import CALLBACKS, CellLines, jitted


@dataclass(frozen=True)
class Callback:
    """An operation that calls Python on the host. times: how often in one call of the program, None if the program
    decides that while it runs."""

    operation: Operation
    function: str
    site: SourceSite | None
    times: int | None


def find(record: CellRecord) -> Iterator[Finding]:
    """All findings of the family ``host``."""
    yield from _callbacks(record)
    yield from host_dispatch.find(record)
    slow_input = list(host_input.find(record))
    yield from slow_input
    yield from timing.find(record)
    yield from host_sync.find(record)
    for finding in host_transfers.find(record):
        if not _is_fed_slowly(record, finding, slow_input):
            yield finding


def _is_fed_slowly(record: CellRecord, finding: Finding, slow_input: list[Finding]) -> bool:
    """Whether a transfer belongs to a loop that waits for its input anyway: one cause, one finding."""
    if finding.kind != "host.implicit_transfer" or finding.site is None:
        return False
    headers = {repeat.loop.first for repeat in CellLines(record).repeats((finding.site,))}
    return any(site is not None and site.line in headers for one in slow_input for site in (one.site, *one.related))


def _callbacks(record: CellRecord) -> Iterator[Finding]:
    """One finding for each callback and line, however many programs contain it."""
    lines = CellLines(record)
    told: set[tuple[str, SourceSite | None]] = set()
    for program in jitted(record):
        if program.graph is None or not (program.calls or program.compiles):
            continue
        for callback in _in_graph(program.graph, 1):
            site = callback.site or program.site
            if (callback.function, site) not in told:
                told.add((callback.function, site))
                yield _finding(lines.name_of(program), program, callback, site)


def _in_graph(graph: Graph, times: int | None) -> Iterator[Callback]:
    for operation in graph.operations:
        if operation.name in CALLBACKS:
            function = str(operation.attributes.get("callback") or "a Python function")
            yield Callback(operation, function, operation.site, times)
        inner = times
        if operation.name in ("scan", "while"):
            length = operation.attributes.get("length")
            inner = times * length if isinstance(length, int) and times is not None else None
        for body in operation.bodies:
            yield from _in_graph(body, inner)


def _finding(name: str, program: Program, callback: Callback, site: SourceSite | None) -> Finding:
    kind = callback.operation.name
    is_print = kind == "debug_print" or callback.function == "jax.debug.print"
    what = _what(callback.function)
    if callback.times is None:
        often = f"at every step of a loop inside `{name}`"
    elif callback.times > 1:
        often = f"{callback.times:,} times in each call of `{name}`"
    else:
        often = f"at each call of `{name}`"
    if is_print:
        title = f"`jax.debug.print` sends values to the host {often}."
        detail = (
            "Printing from inside a program is made for debugging: the device hands the values to Python each time."
        )
        fix = "Take it out once you have seen the values, or return them and print every N steps."
    elif kind == "debug_callback":
        title = f"{what} runs on the host {often}."
        detail = "The program hands its values to Python through `jax.debug.callback` each time."
        fix = f"Return the values from `{name}` and look at them after the call, every N steps."
    elif kind == "io_callback":
        title = f"{what} runs on the host {often}."
        detail = "The program stops at `io_callback`, copies its values to the host and waits for Python each time."
        fix = f"Return the values from `{name}` and do this after the call, or only every N steps."
    else:
        title = f"{what} runs on the host {often}."
        detail = (
            "The program stops at `pure_callback`, copies the arguments to the host, waits for Python and copies the result "
            "back each time."
        )
        fix = f"Write {what[0].lower() + what[1:]} with jax.numpy so that it becomes part of the program, or call it before or after `{name}`."
    related = [one for one in (program.site, program.definition) if one is not None and one != site]
    return Finding(
        kind="host.callback",
        severity="warning",
        title=title,
        detail=detail,
        fix=fix,
        site=site,
        related=tuple(related),
        program=name,
        count=callback.times,
        facts={"callback": callback.function, "through": kind, "program": name, "times": callback.times},
    )


def _what(function: str) -> str:
    if function == "a Python function":
        return "A Python function"
    return "A lambda" if function == "<lambda>" else f"`{function}`"
