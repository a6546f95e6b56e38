"""nbval: the report's JSON and pictures of widgets are not compared as text; what they say is, in text and HTML."""

import pytest


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Leave the JSON form of reports out of nbval's comparison: it holds times and no sanitizer reaches into it."""
    skipped = getattr(collector, "skip_compare", None)
    if skipped is not None:
        collector.skip_compare = (*skipped, "application/vnd.tpumagic.report.v1+json")  # pyright: ignore[reportAttributeAccessIssue]
