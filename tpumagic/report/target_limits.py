"""Keeping the TPU compiler's answers small: the largest programs keep their details longest, what is cut is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tpumagic.report import cleaning
from tpumagic.report.target_model import (
    OmittedOfTarget,
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
DIMENSIONS = 32


@dataclass(frozen=True)
class TargetLimits:
    """answers: of each program. detailed: the answers of all programs that keep so many holders, points of their timeline
    and rows of each other list. others: rows of each list of the others, which have no timeline."""

    answers: int
    detailed: int
    holders: int
    points: int
    rows: int
    others: int


@dataclass(frozen=True)
class _Room:
    """For one answer."""

    holders: int
    points: int
    rows: int
    prose: int
    text: int


def shortened(
    programs: Sequence[tuple[ReportedTarget, ...]], limits: TargetLimits, prose: int, text: int
) -> list[tuple[ReportedTarget, ...]]:
    """The answers of each program cleaned and cut. prose, text: characters of a sentence and of a name."""
    kept = [answers[: limits.answers] for answers in programs]
    places = [(n, m) for n, answers in enumerate(kept) for m in range(len(answers))]
    places.sort(key=lambda place: weight(kept[place[0]][place[1]]), reverse=True)
    detailed = set(places[: limits.detailed])
    large = _Room(limits.holders, limits.points, limits.rows, prose, text)
    small = _Room(limits.others, 0, limits.others, prose, text)
    return [
        tuple(_target(one, large if (n, m) in detailed else small) for m, one in enumerate(answers))
        for n, answers in enumerate(kept)
    ]


def weight(target: ReportedTarget) -> tuple[bool, int]:
    """Sorts answers by how much there is to explain: what cannot run first, then the largest."""
    return target.fits is False or target.status == "refused", target.needed_bytes or 0


def _target(target: ReportedTarget, room: _Room) -> ReportedTarget:
    cost, before = target.cost, target.omitted
    return replace(
        target,
        name=cleaning.line(target.name, room.text),
        chips=cleaning.whole(target.chips) or 0,
        devices=cleaning.whole(target.devices) or 0,
        needed_bytes=cleaning.whole(target.needed_bytes),
        available_bytes=cleaning.whole(target.available_bytes),
        argument_bytes=cleaning.whole(target.argument_bytes),
        output_bytes=cleaning.whole(target.output_bytes),
        temp_bytes=cleaning.whole(target.temp_bytes),
        constant_bytes=cleaning.whole(target.constant_bytes),
        alias_bytes=cleaning.whole(target.alias_bytes),
        holders=tuple(_buffer(one, room) for one in target.holders[: room.holders]),
        timeline=_timeline(target.timeline, room.points),
        peak_at=_position(target.peak_at),
        padded=tuple(_buffer(one, room) for one in target.padded[: room.rows]),
        remat_count=cleaning.whole(target.remat_count),
        collectives=tuple(_collective(one, room) for one in target.collectives[: room.rows]),
        calls=tuple(_call(one, room) for one in target.calls[: room.rows]),
        bf16_products=tuple(_product(one, room) for one in target.bf16_products[: room.rows]),
        compiler=cleaning.optional_line(target.compiler, room.text),
        plan_s=cleaning.seconds(target.plan_s),
        cost=cost and _cost(cost, room),
        error=target.error and _error(target.error, room),
        why=None if target.why is None else cleaning.prose(target.why, room.prose),
        remedies=tuple(_remedy(one, room) for one in target.remedies[: room.rows]),
        omitted=OmittedOfTarget(
            holders=before.holders + _more(target.holders, room.holders),
            padded=before.padded + _more(target.padded, room.rows),
            collectives=before.collectives + _more(target.collectives, room.rows),
            calls=before.calls + _more(target.calls, room.rows),
            bf16_products=before.bf16_products + _more(target.bf16_products, room.rows),
            lines=before.lines + (_more(cost.lines, room.rows) if cost else 0),
            not_counted=before.not_counted + (_more(cost.not_counted, room.rows) if cost else 0),
            remedies=before.remedies + _more(target.remedies, room.rows),
        ),
    )


def _more(items: Sequence[object], count: int) -> int:
    return max(0, len(items) - count)


def _timeline(points: tuple[tuple[float, int], ...], count: int) -> tuple[tuple[float, int], ...]:
    """At most ``count`` points: of each stretch of the schedule the highest, so that the peak stays."""
    known = [
        (place, size)
        for position, in_use in points
        if (place := _position(position)) is not None and (size := cleaning.whole(in_use)) is not None
    ]
    if len(known) <= count:
        return tuple(known)
    if not count:
        return ()
    step = math.ceil(len(known) / count)
    return tuple(max(known[n : n + step], key=lambda point: point[1]) for n in range(0, len(known), step))


def _position(position: float | None) -> float | None:
    place = cleaning.share(position)
    return None if place is None or place > 1 else place


def _buffer(buffer: ReportedBuffer, room: _Room) -> ReportedBuffer:
    return replace(
        buffer,
        name=cleaning.optional_line(buffer.name, room.text),
        site=cleaning.site(buffer.site, room.text),
        bytes=cleaning.whole(buffer.bytes) or 0,
        logical_bytes=cleaning.whole(buffer.logical_bytes),
        dtype=cleaning.optional_line(buffer.dtype, room.text),
        shape=_shape(buffer.shape),
        count=cleaning.whole(buffer.count) or 0,
        operation=cleaning.optional_line(buffer.operation, room.text),
        trips=cleaning.whole(buffer.trips),
    )


def _collective(one: ReportedCollective, room: _Room) -> ReportedCollective:
    return replace(
        one,
        kind=cleaning.line(one.kind, room.text),
        site=cleaning.site(one.site, room.text),
        bytes=cleaning.whole(one.bytes) or 0,
        dtype=cleaning.line(one.dtype, room.text),
        shape=_shape(one.shape),
        count=cleaning.whole(one.count) or 0,
        runs=cleaning.whole(one.runs),
        total_bytes=cleaning.whole(one.total_bytes),
        group=cleaning.whole(one.group),
    )


def _call(call: ReportedCall, room: _Room) -> ReportedCall:
    return replace(
        call,
        name=cleaning.line(call.name, room.text),
        site=cleaning.site(call.site, room.text),
        count=cleaning.whole(call.count) or 0,
    )


def _product(product: ReportedProduct, room: _Room) -> ReportedProduct:
    return replace(
        product,
        dtype=cleaning.line(product.dtype, room.text),
        site=cleaning.site(product.site, room.text),
        precision=cleaning.line(product.precision, room.text),
        count=cleaning.whole(product.count) or 0,
    )


def _cost(cost: ReportedCost, room: _Room) -> ReportedCost:
    return replace(
        cost,
        estimate_s=cleaning.seconds(cost.estimate_s),
        band=cleaning.share(cost.band) or 0.0,
        mxu_s=cleaning.seconds(cost.mxu_s),
        hbm_s=cleaning.seconds(cost.hbm_s),
        lines=tuple(_line(one, room) for one in cost.lines[: room.rows]),
        not_counted=tuple(_not_counted(one, room) for one in cost.not_counted[: room.rows]),
        compile_s=cleaning.seconds(cost.compile_s),
    )


def _line(line: ReportedLineCost, room: _Room) -> ReportedLineCost:
    return replace(
        line,
        site=cleaning.site(line.site, room.text),
        estimate_s=cleaning.seconds(line.estimate_s) or 0.0,
        share=cleaning.share(line.share) or 0.0,
        band=cleaning.share(line.band) or 0.0,
        operation=cleaning.optional_line(line.operation, room.text),
    )


def _not_counted(one: ReportedNotCounted, room: _Room) -> ReportedNotCounted:
    return replace(
        one,
        operation=cleaning.line(one.operation, room.text),
        site=cleaning.site(one.site, room.text),
        count=cleaning.whole(one.count) or 0,
        trips=cleaning.whole(one.trips),
    )


def _error(error: ReportedError, room: _Room) -> ReportedError:
    return replace(
        error,
        message=cleaning.prose(error.message, room.prose),
        needed_bytes=cleaning.whole(error.needed_bytes),
        available_bytes=cleaning.whole(error.available_bytes),
        operation=cleaning.optional_line(error.operation, room.text),
        site=cleaning.site(error.site, room.text),
    )


def _remedy(remedy: ReportedRemedy, room: _Room) -> ReportedRemedy:
    return replace(
        remedy,
        change=cleaning.line(remedy.change, room.prose),
        needed_bytes=cleaning.whole(remedy.needed_bytes),
        why=None if remedy.why is None else cleaning.line(remedy.why, room.prose),
    )


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(cleaning.whole(n) or 0 for n in shape[:DIMENSIONS])
