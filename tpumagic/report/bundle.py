"""The report as one bundle of MIME types: text, static HTML, JSON for the notebook extension, a live view in Colab."""

from __future__ import annotations

import json as json_module
import os
import sys
from typing import Any

from tpumagic.report import html, text
from tpumagic.report.limits import shrinking
from tpumagic.report.model import SIZE_LIMIT, Report

JSON_MIME = "application/vnd.tpumagic.report.v1+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def mimebundle(report: Report, *, json: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data and metadata for one display call, together at most 60 kB.

    json: with the report as data, which the extension for JupyterLab draws; VS Code never gets it, for it would show
    the data instead of the report. In Colab, where no extension can be, the live view is added if anywidget is there.
    """
    with_json = json and not in_vs_code()
    data: dict[str, Any] = {}
    for smaller in shrinking(report):
        # HTML is about as long as JSON: where one alone takes half the room, drawing the other is time lost.
        if with_json and smaller.size_bytes > SIZE_LIMIT // 2:
            continue
        data = {"text/plain": text.render(smaller), "text/html": html.render(smaller)}
        if with_json:
            data[JSON_MIME] = smaller.to_dict()
        if len(json_module.dumps(data, ensure_ascii=False).encode()) <= SIZE_LIMIT:
            break
    if in_colab():
        data.update(_view(report))
    return data, {}


def in_vs_code() -> bool:
    """Whether VS Code shows this kernel's output: it names the notebook in the user's namespace, and its environment
    variables reach kernels that it starts itself (not all of them on every system)."""
    return (
        "__vsc_ipynb_file__" in vars(sys.modules["__main__"])
        or "VSCODE_PID" in os.environ
        or "VSCODE_CWD" in os.environ
    )


def in_colab() -> bool:
    """Whether this is a Colab kernel."""
    return "google.colab" in sys.modules


def _view(report: Report) -> dict[str, Any]:
    try:
        from tpumagic.report.widget import ReportWidget
    except ImportError:
        return {}
    bundle, _ = ReportWidget(report)._repr_mimebundle_()  # pyright: ignore[reportPrivateUsage] - IPython's protocol
    return {WIDGET_MIME: bundle[WIDGET_MIME]}
