"""One notebook's profiling: observers around a cell, then its record, its findings and its report."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import ClassVar

from tpumagic import answers, passes, runtime, sources
from tpumagic.backends import Observing, Request, backends
from tpumagic.device_sampling import DeviceSampler
from tpumagic.environment_watch import EnvironmentWatch
from tpumagic.events import Backend, CellRecord, Doing, Failure, MemorySample, Unavailable
from tpumagic.findings import Finding
from tpumagic.plans import Answer, Target
from tpumagic.post_import import PostImport
from tpumagic.record import Cell, Recorder, Run, fault, message_of
from tpumagic.report import Report, build
from tpumagic.runtime.environment import variables
from tpumagic.runtime.process import find_process
from tpumagic.sampling import Sampler
from tpumagic.stack_dump import CodeLine
from tpumagic.user_code import UserCode

_KEPT_REPORTS = 50

_STANDING = frozenset({"env.cpu_fallback", "env.multihost_wait"})
"""Findings about the machine and not about the cell."""

_running_cell: ContextVar[object | None] = ContextVar("tpumagic_running_cell", default=None)


class Session:
    """Profiles cells one after another.

    namespace: gives the user's variables. reports: the last 50, newest last. on_update: gets an
    earlier report and the one in its place when the TPU compiler's estimate has come, in another thread; where it is
    None, no estimate is made that nobody waits for. Neither
    ``start`` nor ``finish`` raises: a fault of tpumagic's own becomes a line under "unavailable" in the report.
    """

    _observing: ClassVar[Session | None] = None
    """Hooks are process-wide: only one session observes at a time."""

    def __init__(self, user_code: UserCode, namespace: Callable[[], dict[str, object]]) -> None:
        self.user_code = user_code
        self.reports: list[Report] = []
        self.on_update: Callable[[Report, Report], None] | None = None
        self._namespace = namespace
        self._backends = backends(user_code)
        self._recorder = Recorder(user_code, self._backends, namespace)
        self._run: Run | None = None
        self._updating = threading.Lock()
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
        run = Run(
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
            self._faults.append(fault("parts of this cell", error))
        run.started_s = perf_counter()

    def _install(self, run: Run) -> None:
        _running_cell.set(run.token)
        run.imports.install()
        run.environment.install()
        for name, backend in self._backends.items():
            if backend.loaded:
                self._observe(name)
        if run.cell.target is not None:
            answers.expect()
        names = _assigned(run.cell)
        run.sampler = Sampler(self.user_code.lines_stack, self._doing, lambda: self._idle(names), run.thread)
        run.sampler.start()
        if runtime.may_be_tpu_host():
            run.devices = DeviceSampler(self._memory_in_use, self._host_devices)
            run.devices.start()

    def _say_before(self, cell: Cell) -> None:
        """Warn before the cell runs of what may keep it from ever coming back: a worker that waits for the others."""
        if self._any_started() or not runtime.may_be_tpu_host():
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
        host = runtime.host(self._environment(anew=error is not None))
        try:
            record, requests = self._recorder.record(run, error, wall_s, ready_s, lines, host)
        except Exception as problem:
            failure = Failure(type(error).__name__, message_of(error), ()) if error is not None else None
            unavailable = (fault("what this cell did", problem),)
            record = CellRecord(
                run.cell.source, run.cell.count, wall_s=wall_s, failure=failure, unavailable=unavailable
            )
            requests = ()
        finally:
            self._run = None
        faults, self._faults[:] = tuple(self._faults), []
        record = replace(record, unavailable=record.unavailable + faults)
        if isinstance(error, KeyboardInterrupt):
            requests = ()
        return self._reported(run.cell, record, requests)

    def dry_run(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        target: Target,
        cost: bool = False,
        remedies: bool = False,
        cell: Cell,
    ) -> Report:
        """The report of a call that is traced, lowered and compiled for a target, and never run.

        cost: wait for the estimate of its time. remedies: compile it again with each change that would need less
        memory. cell: where the call stands. Raises what tracing the user's function raises, and ValueError where no
        framework that can do this has been imported.
        """
        began_s = perf_counter()
        backend = next((backend for backend in self._backends.values() if backend.loaded), None)
        if backend is None:
            raise ValueError("a dry run needs JAX; import it first")
        observation = backend.dry_run(function, args, kwargs, target)
        described = tuple(b for one in self._backends.values() if (b := one.describe()) is not None)
        record = CellRecord(
            source=cell.source,
            cell=cell.count,
            file=cell.file,
            source_lines_start=cell.first_line,
            wall_s=perf_counter() - began_s,
            programs=observation.programs,
            other_sources=self._recorder.other_sources(cell, observation.programs),
            backends=described,
            host=runtime.host(self._environment()),
            unavailable=observation.unavailable,
        )
        more = partial(self._with_remedies, backend, function, args, kwargs, observation.requests) if remedies else None
        return self._reported(replace(cell, cost=cost), record, observation.requests, dry_run=True, more=more)

    def _with_remedies(
        self,
        backend: Observing,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        requests: tuple[Request, ...],
        record: CellRecord,
    ) -> CellRecord:
        """The record with what changes to each program come to. An interrupt ends the measuring, not the report."""
        with suppress(KeyboardInterrupt):
            for request in requests:
                answer = record.programs[request.program].answers[-1]
                if answer.plan is not None:
                    variants = backend.variants(function, args, kwargs, request.lowered, answer)
                    record = answers.with_answer(record, request.program, answers.measured(answer, variants))
        return record

    def _reported(
        self,
        cell: Cell,
        record: CellRecord,
        requests: tuple[Request, ...],
        *,
        dry_run: bool = False,
        more: Callable[[CellRecord], CellRecord] | None = None,
    ) -> Report:
        """The report of a record, after the TPU compiler has been asked; kept, and followed by others for as long as
        estimates come in. more: what is asked then."""
        shown: list[tuple[CellRecord, tuple[Finding, ...], Report]] = []
        early: list[tuple[int, Answer]] = []

        def built(record: CellRecord, found: tuple[Finding, ...]) -> Report:
            return build(record, found, name=cell.name, environment=self._card(record), dry_run=dry_run)

        def late(place: int, answer: Answer) -> None:
            with self._updating:
                if not shown:
                    early.append((place, answer))
                    return
                record, found, before = shown[0]
                record = answers.with_answer(record, place, answer)
                if answer.error is not None:  # after its plan: what is laid out last did not fit
                    found = _judged_again(record, found)
                report = built(record, found)
                shown[0] = record, found, report
                self.reports[:] = [report if one is before else one for one in self.reports]
            if self.on_update is not None:
                self.on_update(before, report)

        try:
            # Nobody has asked for the report of an automatic profile, so no compile goes on behind it; nor where nobody
            # could ever see what it comes to.
            later = late if self.on_update is not None and not cell.auto else None
            record = answers.ask(record, requests, self.user_code, cost=cell.cost, late=later)
            if more is not None:
                record = more(record)
        except Exception as problem:
            record = replace(record, unavailable=(*record.unavailable, fault("the TPU compiler's answer", problem)))
        found, faults = _run_passes(record)
        found = self._once(found, record)
        record = replace(record, unavailable=record.unavailable + faults)
        with self._updating:
            report = built(record, found)
            shown.append((record, found, report))
            self.reports.append(report)
            del self.reports[:-_KEPT_REPORTS]
        for place, answer in early:
            late(place, answer)
        return shown[0][2]

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
            backend.start(lambda: self._mine(run), run.cell.target)
            run.observed[name] = backend
        except Exception as error:
            run.observed.pop(name, None)
            backend.stop()
            self._faults.append(fault(f"everything about {name}", error))

    def _mine(self, run: Run) -> bool:
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

    def _take_hooks_away(self, run: Run) -> None:
        run.imports.remove()
        run.environment.remove()
        for backend in run.observed.values():
            backend.stop()
        if _running_cell.get() is run.token:
            _running_cell.set(None)
        if Session._observing is self:
            Session._observing = None

    def _wait(self, run: Run) -> float | None:
        """Seconds until everything dispatched is done; None if it was not waited for."""
        began_s = perf_counter()
        try:
            for backend in run.observed.values():
                backend.wait()
        except KeyboardInterrupt:
            return None
        except Exception as error:
            self._faults.append(fault("when the device was ready", error))
            return None
        return perf_counter() - began_s if run.observed else None

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


def _assigned(cell: Cell) -> frozenset[str]:
    """Variables that the cell assigns: among them are the arrays its loops produce."""
    names = set[str]()
    for statement in sources.parse(cell.source, cell.first_line).statements:
        names |= sources.bound_names(statement)
    return frozenset(names)


def _judged_again(record: CellRecord, before: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings of a record that has changed; those about the machine are as loud as they were."""
    found, _ = _run_passes(record)
    standing = [finding for finding in before if finding.kind in _STANDING]
    return passes.in_order([*standing, *(finding for finding in found if finding.kind not in _STANDING)])


def _run_passes(record: CellRecord) -> tuple[tuple[Finding, ...], tuple[Unavailable, ...]]:
    """Every pass; one that fails costs its own findings and a line, not the report."""
    found: list[Finding] = []
    faults: list[Unavailable] = []
    for one_pass in passes.PASSES:
        try:
            found.extend(one_pass(record))
        except Exception as error:
            faults.append(fault(f"findings of {one_pass.__module__.rsplit('.', 1)[-1]}", error))
    return passes.in_order(found), tuple(faults)
