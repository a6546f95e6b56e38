"""The picture of a program's memory: over its schedule, with the peak and the limit, and what holds the peak.

Static SVG without ids and scripts. Shapes stretch with the width of the page, texts keep their size.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpumagic.numbers import capacity_text, percent_text
from tpumagic.report import markup
from tpumagic.report.target_model import ReportedTarget

COLOURS = 6
"""So many holders have a colour of their own."""
TOP = 18
"""Pixels above the curve, for its labels."""
CURVE = 110
BAR_TOP = TOP + CURVE + 10
BAR = 14
WIDTH, HEIGHT = 1000, 200
"""Of the curve, in its own units."""
FAR = 8
"""With a limit so many times the peak, the curve fills the picture and the limit is beyond it."""


def picture(target: ReportedTarget) -> str:
    """The SVG of an answer with a timeline; empty without one, or without a peak."""
    highest = max((size for _, size in target.timeline), default=0)
    if not highest:
        return ""
    limit = target.available_bytes
    near = limit is not None and limit < FAR * highest
    scale = max(highest, limit or 0) if near else highest
    peak_at = next(position for position, size in target.timeline if size == highest)
    parts = [
        f"<title>{markup.escaped(f'Memory of {target.name} in use while the program runs')}</title>",
        f"<desc>{markup.escaped(description(target))}</desc>",
        f'<svg x="0" y="{TOP}" width="100%" height="{CURVE}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">',
        f'<path class="tm-area" d="{_area(target.timeline, scale, 0)}"/>',
    ]
    if near and limit is not None:
        if highest > limit:
            parts.append(f'<path class="tm-over" d="{_area(target.timeline, scale, limit)}"/>')
        parts.append(f'<path class="tm-limit" d="M0 {_y(limit, scale)}H{WIDTH}"/>')
    x = round(peak_at * WIDTH)
    parts += [
        f'<path class="tm-peak" d="M{x} {HEIGHT}V{_y(highest, scale)}"/>',
        f'<path class="tm-dot" d="M{x} {_y(highest, scale)}h0"/>',
        "</svg>",
        _label(f"peak {capacity_text(highest)}", peak_at, _pixel(highest, scale)),
    ]
    if limit is not None:
        text = f"limit {capacity_text(limit)}" + ("" if near else " ↑")
        # On the other side than the peak, so that the two never meet.
        parts.append(_label(text, 1.0 if peak_at < 0.5 else 0.0, _pixel(limit, scale) if near else TOP))
    parts += _bar(target)
    height = BAR_TOP + BAR + 2 if target.holders else BAR_TOP
    return f'<svg class="tm-chart" role="img" width="100%" height="{height}">{"".join(parts)}</svg>'


def description(target: ReportedTarget) -> str:
    """The picture in words."""
    highest = max((size for _, size in target.timeline), default=0)
    peak_at = next((position for position, size in target.timeline if size == highest), None)
    return (
        f"Memory over the program's schedule: at most {capacity_text(highest)} in use, "
        f"{percent_text(peak_at)} of the way through; the limit is {capacity_text(target.available_bytes)}"
    )


def _area(points: Sequence[tuple[float, int]], scale: int, floor: int) -> str:
    """What is in use above ``floor``, as steps: a size holds until the next point."""
    base = _y(floor, scale)
    path = f"M0 {base}"
    for n, (position, size) in enumerate(points):
        path += f"H{round(position * WIDTH) if n else 0}V{_y(max(size, floor), scale)}"
    return f"{path}H{WIDTH}V{base}Z"


def _bar(target: ReportedTarget) -> list[str]:
    """The holders of the peak side by side, as wide as their share."""
    needed = max(target.needed_bytes or 0, sum(holder.bytes for holder in target.holders))
    if not target.holders or not needed:
        return []
    parts: list[str] = []
    start = 0.0
    for n, holder in enumerate(target.holders[:COLOURS]):
        width = 100 * holder.bytes / needed
        parts.append(_segment(start, width, f"tm-h{n}"))
        start += width
    return [*parts, _segment(start, 100 - start, "tm-rest")] if start < 99.5 else parts


def _segment(start: float, width: float, colour: str) -> str:
    return f'<rect class="{colour}" x="{start:.2f}%" y="{BAR_TOP}" width="{width:.2f}%" height="{BAR}"/>'


def _label(text: str, position: float, y: float) -> str:
    anchor = "start" if position < 0.2 else "end" if position > 0.8 else "middle"
    return f'<text x="{100 * position:.1f}%" y="{max(y - 5, 11):.0f}" text-anchor="{anchor}">{markup.escaped(text)}</text> '


def _y(size: int, scale: int) -> int:
    return round(HEIGHT * (1 - size / scale))


def _pixel(size: int, scale: int) -> float:
    return TOP + CURVE * (1 - size / scale)
