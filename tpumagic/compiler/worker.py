"""The compiler's process: compiles one program after another and says first how it fits, then what it costs.

Started by ``process.Worker``. The module named by its argument holds all that knows JAX; it has

- ``prepare()``: imports JAX, without loading the TPU's library;
- ``compile(program, topology, devices, options, dump, started)``: compiles StableHLO, calls ``started`` when the
  compiler is loaded, has it write its dump into a folder and gives the text of the finished program. Raises
  ``RefusedError`` with the compiler's words, ``UnusableError`` with a sentence.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import queue
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from tpumagic.compiler.protocol import (
    Lines,
    ProtocolError,
    RefusedError,
    Reply,
    Request,
    UnusableError,
    line,
    message,
)
from tpumagic.compiler.targets import Topology
from tpumagic.plans import Plan

BACKGROUND_NICENESS = 10
_PARENT_CHECK_S = 1.0
_PLAN_CHECK_S = 0.01
_PLAN_FILES = ("*after_optimizations_after_buffer_assignment.txt", "*oom_intermediate_module.txt")


class Backend(Protocol):
    """What the module that knows JAX offers."""

    def prepare(self) -> None: ...  # noqa: D102

    def compile(  # noqa: D102
        self,
        program: bytes,
        topology: Topology,
        devices: int,
        options: tuple[tuple[str, str], ...],
        dump: Path,
        started: Any,
    ) -> str: ...


class _Input(threading.Thread):
    """Reads requests, and ends the process with everything it has written when the parent is gone."""

    def __init__(self, descriptor: int, folder: str, parent: int) -> None:
        super().__init__(name="tpumagic input", daemon=True)
        self.requests: queue.Queue[Request] = queue.Queue()
        self._lines = Lines(descriptor)
        self._folder = folder
        self._parent = parent

    def run(self) -> None:
        while True:
            try:
                data = self._lines.read(_PARENT_CHECK_S)
            except TimeoutError:
                # The pipe stays open as long as a child of the parent holds it, so its end alone is not enough.
                if os.getppid() == self._parent:
                    continue
                data = None
            except (OSError, ProtocolError):
                data = None
            if data is None:
                _leave(self._folder)
            elif data == b"background":
                be_nice()
            else:
                try:
                    self.requests.put(message(Request, data))
                except ProtocolError:
                    _leave(self._folder)


def _leave(folder: str) -> None:
    """Ends the process and removes its folder: a new program takes its place first, so that no thread of the compiler
    writes there any more."""
    remove = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
    try:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", remove, folder])  # noqa: S606 - no shell is wanted
    finally:
        os._exit(1)


def be_nice() -> None:
    """Lets every thread of this process stand back behind others."""
    for task in glob.glob("/proc/self/task/*"):
        with contextlib.suppress(OSError, ValueError):
            os.setpriority(os.PRIO_PROCESS, int(os.path.basename(task)), BACKGROUND_NICENESS)
    # A session of its own may be weighed as one group, within which niceness says nothing.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(BACKGROUND_NICENESS))


class _Compile:
    """One compile in a thread, and what is said of it."""

    def __init__(self, backend: Backend, request: Request, output: Any) -> None:
        self._backend = backend
        self._request = request
        self._say = output
        self._dump = Path(request.dump)
        self._text: str | None = None
        self._error: Exception | None = None
        self._began_s = time.perf_counter()
        self._own_s = 0.0
        self._planned = False

    def run(self) -> None:
        thread = threading.Thread(target=self._compile, name="tpumagic compile", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_PLAN_CHECK_S)
            if not self._planned and not self._ran_out() and _is_whole(self._dump):
                self._tell_plan()
        if isinstance(self._error, RefusedError):
            self._tell_refusal(str(self._error))
        elif isinstance(self._error, UnusableError):
            self._say(Reply("failed", why=str(self._error)))
        elif self._error is not None:
            self._say(Reply("failed", why=_unexpected("The compiler could not be asked", self._error)))
        else:
            if not self._planned:
                self._tell_plan()
            self._tell_cost()

    def _compile(self) -> None:
        try:
            request = self._request
            self._text = self._backend.compile(
                Path(request.program).read_bytes(),
                request.topology,
                request.devices,
                request.options,
                self._dump,
                self._started,
            )
        except Exception as error:
            self._error = error

    def _started(self) -> None:
        self._began_s = time.perf_counter()
        self._say(Reply("started"))

    def _ran_out(self) -> bool:
        return bool(glob.glob(f"{glob.escape(str(self._dump))}/{_PLAN_FILES[1]}"))

    def _tell_plan(self) -> None:
        self._planned = True
        began_s = time.thread_time()
        try:
            plan = self._read_plan()
        except Exception as error:
            self._say(Reply("failed", why=_unexpected("The compiler's plan could not be read", error)))
            return
        self._own_s += time.thread_time() - began_s
        self._say(Reply("plan", plan=plan, seconds=self._seconds(), own_s=self._own_s))

    def _read_plan(self) -> Plan:
        from tpumagic.compiler.plan import read_plan

        return read_plan(self._dump, self._request.target)

    def _tell_refusal(self, text: str) -> None:
        from tpumagic.compiler.errors import explain

        plan: Plan | None = None
        if self._ran_out() or _is_whole(self._dump):
            # What the compiler says of itself is enough where its plan cannot be read.
            with contextlib.suppress(Exception):
                plan = self._read_plan()
        self._say(Reply("refused", plan=plan, error=explain(text), seconds=self._seconds(), own_s=self._own_s))

    def _tell_cost(self) -> None:
        seconds = self._seconds()
        began_s = time.thread_time()
        try:
            from tpumagic.compiler.cost import estimate

            cost = estimate(self._text or "", self._request.target)
        except Exception as error:
            self._say(Reply("failed", why=_unexpected("The compiler's estimate could not be read", error)))
            return
        self._own_s += time.thread_time() - began_s
        self._say(Reply("cost", cost=cost, seconds=seconds, own_s=self._own_s))

    def _seconds(self) -> float:
        return time.perf_counter() - self._began_s


def _is_whole(dump: Path) -> bool:
    """Whether the plan is on the disk, with no file of the dump still being written."""
    if not glob.glob(f"{glob.escape(str(dump))}/{_PLAN_FILES[0]}"):
        return False
    prefix = f"{os.path.realpath(dump)}/"
    for descriptor in glob.glob("/proc/self/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(prefix):
                return False
    return True


def _unexpected(what: str, error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{what}: {type(error).__name__}{f': {words[:300]}' if words else ''}."


def main(module: str, folder: str, parent: int) -> None:
    """Serves requests until the input ends. folder: of the process's own, made here and removed when it ends. parent:
    who started it."""
    os.mkdir(folder, 0o700)
    os.chdir(folder)
    pipe = os.dup(1)
    # What libraries print belongs to nobody.
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(reply: Reply) -> None:
        data = line(reply)
        with lock:
            while data:
                data = data[os.write(pipe, data) :]

    requests = _Input(0, folder, parent)
    requests.start()
    try:
        backend: Any = importlib.import_module(module)
        backend.prepare()
        for reader in ("plan", "cost", "errors"):
            importlib.import_module(f"tpumagic.compiler.{reader}")
    except UnusableError as error:
        say(Reply("failed", why=str(error)))
        return
    except Exception as error:
        say(Reply("failed", why=_unexpected("The compiler's process could not start", error)))
        return
    say(Reply("ready"))
    while True:
        request = requests.requests.get()
        if request.background:
            be_nice()
        try:
            _Compile(backend, request, say).run()
        finally:
            shutil.rmtree(request.dump, ignore_errors=True)
