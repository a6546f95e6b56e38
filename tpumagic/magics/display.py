"""Puts a report under its cell: one display call, whatever the user's widgets capture at that moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tpumagic.numbers import seconds_text

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


class Waiting:
    """A line that says how long the TPU compiler has been at work, while it is being waited for; none for short waits.

    It is written over again and again, and its last state stays: that the wait is over.
    """

    _FIRST_S = 2.0
    _AGAIN_S = 5.0

    def __enter__(self) -> None:
        self._done = threading.Event()
        self._began_s = perf_counter()
        self._thread = threading.Thread(target=self._tell, name="tpumagic waiting", daemon=True)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _tell(self) -> None:
        if self._done.wait(self._FIRST_S):
            return
        how = "interrupt the cell to go on without what is still to come"
        while True:
            self._write(f"\rtpumagic: the TPU compiler has been at work for {self._so_far()}; {how}.")
            if self._done.wait(self._AGAIN_S):
                break
        self._write(f"\r{f'tpumagic: the TPU compiler was at work for {self._so_far()}.':<100}\n")

    def _so_far(self) -> str:
        return seconds_text(round(perf_counter() - self._began_s))

    def _write(self, text: str) -> None:
        with suppress(Exception):  # as in `say`
            sys.stderr.write(text)
            sys.stderr.flush()


def update_views(before: Report, report: Report) -> None:
    """Show a report in place of an earlier one in every live view of that; other outputs stay as they are. Called in any
    thread."""
    # The views themselves are known to ipywidgets alone: frontends make some from a bundle, users make others.
    module = sys.modules.get("tpumagic.report.widget")
    if module is None:
        return
    with suppress(Exception):  # a view whose frontend has gone is nobody's loss
        for view in _widgets():
            if isinstance(view, module.ReportWidget) and view.report is before:
                view.report = report


def _widgets() -> list[Any]:
    """Every widget of ipywidgets in this process, 8 or 7."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return []
    instances = getattr(module, "_instances", None)
    return list((module.Widget.widgets if instances is None else instances).values())


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
    outputs = sys.modules.get("ipywidgets.widgets.widget_output")
    get_parent = getattr(shell, "get_parent", None)
    if outputs is None or get_parent is None:
        return []
    try:
        message = get_parent()["header"]["msg_id"]
        return [one for one in _widgets() if isinstance(one, outputs.Output) and one.msg_id == message and one.comm]
    except Exception:  # private state of another package: without it a report may land in the widget
        return []


def _tell_msg_id(output: Any, message: str) -> None:
    if output.comm is not None:
        output.comm.send(data={"method": "update", "state": {"msg_id": message}, "buffer_paths": []}, buffers=[])
