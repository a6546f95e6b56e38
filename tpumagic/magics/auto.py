"""When ``%tpu_auto`` speaks: rarely, or it would be switched off. What it keeps to itself waits in ``%tpu_last``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpumagic.findings import COST_SECONDS, COST_SHARE, MEMORY_SHARE, REPETITIONS, Finding

if TYPE_CHECKING:
    from tpumagic.report import Report

WRONG_VALUES = frozenset(
    {
        "precision.int64_truncated",
        "precision.f64_truncated",
        "precision.bf16_update_lost",
        "precision.fp16_overflow",
        "precision.matmul_cancellation",
    }
)
"""Kinds that mean: the numbers are not those that the code says."""


class CauseHistory:
    """Remembers which causes the cells of a notebook had, to speak of one that keeps coming back."""

    def __init__(self) -> None:
        self._cells_with: Counter[tuple[str, str | None]] = Counter()

    def speaks(self, report: Report) -> bool:
        """Whether this report of an automatically profiled cell is to be shown."""
        causes = {(finding.kind, finding.program) for finding in report.findings if finding.severity != "info"}
        self._cells_with.update(causes)
        # Exactly the third time: it is said once, and not again under each further cell.
        returns = any(self._cells_with[cause] == REPETITIONS for cause in causes)
        return returns or any(_matters(finding, report) for finding in report.findings)


def _matters(finding: Finding, report: Report) -> bool:
    if finding.severity == "error":
        return True
    if finding.severity == "info":
        return False
    if finding.kind in WRONG_VALUES:
        return True
    if finding.seconds is not None and finding.seconds >= max(COST_SECONDS, COST_SHARE * report.timing.wall_s):
        return True
    limit = report.memory.limit_bytes
    return finding.bytes is not None and limit is not None and finding.bytes >= MEMORY_SHARE * limit
