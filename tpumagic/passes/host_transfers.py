"""Host arrays that travel to the device with a call: large ones, and the same one again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, Leaf, Program, SourceSite, Stack, Transfer
from tpumagic.findings import INPUT_BYTES, REPETITIONS, TRANSFER_BYTES, Finding, quantity
from tpumagic.numbers import bytes_text
from tpumagic.passes.host_lines import CellLines, Repeat, jitted, loaded, made_in_loop
from tpumagic.sources import CallText

_LONGEST_NAME = 40


@dataclass(frozen=True)
class Upload:
    """A host array among the arguments of a call. text: the argument as written, None where the source is not known;
    repeat: a loop that hands over the same array each time, with how often, None if that is not known."""

    program: Program
    leaf: Leaf
    stack: Stack
    text: str | None
    repeat: Repeat | None = None
    times: int | None = None


def find(record: CellRecord) -> Iterator[Finding]:
    """At most one finding for each line and array."""
    lines = CellLines(record)
    uploads: dict[tuple[SourceSite, str], Upload] = {}
    for program in jitted(record):
        for stack, leaf in _host_leaves(program):
            upload = _upload(lines, program, stack, leaf)
            uploads.setdefault((stack[-1], upload.text or leaf.path), upload)
    told: set[SourceSite] = set()
    for upload in uploads.values():
        if upload.repeat is not None and upload.leaf.bytes >= INPUT_BYTES:
            told.add(upload.stack[-1])
            yield _again(upload, lines.name_of(upload.program))
    for upload in uploads.values():
        site = upload.stack[-1]
        if site not in told and upload.leaf.bytes >= TRANSFER_BYTES:
            told.add(site)
            yield _large_argument(upload, lines.name_of(upload.program))
    yield from _large_reads(record, told)


def _host_leaves(program: Program) -> Iterator[tuple[Stack, Leaf]]:
    for call in program.calls:
        if call.stack:
            for leaf in call.inputs or program.inputs:
                if leaf.origin == "host" and leaf.shape:
                    yield call.stack, leaf


def _upload(lines: CellLines, program: Program, stack: Stack, leaf: Leaf) -> Upload:
    source = lines.source(stack[-1])
    if source is None:
        return Upload(program, leaf, stack, None)
    argument = _argument(lines, program, stack[-1], leaf)
    if argument is None:
        return Upload(program, leaf, stack, None)
    text = ast.unparse(argument)
    if _makes(argument) or len(text) > _LONGEST_NAME:
        return Upload(program, leaf, stack, None)
    for repeat in lines.repeats(stack):
        if repeat.position != len(stack) - 1:
            break
        changes = made_in_loop(repeat.loop) | repeat.loop.targets
        is_header = stack[-1].line == repeat.loop.first and repeat.loop.kind != "comprehension"
        if is_header or loaded(argument) & changes or not loaded(argument):
            break
        if leaf.bytes < TRANSFER_BYTES and lines.has_steps_inside(repeat, stack):
            break  # once per epoch
        return Upload(program, leaf, stack, text, repeat, lines.times(repeat.loop, repeat.source))
    return Upload(program, leaf, stack, text)


def _makes(argument: ast.expr) -> bool:
    """Whether the argument is computed at the call, so that each call may get another array."""
    return any(isinstance(one, ast.Call | ast.BinOp | ast.Await | ast.NamedExpr) for one in ast.walk(argument))


def _argument(lines: CellLines, program: Program, site: SourceSite, leaf: Leaf) -> ast.expr | None:
    """The expression that a leaf came from, by name or position of its parameter."""
    source = lines.source(site)
    if source is None:
        return None
    span = source.span(site.line)
    name = program.signature.function.name if program.signature is not None else program.name
    calls = [
        call
        for call in source.calls(span.first, span.last)
        if call.callee.rpartition(".")[2] == name or call.callee in lines.jitted_callees
    ]
    if len(calls) != 1:
        return None
    return _given(calls[0], program, leaf)


def _given(call: CallText, program: Program, leaf: Leaf) -> ast.expr | None:
    root = leaf.path.partition("[")[0].partition(".")[0]
    for keyword in call.node.keywords:
        if keyword.arg == root:
            return keyword.value
    parameters = program.signature.positional if program.signature is not None else ()
    if any(isinstance(one, ast.Starred) for one in call.node.args):
        return None
    if root in parameters and parameters.index(root) < len(call.node.args):
        return call.node.args[parameters.index(root)]
    return next((one for one in call.node.args if ast.unparse(one) == leaf.path), None)


def _array(leaf: Leaf | Transfer) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}], {bytes_text(leaf.bytes)}"


def _again(upload: Upload, program: str) -> Finding:
    leaf, site = upload.leaf, upload.stack[-1]
    name = upload.text or leaf.path
    often = quantity(upload.times, "time") if upload.times is not None else "in every step"
    total = leaf.bytes * upload.times if upload.times is not None else None
    all_of_it = f", {bytes_text(total)} in all" if total is not None else ""
    header = upload.repeat.loop.first if upload.repeat is not None else site.line
    return Finding(
        kind="host.input_transfer",
        severity="warning",
        title=f"The same host array `{name}` is copied to the device again by each call of `{program}` in this loop.",
        detail=f"`{name}` ({_array(leaf)}) is a NumPy array and goes to the device {often}{all_of_it}.",
        fix=f"Put it on the device once, before the loop: `{name} = jax.device_put({name})`.",
        site=site,
        related=(SourceSite(header, site.cell, site.file, site.function),) if header != site.line else (),
        program=program,
        count=upload.times,
        bytes=total,
        facts={"name": name, "times": upload.times, "dtype": leaf.dtype, "shape": str(leaf.shape), "bytes": leaf.bytes},
    )


def _large_argument(upload: Upload, program: str) -> Finding:
    leaf = upload.leaf
    name = upload.text or leaf.path
    return Finding(
        kind="host.implicit_transfer",
        severity="warning",
        title=f"The call of `{program}` copies the host array `{name}` ({bytes_text(leaf.bytes)}) to the device.",
        detail=f"`{name}` is a NumPy array ({_array(leaf)}): each call that gets one waits for the copy first.",
        fix=f"Hand over an array that is on the device already: `jax.device_put({name})` before it is needed.",
        site=upload.stack[-1],
        program=program,
        bytes=leaf.bytes,
        facts={"name": name, "dtype": leaf.dtype, "shape": str(leaf.shape), "bytes": leaf.bytes},
    )


def _large_reads(record: CellRecord, told: set[SourceSite]) -> Iterator[Finding]:
    """Large arrays that ``print``, ``tolist`` and their like bring to the host on the way, again and again."""
    by_line: dict[SourceSite, list[Transfer]] = {}
    for transfer in record.transfers:
        large = transfer.direction == "to_host" and transfer.how == "read" and transfer.bytes >= TRANSFER_BYTES
        if large and not transfer.explicit and transfer.stack:
            by_line.setdefault(transfer.stack[-1], []).append(transfer)
    for site, transfers in by_line.items():
        count = sum(one.count for one in transfers)
        if site in told or count < REPETITIONS:
            continue
        first = transfers[0]
        name = first.name or "an array"
        yield Finding(
            kind="host.implicit_transfer",
            severity="warning",
            title=f"This line copies `{name}` ({bytes_text(first.bytes)}) from the device to the host {quantity(count, 'time')}.",
            detail=f"`{name}` is {_array(first)}; the host waits for it each time.",
            fix="Compute what you need of it on the device with jax.numpy, and read only that.",
            site=site,
            count=count,
            bytes=sum(one.bytes * one.count for one in transfers),
            facts={
                "name": first.name,
                "times": count,
                "dtype": first.dtype,
                "shape": str(first.shape),
                "bytes": first.bytes,
            },
        )
