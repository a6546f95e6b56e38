"""Which of a cell's programs the TPU compiler is asked about, and what it has said already."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from tpumagic.backends import Request
from tpumagic.backends.jax.lowering import lower
from tpumagic.backends.jax.recording import RawProgram
from tpumagic.events import Program, Unavailable
from tpumagic.plans import Answer, CompilerError, Lowered, Target
from tpumagic.user_code import UserCode

_MESSAGE_LENGTH = 200
_PROGRAMS = 12
"""Of one cell, the largest: each takes the compiler seconds."""


def for_tpus(
    raws: Sequence[RawProgram],
    programs: Sequence[Program],
    target: Target | None,
    user_code: UserCode,
    told: MutableMapping[Any, Answer | None],
) -> tuple[tuple[Program, ...], tuple[Request, ...], tuple[Unavailable, ...]]:
    """The programs with the answers that are there already, requests for the others, and what was left out.

    Answered from its own text is every program made for a TPU, real or not. Asked for are those that such a compiler
    refused and, with a target, all that the user jitted and that were not made for it. told: answers of executables,
    which do not change, from earlier cells.
    """
    kinds = [raw.device_kind or _tpu_kind(raw.loaded) for raw in raws]
    if target is None and not any(kinds):
        return tuple(programs), (), ()
    from tpumagic.compiler.targets import target_for

    result = list(programs)
    requests: list[Request] = []
    for place in _largest(programs):
        raw, program, kind = raws[place], programs[place], kinds[place]
        own = target_for(kind, max(len(program.devices), raw.device_count)) if kind is not None else None
        found: list[Answer] = []
        if own is not None and raw.module is not None:
            requests.append(Request(place, raw.module, own))
        elif own is not None and (answer := _own_answer(raw, program, own, user_code, told)) is not None:
            found.append(answer)
        if target is not None and raw.traced is not None and not raw.compile_only and own != target:
            lowered = _lower(raw, target)
            if isinstance(lowered, Lowered):
                requests.append(Request(place, lowered, target))
            else:
                found.append(lowered)
        result[place] = replace(program, answers=tuple(found), compile_only=raw.compile_only)
    asked = [place for place, raw in enumerate(raws) if raw.traced is not None or raw.module is not None]
    left = len(asked) - len({request.program for request in requests} | {p for p in asked if result[p].answers})
    name = target.name if target is not None else "the TPU"
    why = f"the {_PROGRAMS} largest were; `%tpu_dryrun` asks for one by itself"
    return (
        tuple(result),
        tuple(requests),
        (Unavailable(f"{left} more programs compiled for {name}", why),) if left > 0 else (),
    )


def _own_answer(
    raw: RawProgram, program: Program, own: Target, user_code: UserCode, told: MutableMapping[Any, Answer | None]
) -> Answer | None:
    """What the executable's text says; read once, since that takes as long as a second for a large one."""
    from tpumagic.backends.jax.executables import answer
    from tpumagic.compiler.sites import localized

    if raw.executable is not None and raw.executable in told:
        return told[raw.executable]
    found = answer(raw, program, own)
    found = localized(found, user_code.user_site) if found is not None else None
    if raw.executable is not None:
        told[raw.executable] = found
    return found


def _tpu_kind(loaded: Any) -> str | None:
    """What JAX calls the TPUs of an executable; None for others."""
    try:
        device = loaded.local_devices()[0]
        return str(device.device_kind) if device.platform == "tpu" else None
    except Exception:  # an ahead-of-time program has no devices
        return None


def _largest(programs: Sequence[Program]) -> list[int]:
    """Places of the programs worth a compile, in the order in which the cell had them."""
    mine = [n for n, program in enumerate(programs) if program.kind != "eager"]
    mine.sort(key=lambda n: -sum(leaf.bytes for leaf in (*programs[n].inputs, *programs[n].outputs)))
    return sorted(mine[:_PROGRAMS])


def _lower(raw: RawProgram, target: Target) -> Lowered | Answer:
    assert raw.traced is not None
    try:
        lowered = lower(raw.name, raw.traced)
    except KeyboardInterrupt:  # the cell itself is over
        return Answer(target, "unavailable", why="it was interrupted before JAX had lowered it", cause="interrupted")
    except Exception as error:
        why = f"JAX did not lower it for a TPU ({_in_words(error)})"
        return Answer(target, "unavailable", why=why, cause="lowering")
    if isinstance(lowered, CompilerError):
        return Answer(target, "refused", error=lowered)
    if lowered.devices not in (1, target.devices):
        why = f"it runs on {lowered.devices} devices, and {target.name} has {target.devices}"
        return Answer(target, "unavailable", why=why, cause="devices")
    return lowered


def _in_words(error: Exception) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # the user's own exception, which fails to say what it is
        lines = []
    return ": ".join((type(error).__name__, *(line[:_MESSAGE_LENGTH] for line in lines[:1])))
