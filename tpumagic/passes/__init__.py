"""Pure functions from a CellRecord to findings. Order of the list is the order within equal severity and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpumagic.events import CellRecord
from tpumagic.findings import SEVERITY_ORDER, Finding
from tpumagic.passes import compilation, environment, errors, host, memory, precision, recompilation, sharding

Pass = Callable[[CellRecord], Iterable[Finding]]

PASSES: tuple[Pass, ...] = (
    errors.find, environment.find, sharding.find, recompilation.find, compilation.find, memory.find, precision.find, host.find,
)  # fmt: skip


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Most severe first, then by seconds, then by bytes."""
    return tuple(sorted(found, key=lambda f: (SEVERITY_ORDER[f.severity], -(f.seconds or 0.0), -(f.bytes or 0))))
