"""One process of the compiler, as the kernel sees it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tpumagic
from tpumagic.compiler.protocol import Lines, ProtocolError, Reply, Request, line, message

FOLDER_PREFIX = "tpumagic-compiler-"

_BOOT = (
    "import sys; sys.path += [path for path in sys.argv[4:] if path not in sys.path];"
    "from tpumagic.compiler.worker import main; main(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
)
"""The kernel's own folders come last, so that nothing in them takes the place of a module that Python brings."""

_FOREIGN = ("XLA_", "JAX_", "TPU_", "PJRT_", "LIBTPU_", "MEGASCALE_", "CLOUD_TPU_")
_FOREIGN_PYTHON = {"PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONPROFILEIMPORTTIME"}
_FLAGS = "LIBTPU_INIT_ARGS"
_STDERR_BYTES = 64 * 1024


class WorkerEndedError(Exception):
    """The process is gone. The message says how, without a full stop. signal: the one that ended it, if one did."""

    def __init__(self, text: str, signal: int | None = None) -> None:
        super().__init__(text)
        self.signal = signal


def flags() -> str:
    """The user's flags for libtpu. They count for every program on a TPU, so they count here as well."""
    return os.environ.get(_FLAGS, "")


def environment(library: Path | None, folder: str) -> dict[str, str]:
    """What the process sees.

    The user's flags for libtpu pass. Those for XLA do not: they are for the CPU's compiler, and one that it does not
    know ends the process. Nor do settings of JAX and of the TPU's runtime: here there is no TPU to set up.
    library: libtpu.so to load, None for the one that JAX finds.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _FOREIGN_PYTHON and (name == _FLAGS or not name.startswith(_FOREIGN))
    }
    if paths := _elsewhere(kept.pop("PYTHONPATH", "").split(os.pathsep)):
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Without these libtpu complains that it does not know which machine it is on.
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": folder,
        "TPU_STDERR_LOG_LEVEL": "2",
        "TMPDIR": folder,
        "PYTHONSAFEPATH": "1",
    }
    if library is not None:
        kept["TPU_LIBRARY_PATH"] = str(library)
    return kept


def _elsewhere(paths: Sequence[str]) -> list[str]:
    """Folders to import from, absolute, without the working directory, whose files are the user's."""
    try:
        here = os.getcwd()
        absolute = [os.path.join(here, path) for path in paths if path]
        return [path for path in absolute if os.path.realpath(path) != os.path.realpath(here)]
    except OSError:  # it is gone
        return [path for path in paths if os.path.isabs(path)]


class Worker:
    """Starts the process at once; it imports its framework while the caller goes on. Raises OSError.

    module: what knows the framework (``worker.Backend``). library: libtpu.so, None for the one that JAX finds.
    """

    def __init__(self, module: str, library: Path | None = None) -> None:
        self._owner = os.getpid()
        self._compiles = 0
        self._ready = False
        # The process makes it: a kernel that is killed just now leaves no folder without somebody to remove it.
        self.folder = os.path.join(tempfile.gettempdir(), f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-c", _BOOT, module, self.folder, str(os.getpid()), *_import_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                cwd="/",
                env=environment(library, self.folder),
                # Ctrl-C in a terminal goes to a whole group: it is for the cell, which decides what ends.
                start_new_session=True,
            )
        except BaseException:
            self._stderr.close()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._lines = Lines(self._process.stdout.fileno())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def make_ready(self, timeout_s: float) -> Reply:
        """Waits until the framework is imported: ``ready`` or ``failed``. Raises as ``receive``."""
        if self._ready:
            return Reply("ready")
        reply = self.receive(timeout_s)
        self._ready = reply.kind == "ready"
        return reply

    def new_program(self, stablehlo: bytes) -> tuple[str, str]:
        """Puts a program where the process can read it: its file, and an empty folder for the dump. Raises OSError."""
        self._compiles += 1
        program = f"{self.folder}/program"
        Path(program).write_bytes(stablehlo)
        dump = f"{self.folder}/dump_{self._compiles}"
        os.mkdir(dump)
        return program, dump

    def send(self, request: Request) -> None:
        """Asks for a compile. Raises WorkerEndedError."""
        self._write(line(request))

    def stand_back(self) -> None:
        """Others on this machine come first from now on. Raises WorkerEndedError."""
        self._write(b"background\n")

    def receive(self, timeout_s: float) -> Reply:
        """What it says next. Raises TimeoutError, WorkerEndedError."""
        try:
            data = self._lines.read(timeout_s)
            if data is not None:
                return message(Reply, data)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
        except ProtocolError:
            pass
        raise self._ended()

    def _write(self, data: bytes) -> None:
        try:
            self._input.write(data)
        except (OSError, ValueError):
            raise self._ended() from None

    def _ended(self) -> WorkerEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        code = self._process.poll()
        if code is None:
            return WorkerEndedError("its process stopped answering")
        words = self._last_words()
        said = f": {words}" if words else ""
        if code < 0:
            return WorkerEndedError(f"its process ended with {_signal_name(-code)}{said}", -code)
        return WorkerEndedError(f"its process ended with exit status {code}{said}")

    def _last_words(self) -> str:
        """The line of its standard error that says most of why it ended."""
        try:
            size = os.fstat(self._stderr.fileno()).st_size
            start = max(0, size - _STDERR_BYTES)
            lines = os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace").splitlines()
        except (OSError, ValueError):
            return ""
        lines = [text.strip() for text in lines if text.strip()]
        marks = ("Check failed", "ERROR", "Error:", "Fatal", "terminate called", "F0000")
        telling = next((text for text in reversed(lines) if any(mark in text for mark in marks)), "")
        return telling[:200].rstrip(".")

    def kill(self) -> None:
        """Ends the process and removes what it wrote; whoever waits for it sees that, and is the one to call ``end``.
        Does nothing in a fork of the kernel."""
        if os.getpid() != self._owner:
            return
        if self.is_alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Ends the process for who talks to it: its pipes are closed as well."""
        self.kill()
        for file in (self._process.stdin, self._process.stdout, self._stderr):
            if file is not None and os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    file.close()


def remove_leftovers(older_than_s: float = 3600.0) -> None:
    """Removes folders of kernels that are gone and could not do it themselves."""
    now = time.time()
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
            owner = path.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
            with contextlib.suppress(OSError):
                stat = path.stat()
                if not owner.isdigit() or stat.st_uid != os.getuid() or now - stat.st_mtime < older_than_s:
                    continue
                if not os.path.exists(f"/proc/{owner}"):
                    shutil.rmtree(path, ignore_errors=True)


def _import_path() -> list[str]:
    """Where the kernel finds tpumagic and its frameworks, without its working directory."""
    own = str(Path(tpumagic.__file__).resolve().parent.parent)
    return list(dict.fromkeys([own, *_elsewhere(sys.path)]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
