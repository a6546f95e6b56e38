"""What the TPU compiler's answers come to, in the words that text and HTML share: verdicts and the facts behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpumagic.events import SourceSite
from tpumagic.findings import MIB, quantity
from tpumagic.numbers import (
    UNKNOWN,
    bytes_text,
    capacity_text,
    count_text,
    factor_text,
    needed_text,
    percent_text,
    seconds_text,
)
from tpumagic.report.model import Report
from tpumagic.report.target_limits import weight
from tpumagic.report.target_model import (
    ReportedBuffer,
    ReportedCall,
    ReportedCollective,
    ReportedCost,
    ReportedLineCost,
    ReportedNotCounted,
    ReportedRemedy,
    ReportedTarget,
)

NOTABLE_SHARE = 0.05
"""A program that needs less of the memory, and of which nothing else is to be said, takes one line."""
TIMED_SHARE = 0.001
TIMED_S = 1e-3
"""Nor is the time of one worth a block that needs less of the memory than this share and takes less than this."""
PADDING_BYTES = MIB
PADDING_SHARE = 0.01
"""Less waste, or less than this share of what the program needs, costs less than reading about it."""
TIME = "time"
"""Label of the fact to which the lines of the cost belong."""
STILL_COMPILING = "still compiling — %tpu_last shows it"
MEMORIES = {"vmem": "VMEM", "smem": "SMEM"}
BOUNDS = {"mxu": "MXU-bound", "hbm": "HBM-bound", "vpu": "bound by the vector units"}
PEAKS = {"mxu": "the chip's peak", "hbm": "its bandwidth"}


@dataclass(frozen=True)
class Verdict:
    """What one line says: of a program, of several of one name that all fit or all do not, or of all programs that got
    no answer for the same reason. target: the answer of the largest."""

    program: str
    target: ReportedTarget
    count: int = 1

    @property
    def is_bad(self) -> bool:
        """Whether it cannot run there."""
        return cannot_run(self.target)

    @property
    def name(self) -> str:
        """``step on v5e-8``, ``step ×3 on v5e-8``."""
        times = f" ×{count_text(self.count)}" if self.count > 1 and self.program else ""
        return f"{self.program or quantity(self.count, 'program')}{times} on {self.target.name}"

    @property
    def machine(self) -> str:
        """``8 chips, 8 devices``."""
        return f"{quantity(self.target.chips, 'chip')}, {quantity(self.target.devices, 'device')}"


@dataclass(frozen=True)
class Fact:
    """Some lines about an answer under a label, in the words of findings: code between backticks."""

    label: str
    lines: tuple[str, ...]


def cannot_run(target: ReportedTarget) -> bool:
    """Whether the program does not fit or cannot be compiled for the target."""
    return target.fits is False or target.status == "refused"


def verdicts(report: Report) -> tuple[Verdict, ...]:
    """One for each line to say: what cannot run first, then the largest, then what got no answer."""
    groups: dict[tuple[object, ...], list[ReportedTarget]] = {}
    for program in report.programs:
        for target in program.targets:
            if target.status == "unavailable":
                key = ("", target.name, target.why)
            else:
                key = (program.name, target.name, target.status, target.fits)
            groups.setdefault(key, []).append(target)
    names = {key: key[0] for key in groups}
    for key, answers in groups.items():
        if key[0] == "" and len(answers) == 1:
            names[key] = next(
                program.name for program in report.programs if any(one is answers[0] for one in program.targets)
            )
    found = [Verdict(str(names[key]), max(answers, key=weight), len(answers)) for key, answers in groups.items()]
    return tuple(sorted(found, key=_order))


def _order(one: Verdict) -> tuple[bool, bool, int]:
    bad, needed_bytes = weight(one.target)
    return one.target.status == "unavailable", not bad, -needed_bytes


def headline(report: Report) -> str:
    """``does not fit on v5e-1, fits on v5e-8``; empty where the compiler was not asked."""
    by_target: dict[str, list[ReportedTarget]] = {}
    for program in report.programs:
        for target in program.targets:
            by_target.setdefault(target.name, []).append(target)
    names: dict[str, list[str]] = {}
    for name, answers in by_target.items():
        names.setdefault(_together(answers), []).append(name)
    return ", ".join(f"{said} {', '.join(targets)}" for said, targets in names.items())


def _together(answers: Sequence[ReportedTarget]) -> str:
    if any(answer.fits is False for answer in answers):
        return "does not fit on"
    if any(answer.status == "refused" for answer in answers):
        return "cannot be compiled for"
    missing = sum(answer.status == "unavailable" for answer in answers)
    if not missing:
        return "fits on"
    return "no answer for" if missing == len(answers) else f"fits, but for {quantity(missing, 'program')} unknown, on"


def detailed(report: Report, found: Sequence[Verdict], count: int) -> tuple[Verdict, ...]:
    """Those worth more than a line, at most ``count``: what cannot run, and the largest for each target; of a dry run
    all."""
    chosen: list[Verdict] = []
    targets: set[str] = set()
    for one in found:
        if one.target.status == "unavailable":
            continue
        first = one.target.name not in targets
        targets.add(one.target.name)
        if one.is_bad or report.cell.dry_run or (first and _is_notable(one.target)):
            chosen.append(one)
    return tuple(chosen[:count])


def _is_notable(target: ReportedTarget) -> bool:
    share = (target.needed_bytes or 0) / (target.available_bytes or 1)
    special = any(call.kind != "custom" for call in target.calls)
    return bool(
        share >= NOTABLE_SHARE or target.remat_count or target.collectives or special or target.remedies
        or wasteful(target) or _has_notable_time(target, share)
    )  # fmt: skip


def _has_notable_time(target: ReportedTarget, share: float) -> bool:
    if target.cost is None:
        return target.pending and share >= TIMED_SHARE
    return share >= TIMED_SHARE or target.cost.estimate_s is None or target.cost.estimate_s >= TIMED_S


def answer(target: ReportedTarget) -> str:
    """``fits — needs 9.4 of 15.75 GiB per device``."""
    error = target.error
    about = "about " if target.needed_is_estimate else ""
    needed = f"needs {about}{needed_text(target.needed_bytes, target.available_bytes)} per device"
    if target.status == "unavailable":
        return f"no answer — {target.why or UNKNOWN}"
    if error is None and target.fits is None:
        return f"no answer — {UNKNOWN}"
    if error is None or (error.kind == "hbm" and target.needed_bytes is not None):
        return f"fits — {needed}" if target.fits else f"does not fit — {needed}"
    if error.kind in MEMORIES:
        amounts = f" — needs {needed_text(error.needed_bytes, error.available_bytes)}" if error.needed_bytes else ""
        return f"does not fit into {MEMORIES[error.kind]}{amounts}"
    if error.kind == "hbm":
        return f"does not fit — into {capacity_text(target.available_bytes)} per device"
    if error.kind == "unsupported" and error.operation:
        return f"cannot be compiled — `{error.operation}` is not supported there"
    return "cannot be compiled" + (f" — {error.message.splitlines()[0]}" if error.message else "")


def facts(target: ReportedTarget, rows: int) -> tuple[Fact, ...]:
    """All that is known beside the verdict, the holders and the lines of the cost; ``rows`` of each at most. What nobody
    asked and what there is none of is not there."""
    more = target.omitted
    found = (
        _fact("refused", _refusal(target), rows),
        _fact("memory", _memory(target), rows),
        _fact("padding", [_padding(one) for one in wasteful(target)], rows, more.padded if wasteful(target) else 0),
        _fact("remat", _rematerialized(target), rows),
        _fact("collectives", [_collective(one) for one in target.collectives], rows, more.collectives),
        _fact("calls", [_call(one) for one in target.calls], rows, more.calls),
        _fact("bfloat16", _bf16(target), rows),
        _fact("remedies", _remedies(target), rows, more.remedies),
        _fact(TIME, _time(target), rows),
    )
    return tuple(fact for fact in found if fact.lines)


def _fact(label: str, lines: Sequence[str], rows: int, omitted: int = 0) -> Fact:
    more = omitted + max(0, len(lines) - rows)
    tail = [f"and {count_text(more)} more" if lines else f"{count_text(more)} left out"] if more else []
    return Fact(label, (*lines[:rows], *tail))


def wasteful(target: ReportedTarget) -> tuple[ReportedBuffer, ...]:
    """The padded arrays that are worth a word."""
    least = max(PADDING_BYTES, PADDING_SHARE * (target.needed_bytes or 0))
    return tuple(one for one in target.padded if one.logical_bytes and one.bytes - one.logical_bytes >= least)


def array(buffer: ReportedBuffer) -> str:
    """``float32[1024,4096]``."""
    return f"{buffer.dtype or ''}[{','.join(map(str, buffer.shape))}]" if buffer.dtype or buffer.shape else ""


def place(site: SourceSite | None, operation: str | None) -> str:
    """``In [5] line 14, dot_general``: where, and what is done there, as far as known."""
    return ", ".join(filter(None, (str(site) if site else "", operation)))


def owner(buffer: ReportedBuffer) -> str:
    """The user's name for memory, else the line that makes it."""
    unnamed = {"argument": "an argument", "output": "a result", "constant": "a constant", "temporary": "a temporary"}
    return buffer.name or place(buffer.site, buffer.operation) or unnamed[buffer.kind]


def notes(buffer: ReportedBuffer) -> list[str]:
    """What else is known of memory: ``×24``, ``9 GiB without padding``, ``residual of 12 trips`` (what the forward pass
    keeps for the backward pass, a slice for each trip of a loop)."""
    told = [f"×{count_text(buffer.count)}"] if buffer.count > 1 else []
    if buffer.logical_bytes is not None and bytes_text(buffer.logical_bytes) != bytes_text(buffer.bytes):
        told.append(f"{bytes_text(buffer.logical_bytes)} without padding")
    trips = quantity(buffer.trips, "trip") if buffer.trips else ""
    told += [f"residual of {trips}" if trips else "residual"] if buffer.residual else [trips] if trips else []
    told += ["donated"] if buffer.donated else []
    told += ["widened from less"] if buffer.repeated else []
    told += ["half of a 64-bit array"] if buffer.x64 else []
    return told


def traced(target: ReportedTarget) -> str:
    """How much of the peak is known by its arrays; empty where it is nearly all, or where that is not known."""
    highest = max((size for _, size in target.timeline), default=None)
    if highest is None or not target.needed_bytes or highest > 0.98 * target.needed_bytes:
        return ""
    return f"of which {capacity_text(highest)} are traced to arrays"


def _memory(target: ReportedTarget) -> list[str]:
    parts = (target.argument_bytes, target.output_bytes, target.temp_bytes)
    if all(part is None for part in parts):
        return []
    arguments, results, temporaries = map(capacity_text, parts)
    shared = f" ({capacity_text(target.alias_bytes)} of them in donated memory)" if target.alias_bytes else ""
    constants = f", constants {capacity_text(target.constant_bytes)}" if target.constant_bytes else ""
    return [f"arguments {arguments}, results {results}{shared}, temporaries {temporaries}{constants}"]


def _padding(buffer: ReportedBuffer) -> str:
    factor = buffer.bytes / buffer.logical_bytes if buffer.logical_bytes else None
    sizes = f"{bytes_text(buffer.bytes)} for {bytes_text(buffer.logical_bytes)} of elements"
    name = f"`{buffer.name}`" if buffer.name else owner(buffer)
    return f"{name} {array(buffer)} takes {factor_text(factor)}: {sizes}"


def _rematerialized(target: ReportedTarget) -> list[str]:
    count = target.remat_count
    return [f"the compiler computes {quantity(count, 'operation')} again to save memory"] if count else []


def _collective(one: ReportedCollective) -> str:
    times = f"×{count_text(one.count)} " if one.count > 1 else ""
    if one.runs is None:
        runs = ", in a loop that does not say how often"
    elif one.runs > one.count:
        runs = f", runs {count_text(one.runs)} times, {bytes_text(one.total_bytes)} in all"
    else:
        runs = ""
    group = f", among {count_text(one.group)} devices" if one.group else ""
    whole = ", the whole array on each" if one.whole else ""
    resliced = ", which then keeps only its part" if one.whole and one.resliced else ""
    at = f" at {one.site}" if one.site else ""
    shape = array(ReportedBuffer(None, None, one.bytes, dtype=one.dtype, shape=one.shape))
    return f"{one.kind} {times}{bytes_text(one.bytes)} {shape}{at}{runs}{group}{whole}{resliced}"


def _call(call: ReportedCall) -> str:
    times = f" ×{count_text(call.count)}" if call.count > 1 else ""
    at = f" at {call.site}" if call.site else ""
    if call.kind == "host":
        return f"the device waits for Python on the host: `{call.name}`{times}{at}"
    if call.kind == "x64":
        return f"64-bit arithmetic is emulated: `{call.name}`{times}{at}"
    return f"custom call `{call.name}`{times}{at}"


def _bf16(target: ReportedTarget) -> list[str]:
    """One sentence a type: the lines differ, the fact does not."""
    sentences: list[str] = []
    for dtype in dict.fromkeys(one.dtype for one in target.bf16_products):
        alike = [one for one in target.bf16_products if one.dtype == dtype]
        named = [
            f"{one.site or 'a line that is not known'}" + (f" ×{count_text(one.count)}" if one.count > 1 else "")
            for one in alike
        ]
        more = target.omitted.bf16_products + max(0, len(named) - 4)
        tail = f" and {count_text(more)} more" if more else ""
        sentences.append(f"products written in {dtype} are multiplied in bfloat16: {', '.join(named[:4])}{tail}")
    return sentences


def _refusal(target: ReportedTarget) -> list[str]:
    """The compiler's own words, where they say more than the verdict."""
    error = target.error
    if error is None or (error.kind == "hbm" and target.needed_bytes is not None):
        return []
    return [f"{error.site}: {error.message}" if error.site else error.message]


def _remedies(target: ReportedTarget) -> list[str]:
    """What fits first, then by what is needed; the unknown last."""
    told = sorted(target.remedies, key=lambda one: (not one.fits, one.needed_bytes is None, one.needed_bytes or 0))
    return [_remedy(one) for one in told]


def _remedy(remedy: ReportedRemedy) -> str:
    if remedy.needed_bytes is None:
        return f"{remedy.change}: not known" + (f", {remedy.why}" if remedy.why else "")
    fits = {True: "fits, needs ", False: "does not fit, needs ", None: "needs "}[remedy.fits]
    return f"{remedy.change}: {fits}{capacity_text(remedy.needed_bytes)}"


def _time(target: ReportedTarget) -> list[str]:
    if target.cost is None:
        if target.pending:
            return [STILL_COMPILING]
        return [f"{UNKNOWN}, {target.why}"] if target.status == "planned" and target.why else []
    lines = [estimate(target.cost)]
    left_out = not_counted(target.cost.not_counted, target.omitted.not_counted)
    lines += [f"not counted: {left_out}"] if left_out else []
    lines += [] if target.cost.loops_known else ["not counted: loops that do not say how often they run"]
    return lines


def estimate(cost: ReportedCost) -> str:
    """``~3.1 ms device time (compiler's estimate, usually within x1.3); MXU-bound, at 62 % of the chip's peak``."""
    if cost.estimate_s is None:
        counted = "; of what is counted:" if cost.lines else ""
        return f"{UNKNOWN}, for what is not counted may be most of it{counted}"
    told = f"{roughly(cost.estimate_s)} device time (compiler's estimate, usually within x{cost.band:g})"
    if cost.bound is None:
        return told
    share = cost.share_of_peak
    peak = f", at {percent_text(share)} of {PEAKS[cost.bound]}" if share is not None and cost.bound in PEAKS else ""
    return f"{told}; {BOUNDS[cost.bound]}{peak}"


def roughly(seconds: float) -> str:
    """``~3.1 ms``, ``under 1 µs``."""
    return f"~{seconds_text(seconds)}" if seconds >= 1e-6 else "under 1 µs"


def line_notes(line: ReportedLineCost, cost: ReportedCost) -> str:
    """``In [5] line 4, dot_general, MXU-bound``; a rougher estimate than the program's says so."""
    parts = [place(line.site, line.operation) or "no line of yours"]
    parts += [BOUNDS[line.bound]] if line.bound else []
    parts += [f"within x{line.band:g}"] if line.band > cost.band else []
    return ", ".join(parts)


def not_counted(operations: Iterable[ReportedNotCounted], omitted: int) -> str:
    """``sort ×24 (In [5] line 9), tpu_custom_call and 2 more``."""
    named: list[str] = []
    for one in operations:
        times = one.count if one.trips is None else max(one.count, one.trips)
        named.append(
            f"{one.operation}"
            + (f" ×{count_text(times)}" if times > 1 else "")
            + (f" ({one.site})" if one.site else "")
        )  # fmt: skip
    more = omitted + max(0, len(named) - 6)
    if more and not named:
        return quantity(more, "operation")
    return ", ".join(named[:6]) + (f" and {count_text(more)} more" if more else "")
