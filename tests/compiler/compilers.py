"""Compilers whose process obeys ``stand_ins/stand_in_compiler.py``, and how to look for what they left behind."""

import os
import time
from pathlib import Path

from tpumagic.compiler.compiles import Limits
from tpumagic.compiler.process import FOLDER_PREFIX
from tpumagic.compiler.service import Compiler
from tpumagic.compiler.targets import parse_target
from tpumagic.plans import Lowered

STAND_INS = Path(__file__).parent / "stand_ins"
STAND_IN = "stand_in_compiler"
V5E = parse_target("v5e-1")
V6E = parse_target("v6e-1")


def program(words: str, name: str = "step", **fields) -> Lowered:
    return Lowered(name, words.encode(), **fields)


def compiler(**limits: float) -> Compiler:
    return Compiler(STAND_IN, Limits(**limits))


def processes(pid: int | None = None) -> list[int]:
    """Those of the compiler that a kernel started, by the name of their folder."""
    mark = f"{FOLDER_PREFIX}{pid or os.getpid()}-".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def folders(pid: int | None = None) -> list[str]:
    import tempfile

    return [str(path) for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}{pid or os.getpid()}-*")]


def until(condition, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


PROOF = Lowered(
    "double",
    b"module @double { func.func public @main(%a: tensor<8x128xf32>) -> tensor<8x128xf32> {"
    b" %0 = stablehlo.add %a, %a : tensor<8x128xf32> return %0 : tensor<8x128xf32> } }",
)


def real_compiler():
    """The one of this process, shared by all tests."""
    from tpumagic.compiler.service import shared

    return shared()
