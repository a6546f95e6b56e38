"""What text and HTML say in the same words: the state of a cell, its times, its programs in rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tpumagic.events import SourceSite
from tpumagic.findings import Finding, quantity
from tpumagic.numbers import bytes_text, count_text, percent_text, seconds_text
from tpumagic.report import verdicts
from tpumagic.report.model import DeviceSamples, Omitted, Report, ReportedProgram, Timing, total
from tpumagic.report.target_model import ReportedTarget

DEVICES = 4
"""So many are told one by one in a line; of more, the range."""


@dataclass(frozen=True)
class ProgramRow:
    """Programs of one name, kind and place in one line; all eager operations of a cell together in one."""

    name: str
    where: str
    programs: tuple[ReportedProgram, ...]

    @property
    def times(self) -> str:
        """`` ×40`` behind the name of forty programs of one function; empty for one, and for eager operations."""
        return f" ×{count_text(len(self.programs))}" if len(self.programs) > 1 and not self.is_eager else ""

    @property
    def is_eager(self) -> bool:
        """Whether these are operations outside any jitted function."""
        return self.programs[0].kind == "eager"

    @property
    def signature(self) -> str | None:
        """The arguments of the first of them, None for eager operations and where not known."""
        return None if self.is_eager else self.programs[0].signature

    @property
    def compiles(self) -> int:
        """How often they were compiled in this cell."""
        return sum(program.compiles for program in self.programs)

    @property
    def build_s(self) -> float | None:
        """Seconds to trace, lower and compile all of them, None if nothing was compiled or no time is known."""
        return total(tuple(program.build_s for program in self.programs if program.compiles))

    def largest(self, part: Literal["argument_bytes", "output_bytes", "temp_bytes"]) -> int | None:
        """The most bytes that one of them sets aside, None if none is known."""
        sizes = [getattr(program.memory, part) for program in self.programs if program.memory]
        return max((size for size in sizes if size is not None), default=None)


def loud(report: Report) -> tuple[Finding, ...]:
    """Errors and warnings."""
    return tuple(finding for finding in report.findings if finding.severity != "info")


def notes(report: Report) -> tuple[Finding, ...]:
    """Findings that nobody need act on."""
    return tuple(finding for finding in report.findings if finding.severity == "info")


def is_clean(report: Report) -> bool:
    """Whether there is nothing to report: no error, no warning, the cell did not fail, and its programs can run on the
    targets that were asked."""
    if loud(report) or report.omitted.errors or report.omitted.warnings or report.cell.failure:
        return False
    return not any(verdicts.cannot_run(target) for program in report.programs for target in program.targets)


def state(report: Report) -> str:
    """``1 error, 2 warnings``, ``failed with ValueError``, ``Nothing to report``; where no finding says why a program
    cannot run on a target, that."""
    if is_clean(report):
        return "Nothing to report"
    severities = [finding.severity for finding in report.findings]
    errors = severities.count("error") + report.omitted.errors
    warnings = severities.count("warning") + report.omitted.warnings
    parts = [f"failed with {report.cell.failure}"] if report.cell.failure else []
    parts += [quantity(errors, "error")] if errors else []
    parts += [quantity(warnings, "warning")] if warnings else []
    return ", ".join(parts) or verdicts.headline(report)


def more_findings(omitted: Omitted) -> str:
    """``and 12 more findings: 3 warnings, 9 notes``; empty if all are there."""
    count = omitted.errors + omitted.warnings + omitted.infos
    if not count:
        return ""
    parts = [(omitted.errors, "error"), (omitted.warnings, "warning"), (omitted.infos, "note")]
    listed = ", ".join(quantity(number, noun) for number, noun in parts if number)
    return f"and {quantity(count, 'more finding')}: {listed}"


def title(report: Report) -> str:
    """``TPU profile of In [5], train``; without a number where cells are not counted."""
    parts = [f"In [{report.cell.count}]"] if report.cell.count is not None else []
    parts += [report.name] if report.name else []
    return f"{genre(report)} of {', '.join(parts)}" if parts else genre(report)


def genre(report: Report) -> str:
    """What kind of report it is."""
    return "TPU dry run" if report.cell.dry_run else "TPU profile"


def timing(report: Report) -> str:
    """``compiled 3 programs in 1.84 s, ran 410 ms, wall 2.25 s (dispatch 2.2 s)``."""
    times = report.timing
    if report.cell.dry_run:
        planned_s = total(tuple(target.plan_s for target in _fresh(report)))
        planned = f", planned in {seconds_text(planned_s)}" if planned_s is not None else ""
        return f"nothing was run, lowered in {seconds_text(times.wall_s)}{planned}"
    if not has_programs(report):
        return f"no programs, wall {seconds_text(times.wall_s)}"
    parts = [compiled(times) if times.compiles else "nothing compiled"]
    if times.ready_s is None:
        parts.append(f"dispatch {seconds_text(times.wall_s)} (the device was not waited for)")
    else:
        parts += [f"ran {seconds_text(times.run_s)}"] if times.run_s is not None else []
        parts.append(f"wall {seconds_text(times.ready_s)} (dispatch {seconds_text(times.wall_s)})")
    return ", ".join(parts)


def _fresh(report: Report) -> list[ReportedTarget]:
    """The answers that do not come from the disk."""
    return [target for program in report.programs for target in program.targets if not target.cached]


def has_programs(report: Report) -> bool:
    """Whether the cell gave the device anything to do, as far as was seen."""
    return bool(report.programs or report.omitted.programs)


def compiled(times: Timing) -> str:
    """``compiled 3 programs (1 cached) in 1.84 s``."""
    cached = f" ({count_text(times.cache_hits)} cached)" if times.cache_hits else ""
    noun = "program" if times.compiles == 1 else "programs"
    return f"compiled {count_text(times.compiles)} {noun}{cached} in {seconds_text(times.build_s)}"


def where(site: SourceSite | None, *, with_function: bool = True) -> str:
    """``In [5] line 7, in train_step``; empty if the line is not known."""
    if site is None:
        return ""
    return f"{site}, in {site.function}" if with_function and site.function else str(site)


def also(finding: Finding, shown: int = 3) -> str:
    """The lines that belong to a finding: ``also line 3, In [2] line 9 and 4 more``."""
    if not finding.related:
        return ""
    hidden = finding.facts.get("more_related")
    more = len(finding.related[shown:]) + (hidden if isinstance(hidden, int) else 0)
    sites = ", ".join(_beside(site, finding.site) for site in finding.related[:shown])
    return f"also {sites}" + (f" and {more} more" if more else "")


def _beside(site: SourceSite, other: SourceSite | None) -> str:
    """A line, its cell or file left out where that was just named."""
    same = other is not None and (site.cell, site.file) == (other.cell, other.file)
    return f"line {site.line}" if same else str(site)


def devices(report: Report) -> str:
    """What the devices did while the cell ran, in one line; empty if they were not sampled."""
    sampled = report.memory.samples
    if not sampled:
        return ""
    if len(sampled) <= DEVICES:
        return "; ".join(f"{one.device}: {', '.join(_device(one))}" for one in sampled)
    highest = [one.highest_bytes for one in sampled if one.highest_bytes is not None]
    busy = [one.mean_duty_cycle for one in sampled if one.mean_duty_cycle is not None]
    cores = [one.mean_tensorcore for one in sampled if one.mean_tensorcore is not None]
    limit = max((one.limit_bytes for one in sampled if one.limit_bytes is not None), default=None)
    facts = [quantity(len(sampled), "device")]
    if highest:
        facts.append(f"at most {_between(min(highest), max(highest), bytes_text)}{_of(limit)} in use")
    if busy:
        facts.append(f"duty cycle {_between(min(busy), max(busy), percent_text)}")
    if cores:
        facts.append(f"TensorCore {_between(min(cores), max(cores), percent_text)}")
    return ", ".join(facts)


def _device(samples: DeviceSamples) -> list[str]:
    facts: list[str] = []
    if samples.highest_bytes is not None:
        facts.append(f"at most {bytes_text(samples.highest_bytes)}{_of(samples.limit_bytes)} in use")
    if samples.mean_duty_cycle is not None:
        facts.append(f"duty cycle {percent_text(samples.mean_duty_cycle)}")
    if samples.mean_tensorcore is not None:
        facts.append(f"TensorCore {percent_text(samples.mean_tensorcore)}")
    return facts or ["told nothing"]


def _of(limit_bytes: int | None) -> str:
    return f" of {bytes_text(limit_bytes)}" if limit_bytes is not None else ""


def _between(low: float, high: float, text: Callable[[float], str]) -> str:
    return text(high) if text(low) == text(high) else f"{text(low)} to {text(high)}"


def cost(finding: Finding) -> str:
    """``40 times, 12.3 s, 64 MiB``: what is known of count, seconds and bytes."""
    parts: list[str] = []
    if finding.count is not None and finding.count > 1:
        parts.append(f"{count_text(finding.count)} times")
    if finding.seconds is not None:
        parts.append(seconds_text(finding.seconds))
    if finding.bytes is not None:
        parts.append(bytes_text(finding.bytes))
    return ", ".join(parts)


def program_rows(report: Report, count: int) -> tuple[tuple[ProgramRow, ...], int]:
    """At most ``count`` rows in the order of the cell, the heaviest if there are more; and how many programs are in
    none of them."""
    groups: dict[tuple[str, ...], list[ReportedProgram]] = {}
    for program in report.programs:
        key = ("eager",) if program.kind == "eager" else (program.name, program.kind, _place(program))
        groups.setdefault(key, []).append(program)
    # Eager operations are the small change of a cell: one row, the last.
    eager = groups.pop(("eager",), [])
    rows = [ProgramRow(key[0], key[2], tuple(programs)) for key, programs in groups.items()]
    order = sorted(range(len(rows)), key=lambda n: -(rows[n].build_s or 0.0))[: count - bool(eager)]
    kept = [rows[n] for n in sorted(order)]
    if eager:
        kept.append(_eager_row(eager))
    return tuple(kept), report.omitted.programs + len(report.programs) - sum(len(row.programs) for row in kept)


def _place(program: ReportedProgram) -> str:
    return "outside any cell" if program.outside else where(program.site, with_function=False)


def _eager_row(programs: list[ReportedProgram]) -> ProgramRow:
    names = list(dict.fromkeys(program.name for program in programs))
    listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    places = list(dict.fromkeys(_place(program) for program in programs))
    place = places[0] if len(places) == 1 else f"{len(places)} lines"
    return ProgramRow(f"{quantity(len(programs), 'eager operation')}: {listed}", place, tuple(programs))
