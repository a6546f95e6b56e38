"""The files that the compiler leaves in the folder of ``xla_dump_to``.

They come one after another: the plan of the memory first, then the scheduled module, minutes later that module with
the costs. The folder may be read while the compiler writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PLANNED = ".after_optimizations_after_buffer_assignment.txt"
OUT_OF_MEMORY = ".oom_intermediate_module.txt"
COMPILED = ".after_codegen.txt"
_PLAN = ".after_optimizations"


@dataclass(frozen=True)
class Dump:
    """What there is of one module. name: the common first part of its files. module: HLO as scheduled.
    buffer_assignment, live_ranges: texts of the plan, None if the compiler wrote none. out_of_memory: the compiler gave
    up because the plan is too large. compiled: HLO with the costs, None until the compiler is done."""

    name: str
    module: str
    buffer_assignment: str | None
    live_ranges: str | None
    out_of_memory: bool
    compiled: str | None


def read(folder: Path) -> Dump | None:
    """The main module's files, that is the largest module's; None until its plan is there as a whole."""
    planned = [(path, False) for path in folder.glob(f"*{PLANNED}")]
    failed = [(path, True) for path in folder.glob(f"*{OUT_OF_MEMORY}")]
    found = sorted(planned + failed, key=lambda one: (_size(one[0]), one[0].name), reverse=True)
    if not found:
        return None
    path, out_of_memory = found[0]
    name = path.name.removesuffix(OUT_OF_MEMORY if out_of_memory else PLANNED)
    module = whole_module(path)
    if module is None:
        return None
    return Dump(
        name=name,
        module=module,
        buffer_assignment=_text(folder / f"{name}{_PLAN}-buffer-assignment.txt"),
        live_ranges=_text(folder / f"{name}{_PLAN}-live-range.txt"),
        out_of_memory=out_of_memory,
        compiled=whole_module(folder / f"{name}{COMPILED}"),
    )


def whole_module(path: Path) -> str | None:
    """Text of an HLO file; None if it is not there or not yet written to its end, which is that of the entry
    computation."""
    text = _text(path)
    return text if text is not None and is_whole(text) else None


def is_whole(text: str) -> bool:
    """Whether an HLO text ends where modules end: after the entry computation, which comes last."""
    return text.endswith(("\n}\n", "\n}\n\n", "\n}")) and ("\nENTRY " in text or text.startswith("ENTRY "))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
