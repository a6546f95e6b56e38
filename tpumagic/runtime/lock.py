"""libtpu's lock file: whether it is there, and whether a process holds it. It is never taken and never removed."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from tpumagic.runtime.files import exists, text

PATH = "/tmp/libtpu_lockfile"  # noqa: S108 (libtpu chose the place)

_FLOCK = "hhqqi4x"
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""


@dataclass(frozen=True)
class Lock:
    """The lock file. held: by a living process, None if that cannot be told. pid: of that process, None where it is not
    known or the process is outside this container. mine: it is this process. usable: this user may open the file, as
    libtpu does."""

    held: bool | None
    pid: int | None
    mine: bool
    usable: bool


def find_lock(root: Path = Path("/")) -> Lock | None:
    """The lock as it is now; None if there is no such file.

    libtpu takes a POSIX lock (measured with libtpu 0.0.42), about which the kernel can be asked without taking it.
    """
    path = root / PATH.lstrip("/")
    if not exists(path):
        return None
    usable = os.access(path, os.R_OK | os.W_OK)
    pid = _locked_by(path, root)
    # To close the file would release a lock that this very process has on it, so it is not opened then.
    if pid is None and not _loaded_here():
        pid = _asked(path)
    if pid is None:
        return Lock(None if _loaded_here() or not usable else False, None, mine=False, usable=usable)
    return Lock(held=True, pid=pid if pid > 0 else None, mine=pid == os.getpid(), usable=usable)


def _locked_by(path: Path, root: Path) -> int | None:
    """What /proc/locks says: ``1: POSIX ADVISORY WRITE pid major:minor:inode 0 EOF``."""
    try:
        inode = path.stat().st_ino
    except (OSError, ValueError):
        return None
    for line in text(root / "proc/locks", 2**17).splitlines():
        words = line.split()
        if len(words) >= 6 and words[5].rpartition(":")[2] == str(inode):
            try:
                return int(words[4])
            except ValueError:
                return None
    return None


def _asked(path: Path) -> int | None:
    """The process that holds a POSIX lock, 0 for one whose number is hidden; None if none does."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            return max(pid, 0)
        # Other versions may use the other kind of lock, about which one cannot ask: try it, shared, and let go.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return 0 if error.errno == errno.EWOULDBLOCK else None
    finally:
        os.close(file)
    return None


def _loaded_here() -> bool:
    """This process has libtpu loaded, so it may hold the lock itself."""
    return sys.platform == "linux" and "libtpu.so" in text(Path("/proc/self/maps"), 2**23)
