"""How the causes of a need of memory are told, and what helps against each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tpumagic import sources
from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import quantity
from tpumagic.numbers import bytes_text, capacity_text, factor_text, needed_text
from tpumagic.passes.oom_causes import Cause, waste
from tpumagic.passes.source_lookup import source_of
from tpumagic.passes.wording import array_type, code, function_name, listing
from tpumagic.plans import Answer, Buffer, Remedy

_TOLD = 0.01
"""Parts below 1 % of the need are left out."""
_ONE_LARGE = 0.25
"""An array of a quarter of the memory is worth making in blocks."""


def buffer_text(buffer: Buffer, *, size: bool = False) -> str:
    """``w` float32[8,8]``, or of what makes it: ``float32[8,8] of `dot_general` at In [1] line 3``. size: with its
    bytes."""
    text = array_type(buffer.dtype, buffer.shape)
    if buffer.name is not None:
        text = f"{code(buffer.name)} {text}"
    elif buffer.operation is not None:
        text += f" of {code(buffer.operation)}"
    if buffer.name is None and buffer.stack:
        text += f" at {buffer.stack[-1]}"
    if buffer.count > 1:
        text += f" and {buffer.count - 1} more like it"
    return f"{text} ({capacity_text(buffer.bytes)})" if size else text


def main_text(cause: Cause) -> str:
    """The largest cause, as the end of the title."""
    amount = capacity_text(cause.bytes)
    largest = buffer_text(cause.buffers[0]) if cause.buffers else ""
    each = f", the largest {largest}" if len(cause.buffers) > 1 else f": {largest}" if largest else ""
    match cause.name:
        case "no_donation":
            names = donated(cause)
            are = "are" if len(names) > 1 else "is"
            return f"{amount} are results that could take over the memory of {listing(names)}, which {are} not donated"
        case "residuals":
            return f"{amount} are kept for the backward pass{each}"
        case "padding":
            return f"{amount} are padding{f', most of it of {largest}' if largest else ''}"
        case "broadcast":
            return f"{amount} only repeat something smaller{each}"
        case "x64":
            return f"{amount} are 64-bit arrays{each}"
        case "arguments":
            return f"{amount} are arguments{each}"
        case "temp":
            return f"{amount} are {_made(cause)}{each}"


def cause_text(cause: Cause) -> str:
    """One sentence of the detail with the largest members of a cause."""
    amount = capacity_text(cause.bytes)
    members = "; ".join(buffer_text(one, size=True) for one in cause.buffers[:3])
    if len(cause.buffers) > 3:
        members += f"; {len(cause.buffers) - 3} more"
    members = f": {members}" if members else ""
    match cause.name:
        case "no_donation":
            names = donated(cause)
            keep = "keep their" if len(names) > 1 else "keeps its"
            return f"Not donated, {amount}: {listing(names, 5)} {keep} memory while results of the same type get their own."
        case "residuals":
            trips = next((one.trips for one in cause.buffers if one.trips), None)
            stacked = f", a slice for each of {trips} steps" if trips else ""
            return f"Kept for the backward pass{stacked}, {amount}{members}."
        case "padding":
            return f"Padding, {amount}{_padded_text(cause)}."
        case "broadcast":
            return f"Repeated values, {amount}{members}."
        case "x64":
            return f"64-bit arrays, which a TPU keeps as two of 32 bits, {amount}{members}."
        case "arguments":
            return f"Arguments, {amount}{members}."
        case "temp":
            return f"{_made(cause).capitalize()}, {amount}{members}."


def _made(cause: Cause) -> str:
    kinds = {one.kind for one in cause.buffers}
    if "output" not in kinds:
        return "temporaries"
    return "temporaries and results" if "temporary" in kinds else "results"


def _padded_text(cause: Cause) -> str:
    for worst in cause.buffers[:1]:
        if worst.logical_bytes:
            factor = factor_text(worst.bytes / worst.logical_bytes)
            sizes = f"{bytes_text(worst.bytes)} for {bytes_text(worst.logical_bytes)} of elements ({factor})"
            return f": {buffer_text(worst)} takes {sizes}"
    return ""


def donated(cause: Cause) -> list[str]:
    """Arguments that could be donated: whole ones (``state``) where several leaves of one could be."""
    leaves = [one.argument for one in cause.donations]
    roots = list(dict.fromkeys(root_of(one) for one in leaves))
    return [root if len(own := [one for one in leaves if root_of(one) == root]) > 1 else own[0] for root in roots]


def root_of(path: str) -> str:
    """``params`` of ``params['w'][0]``."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def holders_text(buffers: Iterable[Buffer], most: int = 4) -> str:
    """The largest of what is alive at the peak."""
    told = [buffer_text(one, size=True) for one in buffers]
    more = f"; {len(told) - most} more" if len(told) > most else ""
    return f"Alive at the peak: {'; '.join(told[:most])}{more}." if told else ""


def remedies_text(answer: Answer | None, available: int) -> str:
    """Which other ways of writing the program fit, where the compiler was asked; where none does, what comes nearest."""
    known = [(one.needed_bytes, one) for one in (answer.remedies if answer is not None else ()) if one.needed_bytes]
    known.sort(key=lambda pair: pair[0])
    told = [_remedy_text(needed, one, available) for needed, one in known if one.fits]
    if told:
        return f"It fits with {'; with '.join(told)}."
    nearest = [_remedy_text(needed, one, available) for needed, one in known[:1]]
    return f"No single change that was tried makes it fit; nearest comes {nearest[0]}." if nearest else ""


def _remedy_text(needed: int, remedy: Remedy, available: int) -> str:
    return f"{remedy.change} ({needed_text(needed, available)})"


def fix_text(record: CellRecord, program: Program, cause: Cause, available: int) -> str:
    """The change that is right for this cause and this program."""
    name = function_name(record, program)
    largest = cause.buffers[0] if cause.buffers else None
    match cause.name:
        case "no_donation":
            return _donate(program, name, cause)
        case "arguments":
            return _split(name, cause, available)
        case "padding" if largest is not None:
            return padding_fix(largest)
        case "broadcast":
            return (
                "Keep the axis at size 1 instead of repeating the values: the operations that follow broadcast it by "
                "themselves. Where it is summed over later, `jnp.einsum` needs no such array."
            )
        case "x64":
            return "Use 32-bit types for these arrays (`x.astype(jnp.float32)`), or leave `jax_enable_x64` off."
        case "residuals":
            return _recompute(record, program, cause, available)
        case _:
            return _in_blocks(name, largest, available) or _smaller(name, largest)


def _donate(program: Program, name: str, cause: Cause) -> str:
    roots = list(dict.fromkeys(root_of(one.argument) for one in cause.donations))
    positional = program.signature.positional if program.signature is not None else ()
    option = donate_option(roots, positional)
    names = listing(roots)
    return (
        f"If {names} {'are' if len(roots) > 1 else 'is'} not needed after the call, donate "
        f"{'them' if len(roots) > 1 else 'it'}: {code(f'jax.jit({name}, {option})')}, and go on with the result."
    )


def donate_option(roots: list[str], positional: tuple[str, ...]) -> str:
    """``donate_argnums=(0, 1)`` where all were given by position, else ``donate_argnames=('state',)``."""
    if roots and all(root in positional for root in roots):
        places = [positional.index(root) for root in roots]
        return f"donate_argnums={places[0] if len(places) == 1 else tuple(places)}"
    return f"donate_argnames={tuple(roots)!r}"


def _split(name: str, cause: Cause, available: int) -> str:
    largest = cause.buffers[0] if cause.buffers else None
    if largest is None or not largest.shape:
        return f"Split the arguments of {code(name)} over several devices with `NamedSharding`."
    root = root_of(largest.name) if largest.name and "*" in largest.name else largest.name or "x"
    devices = _power_of_two(math.ceil(1.25 * cause.bytes / available))
    axis = max(range(len(largest.shape)), key=lambda n: (largest.shape[n] % devices == 0, largest.shape[n]))
    spec = ", ".join("'x'" if n == axis else "None" for n in range(axis + 1))
    placed = f"jax.device_put({root}, NamedSharding(jax.make_mesh(({devices},), ('x',)), P({spec})))"
    inside = (
        f" They are more than one device has, so nothing inside {code(name)} helps." if cause.bytes > available else ""
    )
    smaller = ", or keep it in bfloat16" if largest.dtype == "float32" else ""
    return f"Split {code(root)} over several devices, for example `{placed}`{smaller}.{inside}"


def _power_of_two(count: int) -> int:
    return max(2, 1 << (count - 1).bit_length())


def _recompute(record: CellRecord, program: Program, cause: Cause, available: int) -> str:
    trips = next((one.trips for one in cause.buffers if one.trips), None)
    if trips is not None:
        call = _scan_call(record, [site for one in cause.buffers for site in one.stack])
        if call is not None and call.arguments:
            body = call.arguments[0]
            rest = ", ".join(("…", *(one for one in call.arguments[1:] if one.startswith("length="))))
            written = code(f"{call.callee}(jax.checkpoint({body}), {rest})")
            return f"Let the backward pass compute each step again instead of keeping it: {written}."
        return (
            "Let the backward pass compute each step again instead of keeping it: put `jax.checkpoint(…)` around the loop's "
            "body."
        )
    name = function_name(record, program)
    blocks = _in_blocks(name, cause.buffers[0], available)
    if blocks:
        return blocks
    functions = [site.function for one in cause.buffers[:1] for site in one.stack[-1:] if site.function]
    again = "Let the backward pass compute them again instead of keeping them: "
    if name in functions:  # of all of it the backward pass would keep the same when it computes it again
        return (
            f"{again}make each layer of {code(name)} a function of its own, and call it as `jax.checkpoint(layer)(…)`."
        )
    around = (
        code(f"jax.checkpoint({functions[0]})") if functions and functions[0].isidentifier() else "`jax.checkpoint(…)`"
    )
    return f"{again}use {around} for the part that makes them."


def _scan_call(record: CellRecord, sites: list[SourceSite]) -> sources.CallText | None:
    """The call of ``scan`` on one of the lines."""
    for site in sites:
        source = source_of(site, record)
        for call in source.calls(site.line) if source is not None else ():
            if call.callee.rpartition(".")[2] in ("scan", "map"):
                return call
    return None


def _in_blocks(name: str, buffer: Buffer | None, available: int) -> str:
    """Advice for one array that is too large by itself; empty for others."""
    if buffer is None or buffer.bytes < _ONE_LARGE * available or len(buffer.shape) < 2 or buffer.count > 1:
        return ""
    rows = buffer.shape[0] if buffer.trips is None else buffer.shape[1]
    return (
        f"Never make {array_type(buffer.dtype, buffer.shape)} as a whole: compute blocks of its {rows:,} rows one after the "
        "other, `jax.lax.map(jax.checkpoint(block), rows.reshape(blocks, -1, …))`, and keep only what is left of each."
    )


def _smaller(name: str, buffer: Buffer | None) -> str:
    types = " or compute in bfloat16" if buffer is not None and buffer.dtype == "float32" else ""
    return f"Give {code(name)} a smaller batch, split the batch over several devices{types}."


def padding_fix(buffer: Buffer) -> str:
    """How an array is laid out with less padding."""
    if len(buffer.shape) < 2 or waste(buffer) < buffer.bytes / 2:
        return ""
    longest = max(buffer.shape)
    if buffer.shape[-1] == longest:
        return "Join its small axes (`reshape`) so that the last two are long."
    return f"Arrange it so that the axis of {longest} is the last one, with no small axes behind it."


def parts_text(answer: Answer | None) -> str:
    """Arguments, results and temporaries of the plan."""
    plan = answer.plan if answer is not None else None
    if plan is None:
        return ""
    parts = [
        (plan.argument_bytes, "arguments"),
        (plan.output_bytes, "results"),
        (plan.temp_bytes, "temporaries"),
        (plan.constant_bytes, "constants"),
    ]
    told = [f"{capacity_text(size)} {what}" for size, what in parts if size and size >= _TOLD * plan.needed_bytes]
    text = f"In all {', '.join(told)}." if told else ""
    if plan.rematerialized:
        text += f" The compiler already computes {quantity(plan.rematerialized, 'operation')} twice to save memory."
    return text.strip()
