"""A device, or this machine, that has not the memory that a running program or an array asks for."""

from __future__ import annotations

from collections.abc import Iterator

from tpumagic.events import CellRecord, Failure, LiveArray, Program
from tpumagic.findings import Finding, quantity
from tpumagic.memory_errors import OutOfMemory
from tpumagic.numbers import bytes_text, needed_text
from tpumagic.passes.wording import array_type, callers_of, code, facts_of, function_name, listing, site_of

_MAX_RELATED = 5


def find(record: CellRecord, programs: list[Program], failure: Failure, said: OutOfMemory) -> Iterator[Finding]:
    """What was asked for, what was there, and who holds the rest."""
    expression = facts_of(failure)["expression"]
    subject = code(expression) if expression else "This line"
    live = sorted(record.memory.live, key=lambda array: -array.bytes)
    if said.space is None:
        title, detail, fix = _of_machine(record, programs, subject, said)
        live = []
    elif said.largest_free_bytes is not None:
        title = (
            f"{subject} asks for {bytes_text(said.needed_bytes)} in one piece, and the largest free piece of the device's "
            f"memory has {bytes_text(said.largest_free_bytes)}"
        )
        detail = f"{bytes_text(said.free_bytes)} are free in all, but in fragments between arrays that are alive."
        fix = (
            "Free arrays that are no longer needed before this line, make the large and lasting ones first, or restart the "
            "kernel: that leaves no fragments."
        )
    else:
        there = said.available_bytes if said.available_bytes is not None else said.free_bytes
        title = f"{subject} asks for {bytes_text(said.needed_bytes)}, and the device has {bytes_text(there)} for it"
        detail = (
            f"{bytes_text(said.free_bytes)} are free, of which {bytes_text(there)} can be reserved for the program."
            if said.free_bytes is not None and there is not None and there < said.free_bytes
            else ""
        )
        fix = _free(live)
    yield Finding(
        kind="oom.runtime",
        severity="error",
        title=title,
        detail=" ".join(filter(None, [detail, _alive(live)])),
        fix=fix,
        site=site_of(failure),
        related=callers_of(failure)[:_MAX_RELATED],
        bytes=said.needed_bytes,
        facts={
            "needed_bytes": said.needed_bytes,
            "available_bytes": said.available_bytes,
            "free_bytes": said.free_bytes,
            "largest_free_bytes": said.largest_free_bytes,
            "holders": [_name(array) for array in live[:8]],
        },
    )


def _alive(live: list[LiveArray]) -> str:
    if not live:
        return ""
    total = sum(array.bytes for array in live)
    told = "; ".join(
        f"{_name(array)} {array_type(array.dtype, array.shape)} ({bytes_text(array.bytes)})" for array in live[:3]
    )
    more = f"; {len(live) - 3} more" if len(live) > 3 else ""
    return f"{quantity(len(live), 'array')} with {bytes_text(total)} {'are' if len(live) > 1 else 'is'} alive: {told}{more}."


def _name(array: LiveArray) -> str:
    if array.names:
        return code(array.names[0]) + (" (in the traceback)" if array.traceback else "")
    return "an array without a name"


def _free(live: list[LiveArray]) -> str:
    names = [array.names[0] for array in live[:3] if array.names and array.names[0].isidentifier()]
    if names:
        return f"Free what is no longer needed before this line ({code(f'del {names[0]}')}), or make what it asks for smaller."
    shown = [array.names[0] for array in live[:3] if array.names and array.names[0].startswith(("Out[", "_"))]
    if shown:
        return f"IPython's output history holds {listing(shown)}: {code('%reset -f out')} frees it."
    return "Free what is no longer needed before this line, or make what it asks for smaller."


def _of_machine(record: CellRecord, programs: list[Program], subject: str, said: OutOfMemory) -> tuple[str, str, str]:
    """Title, detail and fix where it is no TPU that has too little memory."""
    title = f"{subject} asks for {bytes_text(said.needed_bytes)}, more than this machine has; no TPU is involved"
    verdicts = [
        f"On {answer.target.name}, {code(function_name(record, program))} "
        f"{'fits' if answer.plan.fits else 'does not fit'}: {needed_text(answer.plan.needed_bytes, answer.plan.available_bytes)}."
        for program in programs
        for answer in program.answers
        if answer.plan is not None
    ]
    fix = "Try it here with smaller arrays; shapes alone (`jax.ShapeDtypeStruct`) are enough for `%tpu_dryrun`."
    return title, " ".join(verdicts[:3]), fix
