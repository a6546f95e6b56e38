"""The report as plain text of 100 columns: what a terminal, a saved notebook and a bug report show.

Everything but the times is the same in every run, line breaks included, so that a notebook test can compare it.
"""

from __future__ import annotations

from tpumagic.findings import Finding
from tpumagic.numbers import bytes_text, count_text, seconds_text
from tpumagic.report import summary, target_text, verdicts
from tpumagic.report.columns import WIDTH, fixed, wrapped
from tpumagic.report.limits import shrinking
from tpumagic.report.model import Report

FINDINGS = 12
PROGRAMS = 6
ARRAYS = 4
UNAVAILABLE = 3
PROSE = 900
"""Characters of a detail or fix; the HTML and the JSON have it whole."""


def render(report: Report) -> str:
    """The report in lines of at most 100 characters; where there is nothing to report one line, one of devices, and what
    the TPU compiler was asked."""
    report = next(shrinking(report))
    asked = verdicts.headline(report)
    if summary.is_clean(report):
        fits = f"{asked[:1].upper()}{asked[1:]}. " if asked else ""
        line = f"{fits}Nothing to report: {summary.timing(report)}"
        parts = [line if len(line) <= WIDTH else wrapped("", line, indent="    ")]
        parts += [*_targets(report), ""] if asked else []
    else:
        state = ", ".join(dict.fromkeys(filter(None, (asked, summary.state(report)))))
        headline = f"{summary.title(report)}: {state}; {summary.timing(report)}"
        parts = [wrapped("", headline, indent="    "), ""]
        parts += [*target_text.lines(report), ""] if asked else []
        parts += _findings(report)
        parts += [line for block in target_text.details(report) for line in (block, "")]
        parts += [*_programs(report), *_memory(report)]
    return "\n".join([*parts, *_devices(report), *_notes(report), *_unavailable(report)]).rstrip("\n")


def _targets(report: Report) -> list[str]:
    blocks = target_text.details(report)
    return [*target_text.lines(report), *(line for block in blocks for line in ("", block))]


def _findings(report: Report) -> list[str]:
    found = summary.loud(report)
    parts = [part for finding in found[:FINDINGS] for part in (_finding(finding), "")]
    more = len(found) - FINDINGS
    hidden = summary.more_findings(report.omitted)
    if more > 0:
        parts += [wrapped("", f"and {more} more of them"), ""]
    if hidden:
        parts += [wrapped("", hidden), ""]
    return parts


def _finding(finding: Finding) -> str:
    place = ", ".join(filter(None, (summary.where(finding.site), summary.also(finding))))
    facts = " · ".join(filter(None, (place, summary.cost(finding), finding.kind)))
    lines = [wrapped(finding.severity.upper(), finding.title), wrapped("", facts)]
    lines += [wrapped("", _shortened(finding.detail))] if finding.detail else []
    lines += [wrapped("    fix:", _shortened(finding.fix))] if finding.fix else []
    return "\n".join(lines).replace("\u00a0", " ")


def _shortened(text: str) -> str:
    return text if len(text) <= PROSE else f"{text[:PROSE]}… {len(text) - PROSE} more characters"


def _programs(report: Report) -> list[str]:
    rows, more = summary.program_rows(report, PROGRAMS)
    if not rows or report.cell.dry_run:
        return []
    # Fixed widths, and the times last: no column moves when a time has another length.
    lines = [f"{'programs':<34} {'where':<21} {'compiles':>8} {'arguments':>10} {'temporary':>10}  time"]
    for row in rows:
        name = fixed(row.name, 34 - len(row.times)).rstrip() + row.times
        line = (
            f"{name:<34} {fixed(row.where or '—', 21)} {count_text(row.compiles):>8} "
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
    return [wrapped("memory", "; ".join(facts))]


def _devices(report: Report) -> list[str]:
    told = summary.devices(report)
    return [wrapped("devices", told)] if told else []


def _notes(report: Report) -> list[str]:
    found = summary.notes(report)
    if not found:
        return []
    if len(found) == 1:
        place = summary.where(found[0].site, with_function=False)
        return [wrapped("note", found[0].title + (f" ({place})" if place else ""))]
    kinds: dict[str, int] = {}
    for finding in found:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
    listed = [f"{kind} ×{count}" if count > 1 else kind for kind, count in kinds.items()]
    more = f" and {len(listed) - 8} more kinds" if len(listed) > 8 else ""
    return [wrapped("notes", f"{len(found)}: {', '.join(listed[:8])}{more}")]


def _unavailable(report: Report) -> list[str]:
    gaps = report.unavailable
    lines = [wrapped("not seen", f"{gap.what}: {_shortened(gap.why)}") for gap in gaps[:UNAVAILABLE]]
    more = report.omitted.unavailable + len(gaps) - len(lines)
    return [*lines, wrapped("", f"and {more} more not seen")] if more else lines
