"""The report of one cell: versioned data, and its views."""

from __future__ import annotations

from tpumagic.report.build import build
from tpumagic.report.model import Report

__all__ = ["Report", "build"]
