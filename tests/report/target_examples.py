"""Answers of the TPU compiler for tests: fits, does not fit, on many chips, refused, unavailable, pending."""

import math

import examples

from tpumagic.events import CellRecord
from tpumagic.findings import Finding
from tpumagic.plans import (
    Answer,
    Buffer,
    Communication,
    CompilerError,
    Cost,
    LineCost,
    NotCounted,
    Plan,
    Product,
    Remedy,
    SpecialCall,
    Target,
)
from tpumagic.report import build

KIB, MIB, GIB = 2**10, 2**20, 2**30
V5E_1 = Target("v5e-1", "v5e", 1, 1, int(15.75 * GIB))
V5E_8 = Target("v5e-8", "v5e", 8, 8, int(15.75 * GIB))
TPU7X_8 = Target("tpu7x-8", "tpu7x", 4, 8, int(94.75 * GIB))
LIBTPU = "0.0.42.1"


def at(line, function="step", cell=5):
    return (examples.site(12, None, cell), examples.site(line, function, cell))


def schedule(peak, *, at_share=0.63, start=0.35, points=240):
    """Memory over a program that climbs through its forward pass and falls through its backward pass."""
    found = []
    for n in range(points):
        x = n / (points - 1)
        height = x / at_share if x <= at_share else 1 - 0.8 * (x - at_share) / (1 - at_share)
        wave = 1 - 0.06 * (1 + math.sin(n / 3))
        found.append((round(x, 4), int(peak * (start + (1 - start) * height * (1 if x == at_share else wave)))))
    top = min(range(points), key=lambda n: abs(found[n][0] - at_share))
    found[top] = (found[top][0], int(peak))
    return tuple(found)


TRAIN_HOLDERS = (
    Buffer("argument", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "params['embed']['table']", donated=True),
    Buffer("argument", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "opt_state[0].mu['embed']['table']", donated=True),
    Buffer("temporary", 2 * GIB, 2 * GIB, "bfloat16", (24, 8, 2048, 2816), None, at(7, "block"), "dot_general", residual=True, trips=24),
    Buffer("temporary", int(0.75 * GIB), int(0.5625 * GIB), "float32", (8, 2048, 12288), None, at(9, "loss"), "exp"),
    Buffer("temporary", 96 * MIB, 96 * MIB, "bfloat16", (8, 2048, 3072), None, at(7, "block"), "add", count=2),
    Buffer("constant", 8 * MIB, 8 * MIB, "float32", (2048, 1024)),
)  # fmt: skip


def cost(seconds=3.1e-3, **changes):
    fields = {
        "seconds": seconds, "band": 1.3, "bound": "mxu", "mxu_seconds": seconds * 0.62, "hbm_seconds": seconds * 0.3,
        "lines": (
            LineCost(seconds * 0.52, 0.52, 1.3, at(7, "block"), "dot_general", "mxu"),
            LineCost(seconds * 0.31, 0.31, 1.3, at(9, "loss"), "dot_general", "mxu"),
            LineCost(seconds * 0.09, 0.09, 1.5, at(10, "loss"), "exp", "hbm"),
            LineCost(seconds * 0.08, 0.08, 1.5),
        ),
        "not_counted": (NotCounted("sort", 1, 24, at(8, "block")), NotCounted("flash_attention", 24), NotCounted("all-reduce", 2, 2)),
        "compile_s": 138.0,
    }  # fmt: skip
    return Cost(**{**fields, **changes})


def fitting_plan(**changes):
    fields = {
        "fits": True, "needed_bytes": int(9.4 * GIB), "available_bytes": V5E_8.hbm_bytes, "argument_bytes": int(6.1 * GIB),
        "output_bytes": 6 * GIB, "temp_bytes": int(3.29 * GIB), "constant_bytes": 8 * MIB, "alias_bytes": 6 * GIB,
        "reconstructed_bytes": int(9.36 * GIB), "holders": TRAIN_HOLDERS, "timeline": schedule(9.36 * GIB), "peak_at": 0.63,
        "products": (
            Product("float32", "default", True, 24, at(7, "block")), Product("float32", "default", True, 1, at(9, "loss")),
            Product("bfloat16", "default", False, 3, at(8, "block")),
        ),
        "seconds": 2.1,
    }  # fmt: skip
    return Plan(**{**fields, **changes})


def fits(target=V5E_8, **changes):
    return Answer(
        target, "planned", **{"plan": fitting_plan(), "compiler": LIBTPU, "cost": cost(), **changes}
    )  # fmt: skip


def too_large(target=V5E_1, *, remedies=True, **changes):
    """Five causes at once: arguments, nothing donated, residuals, padding and a broadcast."""
    plan = Plan(
        fits=False, needed_bytes=int(24.04 * GIB), available_bytes=target.hbm_bytes, argument_bytes=int(6.1 * GIB), output_bytes=6 * GIB,
        temp_bytes=int(11.94 * GIB), alias_bytes=0, reconstructed_bytes=int(20.2 * GIB),
        holders=(
            Buffer("temporary", 6 * GIB, 6 * GIB, "bfloat16", (24, 8, 2048, 8192), None, at(7, "block"), "dot_general", residual=True, trips=24),
            Buffer("argument", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "params['embed']['table']"),
            Buffer("argument", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "opt_state[0].mu['embed']['table']"),
            Buffer("output", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "result[0]['embed']['table']"),
            Buffer("output", 3 * GIB, 3 * GIB, "float32", (262144, 3072), "result[1][0].mu['embed']['table']"),
            Buffer("temporary", 2 * GIB, 2 * GIB, "float32", (8, 2048, 2048, 16), None, at(8, "block"), "broadcast_in_dim", repeated=True),
            Buffer("temporary", int(1.5 * GIB), 48 * MIB, "float32", (3145728, 4), None, at(10, "loss"), "reshape"),
            Buffer("temporary", 256 * MIB, 256 * MIB, "uint32", (67108864,), None, at(6), "random_bits", x64=True),
            Buffer("argument", 96 * MIB, 96 * MIB, "int32", (8, 3145728), "batch['tokens']"),
            Buffer("temporary", 64 * MIB, 64 * MIB, "float32", (4096, 4096)),
        ),
        timeline=schedule(20.2 * GIB, at_share=0.55), peak_at=0.55,
        padded=(
            Buffer("temporary", int(1.5 * GIB), 48 * MIB, "float32", (3145728, 4), None, at(10, "loss"), "reshape"),
            Buffer("argument", int(15.26 * MIB), int(11.44 * MIB), "float32", (1000000, 3), "batch['xyz']"),
            Buffer("argument", 512, 4, "float32", (), "lr"),
        ),
        rematerialized=12,
        calls=(SpecialCall("host", "print", 1, at(9, "loss")), SpecialCall("custom", "flash_attention", 24, at(7, "block")), SpecialCall("x64", "X64Combine", 2, at(6))),
        products=(Product("float32", "default", True, 24, at(7, "block")),),
        seconds=1.8,
    )  # fmt: skip
    fixes = (
        Remedy("donation", "donate `params` and `opt_state`", False, int(18.1 * GIB)),
        Remedy("checkpoint", "`jax.checkpoint` on the body of the loop at In [5] line 7", True, int(14.2 * GIB)),
        Remedy("sharding", "the batch over the 8 devices of v5e-8", None, None, "8 does not divide the batch of 4"),
    )
    return Answer(
        target, "planned", **{"plan": plan, "compiler": LIBTPU, "remedies": fixes if remedies else (), **changes}
    )


def sharded(target=V5E_8, **changes):
    plan = fitting_plan(
        needed_bytes=int(3.2 * GIB),
        holders=TRAIN_HOLDERS[2:],
        timeline=schedule(3.2 * GIB),
        reconstructed_bytes=int(3.2 * GIB),
        communications=(
            Communication("all-gather", "float32", (4096, 16384), 256 * MIB, 24, 8, at(7, "block"), whole=True, resliced=True),
            Communication("all-reduce", "float32", (4096, 4096), 64 * MIB, 1, 8, at(13)),
            Communication("all-reduce", "float32", (4096,), 16 * KIB, 1, 8, at(13)),
            Communication("collective-permute", "bfloat16", (8, 128), 2 * KIB, None, None, at(8, "block")),
        ),
    )  # fmt: skip
    return Answer(target, "planned", **{"plan": plan, "compiler": LIBTPU, "cost": cost(), **changes})


def vmem(target=V5E_1):
    error = CompilerError(
        "vmem", "Ran out of memory in memory space vmem. Used 20.00M of 16.00M vmem.", 20 * MIB, 16 * MIB, "flash_attention", at(7, "block")
    )  # fmt: skip
    return Answer(target, "refused", error=error, compiler=LIBTPU)


def unsupported(target=V5E_1):
    error = CompilerError(
        "unsupported", "The eig operation is only implemented on CPU and GPU.", None, None, "eig", at(4)
    )
    return Answer(target, "refused", error=error, compiler=LIBTPU)


def unavailable(target=V5E_1, why="libtpu is not installed: run `tpumagic compiler install`."):
    return Answer(target, "unavailable", why=why)


def small(target=V5E_1, needed=3 * MIB):
    plan = Plan(True, needed, target.hbm_bytes, needed // 2, needed // 4, needed // 4, rematerialized=0, seconds=0.4)
    return Answer(target, "planned", plan, compiler=LIBTPU)


def with_answers(*answers, name="step", line=19, seconds=0.8, **changes):
    return examples.program(name, line, seconds=seconds, answers=answers, **changes)


def report(*programs, findings=(), dry_run=False, **changes):
    fields = {"source": "step(params, batch)", "cell": 5, "wall_s": 0.82, "ready_s": 0.83, "programs": programs}
    return build(CellRecord(**{**fields, **changes}), findings, environment={}, dry_run=dry_run)


def dry(*answers, name="step"):
    """The report of a dry run of one call."""
    return report(with_answers(*answers, name=name, compiles=()), dry_run=True, wall_s=2.4, ready_s=None)


OUT_OF_MEMORY = Finding(
    "oom.hbm", "error",
    "`step` does not fit on v5e-1: it needs 24.04 of 15.75 GiB.",
    "Most of it: 6 GiB are kept for the backward pass, one slice for each of 24 layers; 6 GiB are results that could take over the memory of `params` and `opt_state`.",
    "Put `jax.checkpoint` on the body of the loop and donate `params` and `opt_state`:\nstep = jax.jit(step, donate_argnums=(0, 1))",
    examples.site(7, "block"), (), "step", None, None, int(24.04 * GIB), {"causes": ["residuals", "no_donation", "padding"]},
)  # fmt: skip


def too_large_report():
    return report(with_answers(too_large()), findings=(OUT_OF_MEMORY,))


def many_report(count=30):
    programs = [
        with_answers(small(needed=(n + 1) * MIB), name=f"layer_{n}", line=n + 1, seconds=0.1) for n in range(count - 1)
    ]
    return report(*programs, with_answers(fits(V5E_1), name="train_step", line=40))


def three_targets():
    return report(
        with_answers(too_large(), fits(), fits(TPU7X_8, plan=fitting_plan(available_bytes=TPU7X_8.hbm_bytes)))
    )


REPORTS = {
    "fits": lambda: report(with_answers(fits())),
    "too large": too_large_report,
    "sharded": lambda: report(with_answers(sharded())),
    "vmem": lambda: report(with_answers(vmem())),
    "unsupported": lambda: report(with_answers(unsupported())),
    "unavailable": lambda: report(with_answers(unavailable())),
    "pending": lambda: report(with_answers(fits(cost=None, pending=True))),
    "many": many_report,
    "three targets": three_targets,
    "dry run": lambda: dry(fits()),
    "small": lambda: report(with_answers(small())),
    "dry run of three": lambda: dry(too_large(remedies=False), vmem(V5E_8), unavailable(TPU7X_8)),
}  # fmt: skip
