"""The live view of a report for Colab, VS Code and ipywidgets layouts; needs anywidget.

Import this module only where a view is asked for: ipywidgets costs half a second.
"""
# pyright: basic, reportMissingImports=warning
# (anywidget and traitlets carry no types)

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpumagic.report import html, text
from tpumagic.report.model import Report

try:
    import anywidget
    import traitlets
except ImportError as error:
    raise ImportError('ReportWidget needs anywidget, which is not installed: pip install "tpumagic[widget]"') from error


class ReportWidget(anywidget.AnyWidget):
    """A report in an ipywidgets layout. Set ``report`` to show another one in its place.

    Its sections are those of the HTML report, plus sorting of the programs, folding of all sections and copying of a
    fix. Saved notebooks keep the static HTML beside it, since a view is gone when its kernel is.
    """

    _esm = Path(__file__).with_name("widget.js").read_text(encoding="utf-8")
    content = traitlets.Unicode().tag(sync=True)

    def __init__(self, report: Report, **traits: Any) -> None:
        super().__init__(content=html.render(report), **traits)
        self._report = report

    @property
    def report(self) -> Report:
        """The report that is shown."""
        return self._report

    @report.setter
    def report(self, report: Report) -> None:
        self._report = report
        self.content = html.render(report)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        found: Any = super()._repr_mimebundle_(**options)
        data, metadata = found if isinstance(found, tuple) else (found or {}, {})
        return {**data, "text/plain": text.render(self._report), "text/html": self.content}, metadata
