"""Pure functions from a CellRecord to findings. Order of the list is the order within equal severity and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log10

from tpumagic.events import Backend, CellRecord, Host
from tpumagic.findings import COST_SECONDS, SEVERITY_ORDER, Finding
from tpumagic.passes import (
    compilation,
    environment,
    errors,
    memory,
    oom,
    precision,
    recompilation,
    sharding,
    target_memory,
    targets,
    unsupported,
)
from tpumagic.passes import host as host_passes

Pass = Callable[[CellRecord], Iterable[Finding]]

PASSES: tuple[Pass, ...] = (
    errors.find, oom.find, unsupported.find, environment.find, sharding.find, recompilation.find, compilation.find,
    targets.find, memory.find, target_memory.find, precision.find, host_passes.find,
)  # fmt: skip


def before(record: CellRecord) -> Iterable[Finding]:
    """What has to be said before a cell runs, since it may never come back."""
    return environment.find_before(record)


def standing(host: Host, backends: tuple[Backend, ...]) -> Iterable[Finding]:
    """What is wrong with the machine or a framework whatever a cell does."""
    return environment.find_standing(host, backends)


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Most severe first, then by cost; costs of the same order of magnitude stand in the order of their lines, so
    that two runs of a notebook tell them alike."""
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[int, int, int, int]:
    seconds = max(finding.seconds or 0.0, COST_SECONDS)
    size = max(finding.bytes or 0, 1)
    line = finding.site.line if finding.site is not None else 0
    return SEVERITY_ORDER[finding.severity], -int(log10(seconds / COST_SECONDS)), -int(log10(size)), line
