"""Stored plans of ``data/plan/programs.py``, and the lines of that file by their marks."""

from __future__ import annotations

import json
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tpumagic.compiler.plan import read_plan
from tpumagic.events import ProgramMemory
from tpumagic.plans import Buffer, Plan, Target

DATA = Path(__file__).parent / "data" / "plan"
V5E = Target("v5e-1", "v5e", 1, 1, 16_911_433_728)


@cache
def stored_plan(name: str) -> Plan:
    with TemporaryDirectory() as folder, zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        archive.extractall(folder)
        return read_plan(Path(folder), V5E)


def stored_figures(name: str) -> dict[str, object]:
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        return json.loads(archive.read("memory.json"))


def stored_module(name: str) -> str:
    """Text of the scheduled module alone, as an executable gives it."""
    endings = ("after_buffer_assignment.txt", "oom_intermediate_module.txt")
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        return archive.read(next(one for one in archive.namelist() if one.endswith(endings))).decode()


def memory_of(figures: dict[str, int]) -> ProgramMemory:
    parts = ("argument_size", "output_size", "temp_size", "alias_size", "peak_memory")
    return ProgramMemory(*(figures.get(f"{part}_in_bytes") for part in parts))


@cache
def line(mark: str) -> int:
    lines = (DATA / "programs.py").read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# <- {mark}"))


def line_of(thing: object) -> int | None:
    """Innermost line of a stack that lies in the programs' file."""
    return next((site.line for site in reversed(thing.stack) if site.file.endswith("programs.py")), None)


def at(things, mark: str):
    """Those of one marked line."""
    return [thing for thing in things if line_of(thing) == line(mark)]


def holder(plan: Plan, name: str) -> Buffer:
    return next(one for one in plan.holders if one.name == name)
