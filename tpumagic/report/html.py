"""The report as static HTML: no scripts, no ids, every text escaped.

It is drawn twice over: with its styles it looks like a part of the notebook; where a site strips styles (GitHub) there
are still tables, folding sections and bars made of text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, cast

from tpumagic.findings import Finding, quantity
from tpumagic.numbers import UNKNOWN, count_text, percent_text, trend_text
from tpumagic.report import markup, summary, target_html, verdicts
from tpumagic.report.limits import shrinking
from tpumagic.report.model import SIZE_LIMIT, DeviceSamples, Report

OPEN_FINDINGS = 6
NO_DUTY_CYCLE = "Nobody told the duty cycle: the runtime's metrics service did not answer, or `pip install 'tpumagic[tpu]'` is missing."
PROGRAM_ROWS = 40
SIZES: tuple[Literal["argument_bytes", "output_bytes", "temp_bytes"], ...] = (
    "argument_bytes",
    "output_bytes",
    "temp_bytes",
)
OPEN_ROWS = 10
"""A section with more rows than this starts folded."""


def render(report: Report) -> str:
    """The report as one ``<div>`` with its own styles, at most 60 kB."""
    return f'<div class="tpumagic-report"><style>{_style()}</style>{_fitted_body(report, SIZE_LIMIT - len(_style()) - 64)}</div>'


def page(reports: Sequence[Report], title: str) -> str:
    """A whole document with several reports under each other."""
    bodies = "".join(f'<div class="tpumagic-report">{_fitted_body(report, SIZE_LIMIT)}</div>\n' for report in reports)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{markup.escaped(title)}</title>\n<style>{_style()}"
        "body{margin:1.5em auto;max-width:58rem;padding:0 1em;font-family:system-ui,sans-serif}"
        "h1{font-size:1.25em;font-weight:600}.tpumagic-report{margin:1em 0}</style>\n"
        f"</head>\n<body>\n<h1>{markup.escaped(title)}</h1>\n{bodies}</body>\n</html>\n"
    )


@functools.cache
def _style() -> str:
    rules = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return " ".join(re.sub(r"/\*.*?\*/", "", rules, flags=re.DOTALL).split())


def _fitted_body(report: Report, size_bytes: int) -> str:
    body = ""
    for smaller in shrinking(report):
        body = _body(smaller)
        if len(body.encode()) <= size_bytes:
            break
    return body


def _body(report: Report) -> str:
    return "".join(
        (_head(report), _strip(report), _findings(report), target_html.sections(report), _notes(report), _programs(report), _memory(report),
         _devices(report), _environment(report.environment), _unavailable(report))
    )  # fmt: skip


def _head(report: Report) -> str:
    clean = summary.is_clean(report)
    failed = report.cell.failure or any(finding.severity == "error" for finding in report.findings)
    failed = failed or any(verdicts.cannot_run(target) for program in report.programs for target in program.targets)
    tone = "clean" if clean else "error" if failed else "warning"
    count = f' <span class="tm-dim">In [{report.cell.count}]</span>' if report.cell.count is not None else ""
    name = f" <span>{markup.escaped(report.name)}</span>" if report.name else ""
    return (
        f'<p class="tm-head"><b>{summary.genre(report)}</b>{name}{count} '
        f'<span class="tm-state tm-{tone}">{markup.escaped(summary.state(report))}</span></p>'
    )


def _strip(report: Report) -> str:
    times, memory = report.timing, report.memory
    cells = target_html.strip(report)
    if times.compiles:
        parts = ((times.trace_s, "trace"), (times.lower_s, "lower"), (times.compile_s, "compile"))
        split = ", ".join(f"{name} {markup.time(part)}" for part, name in parts if part is not None)
        cached = f", {count_text(times.cache_hits)} cached" if times.cache_hits else ""
        cells.append((markup.time(times.build_s), f"to build {quantity(times.compiles, 'program')}{cached}<br>{split}"))
    elif summary.has_programs(report) and not report.cell.dry_run:
        cells.append(("0", "programs compiled"))
    if report.programs and times.run_s is not None:
        cells.append((markup.time(times.run_s), "running"))
    if report.cell.dry_run:
        cells.append((markup.time(times.wall_s), "to trace and lower it<br>nothing was run"))
    elif times.ready_s is not None:
        cells.append(
            (
                markup.time(times.ready_s),
                f"until the device was ready<br>dispatched after {markup.time(times.wall_s)}",
            )
        )
    else:
        waited = "<br>the device was not waited for" if report.programs else ""
        cells.append((markup.time(times.wall_s), ("to dispatch" if report.programs else "wall time") + waited))
    peak = memory.cell_peak_bytes if memory.cell_peak_bytes is not None else memory.peak_bytes
    if peak is not None:
        whose = "peak memory" if memory.cell_peak_bytes is not None else "peak memory, before this cell"
        share = (
            f"<br>{percent_text(peak / memory.limit_bytes)} of {markup.size(memory.limit_bytes)}"
            if memory.limit_bytes
            else ""
        )
        cells.append((markup.size(peak), whose + share))
    elif memory.live_after_bytes:
        cells.append((markup.size(memory.live_after_bytes), "alive afterwards"))
    row = "".join(f"<td><b>{value}</b><br>{label}</td>" for value, label in cells)
    return f'<table class="tm-strip"><tbody><tr>{row}</tr></tbody></table>'


def _findings(report: Report) -> str:
    blocks = [_finding(finding, opened=n < OPEN_FINDINGS) for n, finding in enumerate(summary.loud(report))]
    more = summary.more_findings(report.omitted)
    return "".join(blocks) + (f'<p class="tm-head">{more}</p>' if more else "")


def _finding(finding: Finding, *, opened: bool) -> str:
    place = ", ".join(filter(None, (summary.where(finding.site), summary.also(finding))))
    facts = " · ".join(markup.escaped(part) for part in (place, summary.cost(finding), finding.kind) if part)
    detail = f"<p>{markup.prose(finding.detail)}</p>" if finding.detail else ""
    fix = f'<p class="tm-fix"><b>fix:</b> {markup.prose(finding.fix)}</p>' if finding.fix else ""
    return (
        f'<details class="tm-finding tm-{finding.severity}"{" open" if opened else ""}>'
        f"<summary><b>{finding.severity}</b> {markup.prose(finding.title)}</summary>"
        f'<div class="tm-body"><p class="tm-dim">{facts}</p>{detail}{fix}</div></details>'
    )


def _notes(report: Report) -> str:
    found = summary.notes(report)
    items: list[str] = []
    for finding in found:
        place = " · ".join(filter(None, (summary.where(finding.site), summary.cost(finding), finding.kind)))
        fix = f"<br><b>fix:</b> {markup.prose(finding.fix)}" if finding.fix else ""
        items.append(f'<li>{markup.prose(finding.title)} <span class="tm-dim">{markup.escaped(place)}</span>{fix}</li>')
    return markup.section(quantity(len(items), "note"), f"<ul>{''.join(items)}</ul>") if items else ""


def _programs(report: Report) -> str:
    rows, more = summary.program_rows(report, PROGRAM_ROWS)
    if not rows or report.cell.dry_run:
        return ""
    lines: list[str] = []
    for row in rows:
        name = markup.escaped(row.name) if row.is_eager else f"<b>{markup.escaped(row.name)}</b>{row.times}"
        arguments = row.signature.removeprefix(row.name) if row.signature else ""
        signature = f'<br><code class="tm-more">{markup.escaped(arguments)}</code>' if arguments else ""
        lines.append(
            f'<tr><td>{name}{signature}</td><td class="tm-place">{markup.escaped(row.where or UNKNOWN)}</td>'
            + markup.numbers(count_text(row.compiles), markup.time(row.build_s))
            + markup.numbers(*(markup.size(row.largest(part)) for part in SIZES), more=True)
            + "</tr>"
        )
    head = (
        '<th>program</th><th>called at</th><th class="tm-number">compiles</th><th class="tm-number">time</th>'
        + "".join(f'<th class="tm-number tm-more">{name}</th>' for name in ("arguments", "results", "temporary"))
    )
    left = f"<p>and {count_text(more)} more</p>" if more else ""
    count = len(report.programs) + report.omitted.programs
    return markup.section(
        quantity(count, "program"),
        markup.table(head, lines, " tm-programs") + left,
        opened=len(lines) <= OPEN_ROWS and not summary.is_clean(report),
    )


def _memory(report: Report) -> str:
    memory, more = report.memory, report.omitted.live
    whose = f"of {markup.size(memory.limit_bytes)}"
    facts = [
        ("peak in this cell", memory.cell_peak_bytes, markup.share(memory.cell_peak_bytes, memory.limit_bytes, whose)),
        ("peak of the process", memory.peak_bytes, markup.share(memory.peak_bytes, memory.limit_bytes, whose)),
        ("alive before the cell", memory.live_before_bytes, ""),
        ("alive after the cell", memory.live_after_bytes, ""),
    ]
    if memory.cell_peak_bytes == memory.peak_bytes:
        del facts[1]
    if not memory.live and not any(size for _, size, _ in facts):
        return ""
    lines = [_memory_row(name, size, share, "") for name, size, share in facts if size is not None]
    for array in memory.live:
        name = f"<code>{markup.escaped(array.name)}</code>" if array.name else "unnamed"
        # Not of the device's memory: these are whole arrays, which may lie on several devices.
        share = markup.share(array.bytes, memory.live_after_bytes)
        kind = f"{array.dtype}[{','.join(map(str, array.shape))}]" + (f" {array.sharding}" if array.sharding else "")
        lines.append(_memory_row(name, array.bytes, share, markup.escaped(kind)))
    left = f"<p>and {count_text(more)} more arrays</p>" if more else ""
    head = (
        '<th>bytes in</th><th class="tm-number">size</th><th>share of what is alive</th><th class="tm-more">array</th>'
    )
    return markup.section(
        "memory", markup.table(head, lines) + left, opened=len(lines) <= OPEN_ROWS and not summary.is_clean(report)
    )


def _devices(report: Report) -> str:
    sampled = report.memory.samples
    if not sampled:
        return ""
    columns = (
        ("memory in use at most", any(one.bytes_in_use for one in sampled), _highest),
        ("duty cycle", any(one.duty_cycle_percent for one in sampled), _duty_cycle),
        ("TensorCore", any(one.tensorcore_percent for one in sampled), _tensorcore),
    )
    shown = [(name, cell) for name, told, cell in columns if told]
    lines = [
        f"<tr><td>{one.device}</td>{''.join(f'<td>{cell(one)}</td>' for _, cell in shown)}</tr>" for one in sampled
    ]
    head = f"<th>device</th>{''.join(f'<th>{name}</th>' for name, _ in shown)}"
    # The service that tells it is asked by a package that JAX does not bring.
    without = "" if columns[1][1] else f'<p class="tm-dim">{markup.prose(NO_DUTY_CYCLE)}</p>'
    count = max(len(one.at_s) for one in sampled)
    return markup.section(
        "devices while the cell ran",
        markup.table(head, lines) + f'<p class="tm-dim">{quantity(count, "sample")} of each</p>' + without,
        opened=not summary.is_clean(report),
    )


def _highest(device: DeviceSamples) -> str:
    limit = device.limit_bytes
    return _over_time(
        f"{markup.size(device.highest_bytes)} {markup.share(device.highest_bytes, limit, f'of {markup.size(limit)}')}",
        [size / limit if size is not None and limit else None for size in device.bytes_in_use],
    )


def _duty_cycle(device: DeviceSamples) -> str:
    return _percents(device.mean_duty_cycle, device.duty_cycle_percent)


def _tensorcore(device: DeviceSamples) -> str:
    return _percents(device.mean_tensorcore, device.tensorcore_percent)


def _percents(mean: float | None, percents: Sequence[float | None]) -> str:
    text = markup.whole(percent_text(mean))
    return _over_time(text, [percent / 100 if percent is not None else None for percent in percents])


def _over_time(text: str, shares: Sequence[float | None]) -> str:
    trend = trend_text(shares) if len(shares) > 1 else ""
    return f'{text}<br><code class="tm-more" aria-hidden="true">{trend}</code>' if trend else text


def _memory_row(name: str, size: int, share: str, kind: str) -> str:
    return f'<tr><td>{name}</td>{markup.numbers(markup.size(size))}<td>{share}</td><td class="tm-more">{kind}</td></tr>'


def _environment(environment: dict[str, object]) -> str:
    lines = [
        f"<tr><td>{markup.escaped(name)}</td><td>{markup.escaped(value)}</td></tr>"
        for name, value in _flat(environment, "")
    ]
    return markup.section("environment", markup.table("", lines)) if lines else ""


def _flat(value: object, name: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield from _flat(item, f"{name} {key}".strip())
    elif isinstance(value, list):
        items = cast("list[object]", value)
        if any(isinstance(item, (dict, list)) for item in items):
            for n, item in enumerate(items):
                yield from _flat(item, f"{name} {n}")
        elif items:
            yield name, ", ".join(_scalar(item) for item in items)
    else:
        yield name, _scalar(value)


def _scalar(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _unavailable(report: Report) -> str:
    items = [f"<li>{markup.escaped(gap.what)}: {markup.prose(gap.why)}</li>" for gap in report.unavailable]
    if report.omitted.unavailable:
        items.append(f"<li>and {report.omitted.unavailable} more</li>")
    return markup.section("not seen", f"<ul>{''.join(items)}</ul>") if items else ""
