"""Keeping a report small and harmless: every text is made printable, every list short, and what is left out counted."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from tpumagic.events import ProgramMemory, SourceSite, Unavailable
from tpumagic.findings import Finding
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


LEVELS = (
    Limits(60, 60, 40, 20, 20, 40, 20, 2000, 300),
    Limits(40, 40, 25, 15, 10, 30, 12, 1000, 200),
    Limits(25, 25, 15, 10, 5, 20, 8, 600, 120),
    Limits(15, 15, 10, 5, 3, 10, 5, 300, 80),
    Limits(8, 8, 5, 3, 2, 6, 3, 150, 50),
    Limits(3, 3, 3, 2, 1, 3, 2, 60, 30),
)
"""Tried in turn until a report fits; nearly every report fits the first."""

T = TypeVar("T")

DEPTH = 4
WHOLE_LIMIT = 2**63
"""Larger whole numbers are no counts or bytes, and other readers of JSON cannot hold them."""

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
UNPRINTABLE = (
    *range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFEFF, 0xFFFE, 0xFFFF,
)  # fmt: skip
SPELLED = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in UNPRINTABLE}
"""Control characters but for the line feed, direction and byte order marks, lone surrogates: as Python writes them."""
MORE_CHARACTERS = re.compile(r"… (\d{1,18}) more characters\Z")
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
    cut = report.findings[limits.findings :]
    omitted = report.omitted
    return Report(
        version=report.version,
        name=_text(report.name, limits.text) or None,
        cell=Cell(
            _whole(report.cell.count), _text(report.cell.source_sha256, 64), _text(report.cell.failure, limits.text)
        ),
        environment=_free_dict(report.environment, limits, DEPTH),
        timing=_timing(report.timing),
        programs=tuple(_program(program, limits) for program in programs),
        memory=_memory(report.memory, limits),
        findings=tuple(_finding(finding, limits) for finding in report.findings[: limits.findings]),
        unavailable=tuple(
            Unavailable(_text(gap.what, limits.text) or "", prose(gap.why, limits.prose))
            for gap in report.unavailable[: limits.unavailable]
        ),
        omitted=Omitted(
            programs=omitted.programs + len(report.programs) - len(programs),
            errors=omitted.errors + sum(finding.severity == "error" for finding in cut),
            warnings=omitted.warnings + sum(finding.severity == "warning" for finding in cut),
            infos=omitted.infos + sum(finding.severity == "info" for finding in cut),
            live=omitted.live + len(report.memory.live[limits.live :]),
            unavailable=omitted.unavailable + len(report.unavailable[limits.unavailable :]),
        ),
    )


def heaviest(programs: tuple[ReportedProgram, ...], count: int) -> tuple[ReportedProgram, ...]:
    """The ``count`` programs worth showing, in their order: the user's own before eager ones, then by seconds."""
    if len(programs) <= count:
        return programs
    order = sorted(
        range(len(programs)), key=lambda n: (programs[n].kind == "eager", -(_seconds(programs[n].build_s) or 0.0), n)
    )
    return tuple(programs[n] for n in sorted(order[:count]))


def prose(text: str, limit: int) -> str:
    """The first ``limit`` characters without anything that could steer a terminal, a browser or the order of reading,
    and how many characters more there were.

    Colours are removed; other control characters, lone surrogates and direction marks are spelled out.
    """
    already = 0
    if len(text) > limit and (before := MORE_CHARACTERS.search(text[-40:])):
        text, already = text[: len(text) - len(before.group())], int(before.group(1))
    kept = _printable(text[:limit])
    missing = already + max(0, len(text) - limit) + max(0, len(kept) - limit)
    return f"{kept[:limit]}… {missing} more characters" if missing else kept


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    text = ANSI.sub("", text.replace("\r\n", "\n").replace("\t", "    "))
    return text.translate(SPELLED)


def _text(text: str | None, limit: int) -> str | None:
    """The same in one line."""
    if text is None:
        return None
    cleaned = prose(text, limit)
    return " ".join(cleaned.split("\n")) if "\n" in cleaned else cleaned


def _free(value: object, limits: Limits, depth: int) -> object:
    """Any value as short, strict JSON: what facts and the environment may hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return prose(value, limits.text)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if abs(whole) < WHOLE_LIMIT else f"a whole number of {whole.bit_length()} bits"
    if isinstance(value, numbers.Real):
        return _finite(value)
    if depth == 0:
        return "…"
    if isinstance(value, SourceSite):
        return str(_site(value, limits))
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
    kept = {_text(key, limits.text) or "": _free(value, limits, depth) for key, value in pairs[: limits.entries]}
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
        kind=_text(finding.kind, limits.text) or "",
        severity=finding.severity,
        title=_text(finding.title, limits.prose) or "",
        detail=prose(finding.detail, limits.prose),
        fix=prose(finding.fix, limits.prose),
        site=_site(finding.site, limits),
        related=tuple(site for site in (_site(site, limits) for site in finding.related[: limits.related]) if site),
        program=_text(finding.program, limits.text),
        count=_whole(finding.count),
        seconds=_seconds(finding.seconds),
        bytes=_whole(finding.bytes),
        facts=facts,
    )


def _site(site: SourceSite | None, limits: Limits) -> SourceSite | None:
    if site is None:
        return None
    return SourceSite(
        _whole(site.line) or 0, _whole(site.cell), _text(site.file, limits.text), _text(site.function, limits.text)
    )


def _program(program: ReportedProgram, limits: Limits) -> ReportedProgram:
    memory = program.memory
    return replace(
        program,
        name=_text(program.name, limits.text) or "",
        site=_site(program.site, limits),
        compiles=_whole(program.compiles) or 0,
        signature=_text(program.signature, limits.text),
        trace_s=_seconds(program.trace_s),
        lower_s=_seconds(program.lower_s),
        compile_s=_seconds(program.compile_s),
        memory=memory
        and ProgramMemory(
            _whole(memory.argument_bytes),
            _whole(memory.output_bytes),
            _whole(memory.temp_bytes),
            _whole(memory.alias_bytes),
            _whole(memory.peak_bytes),
        ),
        targets=tuple(_free_dict(target, limits, DEPTH) for target in program.targets[: limits.entries]),
    )


def _memory(memory: Memory, limits: Limits) -> Memory:
    devices = memory.samples[: limits.live]
    return Memory(
        limit_bytes=_whole(memory.limit_bytes),
        peak_bytes=_whole(memory.peak_bytes),
        cell_peak_bytes=_whole(memory.cell_peak_bytes),
        live_before_bytes=_whole(memory.live_before_bytes),
        live_after_bytes=_whole(memory.live_after_bytes),
        live=tuple(
            ReportedArray(
                _text(array.name, limits.text),
                _whole(array.bytes) or 0,
                _text(array.dtype, limits.text) or "",
                tuple(_whole(n) or 0 for n in array.shape[:64]),
                _text(array.sharding, limits.text),
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
        device=_whole(samples.device) or 0,
        limit_bytes=_whole(samples.limit_bytes),
        at_s=tuple(round(_seconds(samples.at_s[one][-1]) or 0.0, 3) for one in steps),
        bytes_in_use=_known([_highest(samples.bytes_in_use[one]) for one in steps]),
        duty_cycle_percent=_known([_mean_percent(samples.duty_cycle_percent[one]) for one in steps]),
        tensorcore_percent=_known([_mean_percent(samples.tensorcore_percent[one]) for one in steps]),
    )


def _known(values: list[T | None]) -> tuple[T | None, ...]:
    return tuple(values) if any(value is not None for value in values) else ()


def _highest(sizes: tuple[int | None, ...]) -> int | None:
    return max((whole for size in sizes if (whole := _whole(size)) is not None), default=None)


def _mean_percent(percents: tuple[float | None, ...]) -> float | None:
    told = [percent for percent in percents if percent is not None and 0 <= percent <= 100]
    return round(sum(told) / len(told), 1) if told else None


def _timing(timing: Timing) -> Timing:
    return Timing(
        wall_s=_seconds(timing.wall_s) or 0.0,
        ready_s=_seconds(timing.ready_s),
        trace_s=_seconds(timing.trace_s),
        lower_s=_seconds(timing.lower_s),
        compile_s=_seconds(timing.compile_s),
        run_s=_seconds(timing.run_s),
        compiles=_whole(timing.compiles) or 0,
        cache_hits=_whole(timing.cache_hits) or 0,
    )


def _finite(number: numbers.Real) -> float | None:
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None


def _seconds(seconds: float | None) -> float | None:
    """Seconds to the nanosecond; None for what is no duration."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return None
    return round(float(seconds), 9)


def _whole(number: int | None) -> int | None:
    if number is None or not 0 <= number < WHOLE_LIMIT:
        return None
    return int(number)
