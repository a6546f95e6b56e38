"""Which of a cell's programs the TPU compiler is asked about, and what it has said already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    raws: Sequence[RawProgram], programs: Sequence[Program], target: Target | None, user_code: UserCode
) -> tuple[tuple[Program, ...], tuple[Request, ...], tuple[Unavailable, ...]]:
    """The programs with the answers that are there already, requests for the others, and what was left out.

    Answered from its own text is every program made for a TPU, real or not; asked for are those that such a compiler
    refused and, with a target, all that the user jitted.
    """
    if target is None and not any(raw.device_kind or _on_tpu(raw) for raw in raws):
        return tuple(programs), (), ()
    from tpumagic.backends.jax.executables import answer, target_of
    from tpumagic.compiler.sites import localized

    result = list(programs)
    requests: list[Request] = []
    for place in _largest(programs):
        raw, program = raws[place], programs[place]
        own = target_of(raw, max(len(program.devices), raw.device_count))
        if own is not None and raw.module is not None:
            requests.append(Request(place, raw.module, own))
        elif own is not None and (told := answer(raw, program, own)) is not None:
            result[place] = replace(program, answers=(localized(told, user_code.user_site),))
        elif target is not None and raw.traced is not None:
            lowered = _lower(raw, target)
            if isinstance(lowered, Lowered):
                requests.append(Request(place, lowered, target))
            else:
                result[place] = replace(program, answers=(lowered,))
        result[place] = replace(result[place], compile_only=raw.compile_only)
    asked = [place for place, raw in enumerate(raws) if raw.traced is not None or raw.module is not None]
    left = len(asked) - len({request.program for request in requests} | {p for p in asked if result[p].answers})
    name = target.name if target is not None else "the TPU"
    why = f"the {_PROGRAMS} largest were; `%tpu_dryrun` asks for one by itself"
    return (
        tuple(result),
        tuple(requests),
        (Unavailable(f"{left} more programs compiled for {name}", why),) if left > 0 else (),
    )


def _on_tpu(raw: RawProgram) -> bool:
    try:
        return bool(raw.loaded.local_devices()[0].platform == "tpu")
    except Exception:  # an ahead-of-time program has no devices
        return False


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
