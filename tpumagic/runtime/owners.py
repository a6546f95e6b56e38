"""Processes that hold TPU chips, and the notebooks behind them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpumagic.runtime.files import names, text

_TPU_NODE = re.compile(r"/dev/(?:accel|vfio/)\d+")
_KERNEL_FILE = re.compile(r"kernel-([\w-]+)\.json")
_ENVIRON_BYTES = 2**17
_ANCESTORS = 50


@dataclass(frozen=True)
class Owner:
    """A process that has chips open. kernel: the id of the Jupyter kernel it is, None if it is none. notebook: what
    that kernel runs, as far as its server told it. mine: it is this very process, or one that it started."""

    pid: int
    command: str
    kernel: str | None
    nodes: tuple[str, ...]
    mine: bool
    notebook: str | None = None

    @property
    def name(self) -> str:
        """``the kernel of train.ipynb (process 42)``."""
        if self.notebook:
            return f"the kernel of {self.notebook} (process {self.pid})"
        if self.kernel:
            return f"the Jupyter kernel {self.kernel} (process {self.pid})"
        return f"process {self.pid} ({self.command[:80] or 'command unknown'})"


def find_owners(root: Path = Path("/"), limit_s: float = 0.3) -> tuple[Owner, ...]:
    """Processes with an open TPU device node, as far as this user may see them: those of other users and other
    containers are invisible. After limit_s the search ends with what was found."""
    deadline = time.monotonic() + limit_s
    owners: list[Owner] = []
    # Plain strings: building ten thousand Paths takes longer than reading what they name.
    proc = os.path.join(root, "proc")
    for name in names(proc):
        if time.monotonic() > deadline:
            break
        if name.isascii() and name.isdecimal():
            process = os.path.join(proc, name)
            nodes = {node for node in _open_files(os.path.join(process, "fd")) if _TPU_NODE.fullmatch(node)}
            if nodes:
                mine = os.getpid() in _line_of(int(name), root)
                owners.append(_owner(Path(process), tuple(sorted(nodes)), mine=mine))
    return tuple(sorted(owners, key=lambda owner: owner.pid))


def name_of(pid: int, root: Path = Path("/")) -> str:
    """A process in the words of Owner.name, whether or not it has chips open."""
    return _owner(root / "proc" / str(pid), (), mine=False).name


def _owner(process: Path, nodes: tuple[str, ...], *, mine: bool) -> Owner:
    command = text(process / "cmdline").replace("\0", " ").strip()
    kernel = _KERNEL_FILE.search(command)
    notebook = _notebook(process) if kernel else None
    return Owner(int(process.name), command, kernel[1] if kernel else None, nodes, mine, notebook)


def _line_of(pid: int, root: Path) -> set[int]:
    """The process, the one that started it, and so on up to the first."""
    line: set[int] = set()
    while pid > 1 and pid not in line and len(line) < _ANCESTORS:
        line.add(pid)
        # ``pid (command) state parent …``, and a command may hold anything.
        words = text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(words[1]) if len(words) > 1 and words[1].isascii() and words[1].isdecimal() else 0
    return line


def _notebook(process: Path) -> str | None:
    """The Jupyter server starts a kernel with the path of its notebook in JPY_SESSION_NAME."""
    for setting in text(process / "environ", _ENVIRON_BYTES).split("\0"):
        name, _, value = setting.partition("=")
        if name == "JPY_SESSION_NAME" and value:
            return value.rsplit("/", 1)[-1]
    return None


def _open_files(folder: str) -> Iterator[str]:
    for name in names(folder):
        with contextlib.suppress(OSError):
            yield os.readlink(os.path.join(folder, name))
