"""What ``%tpu_env`` and ``tpumagic env`` show: the card of this machine, how setting up a framework went, what it would
do, and what was put back.

All come as a bundle: text, HTML, and the same as JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tpumagic.frameworks import FRAMEWORKS
from tpumagic.magics import targets
from tpumagic.runtime.journal import Change, Journal
from tpumagic.runtime.plan import Plan, other_device_count

if TYPE_CHECKING:
    from tpumagic.plans import Target

_journal = Journal(os.environ)


def card() -> dict[str, Any]:
    """The card. It starts no framework and touches no chip."""
    from tpumagic import session
    from tpumagic.runtime import card as card_room
    from tpumagic.runtime import problems as problems_room
    from tpumagic.runtime.problem import Problem

    machine, backends, standing = session.examine()
    told = [Problem(found.title, found.fix, found.kind, found.severity, found.detail) for found in standing]
    problems = problems_room.merged(problems_room.find(machine), told)
    target = targets.default()
    in_words = targets.in_words(target) if target is not None else None
    return {
        "text/plain": card_room.text(machine, backends, problems, in_words),
        "text/html": card_room.html(machine, backends, problems, in_words),
        "application/json": {
            **machine.to_dict(),
            "target": asdict(target) if target is not None else None,
            "frameworks": [{**asdict(one), "settings": dict(one.settings)} for one in backends],
            "problems": [asdict(problem) for problem in problems],
        },
    }


def set_target(target: Target | None) -> dict[str, Any]:
    """Make a target the default of this process, or take the default away with None; tells which it is now."""
    before = targets.default()
    targets.set_default(target)
    if target is not None:
        said = f"Target {targets.in_words(target)}."
    elif before is not None:
        said = f"{before.name} is no longer the default target."
    else:
        said = "There is no default target."
    return _bundle((said,), {"ok": True, "target": asdict(target) if target is not None else None})


def preview(framework: str, target: Target | None = None) -> dict[str, Any]:
    """What setting up a framework (one of FRAMEWORKS) would do; nothing is changed or started."""
    from tpumagic.runtime import plan_text

    made = _plan(framework, target)
    return _bundle(plan_text.preview(made, os.environ), {"ok": not made.problems, "plan": asdict(made)})


def set_up(
    framework: str,
    cache: str | None = None,
    names: MutableMapping[str, Any] | None = None,
    target: Target | None = None,
    *,
    for_shell: bool = False,
) -> dict[str, Any]:
    """Set a framework up (one of FRAMEWORKS) and tell how it went. names: the notebook's variables. target: becomes the
    default, and the CPU's devices as many as its own. for_shell: say the variables again as a shell sets them. Never
    raises."""
    from tpumagic.backends import set_up as room
    from tpumagic.backends.jax.setup import unusable
    from tpumagic.runtime import plan_text

    made = _plan(framework, target)
    facts: dict[str, Any] = {"plan": asdict(made), "changed": []}
    if made.problems:
        return _bundle(plan_text.problems(made), {**facts, "ok": False, "problem": made.problems[0].title})
    no_cache = unusable(cache) if cache is not None else None
    if no_cache is not None:
        return _bundle((no_cache,), {**facts, "ok": False, "problem": no_cache})
    targeted: tuple[str, ...] = ()
    if target is not None:
        targets.set_default(target)
        targeted = (f"Target {targets.in_words(target)}.",)
    changed = _journal.apply(made.steps)
    result = room.start(framework, cache, names, tpu=made.cpu is None)
    on_cpu = result.backend is not None and result.backend.platform == "cpu"
    if on_cpu and (result.warning is None or made.cpu is not None):
        # What the machine lacks says more than the framework's own error about it.
        result = replace(result, warning=f"Not on a TPU, but on cpu: {made.cpu or 'no reason is known'}.")
    count = result.backend.device_count if result.backend is not None and result.backend.framework == "jax" else None
    notes = list(made.notes)
    if on_cpu and target is not None and count not in (None, target.devices):
        # Also where the variables came in time: the notebook may have set JAX's own option.
        notes.append(other_device_count(count, target.devices))
    told = (*targeted, *plan_text.done(changed), *room.lines(result), *plan_text.late(made), *dict.fromkeys(notes))
    if changed:
        shell = plan_text.shell_commands(changed) if for_shell else None
        told = (*told, shell or "`%tpu_env --undo` puts the variables back.")
    return _bundle(told, {**facts, **result.to_dict(), "changed": _changes(changed)})


def undo() -> dict[str, Any]:
    """Put back every variable and setting that set-ups have changed in this process, and take the default target away.
    What was started goes on."""
    from tpumagic.backends.jax.setup import turn_cache_back
    from tpumagic.runtime import plan_text

    back, left = _journal.undo()
    cache = turn_cache_back()
    told = (*plan_text.undone(back, left), *((cache,) if cache else ()))
    target = targets.default()
    targets.set_default(None)
    if told:
        told = (*told, "What has been imported or started stays so until the kernel is restarted.")
    if target is not None:
        told = (f"{target.name} is no longer the default target.", *told)
    told = told or ("There is nothing to put back: %tpu_env has changed nothing in this process.",)
    return _bundle(told, {"ok": True, "undone": _changes(back), "left": _changes(left), "cache": cache})


def _plan(framework: str, target: Target | None) -> Plan:
    from tpumagic import runtime
    from tpumagic.backends.set_up import describe_imported
    from tpumagic.runtime.plan import plan

    assert framework in FRAMEWORKS
    devices = target.devices if target is not None else None
    return plan(framework, runtime.detect(), os.environ, frozenset(sys.modules), describe_imported(), devices)


def _changes(changes: tuple[Change, ...]) -> list[dict[str, str | None]]:
    return [asdict(change) for change in changes]


def _bundle(sentences: tuple[str, ...], facts: dict[str, Any]) -> dict[str, Any]:
    from tpumagic.backends.set_up import html_of

    return {"text/plain": "\n".join(sentences), "text/html": html_of(sentences), "application/json": facts}
