"""The compiler's plan of a program's memory, read from what it writes before it generates code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tpumagic.compiler.communications import communications
from tpumagic.compiler.donations import Place, aliases, argument_leaves, donations, donors, result_leaves, result_names
from tpumagic.compiler.holders import folded, standing, temporaries
from tpumagic.compiler.padding import padded
from tpumagic.compiler.products import products
from tpumagic.compiler.program_facts import Program, index
from tpumagic.compiler.special_calls import special_calls
from tpumagic.compiler.timeline import moving_values, timeline
from tpumagic.compiler.written import Written, written
from tpumagic.events import ProgramMemory
from tpumagic.hlo import (
    Allocation,
    BufferAssignment,
    Instruction,
    LiveRanges,
    Value,
    live_ranges,
    live_values,
    multiplicities,
    parse,
    parse_buffer_assignment,
    parse_live_ranges,
    trip_count,
)
from tpumagic.hlo.dump import read
from tpumagic.plans import Buffer, Plan, Target

MOST_HOLDERS = 24
LEAST_SHARE = 1000
"""What holds less than one part in so many is not worth a line."""


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
    before = _beside(dump, found.name, ".before_optimizations.txt")
    stablehlo = _beside(dump, found.name, "/module.mlir")
    wrote = written(before) if before else None
    program = index(parse(found.module), wrote.wide_lines() if wrote is not None else frozenset())
    return _plan(
        program,
        assignment,
        ranges,
        target,
        written=wrote,
        whole_shapes=frozenset(shape for _, shape in wrote.shapes) if wrote is not None else frozenset(),
        stablehlo=stablehlo,
        out_of_memory=found.out_of_memory,
    )


def plan_of_executable(
    hlo_text: str,
    memory: ProgramMemory | None,
    target: Target,
    whole_shapes: frozenset[tuple[int, ...]] = frozenset(),
) -> Plan:
    """The plan of a program that is compiled already, worked out from its own text, which holds no assignment of
    buffers. memory: its ``memory_analysis()``, whose figures are shown where it has them. whole_shapes: of its arrays
    before they were split over devices. It fits: its compiler made it. needed_bytes: the lower of what was worked out,
    which knows not all values that share memory, and of the peak that the analysis gives, which counts VMEM as well."""
    module = parse(hlo_text)
    program = index(module)
    plan = _plan(
        program,
        _assumed(program),
        live_ranges(module),
        target,
        written=None,
        whole_shapes=whole_shapes,
        stablehlo="",
        out_of_memory=False,
    )
    worked_out = plan.reconstructed_bytes or plan.needed_bytes
    if memory is None:
        return replace(plan, needed_bytes=worked_out, worked_out=True)
    return replace(
        plan,
        worked_out=True,
        needed_bytes=min(memory.peak_bytes or worked_out, worked_out),
        argument_bytes=_either(memory.argument_bytes, plan.argument_bytes),
        output_bytes=_either(memory.output_bytes, plan.output_bytes),
        # The analysis says 0 for programs that do have temporaries.
        temp_bytes=memory.temp_bytes or plan.temp_bytes,
        alias_bytes=_either(memory.alias_bytes, plan.alias_bytes),
    )


def _either(told: int | None, worked_out: int | None) -> int | None:
    return told if told is not None else worked_out


_READ_FIRST = frozenset({"async-start", "slice-start"})
"""Asynchronous operations whose first elements are what they read, which is there already."""


def _assumed(program: Program) -> BufferAssignment:
    """An allocation of its own for everything that holds HBM."""
    allocations: list[Allocation] = []
    for number, live in enumerate(live_values(program.module)):
        instruction = program.instructions.get(live.name)
        if instruction is None or (instruction.opcode in _READ_FIRST and live.index[:1] == (0,)):
            continue
        is_argument = live.kind == "argument" and instruction.argument_text.isdecimal()
        allocations.append(
            Allocation(
                number=number,
                size=live.bytes,
                parameter=int(instruction.argument_text) if is_argument else None,
                parameter_index=live.index if is_argument else (),
                constant=live.kind == "constant",
                live_out=live.kind == "output",
                temporary=live.kind == "temporary",
                values=(Value(live.name, live.index, live.bytes, 0, live.shape),),
            )
        )
    return BufferAssignment(tuple(allocations))


def _beside(dump: Path, name: str, ending: str) -> str:
    """Text of a file of the same module from before it was compiled, when the compiler may count it differently; empty
    if there is none."""
    title = name.partition(".")[2]
    for path in sorted(dump.glob(f"module_*.{title}{ending}")):
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""


def _plan(
    program: Program,
    assignment: BufferAssignment,
    ranges: LiveRanges,
    target: Target,
    *,
    written: Written | None,
    whole_shapes: frozenset[tuple[int, ...]],
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

    live = moving_values(assignment, ranges)
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
        holders=_worth_showing(folded([*fixed, *moving]), needed),
        timeline=over_time.points,
        peak_at=over_time.position,
        padded=padded(program, fixed, live, trips),
        donations=donations(program, arguments, results),
        rematerialized=_rematerialized(program, times),
        communications=communications(program, times, whole_shapes),
        calls=special_calls(program, times, written, stablehlo),
        products=products(program, times, written),
    )


def _worth_showing(holders: tuple[Buffer, ...], needed: int) -> tuple[Buffer, ...]:
    return tuple(one for one in holders[:MOST_HOLDERS] if one.bytes * LEAST_SHARE >= needed)


def _is_result(allocation: Allocation) -> bool:
    return allocation.parameter is None and not allocation.constant and not allocation.temporary


def _aliased_bytes(hbm: Iterable[Allocation], places: Iterable[Place]) -> int:
    wanted = set(places)
    return sum(one.size for one in hbm if one.parameter is not None and (one.parameter, one.parameter_index) in wanted)


def _rematerialized(program: Program, reached: Iterable[str]) -> int:
    return sum(
        ".remat" in instruction.name for name in reached for instruction in program.module.computations.get(name, ())
    )
