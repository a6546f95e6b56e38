"""How large a number of a program can become: of a learning rate that follows a schedule, its largest value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tpumagic.passes.precision_flow import Flow, Node, Term, literal, root

MAX_DEPTH = 24
_BETWEEN = {
    "cosine": (-1.0, 1.0),
    "sine": (-1.0, 1.0),
    "tanh": (-1.0, 1.0),
    "sign": (-1.0, 1.0),
    "logistic": (0.0, 1.0),
}
"""Functions whose results are bounded whatever goes in."""


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest that a value can be; infinite where nothing is known."""

    least: float = -math.inf
    greatest: float = math.inf

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(abs(self.least), abs(self.greatest))


_ANYTHING = Bounds()


def largest_factor(flow: Flow, term: Term, known: Mapping[int, float]) -> float | None:
    """The most that a term is scaled by: by numbers as written, and by one number that the program computes or is
    given. None if that has no bound. known: what the call passes for scalar inputs, where it is written there."""
    node = term.node
    if node is None or node.operation.name not in ("multiply", "divide"):
        return term.factor
    scales = node.inputs[1:] if node.operation.name == "divide" else node.inputs
    for place in scales:
        if flow.values[root(flow, place)].size != 1:
            continue
        bounds = _bounds(flow, place, known, MAX_DEPTH)
        if node.operation.name == "divide":
            bounds = _quotient(Bounds(1.0, 1.0), bounds)
        if math.isfinite(bounds.magnitude):
            return bounds.magnitude * (term.factor if term.factor is not None else 1.0)
    return term.factor


def _bounds(flow: Flow, place: int, known: Mapping[int, float], depth: int) -> Bounds:
    number = literal(flow, place)
    place = root(flow, place)
    number = known.get(place, number)
    if number is not None:
        return Bounds(number, number)
    node = flow.producers.get(place)
    if node is None or depth == 0:
        # A whole number that a learning rate is computed from counts steps.
        counts = node is None and "int" in flow.values[place].dtype and flow.values[place].size == 1
        return Bounds(0.0, math.inf) if counts else _ANYTHING
    name = node.operation.name
    if name in _BETWEEN:
        return Bounds(*_BETWEEN[name])
    return _combined(name, node, [_bounds(flow, one, known, depth - 1) for one in node.inputs])


def _combined(name: str, node: Node, given: list[Bounds]) -> Bounds:
    if name == "select":
        return Bounds(min(one.least for one in given[1:]), max(one.greatest for one in given[1:]))
    if name == "clamp":
        low, _, high = given
        return Bounds(low.least, high.greatest)
    if name == "integer_pow":
        exponent = node.operation.attributes.get("exponent")
        return _power(given[0], Bounds(exponent, exponent)) if isinstance(exponent, int) else _ANYTHING
    if len(given) == 1:
        return _of_one(name, given[0])
    if len(given) != 2:
        return _ANYTHING
    left, right = given
    if name == "maximum":
        return Bounds(max(left.least, right.least), max(left.greatest, right.greatest))
    if name == "minimum":
        return Bounds(min(left.least, right.least), min(left.greatest, right.greatest))
    if name == "add":
        return Bounds(left.least + right.least, left.greatest + right.greatest)
    if name == "subtract":
        return Bounds(left.least - right.greatest, left.greatest - right.least)
    if name == "multiply":
        return _product(left, right)
    if name == "divide":
        return _quotient(left, right)
    return _power(left, right) if name == "power" else _ANYTHING


def _of_one(name: str, given: Bounds) -> Bounds:
    if name == "negate":
        return Bounds(-given.greatest, -given.least)
    if name == "abs":
        least = 0.0 if given.least <= 0 <= given.greatest else min(abs(given.least), abs(given.greatest))
        return Bounds(least, given.magnitude)
    if name in ("exp", "exponential"):
        return Bounds(0.0, math.exp(given.greatest) if given.greatest < 80 else math.inf)
    if name == "sqrt":
        return Bounds(math.sqrt(max(given.least, 0.0)), math.sqrt(max(given.greatest, 0.0)))
    if name == "rsqrt":
        return _quotient(Bounds(1.0, 1.0), _of_one("sqrt", given))
    return _ANYTHING


def _product(left: Bounds, right: Bounds) -> Bounds:
    ends = [a * b if a and b else 0.0 for a in (left.least, left.greatest) for b in (right.least, right.greatest)]
    return Bounds(min(ends), max(ends))


def _quotient(left: Bounds, right: Bounds) -> Bounds:
    if right.least <= 0 <= right.greatest:
        return _ANYTHING
    return _product(left, Bounds(1.0 / right.greatest, 1.0 / right.least))


def _power(base: Bounds, exponent: Bounds) -> Bounds:
    """Of a base that is not negative."""
    if base.least < 0:
        return _ANYTHING
    try:
        ends = [a**b for a in (base.least, base.greatest) for b in (exponent.least, exponent.greatest)]
    except (ZeroDivisionError, OverflowError):
        return _ANYTHING
    return Bounds(min(ends), max(ends))
