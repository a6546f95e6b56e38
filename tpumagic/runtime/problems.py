"""What is wrong with the machine itself, or will be, whatever a notebook does on it."""

from __future__ import annotations

from collections.abc import Sequence

from tpumagic.runtime import device_problems, software_problems
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.problem import Problem, in_order


def find(environment: Environment) -> tuple[Problem, ...]:
    """All of it, most severe first. Nothing is started or opened."""
    return in_order((*device_problems.find(environment), *software_problems.find(environment)))


def merged(machine: Sequence[Problem], frameworks: Sequence[Problem]) -> tuple[Problem, ...]:
    """Those of the machine and those that the frameworks tell, most severe first. What both tell is told once: in the
    machine's words, which say what to do, unless it is only a note there."""
    told = {problem.kind for problem in machine if problem.severity != "info"}
    louder = [problem for problem in frameworks if problem.kind not in told]
    kinds = {problem.kind for problem in louder if problem.severity != "info"}
    return in_order((*(one for one in machine if one.severity != "info" or one.kind not in kinds), *louder))
