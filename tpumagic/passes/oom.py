"""Programs that need more memory than a TPU has: what the compiler says of a target, and what a device or compiler said
in the cell itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic import memory_errors
from tpumagic.events import CellRecord, Failure, Program, SourceSite
from tpumagic.findings import Finding
from tpumagic.memory_errors import OutOfMemory
from tpumagic.numbers import bytes_text, needed_text
from tpumagic.passes import oom_kernel, oom_runtime
from tpumagic.passes.oom_causes import Cause, of_plan, of_program
from tpumagic.passes.oom_texts import (
    cause_text,
    fix_text,
    holders_text,
    main_text,
    parts_text,
    remedies_text,
)
from tpumagic.passes.wording import (
    array_type,
    callers_of,
    code,
    distinct_lines,
    facts_of,
    function_name,
    site_of,
)
from tpumagic.plans import Answer, Buffer

_MAX_RELATED = 5


@dataclass(frozen=True)
class Shortage:
    """A program that does not fit. answer: the compiler's, None where only the failed cell says it. failed: the cell
    failed by it. others: answers of further targets that it does not fit either."""

    program: Program
    needed: int
    available: int
    answer: Answer | None = None
    failed: bool = False
    others: tuple[Answer, ...] = ()


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each program that does not fit; one for a failure that belongs to none of them."""
    failure = record.failure
    said = memory_errors.parse(failure.message) if failure is not None else None
    programs = [program for program in record.programs if not program.outside]
    told: set[tuple[str, int, str]] = set()
    short = [one for program in programs if (one := _shortage(program)) is not None]
    failing = _failing(programs, [one.program for one in short], failure, said) if failure and said else None
    for one in short:
        key = function_name(record, one.program), one.needed, one.answer.target.name if one.answer is not None else ""
        if key not in told:
            told.add(key)
            yield _finding(record, one, failure if one.program is failing else None)
    yield from oom_kernel.find(record, programs, failure, said)
    if failure is None or said is None or said.space in ("vmem", "smem"):
        return
    if said.when == "runtime":
        yield from oom_runtime.find(record, programs, failure, said)
    elif failing is None or failing not in [one.program for one in short]:
        yield _of_failure(record, failing, failure, said)


def _shortage(program: Program) -> Shortage | None:
    """The first target that a program does not fit, the others beside it."""
    short: list[tuple[Answer, int, int]] = []
    for answer in program.answers:
        plan, error = answer.plan, answer.error
        if plan is not None and not plan.fits:
            short.append((answer, plan.needed_bytes, plan.available_bytes))
        elif error is not None and error.kind == "hbm":
            available = error.available_bytes or answer.target.hbm_bytes
            short.append((answer, error.needed_bytes or available, available))
    if not short:
        return None
    answer, needed, available = short[0]
    return Shortage(program, needed, available, answer, others=tuple(one for one, _, _ in short[1:]))


def _failing(programs: list[Program], short: list[Program], failure: Failure, said: OutOfMemory) -> Program | None:
    """The program that a failed cell speaks of: by its module's name, by the line, or the only one in question."""
    if said.when != "compile":
        return None
    compiled = [program for program in programs if program.kind != "eager"] or programs
    if said.module is not None:
        named = [one for one in compiled if said.module in (one.name, f"jit_{one.name}")]
        if len(named) == 1:
            return named[0]
    line = site_of(failure)
    here = [one for one in compiled if line is not None and _same_line(one.site, line)]
    for candidates in ([one for one in here if one in short], here, short, compiled):
        if candidates:
            return candidates[-1] if candidates is not compiled or len(compiled) == 1 else None
    return None


def _same_line(one: SourceSite | None, other: SourceSite) -> bool:
    return one is not None and (one.line, one.cell, one.file) == (other.line, other.cell, other.file)


def _finding(record: CellRecord, short: Shortage, failure: Failure | None) -> Finding:
    program, answer = short.program, short.answer
    plan = answer.plan if answer is not None else None
    causes = of_plan(plan, short.needed, short.available, program) if plan is not None else ()
    causes = causes or of_program(program, short.needed, short.available)
    name = function_name(record, program)
    where = f" on {answer.target.name}" if answer is not None else ""
    devices = answer.target.devices if answer is not None else 1
    each = " on each device" if devices > 1 else ""
    main = main_cause(causes, short.needed, short.available)
    ending = f": {main_text(main)}" if main is not None else ""
    holders = plan.holders if plan is not None else ()
    detail = [
        *(cause_text(one) for one in causes),
        "" if causes else holders_text(holders),
        parts_text(answer),
        *(_other_target(one) for one in short.others),
        remedies_text(answer, short.available),
    ]
    lines = _lines(program, main, causes, holders, failure)
    return Finding(
        kind="oom.hbm",
        severity="error",
        title=f"{code(name)} does not fit{where}: it needs {needed_text(short.needed, short.available)} of HBM{each}{_joined(ending)}",
        detail=" ".join(filter(None, detail)),
        fix=fix_text(record, program, main, short.available) if main is not None else "",
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        bytes=short.needed,
        facts={
            "causes": [one.name for one in causes],
            "cause_bytes": [one.bytes for one in causes],
            "target": answer.target.name if answer is not None else None,
            "needed_bytes": short.needed,
            "available_bytes": short.available,
            "holders": [_holder_fact(one) for one in holders[:8]],
        },
    )


def _joined(ending: str) -> str:
    """The end of a title whose first half has a colon already."""
    return f", of which {ending.removeprefix(': ')}" if ending else ""


def main_cause(causes: tuple[Cause, ...], needed: int, available: int) -> Cause | None:
    """The cause to act on: arguments that alone are too much, else the largest that the user can do without."""
    arguments = next((one for one in causes if one.name == "arguments"), None)
    if arguments is not None and arguments.bytes > available:
        return arguments
    enough = [one for one in causes if one.bytes >= needed - available and one.name != "arguments"]
    inner = [one for one in causes if one.name != "arguments"]
    return next(iter((*enough, *inner, *causes)), None)


def _lines(
    program: Program,
    main: Cause | None,
    causes: tuple[Cause, ...],
    holders: tuple[Buffer, ...],
    failure: Failure | None,
) -> tuple[SourceSite, ...]:
    """The line that makes the main holder, then the call, then those of the others. Arguments come from the call."""
    call = [program.site, site_of(failure) if failure is not None else None]
    largest = [one.stack[-1] if one.stack else None for one in (main.buffers if main is not None else ())]
    first = [] if main is None or main.name in ("arguments", "no_donation") else largest[:1]
    others = [one.stack[-1] for cause in causes for one in cause.buffers[:2] if one.stack]
    alive = [one.stack[-1] for one in holders[:4] if one.stack]
    return distinct_lines([*first, *call, *largest[:2], *others[:2], *alive, program.definition])


def _other_target(answer: Answer) -> str:
    plan, error = answer.plan, answer.error
    needed = plan.needed_bytes if plan is not None else error.needed_bytes if error is not None else None
    available = plan.available_bytes if plan is not None else answer.target.hbm_bytes
    return f"Nor does it fit on {answer.target.name}: {needed_text(needed, available)}."


def _holder_fact(buffer: Buffer) -> str:
    name = buffer.name or buffer.operation or buffer.kind
    return f"{name} {array_type(buffer.dtype, buffer.shape)} {bytes_text(buffer.bytes)}"


def _of_failure(record: CellRecord, program: Program | None, failure: Failure, said: OutOfMemory) -> Finding:
    """A compile that failed in the cell and of which the compiler was not asked again."""
    needed, available = said.needed_bytes, said.available_bytes
    if program is not None and needed is not None and available is not None:
        plans = [answer.plan for answer in program.answers if answer.plan is not None]
        causes = of_plan(plans[0], needed, available, program) if plans else of_program(program, needed, available)
        name = code(function_name(record, program))
    else:
        causes, name = (), code(facts_of(failure)["expression"]) if facts_of(failure)["expression"] else "This program"
    main = main_cause(causes, needed or 0, available or 0)
    amounts = f" needs {needed_text(needed, available)} of HBM and does not fit" if needed else " does not fit into HBM"
    ending = f": {main_text(main)}" if main is not None else ""
    rows = [
        f"{row.shape or row.label or 'an array'} ({bytes_text(row.bytes)})"
        + (f" of {code(row.op_name.partition('[')[0].rpartition('/')[2])}" if row.op_name else "")
        + (f" at {row.source_file.rpartition('/')[2]} line {row.source_line}" if row.source_file else "")
        for row in said.allocations[:3]
    ]
    lines = (
        _lines(program, main, causes, (), failure)
        if program is not None
        else distinct_lines([site_of(failure), *callers_of(failure)])
    )
    return Finding(
        kind="oom.hbm",
        severity="error",
        title=f"{name}{amounts}{ending}",
        detail=" ".join(
            [*(cause_text(one) for one in causes), *([f"The compiler's largest: {'; '.join(rows)}."] if rows else [])]
        ),
        fix=(
            fix_text(record, program, main, available or 0)
            if program is not None and main is not None
            else "Use a smaller batch, or split the arrays over several devices. For the causes, run it with `%%tpu_profile --target`."
        ),
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=function_name(record, program) if program is not None else None,
        bytes=needed,
        facts={
            "causes": [one.name for one in causes],
            "cause_bytes": [one.bytes for one in causes],
            "target": None,
            "needed_bytes": needed,
            "available_bytes": available,
            "holders": rows,
        },
    )
