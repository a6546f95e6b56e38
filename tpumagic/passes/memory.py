"""What keeps device memory: the shell's history, a traceback, a cell that leaves more behind with every run, donations
that free nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tpumagic import sources
from tpumagic.events import CellRecord, Leaf, LiveArray, Program, SourceSite
from tpumagic.findings import HELD_BYTES, Finding, Severity, quantity
from tpumagic.numbers import bytes_text
from tpumagic.passes.wording import code, distinct_lines, function_name, listing

_SHOWN = re.compile(r"(?:Out\[(?P<out>\d+)\]|_(?P<number>\d+)|_{1,3})(?![\w])")
_RUNS = 3
_SIMILAR = 0.25
"""Growth counts as steady if two runs differ by no more than a quarter."""
_MAX_RELATED = 5


def find(record: CellRecord) -> Iterator[Finding]:
    """Held arrays, growth, then donations."""
    yield from _held_by_out(record)
    yield from _held_by_traceback(record)
    yield from _growth(record)
    for program in record.programs:
        if not program.outside:
            yield from _donation_unused(record, program)


def _held_by_out(record: CellRecord) -> Iterator[Finding]:
    """Arrays that only IPython's output history leads to, by the cell that showed them."""
    by_cell: dict[int, list[LiveArray]] = defaultdict(list)
    for array in record.memory.live:
        roots = [_SHOWN.match(name) for name in array.names]
        if array.traceback or not roots or not all(roots):
            continue
        counts = [
            int(match["out"] or match["number"]) for match in roots if match and (match["out"] or match["number"])
        ]
        if counts:
            by_cell[counts[0]].append(array)
    for count, arrays in by_cell.items():
        total = sum(array.bytes for array in arrays)
        if total < HELD_BYTES:
            continue
        roots = dict.fromkeys(match[0] for array in arrays for name in array.names if (match := _SHOWN.match(name)))
        yield Finding(
            kind="memory.held_by_out",
            severity="warning",
            title=f"{code(f'Out[{count}]')} still holds {_arrays_text(arrays)} on the device",
            detail=f"No variable leads to it any more, but IPython keeps what a cell shows: {listing(roots, 5)}.",
            fix=f"End the cell's last line with `;` so that nothing is kept. {code(f'%xdel _{count}')} frees it now.",
            site=next((array.site for array in arrays if array.site is not None), None),
            bytes=total,
            facts={"out": count, "names": list(roots), "arrays": len(arrays), "shape": list(arrays[0].shape)},
        )


def _held_by_traceback(record: CellRecord) -> Iterator[Finding]:
    """Arrays that only the frames of the last exception lead to."""
    arrays = [array for array in record.memory.live if array.traceback]
    total = sum(array.bytes for array in arrays)
    if total < HELD_BYTES:
        return
    names = [array.names[0] for array in arrays if array.names]
    # Right after the exception the frames are what `%debug` needs; later they are only in the way.
    severity: Severity = "info" if record.failure is not None else "warning"
    yield Finding(
        kind="memory.held_by_traceback",
        severity=severity,
        title=f"The traceback of the last exception still holds {_arrays_text(arrays)} on the device: {listing(names)}",
        detail="Python keeps the local variables of every function in it until the next exception.",
        fix="The next exception frees it: run `1/0` in a cell of its own. Or forget it: `sys.last_traceback = "
        "sys.last_value = sys.last_exc = None; get_ipython().InteractiveTB.tb = None`.",
        site=next((array.site for array in arrays if array.site is not None), None),
        bytes=total,
        facts={"names": names[:8], "arrays": len(arrays), "shape": list(arrays[0].shape)},
    )


def _arrays_text(arrays: list[LiveArray]) -> str:
    """``float32[1024,1024] (4 MiB)``; of several their number and sum."""
    total = bytes_text(sum(array.bytes for array in arrays))
    if len(arrays) == 1:
        return f"{_type_text(arrays[0].dtype, arrays[0].shape)} ({total})"
    return f"{quantity(len(arrays), 'array')} ({total})"


def _growth(record: CellRecord) -> Iterator[Finding]:
    """Live bytes that rose with every run of this cell, by about the same."""
    after, before = record.memory.live_after_bytes, record.memory.live_before_bytes
    earlier = record.previous_live_bytes
    if after is None or before is None or len(earlier) < _RUNS - 1:
        return
    series = (*earlier, after)
    rises = [late - early for early, late in zip(series[-_RUNS:], series[-_RUNS + 1 :], strict=False)]
    rises.append(after - before)
    if min(rises) < HELD_BYTES or max(rises) - min(rises) > _SIMILAR * max(rises):
        return
    step = after - before
    roots: Counter[str] = Counter()
    for array in record.memory.live:
        if array.new and array.names:
            roots[re.split(r"[.\[]", array.names[0], maxsplit=1)[0]] += array.bytes
    keeper = next((name for name, size in roots.most_common(1) if 2 * size >= step), None)
    keeps = f", kept in {code(keeper)}" if keeper else ""
    lines = _lines_that_keep(record, keeper)
    yield Finding(
        kind="memory.growth",
        severity="warning",
        title=f"Each run of this cell leaves {bytes_text(step)} more on the device{keeps}",
        detail=f"Live arrays after its last {quantity(len(series[-4:]), 'run')}: "
        f"{', '.join(bytes_text(size) for size in series[-4:])}.",
        fix=(
            f"Empty {code(keeper)} at the start of the cell, or keep numbers in it (`float(x)`, `np.asarray(x)`) and not "
            "device arrays."
            if keeper
            else "Delete or overwrite what an earlier run made before making it again."
        ),
        site=lines[0] if lines else SourceSite(line=record.source_lines_start, cell=record.cell, file=record.file),
        related=lines[1:_MAX_RELATED],
        count=len(series),
        bytes=step,
        facts={"name": keeper, "live_bytes": list(series[-4:]), "per_run_bytes": step},
    )


def _lines_that_keep(record: CellRecord, name: str | None) -> tuple[SourceSite, ...]:
    """Lines of the cell on which something is put into a variable: ``name.append(…)``, ``name[…] = …``."""
    if name is None:
        return ()
    pattern = re.compile(
        rf"(?<![\w.]){re.escape(name)}(?:\.(?:append|extend|insert|add|update|setdefault)\(|\[[^\]]*\]\s*=[^=]|\s*\+?=[^=])"
    )
    found = [
        SourceSite(line=number, cell=record.cell, file=record.file)
        for number, text in enumerate(record.source.splitlines(), record.source_lines_start)
        if pattern.search(text)
    ]
    return tuple(found)


def _donation_unused(record: CellRecord, program: Program) -> Iterator[Finding]:
    """Donated arguments whose buffer no result can take over."""
    donated = [program.inputs[i] for i in program.donated if i < len(program.inputs)]
    results = _results(program)
    if program.kind == "eager" or not donated or results is None:
        return
    left = Counter((leaf.shape, leaf.dtype) for leaf in results)
    unused: list[Leaf] = []
    for leaf in donated:
        if left[(leaf.shape, leaf.dtype)] > 0:
            left[(leaf.shape, leaf.dtype)] -= 1
        else:
            unused.append(leaf)
    alias = program.memory.alias_bytes if program.memory is not None else None
    arguments = program.memory.argument_bytes if program.memory is not None else None
    if alias is not None and len(program.devices) == 1 and alias >= sum(leaf.bytes for leaf in donated) > 0:
        return  # newer compilers reuse a buffer for a result of another shape and the same size
    unshaped = bool(unused)
    if not unused and alias == 0 and arguments:
        unused = donated
    unused = [leaf for leaf in unused if leaf.shape] or (unused if len(unused) == len(donated) else [])
    if not unused:
        return
    name = function_name(record, program)
    subject = f"{code(unused[0].path)} {_type_text(unused[0].dtype, unused[0].shape)}"
    verb = "is"
    if len(unused) > 1:
        subject, verb = f"{subject} and {len(unused) - 1} more", "are"
    total = sum(leaf.bytes for leaf in unused)
    shape = "this shape and type" if len(unused) == 1 else "such shapes and types"
    gives = ", ".join(_type_text(leaf.dtype, leaf.shape) for leaf in results[:4]) + (", …" if len(results) > 4 else "")
    if unshaped:
        title = f"{subject} {verb} donated to {code(name)}, but no result has {shape}"
        detail = f"The {bytes_text(total)} cannot be reused; the results are {gives or 'none'}."
        fix = (
            f"Return the updated array from {code(name)}, or take {code(unused[0].path)} out of the donated arguments."
        )
    else:
        title = f"{subject} {verb} donated to {code(name)}, but the compiler cannot reuse the buffer"
        detail = f"The results have another sharding or layout, so the {bytes_text(total)} are allocated a second time."
        fix = f"Give the result the sharding of {code(unused[0].path)} (`out_shardings`), or do not donate it."
    lines = [*_donation_lines(record, program, name), program.definition, program.site]
    known = distinct_lines(lines)
    yield Finding(
        kind="memory.donation_unused",
        severity="warning",
        title=title,
        detail=detail,
        fix=fix,
        site=known[0] if known else None,
        related=known[1 : _MAX_RELATED + 1],
        program=name,
        count=len(unused),
        bytes=total,
        facts={
            "arguments": [leaf.path for leaf in unused[:8]],
            "shape": list(unused[0].shape),
            "dtype": unused[0].dtype,
            "results": [_type_text(leaf.dtype, leaf.shape) for leaf in results[:8]],
        },
    )


def _results(program: Program) -> tuple[Leaf, ...] | None:
    """The program's results; None if they are not known."""
    if program.outputs:
        return program.outputs
    if program.graph is None:
        return None
    values = [program.graph.values[i] for i in program.graph.outputs]
    return tuple(Leaf("result", value.shape, value.dtype) for value in values)


def _donation_lines(record: CellRecord, program: Program, name: str) -> list[SourceSite]:
    """Where the cell asks for the donation: the jit call whose options name it, the one of this function if there are
    several."""
    source = sources.parse(record.source, record.source_lines_start)
    asking = [
        call for call in source.all_calls if any(argument.startswith("donate_arg") for argument in call.arguments)
    ]
    definition = program.definition
    if len(asking) > 1:
        own = {name, *(function.name for function in source.functions if definition and definition.line in function)}
        naming = [call for call in asking if own & set(call.arguments)]
        decorating = [call for call in asking if definition and definition.line <= call.line <= definition.line + 3]
        asking = naming or decorating
    return [SourceSite(line=call.node.lineno, cell=record.cell, file=record.file) for call in asking[:1]]


def _type_text(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
