"""From what was seen in a cell to its report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpumagic.events import CellRecord, LiveArray, MemorySample, Program
from tpumagic.findings import SEVERITY_ORDER, Finding
from tpumagic.report import targets
from tpumagic.report.limits import LEVELS, fitted
from tpumagic.report.model import (
    Cell,
    DeviceSamples,
    Memory,
    Omitted,
    Report,
    ReportedArray,
    ReportedProgram,
    Timing,
    total,
)


def build(
    record: CellRecord,
    findings: Sequence[Finding],
    *,
    name: str | None = None,
    environment: dict[str, object],
    dry_run: bool = False,
) -> Report:
    """The report of one run of a cell, cleaned and at most 60 kB of JSON. name: the user's, for this run. dry_run: the
    programs were compiled for a target, and none ran."""
    programs = _worth_showing(record.programs)
    live = sorted(
        record.memory.live, key=lambda array: (-array.bytes, len(array.names[0]) if array.names else 0, array.names)
    )
    memory = record.memory
    return fitted(
        Report(
            name=name,
            cell=Cell(
                count=record.cell,
                source_sha256=hashlib.sha256(record.source.encode("utf-8", "surrogatepass")).hexdigest(),
                failure=record.failure.type_name if record.failure else None,
                dry_run=dry_run,
            ),
            environment=environment,
            timing=_timing(record),
            programs=tuple(_program(program) for program in programs),
            memory=Memory(
                limit_bytes=memory.limit_bytes,
                peak_bytes=memory.peak_bytes,
                cell_peak_bytes=memory.cell_peak_bytes,
                live_before_bytes=memory.live_before_bytes,
                live_after_bytes=memory.live_after_bytes,
                live=tuple(_array(array) for array in live[: LEVELS[0].live]),
                samples=_samples(memory.samples),
            ),
            findings=tuple(sorted(findings, key=lambda finding: SEVERITY_ORDER[finding.severity])),
            unavailable=record.unavailable,
            omitted=Omitted(programs=len(record.programs) - len(programs), live=max(0, len(live) - LEVELS[0].live)),
        )
    )


def _worth_showing(programs: tuple[Program, ...]) -> list[Program]:
    """As many as a report can hold, in their order: chosen before their texts are made, for a thousand cost time."""
    order = sorted(range(len(programs)), key=lambda n: (*_importance(programs[n]), n))
    return [programs[n] for n in sorted(order[: LEVELS[0].programs])]


def _importance(program: Program) -> tuple[bool, bool, float]:
    runs = all(targets.runs_there(answer) is not False for answer in program.answers)
    return runs, program.kind == "eager", -_seconds(program)


def _seconds(program: Program) -> float:
    return sum(compile_.seconds for compile_ in program.compiles)


def _program(program: Program) -> ReportedProgram:
    return ReportedProgram(
        name=program.name,
        site=program.site,
        kind=program.kind,
        compiles=len(program.compiles),
        signature=str(program.signature) if program.signature else None,
        trace_s=total(tuple(compile_.trace_s for compile_ in program.compiles)),
        lower_s=total(tuple(compile_.lower_s for compile_ in program.compiles)),
        compile_s=total(tuple(compile_.compile_s for compile_ in program.compiles)),
        memory=program.memory,
        targets=tuple(targets.target(answer) for answer in program.answers),
        outside=program.outside,
    )


def _array(array: LiveArray) -> ReportedArray:
    name = array.names[0] if array.names else None
    if array.traceback:
        name = f"{name} (last traceback)" if name else "last traceback"
    return ReportedArray(name, array.bytes, array.dtype, array.shape, array.sharding)


def _samples(samples: Sequence[MemorySample]) -> tuple[DeviceSamples, ...]:
    """The samples of each device together: by columns they take a third of the room."""
    by_device: dict[int, list[MemorySample]] = {}
    for sample in samples:
        by_device.setdefault(sample.device, []).append(sample)
    return tuple(
        DeviceSamples(
            device=device,
            limit_bytes=max((one.limit_bytes for one in of_it if one.limit_bytes is not None), default=None),
            at_s=tuple(one.at_s for one in of_it),
            bytes_in_use=tuple(one.bytes_in_use for one in of_it),
            duty_cycle_percent=tuple(one.duty_cycle_percent for one in of_it),
            tensorcore_percent=tuple(one.tensorcore_percent for one in of_it),
        )
        for device, of_it in sorted(by_device.items())
    )


def _timing(record: CellRecord) -> Timing:
    compiles = [compile_ for program in record.programs for compile_ in program.compiles]
    trace_s = total(tuple(compile_.trace_s for compile_ in compiles)) if compiles else 0.0
    lower_s = total(tuple(compile_.lower_s for compile_ in compiles)) if compiles else 0.0
    compile_s = total(tuple(compile_.compile_s for compile_ in compiles)) if compiles else 0.0
    run_s = None
    if record.ready_s is not None:
        # Compilations in threads overlap; then the rest is not a time and stays unknown.
        rest = record.ready_s - (total((trace_s, lower_s, compile_s)) or 0.0)
        run_s = rest if rest >= 0 else None
    return Timing(
        wall_s=record.wall_s,
        ready_s=record.ready_s,
        trace_s=trace_s,
        lower_s=lower_s,
        compile_s=compile_s,
        run_s=run_s,
        compiles=len(compiles),
        cache_hits=sum(compile_.cache == "hit" for compile_ in compiles),
    )
