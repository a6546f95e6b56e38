"""How a cell's work and arrays are spread over the devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tpumagic import sources
from tpumagic.events import CellRecord, Collective, Program, SourceSite
from tpumagic.findings import COST_SHARE, Finding, quantity
from tpumagic.graph import Graph, Operation
from tpumagic.numbers import bytes_text
from tpumagic.passes import sharding_failures
from tpumagic.passes.wording import code, distinct_lines, function_name, source_line

_PRODUCTS = frozenset({"dot_general", "convolution", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
_CONSTRAINTS = frozenset({"sharding_constraint", "reshard"})
_MAX_RELATED = 5
_SPLIT_OVER_ALL = (
    "Split the batch over all of them: `jax.device_put(x, NamedSharding(jax.make_mesh((jax.device_count(),), "
    "('data',)), P('data')))`, with the parameters replicated."
)


def find(record: CellRecord) -> Iterator[Finding]:
    """Failures of placement, then work that is not shared, then communication."""
    if record.failure is not None:
        explained = sharding_failures.explain(record, record.failure)
        if explained is not None:
            yield explained
    programs = [_with_planned(program) for program in record.programs if not program.outside]
    yield from _idle_devices(record, programs)
    yield from _idle_of_target(record, programs)
    yield from _replicated_work(record, programs)
    for program in programs:
        yield from _full_remat(record, program)
        yield from _collectives(record, program)


def _with_planned(program: Program) -> Program:
    """A program whose executable told no communication gets that of the TPU compiler's plan."""
    if program.collectives:
        return program
    answer = next((one for one in program.answers if one.plan is not None and one.plan.communications), None)
    if answer is None or answer.plan is None:
        return program
    planned = tuple(
        Collective(
            one.kind, one.shape, one.dtype, one.bytes, one.stack[-1] if one.stack else None, one.whole, one.resliced
        )
        for one in answer.plan.communications
    )
    devices = program.devices if len(program.devices) > 1 else tuple(range(answer.target.devices))
    return replace(program, collectives=planned, devices=devices)


def _idle_of_target(record: CellRecord, programs: list[Program]) -> Iterator[Finding]:
    """The target has several devices, and every program of the cell was made for one."""
    jitted = [program for program in programs if program.kind != "eager" and program.answers]
    targets = [answer.target for program in jitted for answer in program.answers if answer.plan is not None]
    several = [one for one in targets if one.devices > 1]
    there = max((backend.device_count or 0 for backend in record.backends), default=0)
    if not several or any(len(program.devices) != 1 for program in jitted):
        return
    if there > 1 and not all(program.compile_only for program in jitted):
        return
    target = max(several, key=lambda one: one.devices)
    main = max(jitted, key=lambda program: _product_flops(program.graph))
    name = function_name(record, main)
    yield Finding(
        kind="sharding.idle_devices",
        severity="info",
        title=f"{target.name} has {target.devices} devices, and {code(name)} uses one of them: {target.devices - 1} idle",
        detail="" if there > 1 else "This process has one device, so the program could not be split here.",
        fix=_SPLIT_OVER_ALL
        if there >= target.devices
        else f"`%tpu_env jax --target {target.name}`, before JAX starts, gives this process {target.devices} CPU devices; then "
        "split the batch over all of them with a mesh and `NamedSharding`.",
        site=main.site,
        related=distinct_lines([main.site, main.definition])[1:],
        program=name,
        facts={
            "devices": target.devices,
            "used": list(main.devices),
            "idle": target.devices - 1,
            "target": target.name,
        },
    )


def _idle_devices(record: CellRecord, programs: list[Program]) -> Iterator[Finding]:
    """Several devices are there, and all that was run and is alive is on one."""
    count = max((backend.device_count or 0 for backend in record.backends), default=0)
    ran = [program for program in programs if not program.compile_only]
    jitted = [program for program in ran if program.kind != "eager" and program.devices]
    if count < 2 or not jitted:
        return
    used = {device for program in ran for device in program.devices}
    used |= {device for array in record.memory.live for device in array.devices}
    if len(used) != 1:
        return
    main = max(jitted, key=lambda program: _product_flops(program.graph))
    device = next(iter(used))
    yield Finding(
        kind="sharding.idle_devices",
        severity="info",
        title=f"{count} devices are there, and everything in this cell is on device {device}: {count - 1} idle",
        detail=f"{code(function_name(record, main))} and all live arrays are on one device.",
        fix=_SPLIT_OVER_ALL,
        site=main.site,
        related=distinct_lines([main.site, main.definition])[1:],
        program=function_name(record, main),
        facts={"devices": count, "used": [device], "idle": count - 1},
    )


def _replicated_work(record: CellRecord, programs: list[Program]) -> Iterator[Finding]:
    """A program on several devices each of which computes all of it."""
    shared = max((_product_flops(program.graph) for program in programs if program.partitioned), default=0)
    for program in programs:
        flops = _product_flops(program.graph)
        if program.kind == "eager" or program.partitioned is not False or flops <= COST_SHARE * shared or not flops:
            continue
        count = len(program.devices)
        if count < 2 or not any(len(leaf.devices) > 1 for leaf in program.inputs):
            continue
        batch = _batch(program)
        products = [op.site for _, op in program.graph.walk() if op.name in _PRODUCTS] if program.graph else []
        placements = _placements(record, program)
        yield Finding(
            kind="sharding.replicated_work",
            severity="warning",
            title=f"{code(function_name(record, program))} does the same work on each of {count} devices",
            detail="All of its arguments are whole copies on every device and nothing in it is split, so more devices "
            "make it no faster.",
            fix=f"Split {code(batch)} over the mesh before the call: "
            f"{code(f'jax.device_put({batch}, NamedSharding(mesh, P({_axis(program)})))')}; the parameters may stay "
            "whole.",
            site=program.site,
            related=distinct_lines([program.site, *placements, program.definition, *products])[1 : _MAX_RELATED + 1],
            program=function_name(record, program),
            facts={"devices": count, "arguments": [leaf.path for leaf in program.inputs[:8]]},
        )


def _batch(program: Program) -> str:
    """The argument to split: of those that are multiplied by others, the one with the longest first axis."""
    leaves = [leaf for leaf in program.inputs if leaf.shape]
    return max(leaves, key=lambda leaf: (leaf.shape[0], len(leaf.shape))).path if leaves else "x"


def _axis(program: Program) -> str:
    """The first mesh axis that an argument's sharding names, as it is written in a PartitionSpec."""
    texts = [leaf.sharding or "" for leaf in program.inputs]
    match = next((match for text in texts if (match := re.search(r"over \((\w+)=", text))), None)
    return f"'{match[1]}'" if match else "…"


def _placements(record: CellRecord, program: Program) -> list[SourceSite]:
    """Lines of this cell that place what the call passes: assignments of ``device_put`` to its arguments."""
    line = source_line(record, program.site)
    source = sources.parse(record.source, record.source_lines_start)
    if line is None or program.site is None:
        return []
    passed = {
        name for call in source.calls(line) for argument in call.arguments for name in re.findall(r"\w+", argument)
    }
    found: list[SourceSite] = []
    for call in source.all_calls:
        places = call.callee.rpartition(".")[2] in ("device_put", "put", "replicate") and call.line != line
        if places and source.assigned(call.line) & passed:
            found.append(SourceSite(line=call.line, cell=program.site.cell, file=program.site.file))
    return found


def _full_remat(record: CellRecord, program: Program) -> Iterator[Finding]:
    """Collectives that bring a whole array to every device, of which each keeps a part."""
    seen: set[SourceSite | None] = set()
    for collective in program.collectives:
        if not collective.resliced:
            continue
        constraint = _constraint_of(collective, program.graph)
        site = constraint.site if constraint is not None and constraint.site is not None else collective.site
        site = site or program.site
        if site in seen:
            continue
        seen.add(site)
        array = f"{collective.dtype}[{','.join(map(str, collective.shape))}]"
        target = str(constraint.attributes.get("sharding", "")) if constraint is not None else ""
        origin = _origin(constraint, program)
        change = (
            f" from {code(origin)} to {code(target)}" if origin and target else f" to {code(target)}" if target else ""
        )
        yield Finding(
            kind="sharding.full_remat",
            severity="warning",
            title=f"Resharding {array}{change} copies the whole array to every device",
            detail=f"XLA cannot exchange the parts directly: each device receives all {bytes_text(collective.bytes)} and "
            "keeps its own part (XLA calls it involuntary full rematerialization).",
            fix="Give the array this sharding where it is made, or get there in two constraints that change one array axis "
            "each.",
            site=site,
            related=distinct_lines([site, collective.site, program.site, program.definition])[1:],
            program=function_name(record, program),
            bytes=collective.bytes,
            facts={
                "shape": list(collective.shape),
                "dtype": collective.dtype,
                "from": origin or None,
                "to": target or None,
            },
        )


def _constraint_of(collective: Collective, graph: Graph | None) -> Operation | None:
    """The constraint that asked for it: on the collective's line if that is known, else the first of its shape."""
    if graph is None:
        return None
    fitting = [
        operation
        for owner, operation in graph.walk()
        if operation.name in _CONSTRAINTS
        and not operation.attributes.get("replicated")
        and owner.values[operation.outputs[0]].shape == collective.shape
    ]
    here = [operation for operation in fitting if collective.site is not None and _same_line(operation, collective)]
    return next(iter(here or fitting), None)


def _same_line(operation: Operation, collective: Collective) -> bool:
    one, other = operation.site, collective.site
    return (
        one is not None and other is not None and (one.line, one.cell, one.file) == (other.line, other.cell, other.file)
    )


def _origin(constraint: Operation | None, program: Program) -> str:
    """The sharding of the argument that a constraint's input was computed from element by element; empty if unclear."""
    graph = program.graph
    if constraint is None or graph is None or constraint not in graph.operations:
        return ""
    producers = graph.producers()
    shape = graph.values[constraint.outputs[0]].shape
    place = constraint.inputs[0]
    for _ in range(16):
        if place in graph.inputs:
            index = graph.inputs.index(place)
            text = program.inputs[index].sharding if index < len(program.inputs) else None
            return (text or "").partition(" over ")[0]
        operation = producers.get(place)
        if operation is None or operation.bodies:
            return ""
        alike = [one for one in operation.inputs if graph.values[one].shape == shape]
        if len(alike) != 1:
            return ""
        place = alike[0]
    return ""


def _collectives(record: CellRecord, program: Program) -> Iterator[Finding]:
    """What the devices send each other, by kind."""
    if not program.collectives:
        return
    counts = Counter(collective.kind for collective in program.collectives)
    total = sum(collective.bytes for collective in program.collectives)
    kinds = ", ".join(quantity(count, kind) for kind, count in counts.most_common())
    largest = max(program.collectives, key=lambda collective: collective.bytes)
    sites = [largest.site, program.site, *(one.site for one in program.collectives)]
    yield Finding(
        kind="sharding.collectives",
        severity="info",
        title=f"{code(function_name(record, program))} communicates between {len(program.devices)} devices: {kinds}",
        detail=f"{bytes_text(total)} arrive on each device in one run; the largest is the {largest.kind} of "
        f"{largest.dtype}[{','.join(map(str, largest.shape))}].",
        site=largest.site or program.site,
        related=distinct_lines(sites)[1 : _MAX_RELATED + 1],
        program=function_name(record, program),
        count=len(program.collectives),
        bytes=total,
        facts={"kinds": dict(counts), "devices": len(program.devices)},
    )


def _product_flops(graph: Graph | None) -> int:
    """Multiplications of all matrix products and convolutions, as written: a loop's body counts once."""
    if graph is None:
        return 0
    total = 0
    for owner, operation in graph.walk():
        if operation.name in _PRODUCTS:
            left, right = (owner.values[i] for i in operation.inputs[:2])
            result = owner.values[operation.outputs[0]]
            # sqrt(left * right * result) is exact for a plain product: (mk · kn · mn) = (mkn)².
            total += math.isqrt(max(1, left.size * right.size * result.size))
    return total
