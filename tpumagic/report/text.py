"""The report as plain text of 100 columns: what a terminal, a saved notebook and a bug report show.

Everything but the times is the same in every run, line breaks included, so that a notebook test can compare it.
"""

from __future__ import annotations

import re
import textwrap

from tpumagic.findings import Finding
from tpumagic.numbers import bytes_text, count_text, seconds_text
from tpumagic.report import summary
from tpumagic.report.limits import shrinking
from tpumagic.report.model import Report

WIDTH = 100
GUTTER = 9
FINDINGS = 12
PROGRAMS = 6
ARRAYS = 4
UNAVAILABLE = 3
PROSE = 900
"""Characters of a detail or fix; the HTML and the JSON have it whole."""

DURATION = re.compile(r"(?<![\w.])<?\d[\d,]*(?:\.\d+)? (?:µs|ms|s|min(?: \d+ s)?|h(?: \d+ min)?)(?!\w)")
SIZE = re.compile(r"(\d) ([KMGTP]iB|B|%)(?!\w)")
"""Not to be torn apart at the end of a line."""
PLACEHOLDER = "\ue000" * 8
"""Stands for a time while lines are broken; a character for private use, 8 as in ``12.3 ms`` and a bit."""


def render(report: Report) -> str:
    """The report in lines of at most 100 characters; where there is nothing to report one line, and one of devices."""
    report = next(shrinking(report))
    if summary.is_clean(report):
        line = f"Nothing to report: {summary.timing(report)}"
        parts = [line if len(line) <= WIDTH else _wrapped("", line, indent="    ")]
    else:
        headline = f"{summary.title(report)}: {summary.state(report)}; {summary.timing(report)}"
        parts = [_wrapped("", headline, indent="    "), "", *_findings(report), *_programs(report), *_memory(report)]
    return "\n".join([*parts, *_devices(report), *_notes(report), *_unavailable(report)]).rstrip("\n")


def _findings(report: Report) -> list[str]:
    found = summary.loud(report)
    parts = [part for finding in found[:FINDINGS] for part in (_finding(finding), "")]
    more = len(found) - FINDINGS
    hidden = summary.more_findings(report.omitted)
    if more > 0:
        parts += [_wrapped("", f"and {more} more of them"), ""]
    if hidden:
        parts += [_wrapped("", hidden), ""]
    return parts


def _finding(finding: Finding) -> str:
    place = ", ".join(filter(None, (summary.where(finding.site), summary.also(finding))))
    facts = " · ".join(filter(None, (place, summary.cost(finding), finding.kind)))
    lines = [_wrapped(finding.severity.upper(), finding.title), _wrapped("", facts)]
    lines += [_wrapped("", _shortened(finding.detail))] if finding.detail else []
    lines += [_wrapped("    fix:", _shortened(finding.fix))] if finding.fix else []
    return "\n".join(lines).replace("\u00a0", " ")


def _shortened(text: str) -> str:
    return text if len(text) <= PROSE else f"{text[:PROSE]}… {len(text) - PROSE} more characters"


def _programs(report: Report) -> list[str]:
    rows, more = summary.program_rows(report, PROGRAMS)
    if not rows:
        return []
    # Fixed widths, and the times last: no column moves when a time has another length.
    lines = [f"{'programs':<34} {'where':<21} {'compiles':>8} {'arguments':>10} {'temporary':>10}  time"]
    for row in rows:
        name = _fixed(row.name, 34 - len(row.times)).rstrip() + row.times
        line = (
            f"{name:<34} {_fixed(row.where or '—', 21)} {count_text(row.compiles):>8} "
            f"{bytes_text(row.largest('argument_bytes')):>10} {bytes_text(row.largest('temp_bytes')):>10}  "
            f"{seconds_text(row.build_s)}"
        )
        lines.append(line[:WIDTH])
    if more:
        lines.append(f"and {count_text(more)} more")
    return [*lines, ""]


def _memory(report: Report) -> list[str]:
    memory = report.memory
    facts: list[str] = []
    if memory.cell_peak_bytes is not None:
        facts.append(f"peak {bytes_text(memory.cell_peak_bytes)} in this cell")
    elif memory.peak_bytes is not None:
        facts.append(f"peak {bytes_text(memory.peak_bytes)} before this cell")
    if facts and memory.limit_bytes is not None:
        facts[0] += f", of {bytes_text(memory.limit_bytes)}"
    if memory.live_after_bytes:
        facts.append(f"alive afterwards {bytes_text(memory.live_after_bytes)}")
    if not facts:
        return []
    named = [f"{array.name or 'unnamed'} {bytes_text(array.bytes)}" for array in memory.live[:ARRAYS]]
    more = report.omitted.live + len(memory.live) - len(named)
    if named:
        facts[-1] += f": {', '.join(named)}" + (f" and {count_text(more)} more" if more else "")
    return [_wrapped("memory", "; ".join(facts))]


def _devices(report: Report) -> list[str]:
    told = summary.devices(report)
    return [_wrapped("devices", told)] if told else []


def _notes(report: Report) -> list[str]:
    found = summary.notes(report)
    if not found:
        return []
    if len(found) == 1:
        place = summary.where(found[0].site, with_function=False)
        return [_wrapped("note", found[0].title + (f" ({place})" if place else ""))]
    kinds: dict[str, int] = {}
    for finding in found:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
    listed = [f"{kind} ×{count}" if count > 1 else kind for kind, count in kinds.items()]
    more = f" and {len(listed) - 8} more kinds" if len(listed) > 8 else ""
    return [_wrapped("notes", f"{len(found)}: {', '.join(listed[:8])}{more}")]


def _unavailable(report: Report) -> list[str]:
    gaps = report.unavailable
    lines = [_wrapped("not seen", f"{gap.what}: {_shortened(gap.why)}") for gap in gaps[:UNAVAILABLE]]
    more = report.omitted.unavailable + len(gaps) - len(lines)
    return [*lines, _wrapped("", f"and {more} more not seen")] if more else lines


def _fixed(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}…"


def _wrapped(label: str, text: str, *, indent: str | None = None) -> str:
    """Text beside a label in the gutter; the lines of a text stay lines, their indentation too.

    Times are wrapped as if all had the same length: a slower run must not break lines elsewhere.
    """
    first = f"{label:<{GUTTER}}" if indent is None else label
    rest = " " * GUTTER if indent is None else indent
    text = SIZE.sub("\\1\u00a0\\2", text)
    durations = DURATION.findall(text)
    filled = _filled(DURATION.sub(PLACEHOLDER, text), first, rest, WIDTH - 6)
    for duration in durations:
        filled = filled.replace(PLACEHOLDER, duration, 1)
    if PLACEHOLDER[0] in filled or any(len(line) > WIDTH for line in filled.split("\n")):
        return _filled(text, first, rest, WIDTH)
    return filled


def _filled(text: str, first: str, rest: str, width: int) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        inner = line[: len(line) - len(line.lstrip(" "))][:40]
        lines += textwrap.wrap(
            line.strip(" "),
            width,
            initial_indent=(rest if lines else first) + inner,
            subsequent_indent=rest + inner,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).replace("\u00a0", " ")
