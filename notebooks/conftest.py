"""nbval: what is not compared as text, and a TPU compiler that answers anew in each run."""

import importlib.util
import os
import tempfile

import pytest

SKIPPED = (
    # It holds times, and no sanitizer reaches into it; what it says is in text and HTML.
    "application/vnd.tpumagic.report.v1+json",
    # How long the compiler has been at work, if that is long.
    "stderr",
)

collect_ignore = [] if importlib.util.find_spec("libtpu") else ["02_will_it_fit.ipynb"]

# A report tells what was compiled: answers that an earlier run has kept are no part of that.
_kept = tempfile.TemporaryDirectory(prefix="tpumagic-notebooks-")
os.environ["XDG_CACHE_HOME"] = _kept.name


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Leave these out of nbval's comparison."""
    skipped = getattr(collector, "skip_compare", None)
    if skipped is not None:
        collector.skip_compare = (*skipped, *SKIPPED)  # pyright: ignore[reportAttributeAccessIssue]
