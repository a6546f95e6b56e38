"""The TPU compiler's answers in text: one line a program and target, then what stands behind the ones worth it."""

from __future__ import annotations

from collections.abc import Sequence

from tpumagic.findings import quantity
from tpumagic.numbers import bar_text, bytes_text, capacity_text, count_text, percent_text
from tpumagic.report import verdicts
from tpumagic.report.columns import fixed, wrapped
from tpumagic.report.model import Report
from tpumagic.report.target_model import ReportedBuffer, ReportedTarget
from tpumagic.report.verdicts import Verdict

LINES = 8
DETAILED = 3
HOLDERS = 8
ROWS = 4
COST_LINES = 6
LABEL = 15
OWNER = 36
BAR = 10


def lines(report: Report) -> list[str]:
    """The verdicts, one line each."""
    found = verdicts.verdicts(report)
    detailed = verdicts.detailed(report, found, DETAILED)
    told = [_verdict(one, timed=one not in detailed) for one in found[:LINES]]
    return told + _more(found[LINES:]) + _omitted(report)


def details(report: Report) -> list[str]:
    """What stands behind them: a block for each of the few that are worth it."""
    found = verdicts.verdicts(report)
    several = len(found) > 1
    return [_block(one, several=several) for one in verdicts.detailed(report, found, DETAILED)]


def _verdict(one: Verdict, *, timed: bool) -> str:
    """timed: with the time, which stands in no block."""
    said = verdicts.answer(one.target)
    if timed and one.target.cost is not None and one.target.cost.estimate_s is not None:
        said += f"; {verdicts.roughly(one.target.cost.estimate_s)} device time (estimate)"
    if one.count > 1 and one.target.needed_bytes is not None:
        said = said.replace("needs ", "needs up to ", 1)
    return wrapped("", f"{one.name} ({one.machine}): {said}", indent="    ")


def _more(rest: Sequence[Verdict]) -> list[str]:
    """Those that have no line of their own; the largest come first, so what is left needs less."""
    if not rest:
        return []
    bad = sum(one.count for one in rest if one.is_bad)
    unknown = sum(one.count for one in rest if one.target.status == "unavailable")
    fitting = sum(one.count for one in rest) - bad - unknown
    most = max((one.target.needed_bytes or 0 for one in rest if not one.is_bad), default=0)
    parts = [f"{count_text(bad)} more that cannot run"] if bad else []
    parts += [f"{quantity(fitting, 'program')} more that fit, needing {bytes_text(most)} at most"] if fitting else []
    parts += [f"{count_text(unknown)} more without an answer"] if unknown else []
    return [wrapped("", f"and {', '.join(parts)}", indent="    ")]


def _omitted(report: Report) -> list[str]:
    more = report.omitted.targets
    return [f"and {quantity(more, 'answer')} more for other targets"] if more else []


def _block(one: Verdict, *, several: bool) -> str:
    target = one.target
    parts = [wrapped("", one.name, indent="    ")] if several else []
    if target.holders:
        peak = ", ".join(filter(None, (f"{capacity_text(target.needed_bytes)} per device", verdicts.traced(target))))
        parts.append(f"  at the peak, {peak}:")
        shown = target.holders[:HOLDERS]
        width = min(OWNER, max(len(verdicts.owner(holder)) for holder in shown))
        parts += [_holder(target, holder, width) for holder in shown]
        more = target.omitted.holders + len(target.holders[HOLDERS:])
        parts += [f"{'':<{BAR + 15}}and {count_text(more)} more"] if more else []
    for fact in verdicts.facts(target, ROWS):
        first, *rest = fact.lines
        parts.append(wrapped(f"  {fact.label}", first, gutter=LABEL))
        parts += _cost_lines(target) if fact.label == verdicts.TIME else []
        parts += [wrapped("", line, gutter=LABEL) for line in rest]
    return "\n".join(parts)


def _holder(target: ReportedTarget, holder: ReportedBuffer, width: int) -> str:
    share = holder.bytes / target.needed_bytes if target.needed_bytes else None
    start = f"  {bar_text(share, BAR):<{BAR}}  {bytes_text(holder.bytes):>9}  {fixed(verdicts.owner(holder), width)}  "
    rest = ", ".join(filter(None, (verdicts.array(holder), *verdicts.notes(holder))))
    return wrapped(start, rest, gutter=len(start)).rstrip() if rest else start.rstrip()


def _cost_lines(target: ReportedTarget) -> list[str]:
    cost = target.cost
    if cost is None or not cost.lines:
        return []
    rows: list[str] = []
    for line in cost.lines[:COST_LINES]:
        start = f"{'':<{LABEL}}{bar_text(line.share, BAR)} {percent_text(line.share):>6}  "
        rows.append(
            wrapped(start, f"{verdicts.roughly(line.estimate_s)} {verdicts.line_notes(line, cost)}", gutter=len(start))
        )
    more = target.omitted.lines + len(cost.lines[COST_LINES:])
    return rows + ([f"{'':<{LABEL}}and {quantity(more, 'line')} more"] if more else [])
