"""Costs that nobody waits for: one after another, behind everything else, and never while somebody asks for a plan."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from tpumagic.compiler import cache, conditions
from tpumagic.compiler.compiles import Compile, Limits, crashed, without_cost
from tpumagic.compiler.libraries import Library
from tpumagic.compiler.process import WorkerEndedError
from tpumagic.compiler.workers import Workers
from tpumagic.numbers import seconds_text
from tpumagic.plans import Answer, Lowered

_CHECK_S = 0.1


@dataclass
class Budget:
    """Seconds that the costs of one ``ask`` may still take, all together."""

    left_s: float


@dataclass
class Job:
    """A cost to find. answer: the plan. compile: already on its way; None if it has to start over."""

    key: cache.Key
    lowered: Lowered
    answer: Answer
    library: Library
    budget: Budget
    listeners: list[Callable[[Answer], None]] = field(default_factory=list[Callable[[Answer], None]])
    compile: Compile | None = None


class Background:
    """A queue of jobs and the thread that works on them while there are any."""

    def __init__(self, workers: Workers, limits: Limits) -> None:
        self._workers = workers
        self._limits = limits
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._running: Job | None = None
        self._thread: threading.Thread | None = None
        self._pauses = 0
        self._closed = False

    def add(self, jobs: Sequence[Job]) -> None:
        """Queues jobs; one for the same program joins the one that is there."""
        with self._changed:
            known = {job.key.digest: job for job in (*self._jobs, *([self._running] if self._running else []))}
            for job in jobs:
                if same := known.get(job.key.digest):
                    same.listeners += job.listeners
                    same.budget.left_s = max(same.budget.left_s, job.budget.left_s)
                elif job.compile is not None:
                    # At most one process compiles: the one that does already comes first.
                    self._jobs.appendleft(job)
                else:
                    self._jobs.append(job)
            if self._jobs and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="tpumagic costs", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """No process of the background compiles within this; what was compiling starts over afterwards."""
        with self._changed:
            self._pauses += 1
            while self._running is not None:
                self._stop_running()
                self._changed.wait(_CHECK_S)
            self._stop_waiting()
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Gives up all jobs; their listeners are not called."""
        with self._changed:
            self._closed = True
            self._stop_waiting()
            self._jobs.clear()
            self._stop_running()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _stop_running(self) -> None:
        if self._running is not None and self._running.compile is not None:
            self._running.compile.worker.kill()

    def _stop_waiting(self) -> None:
        """Ends what still compiles for jobs whose turn has not come."""
        for job in self._jobs:
            if job.compile is not None:
                self._workers.end(job.compile.worker)
                job.compile = None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            answer: Answer | None = None
            try:
                answer = self._run(job)
            except WorkerEndedError as ended:
                answer = None if self._is_unwanted() else crashed(job.answer, ended)
            except Exception as error:
                answer = without_cost(job.answer, f"for a fault of tpumagic's ({type(error).__name__})")
            finally:
                if job.compile is not None:
                    self._workers.end(job.compile.worker)
                    job.compile = None
            with self._changed:
                self._running = None
                if answer is None:
                    self._jobs.appendleft(job)
                listeners = tuple(job.listeners) if answer is not None and not self._closed else ()
                self._changed.notify_all()
            if answer is not None and listeners:
                cache.store(job.key, answer)
                for listener in listeners:
                    # Whoever listens must not take the other costs with him.
                    with contextlib.suppress(Exception):
                        listener(answer)

    def _is_unwanted(self) -> bool:
        """Whether somebody else needs the compiler, or nobody does any more."""
        with self._changed:
            return self._pauses > 0 or self._closed

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed and self._pauses:
                self._changed.wait()
            if self._closed or not self._jobs:
                self._thread = None
                return None
            self._running = self._jobs.popleft()
            return self._running

    def _run(self, job: Job) -> Answer | None:
        """The answer with or without its cost; None if somebody else needs the compiler."""
        if job.compile is None:
            if why := conditions.why_not_now():
                return without_cost(job.answer, f"as it could not start ({why})")
            job.compile = Compile(
                self._workers.take(job.library), job.lowered, job.answer.target, job.answer.compiler, self._limits
            )
            again = job.compile.plan(background=True)
            if not again.pending:
                return again if again.status != "unavailable" else without_cost(job.answer, "at a second try")
        self._workers.stand_by(job.library)
        began_s = time.monotonic()
        while True:
            try:
                return job.compile.cost(job.answer, _CHECK_S)
            except TimeoutError:
                now_s = time.monotonic()
                job.budget.left_s -= now_s - began_s
                began_s = now_s
                if job.budget.left_s <= 0:
                    return without_cost(job.answer, f"within {seconds_text(self._limits.background_s)}")
                if self._is_unwanted():
                    return None
