"""The report of one cell as data: version 1 of the JSON that ``schema.json`` describes field by field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tpumagic import codec
from tpumagic.events import ProgramMemory, SourceSite, Unavailable
from tpumagic.findings import Finding
from tpumagic.report.target_model import ReportedTarget

VERSION = 1
SIZE_LIMIT = 60_000
"""Bytes: a notebook with two hundred reports must stay a file that opens."""


@dataclass(frozen=True)
class Cell:
    """Which cell. count: its execution count, None outside a kernel. source_sha256: of its text. failure: the type of
    the exception that ended it, None if none did. dry_run: its programs were compiled for a target, and none ran."""

    count: int | None = None
    source_sha256: str | None = None
    failure: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class Timing:
    """Seconds, None where not known, and counts.

    wall_s: the cell's own time; the device may have had work left then. ready_s: from the cell's start until all that
    it dispatched was done, None if nobody waited. trace_s, lower_s, compile_s: sums over all programs. run_s: ready_s
    without these three. compiles: programs built or loaded, of which cache_hits came from the persistent cache.
    """

    wall_s: float = 0.0
    ready_s: float | None = None
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    compiles: int = 0
    cache_hits: int = 0

    @property
    def build_s(self) -> float | None:
        """Trace, lower and compile together, as far as known."""
        return total((self.trace_s, self.lower_s, self.compile_s))


@dataclass(frozen=True)
class ReportedProgram:
    """One program. site: the line of the call. compiles: 0 if it was compiled before this cell. memory: bytes per
    device. targets: answers of the TPU compiler, one a target. outside: made by no cell (callback, background task)."""

    name: str
    site: SourceSite | None
    kind: Literal["jit", "eager", "aot"]
    compiles: int
    signature: str | None = None
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    memory: ProgramMemory | None = None
    targets: tuple[ReportedTarget, ...] = ()
    outside: bool = False

    @property
    def build_s(self) -> float | None:
        """Trace, lower and compile together, as far as known."""
        return total((self.trace_s, self.lower_s, self.compile_s))


@dataclass(frozen=True)
class ReportedArray:
    """A device array alive after the cell. name: the best path to it from the user's variables, None if none."""

    name: str | None
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    sharding: str | None = None


@dataclass(frozen=True)
class DeviceSamples:
    """One device over the time of the cell. device: its number in this process. at_s: seconds since the cell's start;
    the others have a value for each of these, None where that was not told, and are empty where it never was."""

    device: int
    limit_bytes: int | None = None
    at_s: tuple[float, ...] = ()
    bytes_in_use: tuple[int | None, ...] = ()
    duty_cycle_percent: tuple[float | None, ...] = ()
    tensorcore_percent: tuple[float | None, ...] = ()

    @property
    def highest_bytes(self) -> int | None:
        """The most that a sample saw in use; between samples it may have been more."""
        return max((size for size in self.bytes_in_use if size is not None), default=None)

    @property
    def mean_duty_cycle(self) -> float | None:
        """A share: 1 is all of the time."""
        return _mean_share(self.duty_cycle_percent)

    @property
    def mean_tensorcore(self) -> float | None:
        """A share: 1 is the peak of the matrix units."""
        return _mean_share(self.tensorcore_percent)


@dataclass(frozen=True)
class Memory:
    """Bytes per device, None where the device does not tell. peak_bytes: the process's high-water mark; cell_peak_bytes:
    the same if it rose in this cell. live_*_bytes: all live arrays together. live: the largest of them. samples: of
    each device, empty for a short cell."""

    limit_bytes: int | None = None
    peak_bytes: int | None = None
    cell_peak_bytes: int | None = None
    live_before_bytes: int | None = None
    live_after_bytes: int | None = None
    live: tuple[ReportedArray, ...] = ()
    samples: tuple[DeviceSamples, ...] = ()


@dataclass(frozen=True)
class Omitted:
    """How many more there were of each than the report has room for."""

    programs: int = 0
    errors: int = 0
    warnings: int = 0
    infos: int = 0
    live: int = 0
    unavailable: int = 0
    targets: int = 0


@dataclass(frozen=True)
class Report:
    """What one run of one cell came to. name: given by the user. environment: host, chips, frameworks with versions.
    findings: most severe first. unavailable: what could not be observed and why."""

    version: int = VERSION
    name: str | None = None
    cell: Cell = field(default_factory=Cell)
    environment: dict[str, object] = field(default_factory=dict[str, object])
    timing: Timing = field(default_factory=Timing)
    programs: tuple[ReportedProgram, ...] = ()
    memory: Memory = field(default_factory=Memory)
    findings: tuple[Finding, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    omitted: Omitted = field(default_factory=Omitted)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return codec.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """A report from what ``to_dict`` gave; fields that this tpumagic does not know are ignored.

        Raises ValueError, in one sentence, for another version or a damaged report.
        """
        check_version(data, "the report")
        return codec.decode(cls, data, "report")

    def to_text(self) -> str:
        """The report in lines of at most 100 characters."""
        from tpumagic.report import text

        return text.render(self)

    def __str__(self) -> str:
        return self.to_text()

    def to_html(self) -> str:
        """The report as static HTML with its own styles."""
        from tpumagic.report import html

        return html.render(self)

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a notebook shows when a report is the last value of a cell."""
        from tpumagic.report import bundle

        return bundle.mimebundle(self)

    @property
    def size_bytes(self) -> int:
        """Length of its JSON in UTF-8."""
        return len(json.dumps(self.to_dict(), ensure_ascii=False).encode())


def check_version(data: object, what: str) -> None:
    """Raise ValueError unless ``data`` is an object of this version."""
    if not isinstance(data, dict) or "version" not in data:
        raise ValueError(f"{what} has no version: it was not written by tpumagic")
    version: object = data["version"]  # pyright: ignore[reportUnknownVariableType]
    if version != VERSION or isinstance(version, bool):
        raise ValueError(f"{what} has version {version!r:.20}, and this tpumagic reads version {VERSION}")


def total(parts: tuple[float | None, ...]) -> float | None:
    """Sum of what is known; None if nothing is."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _mean_share(percents: tuple[float | None, ...]) -> float | None:
    known = [percent for percent in percents if percent is not None]
    return sum(known) / len(known) / 100 if known else None
