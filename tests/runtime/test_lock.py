"""libtpu's lock file: told as it is, with real locks of real processes."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tpumagic.runtime import problems
from tpumagic.runtime.lock import Lock, find_lock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libtpu is for Linux")

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
{take}
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock_file(tmp_path):
    path = tmp_path / "tmp/libtpu_lockfile"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def holder(lock_file):
    """A process that holds the lock in one of two ways."""
    processes = []

    def hold(take: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(take=take), str(lock_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process.pid

    yield hold
    for process in processes:
        process.communicate()


def test_no_file_is_no_lock(tmp_path):
    assert find_lock(tmp_path) is None


def test_a_file_that_nobody_holds_is_not_held(lock_file, tmp_path):
    assert find_lock(tmp_path) == Lock(held=False, pid=None, mine=False, usable=True)


def test_the_process_that_holds_it_is_named(holder, tmp_path):
    pid = holder("fcntl.lockf(file, fcntl.LOCK_EX)")
    assert find_lock(tmp_path) == Lock(held=True, pid=pid, mine=False, usable=True)


def test_the_other_kind_of_lock_is_seen_though_not_whose_it_is(holder, tmp_path):
    holder("fcntl.flock(file, fcntl.LOCK_EX)")
    assert find_lock(tmp_path) == Lock(held=True, pid=None, mine=False, usable=True)


def test_looking_leaves_the_lock_to_its_holder_and_the_file_in_its_place(holder, lock_file, tmp_path):
    holder("fcntl.lockf(file, fcntl.LOCK_EX)")
    find_lock(tmp_path)
    assert lock_file.exists()
    assert find_lock(tmp_path).held


def test_a_lock_of_another_container_has_no_process_here(lock_file, tmp_path):
    (tmp_path / "proc").mkdir()
    inode = lock_file.stat().st_ino
    (tmp_path / "proc/locks").write_text(f"1: POSIX  ADVISORY  WRITE 0 fe:00:{inode} 0 EOF\n")
    assert find_lock(tmp_path) == Lock(held=True, pid=None, mine=False, usable=True)
    (tmp_path / "proc/locks").write_text(f"1: POSIX  ADVISORY  WRITE {os.getpid()} fe:00:{inode} 0 EOF\n")
    assert find_lock(tmp_path).mine


@pytest.mark.parametrize("text", ["", "1: POSIX", "junk", "1: FLOCK ADVISORY WRITE x fe:00:{inode} 0 EOF"])
def test_a_list_of_locks_that_says_nothing_is_no_lock(lock_file, tmp_path, text):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/locks").write_text(text.format(inode=lock_file.stat().st_ino))
    assert find_lock(tmp_path).held is False


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path):
    (tmp_path / "tmp").mkdir()
    os.mkfifo(tmp_path / "tmp/libtpu_lockfile")
    assert find_lock(tmp_path).held is False


def told(machine, name, lock):
    environment = replace(machine(name).detect(), lock=lock, owners=())
    return [
        (one.kind, one.severity, one.title, one.fix)
        for one in problems.find(environment)
        if one.kind in ("env.tpu_in_use", "env.compile_only_lock")
    ]


def test_a_held_lock_is_never_to_be_removed(machine):
    assert told(machine, "tpu_vm_v4_8", Lock(held=True, pid=5, mine=False, usable=True)) == [
        (
            "env.tpu_in_use",
            "warning",
            "The TPU is held by process 5: it has libtpu's lock.",
            "Find it (ps -fp 5) and end it; do not remove the lock file while it is held.",
        )
    ]
    (hidden,) = told(machine, "tpu_vm_v4_8", Lock(held=True, pid=None, mine=False, usable=False))
    assert hidden[2:] == (
        "The TPU is held by a process of another user or another container: it has libtpu's lock.",
        (
            "Find it (on the machine itself: sudo lsof -w /dev/accel* /dev/vfio/*) and end it; do not remove the lock file while "
            "it is held."
        ),
    )


def test_a_lock_without_a_tpu_is_a_compilation_to_wait_for(machine):
    assert told(machine, "laptop", Lock(held=True, pid=5, mine=False, usable=True)) == [
        (
            "env.compile_only_lock",
            "info",
            "Process 5 has libtpu loaded, which lets in one process at a time even without a TPU.",
            "Wait until it has ended; do not remove the lock file while it runs.",
        )
    ]


def test_a_lock_file_of_another_user_is_removed_only_if_nobody_has_it_open(machine):
    assert told(machine, "tpu_vm_v4_8", Lock(held=None, pid=None, mine=False, usable=False)) == [
        (
            "env.tpu_in_use",
            "warning",
            "libtpu's lock file /tmp/libtpu_lockfile belongs to another user, so libtpu will not start here.",
            (
                "Remove it if nobody uses it, which this command makes sure of: sudo lsof /tmp/libtpu_lockfile || sudo rm "
                "/tmp/libtpu_lockfile"
            ),
        )
    ]


@pytest.mark.parametrize(
    ("name", "lock"),
    [
        ("tpu_vm_v4_8", None),
        ("tpu_vm_v4_8", Lock(held=True, pid=5, mine=True, usable=True)),
        ("laptop", Lock(held=False, pid=None, mine=False, usable=True)),
        ("tpu_vm_v4_8", Lock(held=None, pid=None, mine=False, usable=True)),
    ],
    ids=["none", "ours", "laptop", "unknown"],
)
def test_a_lock_that_hinders_nobody_is_not_told(machine, name, lock):
    assert told(machine, name, lock) == []
