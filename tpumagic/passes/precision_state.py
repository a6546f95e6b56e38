"""Values that come back to their own beginning, and what 16 bits do to them: which are running sums, which are states
whose updates are too small to be seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpumagic.passes.precision_bounds import largest_factor
from tpumagic.passes.precision_flow import Flow, Node, ancestors, literal, opened, root, terms

LOW_PRECISION = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""16-bit floats and the relative size below which a change is rounded away."""


@dataclass(frozen=True, eq=False)
class State:
    """A value that comes back to its own beginning: into the next turn of a loop, or the next call of a program.

    before, after: its numbers in the flow of the body. turns: how often, None if not known. starts_at_zero: whether
    it is known to begin with zero. outer: the value it begins with, in the flow around the loop; None for a program.
    """

    before: int
    after: int
    turns: int | None
    starts_at_zero: bool = False
    outer: int | None = None


def loops(flow: Flow) -> Iterator[tuple[Flow, Flow, list[State]]]:
    """Every loop of a flow, loops in loops too: the flow around it, the flow of its body, its carries.

    Those that differentiation made are left out: their sums are JAX's, in the type of the weights.
    """
    for node in flow.nodes:
        if node.operation.attributes.get("gradient"):
            continue
        for body in node.operation.bodies:
            inner = opened(body)
            if body is node.operation.bodies[-1] and node.operation.name in ("scan", "while"):
                yield flow, inner, _carries(flow, node, inner)
            yield from loops(inner)


def _carries(flow: Flow, node: Node, body: Flow) -> list[State]:
    attributes = node.operation.attributes
    length = attributes.get("length")
    turns = length if isinstance(length, int) else None
    if node.operation.name == "scan":
        constants, around, count = (attributes.get(one) for one in ("constant_count", "constant_count", "carry_count"))
    else:
        constants, condition = (attributes.get(f"{one}_constant_count") for one in ("body", "condition"))
        if not isinstance(constants, int) or not isinstance(condition, int):
            return []
        around, count = constants + condition, len(body.inputs) - constants
    if not isinstance(constants, int) or not isinstance(around, int) or not isinstance(count, int):
        return []
    return [
        State(
            body.inputs[constants + position],
            body.outputs[position],
            turns,
            literal(flow, node.inputs[around + position]) == 0.0,
            root(flow, node.inputs[around + position]),
        )
        for position in range(count)
    ]


def depends_over_turns(flow: Flow, states: list[State], value: int, state: State) -> bool:
    """Whether a value depends on what the state was, in this turn or through other states in an earlier one."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        reached = ancestors(flow, todo.pop())
        if state.before in reached:
            return True
        for other in states:
            if other.before in reached and other.before not in seen:
                seen.add(other.before)
                todo.append(other.after)
    return False


def from_gradients(flow: Flow) -> set[int]:
    """Every value that was computed from something the backward pass made."""
    found: set[int] = set()
    for node in flow.nodes:
        if node.operation.attributes.get("gradient") or any(one in found for one in node.inputs):
            found.update(node.outputs)
    return found


@dataclass(frozen=True)
class Fault:
    """What is wrong with one state. kind: ``sum`` or ``update``. node: the addition; position: on which side of it
    the state stands. by_number: a number of the program is added. factor: the number that updates are scaled by;
    decayed: the state is also scaled, by almost 1."""

    kind: str
    node: Node
    position: int
    by_number: bool
    factor: float | None = None
    decayed: bool = False


_NOTHING: Mapping[int, float] = {}


def judge(
    flow: Flow,
    states: list[State],
    state: State,
    gradients: set[int],
    may_be_sum: bool,
    known: Mapping[int, float] = _NOTHING,
) -> Fault | None:
    """What is wrong with a state, None if nothing that is certain. gradients: values that come from a backward pass;
    may_be_sum: whether it is added to often enough; known: numbers that are passed for scalar inputs."""
    value = flow.values[state.before]
    top = addition_of(flow, state)
    if top is None or top.operation.attributes.get("gradient"):
        return None
    spacing = LOW_PRECISION[value.dtype]
    summands = terms(flow, top.outputs[0])
    own = [term for term in summands if term.value == state.before and _is_near_one(term.factor, 2 * spacing)]
    others = [term for term in summands if term not in own]
    if len(own) != 1 or own[0].negative or not others or _is_compensated(flow, state, top):
        return None
    node, position = _where_added(flow, top, state.before)
    by_number = literal(flow, node.inputs[1 - position]) is not None
    scales = [largest_factor(flow, term, known) for term in others]
    factors = [factor for factor in scales if factor is not None]
    # A gradient is seldom as large as its weight: there a larger step is lost as well.
    is_gradient = any(term.value in gradients for term in others)
    limit = spacing * (8 if is_gradient else 2)
    is_small = len(factors) == len(others) and 0.0 < max(factors) <= limit
    if is_small and (value.size > 1 or is_gradient) and not state.starts_at_zero:
        return Fault("update", node, position, by_number, max(factors), own[0].factor is not None)
    if not may_be_sum or own[0].factor is not None:
        return None
    if any(depends_over_turns(flow, states, term.value, state) for term in others):
        return None  # a residual connection, not a running sum
    return Fault("sum", node, position, by_number)


def _is_near_one(factor: float | None, distance: float) -> bool:
    return factor is None or abs(1.0 - factor) <= distance


def addition_of(flow: Flow, state: State) -> Node | None:
    """The addition that makes the new state, also behind a choice between old and new."""
    node = flow.producers.get(root(flow, state.after))
    if node is not None and node.operation.name == "select":
        changed = [one for one in (root(flow, one) for one in node.inputs[1:]) if one != state.before]
        node = flow.producers.get(changed[0]) if len(changed) == 1 else None
    return node if node is not None and node.operation.name in ("add", "subtract") else None


def _is_compensated(flow: Flow, state: State, top: Node) -> bool:
    """Whether the program looks at what rounding took away (Kahan's sum): ``(new - old) - addend``."""
    new = top.outputs[0]
    after = list(flow.users.get(new, ()))
    after += [
        user for node in after if node.operation.name == "convert" for user in flow.users.get(node.outputs[0], ())
    ]
    return any(
        node.operation.name == "subtract" and state.before in {root(flow, one) for one in node.inputs} for node in after
    )


def _where_added(flow: Flow, top: Node, before: int) -> tuple[Node, int]:
    """The addition that has the state itself on one side, and which side: ``(w + a) + b`` adds to w on the inside."""
    node, position = top, 0
    for _ in range(12):
        sides = [root(flow, one) for one in node.inputs]
        if before in sides:
            return node, sides.index(before)
        holding = [
            place for place, one in enumerate(sides) if any(term.value == before for term in terms(flow, one))
        ]  # fmt: skip
        inner = flow.producers.get(sides[holding[0]]) if holding else None
        if inner is None or inner.operation.name not in ("add", "subtract"):
            return node, holding[0] if holding else position
        node = inner
    return node, position
