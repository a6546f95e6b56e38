"""One notebook's profiling: observers around a cell, then its record, its findings and its report."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import ClassVar

from tpumagic import passes, runtime, sources
from tpumagic.backends import Observation, Observing, backends
from tpumagic.device_sampling import DeviceSampler
from tpumagic.environment_watch import EnvironmentWatch
from tpumagic.events import (
    Backend,
    CellRecord,
    DeviceMemory,
    Doing,
    Failure,
    LineTime,
    MemorySample,
    Program,
    SourceText,
    Transfer,
    Unavailable,
)
from tpumagic.findings import Finding
from tpumagic.post_import import PostImport
from tpumagic.report import Report, build
from tpumagic.runtime.environment import variables
from tpumagic.runtime.process import find_process
from tpumagic.sampling import Sampler
from tpumagic.stack_dump import CodeLine
from tpumagic.user_code import UserCode

_KEPT_REPORTS = 50
_KEPT_SOURCES = 200
_RUNS_PER_SOURCE = 8
_OTHER_SOURCES = 20
_SOURCE_LIMIT = 500_000

_STANDING = frozenset({"env.cpu_fallback", "env.multihost_wait"})
"""Findings about the machine and not about the cell."""

_running_cell: ContextVar[object | None] = ContextVar("tpumagic_running_cell", default=None)


@dataclass(frozen=True)
class Cell:
    """A cell about to run. count: its execution count; first_line: the number of its first line in ``file``; auto:
    nobody asked for this report by name."""

    source: str
    count: int | None = None
    name: str | None = None
    file: str | None = None
    first_line: int = 1
    auto: bool = False


@dataclass(eq=False)
class _Run:
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


class Session:
    """Profiles cells one after another.

    namespace: gives the user's variables. reports: the last 50, newest last. Neither ``start`` nor ``finish`` raises:
    a fault of tpumagic's own becomes a line under "unavailable" in the report.
    """

    _observing: ClassVar[Session | None] = None
    """Hooks are process-wide: only one session observes at a time."""

    def __init__(self, user_code: UserCode, namespace: Callable[[], dict[str, object]]) -> None:
        self.user_code = user_code
        self.reports: list[Report] = []
        self._namespace = namespace
        self._backends = backends(user_code)
        self._run: _Run | None = None
        self._live_bytes: OrderedDict[str, list[int]] = OrderedDict()
        self._machine: runtime.Environment | None = None
        self._faults: list[Unavailable] = []
        self._told: set[str] = set()

    @property
    def running(self) -> bool:
        """A cell is being profiled."""
        return self._run is not None

    def start(self, cell: Cell) -> None:
        """Begin to observe; does nothing while another cell is being profiled."""
        if self._run is not None:
            return
        run = _Run(
            cell=cell,
            token=object(),
            started_s=perf_counter(),
            thread=threading.get_ident(),
            threads_before=frozenset(thread.ident or 0 for thread in threading.enumerate()),
            imports=PostImport({name: partial(self._observe, name) for name, backend in self._backends.items() if not backend.loaded}),
            environment=EnvironmentWatch(self.user_code, self._any_started, self._loaded),
        )  # fmt: skip
        self._run = run
        try:
            self._say_before(cell)
            if Session._observing is None:
                Session._observing = self
                self._install(run)
            else:
                self._faults.append(Unavailable("this cell", "another profile is running in this process"))
        except Exception as error:
            self._faults.append(_fault("parts of this cell", error))
        run.started_s = perf_counter()

    def _install(self, run: _Run) -> None:
        _running_cell.set(run.token)
        run.imports.install()
        run.environment.install()
        for name, backend in self._backends.items():
            if backend.loaded:
                self._observe(name)
        names = _assigned(run.cell)
        run.sampler = Sampler(self.user_code.lines_stack, self._doing, lambda: self._idle(names), run.thread)
        run.sampler.start()
        if _may_be_tpu_host():
            run.devices = DeviceSampler(self._memory_in_use, self._host_devices)
            run.devices.start()

    def _say_before(self, cell: Cell) -> None:
        """Warn before the cell runs of what may keep it from ever coming back: a worker that waits for the others."""
        if self._any_started() or not _may_be_tpu_host():
            return
        described = tuple(b for backend in self._backends.values() if (b := backend.describe()) is not None)
        record = CellRecord(
            source=cell.source,
            cell=cell.count,
            file=cell.file,
            source_lines_start=cell.first_line,
            backends=described,
            host=runtime.host(self._environment()),
        )
        for finding in passes.before(record):
            print(f"tpumagic: {finding.title} {finding.fix}", file=sys.stderr)

    def mark_end(self) -> None:
        """The cell has failed just now; what still happens until ``finish`` is not its own time."""
        if self._run is not None:
            self._run.failed_s = perf_counter()

    def finish(self, error: BaseException | None = None, *, wait: bool = True) -> Report:
        """End the observation and make the report. error: what ended the cell. wait: until what it dispatched is done;
        an interrupt ends that wait."""
        ended_s = perf_counter()
        run = self._run
        if run is None:
            raise RuntimeError("finish() without start()")
        if error is not None and run.failed_s is not None:
            ended_s = run.failed_s
        lines = run.sampler.stop() if run.sampler is not None else ()
        self._take_hooks_away(run)
        wall_s = ended_s - run.started_s
        ready_s: float | None = None
        if wait and not isinstance(error, KeyboardInterrupt):
            waited_s = self._wait(run)
            ready_s = wall_s + waited_s if waited_s is not None else None
        if run.devices is not None:
            run.samples = run.devices.stop()  # only now: devices still work while they are waited for
        try:
            record = self._record(run, error, wall_s, ready_s, lines)
        except Exception as fault:
            failure = Failure(type(error).__name__, message_of(error), ()) if error is not None else None
            unavailable = (_fault("what this cell did", fault),)
            record = CellRecord(
                run.cell.source, run.cell.count, wall_s=wall_s, failure=failure, unavailable=unavailable
            )
        finally:
            self._run = None
        found, faults = _run_passes(record)
        found = self._once(found, record)
        record = replace(record, unavailable=record.unavailable + faults)
        report = build(record, found, name=run.cell.name, environment=self._card(record))
        self.reports.append(report)
        del self.reports[:-_KEPT_REPORTS]
        return report

    def close(self) -> None:
        """Take every hook away, now; a cell being profiled gets no report."""
        if self._run is not None:
            if self._run.sampler is not None:
                self._run.sampler.stop()
            if self._run.devices is not None:
                self._run.devices.stop()
            self._take_hooks_away(self._run)
            self._run = None
        for backend in self._backends.values():
            backend.close()

    def _observe(self, name: str) -> None:
        run = self._run
        if run is None:
            return
        backend = self._backends[name]
        try:
            run.started_before[name] = backend.started()
            backend.start(lambda: self._mine(run))
            run.observed[name] = backend
        except Exception as error:
            run.observed.pop(name, None)
            backend.stop()
            self._faults.append(_fault(f"everything about {name}", error))

    def _mine(self, run: _Run) -> bool:
        """Whether what happens now belongs to the running cell: to its own context (tasks that it has started included)
        or to a thread that was not there before it."""
        if self._run is not run:
            return False
        if _running_cell.get() is run.token:
            return True
        ident = threading.get_ident()
        return ident != run.thread and ident not in run.threads_before

    def _once(self, found: tuple[Finding, ...], record: CellRecord) -> tuple[Finding, ...]:
        """What holds for the whole notebook is loud once, and again where a cell starts the framework anew."""
        if any(backend.started_here for backend in record.backends):
            self._told.clear()
        result: list[Finding] = []
        for finding in found:
            if finding.kind in _STANDING:
                if finding.kind in self._told:
                    finding = replace(finding, severity="info")
                self._told.add(finding.kind)
            result.append(finding)
        return passes.in_order(result)

    def _any_started(self) -> bool:
        return any(backend.loaded and backend.started() for backend in self._backends.values())

    def _loaded(self) -> tuple[str, ...]:
        return tuple(name for name, backend in self._backends.items() if backend.loaded)

    def _doing(self, lines: Sequence[CodeLine]) -> Doing:
        for backend in self._backends.values():
            if backend.loaded:
                return backend.doing(lines)
        return "host"

    def _idle(self, names: frozenset[str]) -> bool | None:
        answers = [backend.idle(self._namespace(), names) for backend in self._backends.values() if backend.loaded]
        known = [answer for answer in answers if answer is not None]
        return all(known) if known else None

    def _memory_in_use(self) -> tuple[MemorySample, ...]:
        return next((told for b in self._backends.values() if b.loaded and (told := b.memory_in_use())), ())

    def _host_devices(self) -> int:
        return sum(chip.model.devices_per_chip or 0 for chip in self._environment().chips)

    def _take_hooks_away(self, run: _Run) -> None:
        run.imports.remove()
        run.environment.remove()
        for backend in run.observed.values():
            backend.stop()
        if _running_cell.get() is run.token:
            _running_cell.set(None)
        if Session._observing is self:
            Session._observing = None

    def _wait(self, run: _Run) -> float | None:
        """Seconds until everything dispatched is done; None if it was not waited for."""
        began_s = perf_counter()
        try:
            for backend in run.observed.values():
                backend.wait()
        except KeyboardInterrupt:
            return None
        except Exception as error:
            self._faults.append(_fault("when the device was ready", error))
            return None
        return perf_counter() - began_s if run.observed else None

    def _record(
        self, run: _Run, error: BaseException | None, wall_s: float, ready_s: float | None, lines: tuple[LineTime, ...]
    ) -> CellRecord:
        namespace = {name: value for name, value in self._namespace().items() if type(name) is str}
        traceback = _last_traceback(error)
        out = namespace.get("Out")
        observations = [
            self._observation(name, backend, namespace, out if isinstance(out, dict) else None, traceback)
            for name, backend in run.observed.items()
        ]
        described = tuple(
            replace(b, started_here=not run.started_before.get(b.framework, False) if b.platform is not None else None)
            for backend in self._backends.values()
            if (b := backend.describe()) is not None
        )
        jitted, arrays = frozenset[str](), frozenset[str]()
        for backend in run.observed.values():
            more_jitted, more_arrays = backend.named_values(namespace)
            jitted, arrays = jitted | more_jitted, arrays | more_arrays
        memory = replace(observations[0].memory if observations else DeviceMemory(), samples=run.samples)
        faults, self._faults[:] = tuple(self._faults), []
        programs = tuple(p for o in observations for p in o.programs)
        transfers = tuple(t for o in observations for t in o.transfers)
        return CellRecord(
            source=run.cell.source,
            cell=run.cell.count,
            file=run.cell.file,
            source_lines_start=run.cell.first_line,
            wall_s=wall_s,
            ready_s=ready_s,
            programs=programs,
            transfers=transfers,
            other_sources=self._other_sources(run.cell, programs, transfers, lines),
            conversions=tuple(c for o in observations for c in o.conversions),
            environment_sets=tuple(run.environment.sets),
            lines=lines,
            failure=self._failure(error, namespace),
            memory=memory,
            backends=described,
            host=runtime.host(self._environment(anew=error is not None)),
            jitted_names=jitted,
            array_names=arrays,
            previous_live_bytes=self._growth(run.cell, memory),
            unavailable=tuple(u for o in observations for u in o.unavailable) + faults,
        )

    def _other_sources(
        self, cell: Cell, programs: tuple[Program, ...], transfers: tuple[Transfer, ...], lines: tuple[LineTime, ...]
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
            return Observation(unavailable=(_fault(f"what {name} did in this cell", error),))

    def _failure(self, error: BaseException | None, namespace: Mapping[str, object]) -> Failure | None:
        if error is None or _left_well(error):
            return None
        stack = self.user_code.traceback_stack(error.__traceback__)
        for backend in self._backends.values():
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

    def _environment(self, *, anew: bool = False) -> runtime.Environment:
        """The machine, looked at once, or anew where a cell has failed: somebody may hold the chip now that did not
        before. Its variables and this process are looked at each time."""
        if self._machine is None or anew:
            self._machine = runtime.detect()
        return replace(self._machine, variables=variables(os.environ), process=find_process(maps=""))

    def _card(self, record: CellRecord) -> dict[str, object]:
        machine = self._environment().to_dict()
        frameworks = {
            b.framework: {
                "version": b.version,
                "platform": b.platform,
                "device_count": b.device_count,
                "device_kind": b.device_kind,
            }
            for b in record.backends
        }
        return {**machine, "frameworks": frameworks}


def examine() -> tuple[runtime.Environment, tuple[Backend, ...], tuple[Finding, ...]]:
    """The machine, what the frameworks say of themselves, and what is wrong whatever a cell does. Starts nothing."""
    machine = runtime.detect()
    described = tuple(b for backend in backends(UserCode()).values() if (b := backend.describe()) is not None)
    return machine, described, tuple(passes.standing(runtime.host(machine), described))


def _may_be_tpu_host() -> bool:
    return (
        any(name.startswith(("TPU_", "MEGASCALE_")) for name in os.environ)
        or Path("/dev/vfio").exists()
        or Path("/dev/accel0").exists()
    )


def _assigned(cell: Cell) -> frozenset[str]:
    """Variables that the cell assigns: among them are the arrays its loops produce."""
    names = set[str]()
    for statement in sources.parse(cell.source, cell.first_line).statements:
        names |= sources.bound_names(statement)
    return frozenset(names)


def _last_traceback(error: BaseException | None) -> TracebackType | None:
    if error is not None:
        return error.__traceback__
    return getattr(sys, "last_traceback", None)


def _run_passes(record: CellRecord) -> tuple[tuple[Finding, ...], tuple[Unavailable, ...]]:
    """Every pass; one that fails costs its own findings and a line, not the report."""
    found: list[Finding] = []
    faults: list[Unavailable] = []
    for one_pass in passes.PASSES:
        try:
            found.extend(one_pass(record))
        except Exception as error:
            faults.append(_fault(f"findings of {one_pass.__module__.rsplit('.', 1)[-1]}", error))
    return passes.in_order(found), tuple(faults)


def _left_well(error: BaseException) -> bool:
    """Whether the cell only asked to leave, and not with an error."""
    return isinstance(error, SystemExit) and (error.code is None or (type(error.code) is int and error.code == 0))


def message_of(error: BaseException) -> str:
    """What an exception says; empty where its class fails to say it."""
    try:
        return str(error)
    except BaseException:  # an exception class of the user's may raise whatever it likes
        return ""


def _fault(what: str, error: Exception) -> Unavailable:
    text = f"{type(error).__name__}: {message_of(error)[:120]}"
    return Unavailable(what, f"a fault in tpumagic, {text}; please report it")
