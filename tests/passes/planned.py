"""Programs with answers of the TPU compiler, as passes see them."""

from __future__ import annotations

from tpumagic.events import CellRecord, FunctionId, Leaf, Program, Signature, SourceSite
from tpumagic.plans import Answer, Buffer, CompilerError, Plan, Target

KIB, MIB, GIB = 2**10, 2**20, 2**30
V5E = Target("v5e-1", "v5e", 1, 1, int(15.75 * GIB))
V5E_8 = Target("v5e-8", "v5e", 8, 8, int(15.75 * GIB))


def line(number: int, function: str | None = None) -> SourceSite:
    return SourceSite(number, cell=1, function=function)


def buffer(kind: str, gib: float, dtype: str = "float32", shape: tuple[int, ...] = (8, 8), **more) -> Buffer:
    """A buffer of so many GiB; ``at`` is the line that makes it."""
    if (at := more.pop("at", None)) is not None:
        more["stack"] = (line(at),)
    size = int(gib * GIB)
    return Buffer(kind, size, more.pop("logical_bytes", size), dtype, shape, **more)


def plan(needed: float, *holders: Buffer, target: Target = V5E, **more) -> Plan:
    """A plan that needs so many GiB."""
    size = int(needed * GIB)
    return Plan(size <= target.hbm_bytes, size, target.hbm_bytes, holders=holders, **more)


def planned(made: Plan, target: Target = V5E, **more) -> Answer:
    return Answer(target, "planned", made, **more)


def refused(kind: str, message: str, target: Target = V5E, **more) -> Answer:
    return Answer(target, "refused", error=CompilerError(kind, message, **more))


def program(*answers: Answer, name: str = "step", at: int = 9, arguments: tuple[str, ...] = (), **more) -> Program:
    """A jitted program called on a line; ``arguments``: names of its parameters."""
    wrapper = more.pop("wrapper", None)
    leaves = more.get("inputs", ())
    signature = Signature(FunctionId(name, "key", 1, wrapper=wrapper), leaves, (), positional=arguments)
    given = {"kind": "jit", "definition": line(1), "signature": signature, "devices": (0,), **more}
    return Program(name, stack=(line(at),), answers=answers, **given)


def leaf(path: str, *shape: int, dtype: str = "float32", **more) -> Leaf:
    return Leaf(path, shape, dtype, **more)


def record(*programs: Program, source: str = "", **more) -> CellRecord:
    return CellRecord(source=source, cell=1, programs=programs, **more)
