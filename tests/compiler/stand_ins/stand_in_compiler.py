"""Takes the place of what knows JAX in the compiler's process, and does what the program says, word by word."""

import os
import signal
import time
from pathlib import Path

from tpumagic.compiler.protocol import RefusedError, UnusableError

DUMP = Path(__file__).parent / "dump"


def prepare():
    time.sleep(float(os.environ.get("STAND_IN_PREPARE_S", "0")))
    if os.environ.get("STAND_IN_PREPARE") == "exit":
        os._exit(3)


def write(dump, at_once):
    """The module comes last, as from the real one."""
    for source in sorted(DUMP.iterdir(), key=lambda path: "after_buffer" in path.name):
        if "codegen" in source.name:
            continue
        text = source.read_text()
        with (dump / source.name).open("w") as file:
            file.write(text[: len(text) // 2])
            if not at_once:
                file.flush()
                time.sleep(0.2)
            file.write(text[len(text) // 2 :])


def compile(program, topology, devices, options, dump, started):  # noqa: A001 - what it does
    if os.environ.get("STAND_IN_LOG"):
        with open(os.environ["STAND_IN_LOG"], "a") as log:
            log.write(f"{os.getpid()} {os.getppid()} {topology.name} {program.decode()}\n")
    # What every pair of JAX and libtpu has to prove itself on is no list of words.
    words = os.environ.get("STAND_IN_PROOF", "plan cost") if program.startswith(b"module") else program.decode()
    started()
    for word in words.split():
        order, _, argument = word.partition(":")
        if order == "plan":
            write(dump, at_once=True)
        elif order == "slowly":
            write(dump, at_once=False)
        elif order == "sleep":
            time.sleep(float(argument))
        elif order == "say":
            print(argument.replace("_", " "), flush=True)
        elif order == "refuse":
            raise RefusedError(argument.replace("_", " "))
        elif order == "unusable":
            raise UnusableError(argument.replace("_", " "))
        elif order == "fail":
            raise KeyError(argument)
        elif order == "complain":
            os.write(2, b"F0000 Check failed: device_ is_ready\n")
        elif order == "abort":
            os.abort()
        elif order == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif order == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return next(DUMP.glob("*after_codegen.txt")).read_text()
