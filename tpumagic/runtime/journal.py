"""What set-ups have changed in this process, and how it was before."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from tpumagic.runtime.plan import Step


@dataclass(frozen=True)
class Change:
    """One variable. before: its value before the first set-up that changed it, after: what the last one made of it;
    None is not set."""

    name: str
    before: str | None
    after: str | None


class Journal:
    """The changes of one mapping of variables."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._changes: dict[str, Change] = {}

    @property
    def changes(self) -> tuple[Change, ...]:
        """Everything that could be put back, in the order of the first change."""
        return tuple(self._changes.values())

    def apply(self, steps: Sequence[Step]) -> tuple[Change, ...]:
        """Do the steps; returns those that changed something."""
        done: list[Change] = []
        for step in steps:
            now = self._environ.get(step.name)
            if now == step.value:
                continue
            self._write(step.name, step.value)
            first = self._changes.get(step.name)
            # What somebody else wrote after us is what there was before.
            before = first.before if first is not None and first.after == now else now
            self._changes[step.name] = Change(step.name, before, step.value)
            done.append(Change(step.name, now, step.value))
        return tuple(done)

    def undo(self) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
        """Put everything back and forget it. Returns what was put back, and what was left alone since somebody else
        has changed it since."""
        back: list[Change] = []
        left: list[Change] = []
        for change in reversed(self._changes.values()):
            if self._environ.get(change.name) != change.after:
                left.append(change)
                continue
            self._write(change.name, change.before)
            back.append(change)
        self._changes.clear()
        return tuple(back), tuple(left)

    def _write(self, name: str, value: str | None) -> None:
        if value is None:
            self._environ.pop(name, None)
        else:
            self._environ[name] = value
