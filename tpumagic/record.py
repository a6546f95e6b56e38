"""When a cell has ended: all that is known of it, as one record."""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

from tpumagic.backends import Observation, Observing, Request
from tpumagic.device_sampling import DeviceSampler
from tpumagic.environment_watch import EnvironmentWatch
from tpumagic.events import (
    CellRecord,
    DeviceMemory,
    Failure,
    Host,
    LineTime,
    MemorySample,
    Program,
    SourceText,
    Transfer,
    Unavailable,
)
from tpumagic.plans import Target
from tpumagic.post_import import PostImport
from tpumagic.sampling import Sampler
from tpumagic.user_code import UserCode

_KEPT_SOURCES = 200
_RUNS_PER_SOURCE = 8
_OTHER_SOURCES = 20
_SOURCE_LIMIT = 500_000


@dataclass(frozen=True)
class Cell:
    """A cell about to run. count: its execution count; first_line: the number of its first line in ``file``; auto:
    nobody asked for this report by name. target: the TPU for which its programs are compiled as well, None for none;
    cost: the report waits for the estimate of their time."""

    source: str
    count: int | None = None
    name: str | None = None
    file: str | None = None
    first_line: int = 1
    auto: bool = False
    target: Target | None = None
    cost: bool = False


@dataclass(eq=False)
class Run:
    """A cell under observation. failed_s: when it failed, as ``perf_counter`` counts; None if nobody said so."""

    cell: Cell
    token: object
    started_s: float
    thread: int
    threads_before: frozenset[int]
    imports: PostImport
    environment: EnvironmentWatch
    observed: dict[str, Observing] = field(default_factory=dict[str, Observing])
    started_before: dict[str, bool] = field(default_factory=dict[str, bool])
    sampler: Sampler | None = None
    devices: DeviceSampler | None = None
    samples: tuple[MemorySample, ...] = ()
    failed_s: float | None = None


@dataclass(eq=False)
class Recorder:
    """Makes the record of each cell of a notebook. namespace: gives the user's variables."""

    user_code: UserCode
    backends: Mapping[str, Observing]
    namespace: Callable[[], dict[str, object]]
    _live_bytes: OrderedDict[str, list[int]] = field(default_factory=OrderedDict[str, list[int]])

    def record(
        self,
        run: Run,
        error: BaseException | None,
        wall_s: float,
        ready_s: float | None,
        lines: tuple[LineTime, ...],
        host: Host,
    ) -> tuple[CellRecord, tuple[Request, ...]]:
        """The record, and what the TPU compiler is to be asked of its programs."""
        namespace = {name: value for name, value in self.namespace().items() if type(name) is str}
        traceback = _last_traceback(error)
        out = namespace.get("Out")
        observations = [
            self._observation(name, backend, namespace, out if isinstance(out, dict) else None, traceback)
            for name, backend in run.observed.items()
        ]
        described = tuple(
            replace(b, started_here=not run.started_before.get(b.framework, False) if b.platform is not None else None)
            for backend in self.backends.values()
            if (b := backend.describe()) is not None
        )
        jitted, arrays = frozenset[str](), frozenset[str]()
        for backend in run.observed.values():
            more_jitted, more_arrays = backend.named_values(namespace)
            jitted, arrays = jitted | more_jitted, arrays | more_arrays
        memory = replace(observations[0].memory if observations else DeviceMemory(), samples=run.samples)
        programs, requests = _together(observations)
        transfers = tuple(t for o in observations for t in o.transfers)
        record = CellRecord(
            source=run.cell.source,
            cell=run.cell.count,
            file=run.cell.file,
            source_lines_start=run.cell.first_line,
            wall_s=wall_s,
            ready_s=ready_s,
            programs=programs,
            transfers=transfers,
            other_sources=self.other_sources(run.cell, programs, transfers, lines),
            conversions=tuple(c for o in observations for c in o.conversions),
            environment_sets=tuple(run.environment.sets),
            lines=lines,
            failure=self._failure(error, namespace),
            memory=memory,
            backends=described,
            host=host,
            jitted_names=jitted,
            array_names=arrays,
            previous_live_bytes=self._growth(run.cell, memory),
            unavailable=tuple(u for o in observations for u in o.unavailable),
        )
        return record, requests

    def other_sources(
        self,
        cell: Cell,
        programs: tuple[Program, ...],
        transfers: tuple[Transfer, ...] = (),
        lines: tuple[LineTime, ...] = (),
    ) -> tuple[SourceText, ...]:
        """Texts of the earlier cells and the files through which this cell's calls went."""
        places: dict[tuple[int | None, str | None], None] = {}
        for stack in (*(p.stack for p in programs), *(t.stack for t in transfers), *(line.stack for line in lines)):
            places.update(dict.fromkeys((site.cell, site.file) for site in stack))
        for program in programs:
            if program.definition is not None:
                places[program.definition.cell, program.definition.file] = None
        found: list[SourceText] = []
        for count, file in list(places)[:_OTHER_SOURCES]:
            if (count, file) == (cell.count, cell.file):
                continue
            text = self.user_code.text_of(count, file)
            if text is not None and len(text[0]) <= _SOURCE_LIMIT:
                found.append(SourceText(text[0], count, file, text[1]))
        return tuple(found)

    def _observation(
        self,
        name: str,
        backend: Observing,
        namespace: Mapping[str, object],
        out: Mapping[int, object] | None,
        traceback: TracebackType | None,
    ) -> Observation:
        try:
            return backend.observation(namespace, out=out, traceback=traceback)
        except Exception as error:
            return Observation(unavailable=(fault(f"what {name} did in this cell", error),))

    def _failure(self, error: BaseException | None, namespace: Mapping[str, object]) -> Failure | None:
        if error is None or _left_well(error):
            return None
        stack = self.user_code.traceback_stack(error.__traceback__)
        for backend in self.backends.values():
            if backend.loaded:
                try:
                    return backend.failure(error, stack, namespace)
                except BaseException:  # the exception itself may raise whatever it likes when it is read
                    break
        return Failure(type(error).__name__, message_of(error), stack)

    def _growth(self, cell: Cell, memory: DeviceMemory) -> tuple[int, ...]:
        """Live bytes after the earlier runs of the same source; notes this run's as well."""
        if memory.live_after_bytes is None:
            return ()
        key = hashlib.sha256(cell.source.encode("utf-8", "surrogatepass")).hexdigest()
        runs = self._live_bytes.setdefault(key, [])
        self._live_bytes.move_to_end(key)
        while len(self._live_bytes) > _KEPT_SOURCES:
            self._live_bytes.popitem(last=False)
        earlier = tuple(runs)
        runs.append(memory.live_after_bytes)
        del runs[:-_RUNS_PER_SOURCE]
        return earlier


def _together(observations: Sequence[Observation]) -> tuple[tuple[Program, ...], tuple[Request, ...]]:
    """All programs, and the requests with the programs' places among all."""
    programs: list[Program] = []
    requests: list[Request] = []
    for observation in observations:
        requests += [replace(asked, program=asked.program + len(programs)) for asked in observation.requests]
        programs += observation.programs
    return tuple(programs), tuple(requests)


def _last_traceback(error: BaseException | None) -> TracebackType | None:
    if error is not None:
        return error.__traceback__
    return getattr(sys, "last_traceback", None)


def _left_well(error: BaseException) -> bool:
    """Whether the cell only asked to leave, and not with an error."""
    return isinstance(error, SystemExit) and (error.code is None or (type(error.code) is int and error.code == 0))


def message_of(error: BaseException) -> str:
    """What an exception says; empty where its class fails to say it."""
    try:
        return str(error)
    except BaseException:  # an exception class of the user's may raise whatever it likes
        return ""


def fault(what: str, error: Exception) -> Unavailable:
    """A line for the report about an error of tpumagic's own."""
    text = f"{type(error).__name__}: {message_of(error)[:120]}"
    return Unavailable(what, f"a fault in tpumagic, {text}; please report it")
