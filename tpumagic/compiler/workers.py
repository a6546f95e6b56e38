"""The compiler's processes of one kernel: at most one that compiles and one that stands by."""

from __future__ import annotations

import threading

from tpumagic.compiler.libraries import Library
from tpumagic.compiler.process import Worker, WorkerEndedError, remove_leftovers


class Workers:
    """Starts, hands out and ends processes; safe to use from several threads. module: see ``worker``."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._standby: tuple[Library, Worker] | None = None
        self._busy: set[Worker] = set()
        self._closed = False
        self._swept = False

    def take(self, library: Library) -> Worker:
        """The process that stands by, else a new one; whoever takes it ends it with ``end``.

        Raises OSError, WorkerEndedError after ``close``.
        """
        with self._lock:
            standby, self._standby = self._standby, None
            if standby and not self._closed and standby[0] == library and standby[1].is_alive:
                self._busy.add(standby[1])
                return standby[1]
        if standby:
            standby[1].end()
        worker = self._new(library)
        with self._lock:
            if not self._closed:
                self._busy.add(worker)
                return worker
        worker.end()
        raise WorkerEndedError("tpumagic was unloaded")

    def end(self, worker: Worker) -> None:
        """Ends a process that was taken."""
        with self._lock:
            self._busy.discard(worker)
        worker.end()

    def end_busy(self) -> None:
        """Ends every process that was taken."""
        with self._lock:
            busy = tuple(self._busy)
        for worker in busy:
            self.end(worker)

    def stand_by(self, library: Library) -> None:
        """Gets a process ready unless there is one; returns at once. What goes wrong shows when one is taken."""
        with self._lock:
            standby = self._standby
            if self._closed or (standby and standby[0] == library and standby[1].is_alive):
                return
            self._standby = None
        if standby:
            standby[1].end()
        try:
            worker = self._new(library)
        except OSError:
            return
        with self._lock:
            if self._standby is None and not self._closed:
                self._standby = library, worker
                return
        worker.end()

    def is_standby_ready(self) -> bool:
        """Whether a process stands by and has imported what it needs."""
        with self._lock:
            if self._standby is None:
                return False
            try:
                return self._standby[1].make_ready(0).kind == "ready"
            except (TimeoutError, WorkerEndedError):
                return False

    def close(self) -> None:
        """Ends all processes for good; whoever waits for one of them sees it end."""
        with self._lock:
            self._closed = True
            standby, self._standby = self._standby, None
            busy = tuple(self._busy)
        for worker in busy:
            worker.kill()
        if standby:
            standby[1].end()

    def _new(self, library: Library) -> Worker:
        if not self._swept:
            self._swept = True
            remove_leftovers()
        return Worker(self._module, None if library.origin == "package" else library.path)
