"""Where the reports of a run go: the terminal, a JSON file or standard output, an HTML page."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tpumagic.report import Report


class UnwritableError(ValueError):
    """A place that cannot be written; the message is one sentence for the user."""


@dataclass(frozen=True)
class Destinations:
    """What was asked for. file: as the user named it. json_file: the real standard output for ``--json -``. Without
    json and html the reports are printed as they come."""

    file: Path
    json_path: Path | None
    json_file: TextIO | None
    html_path: Path | None

    @classmethod
    def open(cls, file: Path, json_name: str | None, html_name: str | None) -> Destinations:
        """Make sure that everything can be written: nobody wants to hear of it after an hour of training.

        Raises UnwritableError. With ``-`` standard output is taken away from everything else in this process.
        """
        json_path = None if json_name in (None, "-") else _writable(json_name)
        html_path = None if html_name is None else _writable(html_name)
        json_file = _claim_standard_output() if json_name == "-" else None
        return cls(file, json_path, json_file, html_path)

    def show(self, where: str, report: Report) -> None:
        """Print a report as text under the place of its cell, if nothing else was asked for."""
        if self.json_path or self.json_file or self.html_path:
            return
        from tpumagic.report import text

        name = f" ({report.name})" if report.name else ""
        print(f"--- {where}{name}\n{text.render(report)}\n", flush=True)

    def write(self, reports: Sequence[Report]) -> None:
        """Write everything that was asked for. Raises UnwritableError."""
        if self.json_path or self.json_file:
            from tpumagic.report import store

            text = store.dumps(store.Run(file=str(self.file), cells=tuple(reports))) + "\n"
            if self.json_file:
                self.json_file.write(text)
                self.json_file.flush()
            if self.json_path:
                _write(self.json_path, text)
        if self.html_path:
            from tpumagic.report import html

            _write(self.html_path, html.page(reports, title=self.file.name))


def _writable(name: str) -> Path:
    """The full path of a file that can be made or overwritten, which it is not yet."""
    path = Path(name).absolute()
    if path.is_dir():
        raise UnwritableError(f"cannot write to {name}: it is a folder.")
    if not path.parent.is_dir():
        raise UnwritableError(f"cannot write to {name}: there is no folder {path.parent}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UnwritableError(f"cannot write to {name}: permission denied.")
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwritableError(f"cannot write to {path}: {error.strerror}.") from None


def _claim_standard_output() -> TextIO:
    """Keep standard output for the report: from now on, what anything in this process and its children (C code
    included) writes there goes to standard error. It stays so to the end, for text that is still in C's buffers."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in order with what is written to standard error
    return open(kept, "w", encoding="utf-8")
