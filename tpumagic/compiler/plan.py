"""The compiler's plan of a program's memory, read from what it writes before it generates code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tpumagic.compiler.communications import communications
from tpumagic.compiler.donations import Place, aliases, argument_leaves, donations, donors, result_leaves, result_names
from tpumagic.compiler.holders import folded, standing, temporaries
from tpumagic.compiler.padding import padded
from tpumagic.compiler.products import products
from tpumagic.compiler.program_facts import Program, index
from tpumagic.compiler.special_calls import special_calls
from tpumagic.compiler.timeline import live_values, timeline
from tpumagic.compiler.written import Written, written
from tpumagic.hlo import (
    Allocation,
    BufferAssignment,
    Instruction,
    LiveRanges,
    multiplicities,
    parse,
    parse_buffer_assignment,
    parse_live_ranges,
    trip_count,
)
from tpumagic.hlo.dump import read
from tpumagic.plans import Plan, Target


class NoPlanError(ValueError):
    """There is no whole plan in a folder."""


def read_plan(dump: Path, target: Target) -> Plan:
    """The plan that the compiler left in the folder of ``xla_dump_to``. Raises NoPlanError if it is not there, or not
    yet as a whole."""
    found = read(dump)
    if found is None or found.buffer_assignment is None:
        raise NoPlanError(f"No plan in {dump}")
    assignment = parse_buffer_assignment(found.buffer_assignment)
    ranges = parse_live_ranges(found.live_ranges or "")
    program = index(parse(found.module))
    before = _text(dump / f"{found.name}.before_optimizations.txt")
    stablehlo = _text(dump / found.name / "module.mlir")
    return _plan(
        program,
        assignment,
        ranges,
        target,
        written=written(before) if before else None,
        stablehlo=stablehlo,
        out_of_memory=found.out_of_memory,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _plan(
    program: Program,
    assignment: BufferAssignment,
    ranges: LiveRanges,
    target: Target,
    *,
    written: Written | None,
    stablehlo: str,
    out_of_memory: bool,
) -> Plan:
    header = program.module.header
    names = result_names(stablehlo, len(program.results()))
    aliased = aliases(header)
    times = multiplicities(program.module)
    hbm = [allocation for allocation in assignment.allocations if allocation.color == 0]
    known: dict[str, int | None] = {}

    def trips(loop: Instruction) -> int | None:
        if loop.name not in known:
            known[loop.name] = trip_count(program.module, loop)
        return known[loop.name]

    live = live_values(assignment, ranges)
    constant = sum(allocation.size for allocation in hbm if not allocation.temporary)
    over_time = timeline(constant, live, len(ranges.sequence))
    fixed = standing(program, assignment, names, donors(header), trips)
    moving = temporaries(program, over_time.at_peak, trips)
    needed = sum(allocation.size for allocation in hbm)
    alias_bytes = _aliased_bytes(hbm, aliased.values())
    arguments, results = argument_leaves(program), result_leaves(program, names)
    return Plan(
        fits=not out_of_memory,
        needed_bytes=needed,
        available_bytes=target.hbm_bytes,
        argument_bytes=sum(one.size for one in hbm if one.parameter is not None),
        output_bytes=sum(one.size for one in hbm if _is_result(one)) + alias_bytes,
        temp_bytes=sum(one.size for one in hbm if one.temporary),
        constant_bytes=sum(one.size for one in hbm if one.constant),
        alias_bytes=alias_bytes,
        reconstructed_bytes=over_time.peak_bytes,
        holders=folded([*fixed, *moving]),
        timeline=over_time.points,
        peak_at=over_time.position,
        padded=padded(program, fixed, live, trips),
        donations=donations(arguments, results, header),
        rematerialized=_rematerialized(program, times),
        communications=communications(program, times, written),
        calls=special_calls(program, times, written, stablehlo),
        products=products(program, times, written),
    )


def _is_result(allocation: Allocation) -> bool:
    return allocation.parameter is None and not allocation.constant and not allocation.temporary


def _aliased_bytes(hbm: Iterable[Allocation], places: Iterable[Place]) -> int:
    wanted = set(places)
    return sum(one.size for one in hbm if one.parameter is not None and (one.parameter, one.parameter_index) in wanted)


def _rematerialized(program: Program, reached: Iterable[str]) -> int:
    return sum(
        ".remat" in instruction.name for name in reached for instruction in program.module.computations.get(name, ())
    )
