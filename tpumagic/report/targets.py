"""From the TPU compiler's answer to what the report says of it: sites instead of stacks, one row a line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from tpumagic.events import SourceSite, Stack
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
    SpecialCall,
)
from tpumagic.report.target_model import (
    ReportedBuffer,
    ReportedCall,
    ReportedCollective,
    ReportedCost,
    ReportedError,
    ReportedLineCost,
    ReportedNotCounted,
    ReportedProduct,
    ReportedRemedy,
    ReportedTarget,
)

T = TypeVar("T")


def target(answer: Answer) -> ReportedTarget:
    """The answer for the report. Its stacks must hold the user's own lines only (``compiler.sites``)."""
    plan, error = answer.plan, answer.error
    return ReportedTarget(
        name=answer.target.name,
        chips=answer.target.chips,
        devices=answer.target.devices,
        status=answer.status,
        fits=_fits(answer),
        needed_bytes=plan.needed_bytes if plan else error.needed_bytes if error and error.kind == "hbm" else None,
        needed_is_estimate=plan is not None and plan.worked_out,
        available_bytes=plan.available_bytes if plan else answer.target.hbm_bytes,
        argument_bytes=plan and plan.argument_bytes,
        output_bytes=plan and plan.output_bytes,
        temp_bytes=plan and plan.temp_bytes,
        constant_bytes=plan and plan.constant_bytes,
        alias_bytes=plan and plan.alias_bytes,
        holders=tuple(_buffer(one) for one in plan.holders) if plan else (),
        timeline=plan.timeline if plan else (),
        peak_at=plan and plan.peak_at,
        padded=tuple(_buffer(one) for one in plan.padded) if plan else (),
        remat_count=plan and plan.rematerialized,
        collectives=_collectives(plan.communications) if plan else (),
        calls=_calls(plan.calls) if plan else (),
        bf16_products=_bf16_products(plan.products) if plan else (),
        compiler=answer.compiler,
        cached=answer.cached,
        plan_s=plan and plan.seconds,
        cost=answer.cost and _cost(answer.cost),
        pending=answer.pending,
        error=error and _error(error),
        why=answer.why,
        remedies=tuple(
            ReportedRemedy(one.name, one.change, one.fits, one.needed_bytes, one.why) for one in answer.remedies
        ),
    )


def runs_there(answer: Answer) -> bool | None:
    """Whether the program can run on the target as far as its compiler says; None without its answer."""
    if answer.status == "unavailable":
        return None
    return answer.status == "planned" and answer.plan is not None and answer.plan.fits


def _fits(answer: Answer) -> bool | None:
    plan: Plan | None = answer.plan
    if answer.error is not None and answer.error.kind in ("hbm", "vmem", "smem"):
        return False
    return plan.fits if plan is not None else None


def _buffer(buffer: Buffer) -> ReportedBuffer:
    return ReportedBuffer(
        name=buffer.name,
        site=_site(buffer.stack),
        bytes=buffer.bytes,
        logical_bytes=buffer.logical_bytes,
        dtype=buffer.dtype,
        shape=buffer.shape,
        kind=buffer.kind,
        count=buffer.count,
        operation=buffer.operation,
        trips=buffer.trips,
        residual=buffer.residual,
        donated=buffer.donated,
        repeated=buffer.repeated,
        x64=buffer.x64,
    )


def _collectives(communications: Iterable[Communication]) -> tuple[ReportedCollective, ...]:
    """One row for each kind and line, the most bytes first."""
    rows: list[ReportedCollective] = []
    for alike in _grouped(communications, lambda one: (one.kind, _site(one.stack))):
        largest = max(alike, key=lambda one: one.bytes)
        known = [one.trips for one in alike if one.trips is not None]
        all_known = len(known) == len(alike)
        rows.append(
            ReportedCollective(
                kind=largest.kind,
                site=_site(largest.stack),
                bytes=sum(one.bytes for one in alike),
                dtype=largest.dtype,
                shape=largest.shape,
                count=len(alike),
                runs=sum(known) if all_known else None,
                total_bytes=sum(one.bytes * (one.trips or 0) for one in alike) if all_known else None,
                group=largest.group,
                whole=any(one.whole for one in alike),
                resliced=any(one.resliced for one in alike),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.bytes if row.total_bytes is None else row.total_bytes)))


def _calls(calls: Iterable[SpecialCall]) -> tuple[ReportedCall, ...]:
    """One row for each name and line; host callbacks first, for they stop the device."""
    rows = [
        ReportedCall(alike[0].kind, alike[0].name, _site(alike[0].stack), sum(one.count for one in alike))
        for alike in _grouped(calls, lambda one: (one.kind, one.name, _site(one.stack)))
    ]
    return tuple(sorted(rows, key=lambda row: ("host", "x64", "custom").index(row.kind)))


def _bf16_products(products: Iterable[Product]) -> tuple[ReportedProduct, ...]:
    rounded = (one for one in products if one.bf16)
    return tuple(
        ReportedProduct(
            alike[0].dtype, _site(alike[0].stack), alike[0].precision, sum(one.count for one in alike)
        )
        for alike in _grouped(rounded, lambda one: (one.dtype, one.precision, _site(one.stack)))
    )  # fmt: skip


def _cost(cost: Cost) -> ReportedCost:
    return ReportedCost(
        estimate_s=cost.seconds,
        band=cost.band,
        bound=cost.bound,
        mxu_s=cost.mxu_seconds,
        hbm_s=cost.hbm_seconds,
        lines=tuple(_line_cost(one) for one in sorted(cost.lines, key=lambda one: -one.seconds)),
        not_counted=tuple(_not_counted(one) for one in cost.not_counted),
        loops_known=cost.loops_known,
        compile_s=cost.compile_s,
    )


def _line_cost(line: LineCost) -> ReportedLineCost:
    return ReportedLineCost(_site(line.stack), line.seconds, line.share, line.band, line.operation, line.bound)


def _not_counted(one: NotCounted) -> ReportedNotCounted:
    return ReportedNotCounted(one.operation, _site(one.stack), one.count, one.trips)


def _error(error: CompilerError) -> ReportedError:
    return ReportedError(
        error.kind, error.message, error.needed_bytes, error.available_bytes, error.operation, _site(error.stack)
    )


def _site(stack: Stack) -> SourceSite | None:
    return stack[-1] if stack else None


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items of equal keys together, in the order of their first."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
