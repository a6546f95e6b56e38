"""Something wrong with the machine, as a card tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

_ORDER = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Problem:
    """One sentence, and the command or line that mends it. kind: as a finding's, ``env.tpu_in_use``. severity: ``info``
    is worth knowing and hinders nothing."""

    title: str
    fix: str
    kind: str | None = None
    severity: Literal["error", "warning", "info"] = "warning"
    detail: str = ""


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Most severe first, else as they came; of several with the same title the first."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.title, problem)
    return tuple(sorted(first.values(), key=lambda problem: _ORDER[problem.severity]))
