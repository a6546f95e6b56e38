"""A program's graph with its calls opened, and the questions that precision asks of it: what is a value a sum of, does
it depend on another, which number is it multiplied by.

Values of a Flow are numbered anew; a value that a call only hands on keeps its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpumagic.events import Program, SourceSite
from tpumagic.graph import Graph, Operation, Value

MAX_OPENED = 60_000
"""Operations after which calls stay closed: a body that many calls share is opened for each of them."""

_OPENED = frozenset({"call", "remat", "shard_map", "pmap"})
_KEEPS_VALUES = frozenset(
    {"convert", "broadcast_in_dim", "reshape", "transpose", "copy", "sharding_constraint", "stop_gradient",
     "optimization_barrier", "reduce_precision", "pvary", "name", "psum", "all_gather"}
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a Flow: the operation as it stood in the graph, with the Flow's value numbers. caller: the line
    of the outermost call that it was opened from, None if it stood in the graph itself."""

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    caller: SourceSite | None = None


@dataclass(frozen=True, eq=False)
class Flow:
    """Operations in order with all calls opened; loops and branches stay nodes with bodies. users: value -> nodes that
    take it in."""

    values: list[Value]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: list[Node]
    producers: dict[int, Node]
    users: dict[int, list[Node]]


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a value. factor: the product of the numbers it is multiplied by, None if there is none written
    in the program. node: the operation that made it, None for an input, constant or literal."""

    value: int
    factor: float | None
    negative: bool
    node: Node | None


FlowOf = Callable[[Graph], Flow]
"""``opened``, or the same with a memory."""


def opened(graph: Graph) -> Flow:
    """The flow of a graph."""
    values: list[Value] = []
    nodes: list[Node] = []

    def add(value: Value) -> int:
        values.append(value)
        return len(values) - 1

    def enter(part: Graph, arguments: tuple[int, ...] | None, caller: SourceSite | None) -> tuple[int, ...]:
        place: dict[int, int] = {}
        if arguments is not None:
            place.update(zip(part.inputs, arguments, strict=True))

        def number(index: int) -> int:
            if index not in place:
                place[index] = add(part.values[index])
            return place[index]

        if arguments is None:
            for index in part.inputs:
                number(index)
        for operation in part.operations:
            inputs = tuple([number(index) for index in operation.inputs])
            body = operation.bodies[0] if operation.name in _OPENED and len(operation.bodies) == 1 else None
            if body is not None and len(body.inputs) == len(inputs) and len(nodes) < MAX_OPENED:
                results = enter(body, inputs, caller or operation.site)
                place.update(zip(operation.outputs, results, strict=False))
            else:
                outputs = tuple([number(index) for index in operation.outputs])
                nodes.append(Node(operation, inputs, outputs, caller))
        return tuple([number(index) for index in part.outputs])

    outputs = enter(graph, None, None)
    inputs = tuple(range(len(graph.inputs)))
    producers = {out: node for node in nodes for out in node.outputs}
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for one in node.inputs:
            users.setdefault(one, []).append(node)
    return Flow(values, inputs, outputs, nodes, producers, users)


def flows(flow: Flow) -> Iterator[Flow]:
    """The flow itself and the flow of every body below it."""
    yield flow
    for node in flow.nodes:
        for body in node.operation.bodies:
            yield from flows(opened(body))


def root(flow: Flow, value: int) -> int:
    """Behind conversions, reshapes and the like: the value that was computed."""
    while (node := flow.producers.get(value)) is not None and node.operation.name in _KEEPS_VALUES:
        place = node.outputs.index(value)
        if place >= len(node.inputs):
            break
        value = node.inputs[place]
    return value


def literal(flow: Flow, value: int, depth: int = 3) -> float | None:
    """The number that fills a value, None if it is not one number written in the program."""
    value = root(flow, value)
    number = flow.values[value].literal
    node = flow.producers.get(value)
    if number is not None or node is None or depth == 0:
        return number
    if node.operation.name not in ("multiply", "divide", "negate"):
        return None
    numbers = [literal(flow, one, depth - 1) for one in node.inputs]
    known = [one for one in numbers if one is not None]
    if len(known) < len(numbers):
        return None
    if node.operation.name == "negate":
        return -known[0]
    if node.operation.name == "multiply":
        return known[0] * known[1]
    return known[0] / known[1] if known[1] else None


def terms(flow: Flow, value: int, depth: int = 12) -> list[Term]:
    """The summands of a value, through additions, subtractions, negations, conversions, and products with numbers."""
    found: list[Term] = []

    def split(value: int, factor: float | None, negative: bool, depth: int) -> None:
        value = root(flow, value)
        node = flow.producers.get(value)
        name = node.operation.name if node is not None else ""
        if node is None or depth == 0 or literal(flow, value) is not None:
            number = literal(flow, value) if factor is None else None
            found.append(Term(value, abs(number) if number is not None else factor, negative, node))
        elif name in ("add", "subtract"):
            split(node.inputs[0], factor, negative, depth - 1)
            split(node.inputs[1], factor, negative != (name == "subtract"), depth - 1)
        elif name == "negate":
            split(node.inputs[0], factor, not negative, depth - 1)
        elif name in ("multiply", "divide"):
            numbers = [literal(flow, one) for one in node.inputs]
            left, right = numbers
            if left is not None and name == "multiply":
                split(node.inputs[1], (factor or 1.0) * abs(left), negative != (left < 0), depth - 1)
            elif right is not None and (name == "multiply" or right):
                scale = right if name == "multiply" else 1.0 / right
                split(node.inputs[0], (factor or 1.0) * abs(scale), negative != (scale < 0), depth - 1)
            else:
                found.append(Term(value, factor, negative, node))
        else:
            found.append(Term(value, factor, negative, node))

    split(value, None, False, depth)
    return found


def ancestors(flow: Flow, value: int) -> set[int]:
    """Every value of the flow that a value was computed from, itself included."""
    seen = {value}
    todo = [value]
    while todo:
        node = flow.producers.get(todo.pop())
        for one in node.inputs if node is not None else ():
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return seen


def array_text(value: Value) -> str:
    """``float32[8,128]``."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def site_of(program: Program, node: Node) -> SourceSite | None:
    """The innermost user line of an operation, else the line of its call.

    A single operation outside of jit is traced once for all its callers: there only the program's own line is right.
    """
    if program.kind == "eager":
        return program.site
    return node.operation.site or node.caller or program.site


def types_of(graph: Graph) -> frozenset[str]:
    """Every type of a value of a graph, its bodies included."""
    found = {value.dtype for value in graph.values}
    for _, operation in graph.walk():
        for body in operation.bodies:
            found.update(value.dtype for value in body.values)
    return frozenset(found)
