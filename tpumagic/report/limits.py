"""Keeping a report small: every text is made printable, every list short, and what is left out counted."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from tpumagic.events import ProgramMemory, SourceSite, Unavailable
from tpumagic.findings import Finding
from tpumagic.report import cleaning, target_limits
from tpumagic.report.model import (
    SIZE_LIMIT,
    Cell,
    DeviceSamples,
    Memory,
    Omitted,
    Report,
    ReportedArray,
    ReportedProgram,
    Timing,
)
from tpumagic.report.target_limits import TargetLimits
from tpumagic.report.target_model import ReportedTarget


@dataclass(frozen=True)
class Limits:
    """Numbers of things and of characters. entries: of a dict; items: of a list in facts; prose: title, detail, fix."""

    programs: int
    findings: int
    live: int
    unavailable: int
    related: int
    entries: int
    items: int
    prose: int
    text: int
    targets: TargetLimits


LEVELS = (
    Limits(60, 60, 40, 20, 20, 40, 20, 2000, 300, TargetLimits(8, 6, 20, 120, 20, 3)),
    Limits(40, 40, 25, 15, 10, 30, 12, 1000, 200, TargetLimits(6, 3, 12, 120, 10, 1)),
    Limits(25, 25, 15, 10, 5, 20, 8, 600, 120, TargetLimits(4, 2, 8, 80, 6, 0)),
    Limits(15, 15, 10, 5, 3, 10, 5, 300, 80, TargetLimits(3, 1, 6, 40, 4, 0)),
    Limits(8, 8, 5, 3, 2, 6, 3, 150, 50, TargetLimits(2, 1, 3, 20, 2, 0)),
    Limits(3, 3, 3, 2, 1, 3, 2, 60, 30, TargetLimits(1, 1, 1, 0, 1, 0)),
)
"""Tried in turn until a report fits; nearly every report fits the first."""

T = TypeVar("T")

DEPTH = 4
MORE_ITEMS = re.compile(r"… (\d{1,18}) more\Z")


def shrinking(report: Report) -> Iterator[Report]:
    """The report cleaned, then ever shorter; the last one is small whatever the report held."""
    for limits in LEVELS:
        yield shortened(report, limits)


def fitted(report: Report, size_bytes: int = SIZE_LIMIT) -> Report:
    """The longest form of the report whose JSON has at most ``size_bytes``."""
    smaller = report
    for smaller in shrinking(report):
        if smaller.size_bytes <= size_bytes:
            break
    return smaller


def shortened(report: Report, limits: Limits) -> Report:
    """The report cleaned and cut to these limits; what is cut is added to ``omitted``."""
    programs = heaviest(report.programs, limits.programs)
    answers = [program.targets for program in programs]
    targets = target_limits.shortened(answers, limits.targets, limits.prose, limits.text)
    cut = report.findings[limits.findings :]
    omitted = report.omitted
    return Report(
        version=report.version,
        name=cleaning.optional_line(report.name, limits.text) or None,
        cell=Cell(
            count=cleaning.whole(report.cell.count),
            source_sha256=cleaning.optional_line(report.cell.source_sha256, 64),
            failure=cleaning.optional_line(report.cell.failure, limits.text),
            dry_run=report.cell.dry_run,
        ),
        environment=_free_dict(report.environment, limits, DEPTH),
        timing=_timing(report.timing),
        programs=tuple(_program(program, answers, limits) for program, answers in zip(programs, targets, strict=True)),
        memory=_memory(report.memory, limits),
        findings=tuple(_finding(finding, limits) for finding in report.findings[: limits.findings]),
        unavailable=tuple(
            Unavailable(cleaning.line(gap.what, limits.text), cleaning.prose(gap.why, limits.prose))
            for gap in report.unavailable[: limits.unavailable]
        ),
        omitted=Omitted(
            programs=omitted.programs + len(report.programs) - len(programs),
            errors=omitted.errors + sum(finding.severity == "error" for finding in cut),
            warnings=omitted.warnings + sum(finding.severity == "warning" for finding in cut),
            infos=omitted.infos + sum(finding.severity == "info" for finding in cut),
            live=omitted.live + len(report.memory.live[limits.live :]),
            unavailable=omitted.unavailable + len(report.unavailable[limits.unavailable :]),
            targets=omitted.targets + sum(map(len, answers)) - sum(map(len, targets)),
        ),
    )


def heaviest(programs: tuple[ReportedProgram, ...], count: int) -> tuple[ReportedProgram, ...]:
    """The ``count`` programs worth showing, in their order: first those that cannot run on a target, then the user's
    own before eager ones, by seconds."""
    if len(programs) <= count:
        return programs
    order = sorted(range(len(programs)), key=lambda n: (*_importance(programs[n]), n))
    return tuple(programs[n] for n in sorted(order[:count]))


def _importance(program: ReportedProgram) -> tuple[bool, bool, float]:
    runs = all(target.fits is not False and target.status != "refused" for target in program.targets)
    return runs, program.kind == "eager", -(cleaning.seconds(program.build_s) or 0.0)


def _free(value: object, limits: Limits, depth: int) -> object:
    """Any value as short, strict JSON: what facts and the environment may hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return cleaning.prose(value, limits.text)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if abs(whole) < cleaning.WHOLE_LIMIT else f"a whole number of {whole.bit_length()} bits"
    if isinstance(value, numbers.Real):
        return cleaning.finite(value)
    if depth == 0:
        return "…"
    if isinstance(value, SourceSite):
        return str(cleaning.site(value, limits.text))
    if isinstance(value, dict):
        return _free_dict(cast("dict[object, object]", value), limits, depth - 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _free_list(list(cast("tuple[object, ...]", value)), limits, depth - 1)
    return f"<{type(value).__name__}>"


def _free_list(items: list[object], limits: Limits, depth: int) -> list[object]:
    """The first items and the last, with the number of those between in their place."""
    if len(items) <= limits.items:
        return [_free(item, limits, depth) for item in items]
    already = 0
    last_but_one = items[-2]
    if isinstance(last_but_one, str) and (marker := MORE_ITEMS.match(last_but_one)):
        already = int(marker.group(1))
        items = [*items[:-2], items[-1]]
    head, tail = items[: limits.items - 1], items[-1]
    missing = already + len(items) - len(head) - 1
    return [*(_free(item, limits, depth) for item in head), f"… {missing} more", _free(tail, limits, depth)]


def _free_dict(entries: dict[object, object] | dict[str, object], limits: Limits, depth: int) -> dict[str, object]:
    pairs = [(str(_free(key, limits, 0)), value) for key, value in entries.items() if key != "…"]
    kept = {cleaning.line(key, limits.text): _free(value, limits, depth) for key, value in pairs[: limits.entries]}
    missing = len(pairs) - len(kept)
    before = cast("dict[object, object]", entries).get("…")
    if isinstance(before, str) and (marker := re.match(r"(\d{1,18}) more\Z", before)):
        missing += int(marker.group(1))
    return {**kept, "…": f"{missing} more"} if missing else kept


def _finding(finding: Finding, limits: Limits) -> Finding:
    facts = _free_dict(finding.facts, limits, 2)
    more = len(finding.related) - limits.related
    if more > 0:
        earlier = facts.get("more_related")
        facts["more_related"] = more + (earlier if isinstance(earlier, int) else 0)
    return Finding(
        kind=cleaning.line(finding.kind, limits.text),
        severity=finding.severity,
        title=cleaning.line(finding.title, limits.prose),
        detail=cleaning.prose(finding.detail, limits.prose),
        fix=cleaning.prose(finding.fix, limits.prose),
        site=cleaning.site(finding.site, limits.text),
        related=tuple(
            site for site in (cleaning.site(site, limits.text) for site in finding.related[: limits.related]) if site
        ),
        program=cleaning.optional_line(finding.program, limits.text),
        count=cleaning.whole(finding.count),
        seconds=cleaning.seconds(finding.seconds),
        bytes=cleaning.whole(finding.bytes),
        facts=facts,
    )


def _program(program: ReportedProgram, targets: tuple[ReportedTarget, ...], limits: Limits) -> ReportedProgram:
    memory = program.memory
    return replace(
        program,
        name=cleaning.line(program.name, limits.text),
        site=cleaning.site(program.site, limits.text),
        compiles=cleaning.whole(program.compiles) or 0,
        signature=cleaning.optional_line(program.signature, limits.text),
        trace_s=cleaning.seconds(program.trace_s),
        lower_s=cleaning.seconds(program.lower_s),
        compile_s=cleaning.seconds(program.compile_s),
        memory=memory
        and ProgramMemory(
            cleaning.whole(memory.argument_bytes),
            cleaning.whole(memory.output_bytes),
            cleaning.whole(memory.temp_bytes),
            cleaning.whole(memory.alias_bytes),
            cleaning.whole(memory.peak_bytes),
        ),
        targets=targets,
    )


def _memory(memory: Memory, limits: Limits) -> Memory:
    devices = memory.samples[: limits.live]
    return Memory(
        limit_bytes=cleaning.whole(memory.limit_bytes),
        peak_bytes=cleaning.whole(memory.peak_bytes),
        cell_peak_bytes=cleaning.whole(memory.cell_peak_bytes),
        live_before_bytes=cleaning.whole(memory.live_before_bytes),
        live_after_bytes=cleaning.whole(memory.live_after_bytes),
        live=tuple(
            ReportedArray(
                cleaning.optional_line(array.name, limits.text),
                cleaning.whole(array.bytes) or 0,
                cleaning.line(array.dtype, limits.text),
                tuple(cleaning.whole(n) or 0 for n in array.shape[:64]),
                cleaning.optional_line(array.sharding, limits.text),
            )
            for array in memory.live[: limits.live]
        ),
        samples=tuple(_device(one, max(1, limits.items * 12 // len(devices))) for one in devices),
    )


def _device(samples: DeviceSamples, count: int) -> DeviceSamples:
    """At most ``count`` samples: each stands for several, with their highest memory and the mean of the rest."""
    length = len(samples.at_s)
    step = max(1, math.ceil(length / count))
    steps = [slice(n, n + step) for n in range(0, length, step)]
    return DeviceSamples(
        device=cleaning.whole(samples.device) or 0,
        limit_bytes=cleaning.whole(samples.limit_bytes),
        at_s=tuple(round(cleaning.seconds(samples.at_s[one][-1]) or 0.0, 3) for one in steps),
        bytes_in_use=_known([_highest(samples.bytes_in_use[one]) for one in steps]),
        duty_cycle_percent=_known([_mean_percent(samples.duty_cycle_percent[one]) for one in steps]),
        tensorcore_percent=_known([_mean_percent(samples.tensorcore_percent[one]) for one in steps]),
    )


def _known(values: list[T | None]) -> tuple[T | None, ...]:
    return tuple(values) if any(value is not None for value in values) else ()


def _highest(sizes: tuple[int | None, ...]) -> int | None:
    return max((whole for size in sizes if (whole := cleaning.whole(size)) is not None), default=None)


def _mean_percent(percents: tuple[float | None, ...]) -> float | None:
    told = [percent for percent in percents if percent is not None and 0 <= percent <= 100]
    return round(sum(told) / len(told), 1) if told else None


def _timing(timing: Timing) -> Timing:
    return Timing(
        wall_s=cleaning.seconds(timing.wall_s) or 0.0,
        ready_s=cleaning.seconds(timing.ready_s),
        trace_s=cleaning.seconds(timing.trace_s),
        lower_s=cleaning.seconds(timing.lower_s),
        compile_s=cleaning.seconds(timing.compile_s),
        run_s=cleaning.seconds(timing.run_s),
        compiles=cleaning.whole(timing.compiles) or 0,
        cache_hits=cleaning.whole(timing.cache_hits) or 0,
    )
