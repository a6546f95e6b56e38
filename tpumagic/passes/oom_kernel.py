"""Kernels whose blocks do not fit into a TPU core's own memory, VMEM, or whose scalars do not fit into SMEM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpumagic import memory_errors, sources
from tpumagic.events import CellRecord, Failure, Program, SourceSite
from tpumagic.findings import MIB, Finding, quantity
from tpumagic.graph import Operation
from tpumagic.memory_errors import Allocation, OutOfMemory
from tpumagic.numbers import bytes_text, needed_text
from tpumagic.passes.wording import code, distinct_lines, function_name, listing, site_of
from tpumagic.plans import Answer

_MAX_RELATED = 5
_PHYSICAL = 128 * MIB
"""VMEM of today's cores; a lower limit is the compiler's, and a kernel may raise it."""
_TYPES = {"f": "float", "s": "int", "u": "uint", "bf": "bfloat", "c": "complex", "pred": "bool"}


def find(
    record: CellRecord, programs: list[Program], failure: Failure | None, said: OutOfMemory | None
) -> Iterator[Finding]:
    """One finding for each program that was refused so, and for a failed cell that belongs to none of them."""
    told = False
    seen: set[str] = set()
    for program in programs:
        refused = [one for one in program.answers if one.error is not None and one.error.kind in ("vmem", "smem")]
        name = function_name(record, program)
        if refused and name not in seen:
            seen.add(name)
            told = True
            yield _finding(record, program, refused[0], failure, said)
    if failure is not None and said is not None and said.space in ("vmem", "smem") and not told:
        with_kernel = [program for program in programs if _kernels(program)]
        line = site_of(failure)
        here = [program for program in with_kernel if program.site == line]
        yield _finding(record, next(iter([*here, *with_kernel]), None), None, failure, said)


def _finding(
    record: CellRecord,
    program: Program | None,
    answer: Answer | None,
    failure: Failure | None,
    said: OutOfMemory | None,
) -> Finding:
    error = answer.error if answer is not None else None
    own = memory_errors.parse(error.message) if error is not None else None
    text = next((one for one in (own, said) if one is not None and one.allocations), own or said)
    needed = (error.needed_bytes if error is not None else None) or (text.needed_bytes if text is not None else None)
    available = (error.available_bytes if error is not None else None) or (
        text.available_bytes if text is not None else None
    )
    space = (error.kind if error is not None else text.space if text is not None and text.space else "vmem").upper()
    kernels = _kernels(program) if program is not None else []
    sites = [operation.site for operation in kernels]
    refused = [error.stack[-1] if error is not None and error.stack else None]
    call = [program.site if program is not None else None, site_of(failure) if failure is not None else None]
    blocks = _blocks(record, text, [site for site in (*refused, *sites, *call) if site is not None])
    lines = distinct_lines([*refused, *sites, *call, program.definition if program is not None else None])
    names = list(dict.fromkeys(str(operation.attributes.get("kernel") or "") for operation in kernels))
    name = function_name(record, program) if program is not None else None
    if len(names) == 1 and names[0]:
        subject = f"The Pallas kernel {code(names[0])}"
    else:
        subject = f"A kernel in {code(name)}" if name else "A kernel"
    amounts = f"{needed_text(needed, available)} {space}" if needed else f"more {space} than there is"
    where = f" on {answer.target.name}" if answer is not None else ""
    rows = [row for row in text.allocations if row.tag] if text is not None else []
    ending = (
        f": its blocks are {listing(blocks)}"
        if len(blocks) > 1
        else f": its block is {code(blocks[0])}"
        if blocks
        else ""
    )
    return Finding(
        kind="oom.vmem",
        severity="error",
        title=f"{subject} needs {amounts}{where}{ending}",
        detail=_detail(space, rows),
        fix=_fix(space, needed, available, bool(kernels or rows), bool(rows) and is_scratch(rows[0])),
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        bytes=needed,
        facts={
            "space": space.lower(),
            "kernel": names[0] if names else None,
            "blocks": blocks,
            "needed_bytes": needed,
            "available_bytes": available,
            "target": answer.target.name if answer is not None else None,
        },
    )


def _kernels(program: Program | None) -> list[Operation]:
    if program is None or program.graph is None:
        return []
    return [operation for _, operation in program.graph.walk() if operation.name == "pallas_call"]


def _blocks(record: CellRecord, text: OutOfMemory | None, sites: list[SourceSite]) -> list[str]:
    """Types of the blocks by the compiler, else their shapes as the source has them."""
    told = [block for row in (text.allocations if text is not None else ()) if (block := _block(row))]
    if told:
        return list(dict.fromkeys(told))
    if not any(site.cell == record.cell for site in sites):
        return []
    source = sources.parse(record.source, record.source_lines_start)
    shapes = [
        call.arguments[0].removeprefix("block_shape=")
        for call in source.all_calls
        if call.callee.rpartition(".")[2] == "BlockSpec" and call.arguments and "(" in call.arguments[0]
    ]
    return list(dict.fromkeys(shapes))


def _block(row: Allocation) -> str:
    """Type of a window or of scratch memory; empty for what is neither."""
    shape = row.window or ((row.shape or "").partition("{")[0] if is_scratch(row) else "")
    return readable_type(shape)


def is_scratch(row: Allocation) -> bool:
    """Whether a kernel asked for this memory with ``scratch_shapes``."""
    return "scratch" in (row.tag or "")


def readable_type(text: str) -> str:
    """``float32[8,128]`` of the compiler's ``f32[8,128]``."""
    match = re.match(r"(pred|bf|f|s|u|c)(\d*)(\[.*)", text)
    return f"{_TYPES[match[1]]}{match[2]}{match[3]}" if match else text


def _detail(space: str, rows: list[Allocation]) -> str:
    if space == "SMEM":
        return "SMEM is the small memory for scalars of each core, not HBM: a smaller batch does not help."
    lines = ["VMEM is the working memory of each core, not HBM: a smaller batch does not help."]
    for row in rows[:3]:
        role = (row.tag or "").partition(" window")[0].capitalize()
        times = f", held {quantity(row.buffering, 'time')}" if row.buffering and row.buffering > 1 else ""
        block = f" block {readable_type(row.window)}" if row.window else f" {_block(row)}" if _block(row) else ""
        whole = f" of {readable_type(row.whole)}" if row.whole else ""
        lines.append(f"{role}{block}{whole}: {bytes_text(row.bytes)}{times}.")
    return " ".join(lines)


def _fix(space: str, needed: int | None, available: int | None, is_pallas: bool, scratch: bool) -> str:
    if space == "SMEM":
        return "Pass fewer scalars to the kernel, or keep larger tables in VMEM or HBM and read them there."
    if not is_pallas:
        return "Split the operation on this line, or raise the limit: `compiler_options={'xla_tpu_scoped_vmem_limit_kib': …}`."
    fix = "Give its `BlockSpec` smaller blocks (rows in steps of 8, columns in steps of 128) and the grid more steps."
    if scratch:
        fix = "Ask for less in `scratch_shapes`, and work on smaller blocks in more steps of the grid."
    if needed is not None and available is not None and available < needed <= _PHYSICAL:
        fix += " Or raise its limit: `pltpu.CompilerParams(vmem_limit_bytes=…)`."
    return fix
