"""The TPU compiler's answers in HTML: what the text says, with a picture of the memory and bars.

The picture has words beside it and a row of block characters that its styles hide: where a site strips both, those stay.
"""

from __future__ import annotations

from tpumagic.findings import quantity
from tpumagic.numbers import capacity_text, count_text, needed_text, trend_text
from tpumagic.report import chart, markup, verdicts
from tpumagic.report.model import Report
from tpumagic.report.target_model import ReportedBuffer, ReportedTarget
from tpumagic.report.verdicts import Verdict

DETAILED = 6
OPEN = 2
LINES = 40
HOLDERS = 20
ROWS = 20
COST_LINES = 20
STRIP = 3


def strip(report: Report) -> list[tuple[str, str]]:
    """Cells for the top of the report: a verdict and of what, the hardest for each target."""
    cells: list[tuple[str, str]] = []
    seen: set[str] = set()
    for one in verdicts.verdicts(report):
        if one.target.name in seen:
            continue
        seen.add(one.target.name)
        name = markup.escaped(one.program or quantity(one.count, "program"))
        needs = ""
        if one.target.needed_bytes is not None:
            amounts = markup.whole(needed_text(one.target.needed_bytes, one.target.available_bytes))
            about = "about " if one.target.needed_is_estimate else ""
            needs = f"<br>{name} needs {about}{amounts} per device"
        cells.append((_short(one), f"on {markup.whole(one.target.name)}, {markup.escaped(one.machine)}{needs}"))
    return cells[:STRIP]


def sections(report: Report) -> str:
    """A section for each answer that is worth one, and a table of the others."""
    found = verdicts.verdicts(report)
    detailed = verdicts.detailed(report, found, DETAILED)
    blocks = [_section(one, opened=n < OPEN) for n, one in enumerate(detailed)]
    others = [one for one in found if one not in detailed]
    return "".join(blocks) + (_others(report, others, opened=not detailed) if others else "")


def _short(one: Verdict) -> str:
    words = verdicts.answer(one.target).split(" — ")[0]
    return f'<span class="tm-{_tone(one)}">{markup.escaped(words)}</span>'


def _tone(one: Verdict) -> str:
    return "dim" if one.target.status == "unavailable" else "bad" if one.is_bad else "good"


def _section(one: Verdict, *, opened: bool) -> str:
    target = one.target
    said, _, why = verdicts.answer(target).partition(" — ")
    head = (
        f'<b>{markup.escaped(one.name)}</b> <span class="tm-{_tone(one)}">{markup.prose(said)}</span>'
        f'{" — " + markup.prose(why) if why else ""} <span class="tm-dim">{markup.escaped(one.machine)}</span>'
    )
    body = _memory(target) + _facts(target) + _lines(target)
    return f'<details class="tm-target"{" open" if opened else ""}><summary>{head}</summary>{body}</details>'


def _memory(target: ReportedTarget) -> str:
    svg = chart.picture(target)
    figure = ""
    traced = verdicts.traced(target)
    words = chart.description(target) + (
        f"; needed are {capacity_text(target.needed_bytes)}, {traced}" if traced else ""
    )
    if svg:
        # Blocks of eight heights against the larger of peak and limit, as in the picture.
        scale = max(target.available_bytes or 0, *(size for _, size in target.timeline))
        trend = trend_text([size / scale for _, size in target.timeline], 40)
        figure = (
            f'{svg}<p class="tm-dim">{markup.escaped(words)}</p>'
            f'<code class="tm-plain" aria-hidden="true">{trend}</code>'
        )
    return figure + _holders(target)


def _holders(target: ReportedTarget) -> str:
    if not target.holders:
        return ""
    rows = [_holder(target, holder, n) for n, holder in enumerate(target.holders[:HOLDERS])]
    peak = capacity_text(target.needed_bytes)
    head = (
        f'<th>at the peak, {peak}</th><th class="tm-number">size</th><th>share</th>'
        '<th class="tm-more">array</th>'
    )  # fmt: skip
    more = target.omitted.holders + len(target.holders[HOLDERS:])
    return markup.table(head, rows) + (f"<p>and {count_text(more)} more</p>" if more else "")


def _holder(target: ReportedTarget, holder: ReportedBuffer, n: int) -> str:
    colour = f'<span class="tm-h{n}" aria-hidden="true">■</span> ' if target.timeline and n < chart.COLOURS else ""
    owner = markup.escaped(verdicts.owner(holder))
    name = f"<code>{owner}</code>" if holder.name else owner
    kind = ", ".join(filter(None, (verdicts.array(holder), *verdicts.notes(holder))))
    return (
        f"<tr><td>{colour}{name}</td>{markup.numbers(markup.size(holder.bytes))}"
        f'<td class="tm-place">{markup.share(holder.bytes, target.needed_bytes)}</td><td class="tm-more">{markup.escaped(kind)}</td></tr>'
    )


def _facts(target: ReportedTarget) -> str:
    rows = [
        f'<tr><td class="tm-dim">{fact.label}</td><td>{"<br>".join(map(markup.prose, fact.lines))}</td></tr>'
        for fact in verdicts.facts(target, ROWS)
    ]
    return markup.table("", rows, " tm-facts") if rows else ""


def _lines(target: ReportedTarget) -> str:
    cost = target.cost
    if cost is None or not cost.lines:
        return ""
    rows = [
        f"<tr><td>{markup.escaped(verdicts.line_notes(line, cost))}</td>"
        f"{markup.numbers(markup.whole(verdicts.roughly(line.estimate_s)))}"
        f'<td class="tm-place">{markup.bar(line.share)}</td></tr>'
        for line in cost.lines[:COST_LINES]
    ]
    more = target.omitted.lines + len(cost.lines[COST_LINES:])
    head = '<th>device time by line, estimated</th><th class="tm-number">time</th><th>share</th>'
    return markup.table(head, rows) + (f"<p>and {quantity(more, 'line')} more</p>" if more else "")


def _others(report: Report, others: list[Verdict], *, opened: bool) -> str:
    rows = [_row(one) for one in others[:LINES]]
    more = len(others) - len(rows) + report.omitted.targets
    left = f"<p>and {count_text(more)} more</p>" if more else ""
    count = sum(one.count for one in others)
    name = f"the TPU compiler on {quantity(count, 'program')}"
    return markup.section(name, markup.table("", rows) + left, opened=opened and len(rows) <= LINES // 4)


def _row(one: Verdict) -> str:
    said = markup.prose(verdicts.answer(one.target)).replace(" — ", "<br>", 1)
    bar = markup.share(one.target.needed_bytes, one.target.available_bytes)
    cost = one.target.cost
    time = markup.whole(verdicts.roughly(cost.estimate_s)) if cost and cost.estimate_s is not None else ""
    return (
        f'<tr><td><b>{markup.escaped(one.name)}</b><br><span class="tm-dim">{markup.escaped(one.machine)}</span></td>'
        f'<td class="tm-{_tone(one)}">{said}</td><td class="tm-place">{bar}</td>{markup.numbers(time, more=True)}</tr>'
    )
