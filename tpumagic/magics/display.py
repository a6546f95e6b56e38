"""Puts a report under its cell: one display call, whatever the user's widgets capture at that moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpumagic.report import Report


def show(shell: Any, report: Report, *, widget: bool = False) -> None:
    """Display a report under the cell that runs. widget: with the live view, if anywidget is there."""
    from tpumagic.report.bundle import mimebundle

    data, metadata = mimebundle(report)
    if widget:
        _add_view(report, data, metadata)
    publish(shell, data, metadata)


def publish(shell: Any, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    """Display a bundle of MIME types under the cell that runs."""
    with _outside_output_widgets(shell):
        shell.display_pub.publish(data=data, metadata=metadata or {})


def say(sentence: str) -> None:
    """One sentence to the user that is neither a report nor a traceback."""
    # The user may have closed the stream, or replaced `print` or the stream by something of their own.
    with suppress(Exception):
        sys.stderr.write(sentence + "\n")


def _add_view(report: Report, data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Add the live view to a bundle; text and HTML stay beside it, for when the view's kernel is gone."""
    try:
        from tpumagic.report.widget import ReportWidget
    except ImportError:
        say("--widget needs anywidget (pip install anywidget); this is the report without it.")
        return
    view = ReportWidget(report)._repr_mimebundle_()
    if isinstance(view, tuple):
        view, view_metadata = view
        metadata.update(view_metadata)
    for mime, value in (view or {}).items():
        data.setdefault(mime, value)


@contextmanager
def _outside_output_widgets(shell: Any) -> Iterator[None]:
    """Let a display go to the cell although a thread or a task is inside a ``with output_widget:`` of the same cell.

    The frontend sends all output of a cell to the Output widget whose ``msg_id`` names it. Only the frontend is told
    that it is free for a moment: the widget's own state stays, so whoever holds it can let go meanwhile.
    """
    capturing = _capturing_widgets(shell)
    if capturing:  # what was printed inside belongs inside
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        for output in capturing:
            _tell_msg_id(output, "")
        yield
    finally:
        for output in reversed(capturing):
            _tell_msg_id(output, output.msg_id)


def _capturing_widgets(shell: Any) -> list[Any]:
    module = sys.modules.get("ipywidgets.widgets.widget")
    outputs = sys.modules.get("ipywidgets.widgets.widget_output")
    get_parent = getattr(shell, "get_parent", None)
    if module is None or outputs is None or get_parent is None:
        return []
    try:
        message = get_parent()["header"]["msg_id"]
        # ipywidgets 8, then 7
        instances = getattr(module, "_instances", None)
        widgets = list((module.Widget.widgets if instances is None else instances).values())
        return [one for one in widgets if isinstance(one, outputs.Output) and one.msg_id == message and one.comm]
    except Exception:  # private state of another package: without it a report may land in the widget
        return []


def _tell_msg_id(output: Any, message: str) -> None:
    if output.comm is not None:
        output.comm.send(data={"method": "update", "state": {"msg_id": message}, "buffer_paths": []}, buffers=[])
