"""A plan and its changes in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpumagic.runtime.journal import Change
from tpumagic.runtime.plan import Plan, Step
from tpumagic.runtime.requirements import LABELS


def preview(plan: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What setting up would do; environ as it is now."""
    if plan.problems:
        return (*problems(plan), "Nothing would be changed or started.")
    found = [f"Would {_step(step, environ.get(step.name))}: {step.why}." for step in plan.steps]
    if not plan.steps:
        found.append("Would change no variable.")
    if plan.repair is not None:
        found.append(plan.repair)
    engine = "" if plan.engine == plan.framework else f", start {LABELS[plan.engine]} under it"
    found.append(f"Would import {LABELS[plan.framework]}{engine} and multiply two matrices as a proof.")
    if plan.cpu is not None:
        found.append(f"It would run on the CPU: {plan.cpu}.")
    return (*found, *late(plan), *plan.notes, "Nothing was changed or started.")


def problems(plan: Plan) -> tuple[str, ...]:
    """Why nothing is started, each with what to do."""
    return tuple(text for problem in plan.problems for text in (problem.title, f"fix: {problem.fix}"))


def late(plan: Plan) -> tuple[str, ...]:
    """What only a new kernel can do."""
    return tuple(
        f"Needs a restart: {_in_imperative(step)} before the import, since {step.why}; it has been read already, so it "
        "was left as it is."
        for step in plan.restart_needed
    )


def done(changes: Sequence[Change]) -> tuple[str, ...]:
    """What a set-up changed."""
    return tuple(
        f"Cleared {change.name}, which was {change.before}."
        if change.after is None
        else f"Set {change.name}={change.after}{_formerly(change.before)}."
        for change in changes
    )


def undone(back: Sequence[Change], left: Sequence[Change]) -> tuple[str, ...]:
    """What was put back, and what was not."""
    return (
        *(
            f"{change.name} is no longer set, as before."
            if change.before is None
            else f"{change.name} is {change.before} again."
            for change in back
        ),
        *(f"{change.name} was left as it is: it has been changed by something else since." for change in left),
    )


def shell_commands(changes: Sequence[Change]) -> str | None:
    """The same for a shell, None if there is nothing: what a process sets ends with it."""
    commands = [
        f"unset {change.name}" if change.after is None else f"export {change.name}={change.after}" for change in changes
    ]
    return f"For a shell: {'; '.join(commands)}" if commands else None


def _step(step: Step, now: str | None) -> str:
    if step.value is None:
        return f"clear {step.name} (now {now})"
    return f"set {step.name}={step.value}{_formerly(now)}"


def _in_imperative(step: Step) -> str:
    return f"clear {step.name}" if step.value is None else f"set {step.name}={step.value}"


def _formerly(value: str | None) -> str:
    return "" if value is None else f" (was {value})"
