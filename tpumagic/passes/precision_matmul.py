"""float32 products that a TPU multiplies in bfloat16, and the differences in which that shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from tpumagic.events import Program, SourceSite
from tpumagic.findings import Finding, quantity
from tpumagic.graph import Value
from tpumagic.passes.precision_flow import Flow, Node, Term, array_text, root, site_of, terms

EAGER_PRODUCTS = frozenset(
    {"matmul", "dot", "dot_general", "einsum", "_einsum", "tensordot", "vdot", "inner", "conv_general_dilated"}
)
"""Programs of single operations that are a product the user wrote; others (solvers, decompositions) are JAX's own."""


@dataclass(frozen=True)
class Dot:
    """A float32 product at default precision. operations: multiplications in it."""

    program: Program
    node: Node
    operations: int
    shapes: str

    @property
    def site(self) -> SourceSite | None:
        """The user's line, or that of the program's call."""
        return site_of(self.program, self.node)


def default_dots(program: Program, flow: Flow) -> Iterator[Dot]:
    """The float32 products of a flow that nobody asked to be precise.

    A product with a single row or column is none for a TPU: it multiplies and sums in float32.
    """
    if program.kind == "eager" and program.name not in EAGER_PRODUCTS:
        return
    for node in flow.nodes:
        if _is_default(flow, node):
            left, right = (flow.values[place] for place in node.inputs[:2])
            operations = _multiplications(node, left, right, flow.values[node.outputs[0]])
            if operations:
                yield Dot(program, node, operations, f"{array_text(left)} × {array_text(right)}")


def _is_default(flow: Flow, node: Node) -> bool:
    if node.operation.name not in ("dot_general", "convolution") or len(node.inputs) < 2:
        return False
    is_float32 = all(flow.values[place].dtype == "float32" for place in node.inputs[:2])
    return is_float32 and node.operation.attributes.get("precision") == "default"


def _multiplications(node: Node, left: Value, right: Value, result: Value) -> int:
    """Multiplications of a product; 0 for one with a single row or column."""
    if node.operation.name == "convolution":
        return result.size * math.prod(right.shape[1:])
    contracted, batch = (_left_axes(node, name) for name in ("contracting", "batch"))
    inner = math.prod(left.shape[axis] for axis in contracted)
    outer = math.prod(left.shape[axis] for axis in batch)
    if inner * outer == 0 or left.size == inner * outer or right.size == inner * outer:
        return 0
    return result.size * inner


def _left_axes(node: Node, name: str) -> tuple[int, ...]:
    """The left operand's axes of an attribute that has those of both."""
    both = cast("tuple[tuple[int, ...], tuple[int, ...]]", node.operation.attributes.get(name, ((), ())))
    return both[0]


def default_findings(dots: list[Dot]) -> Iterator[Finding]:
    """One finding for the products of all programs that have their largest on the same line."""
    programs: dict[int, list[Dot]] = {}
    for dot in dots:
        programs.setdefault(id(dot.program), []).append(dot)
    groups: dict[SourceSite | None, list[list[Dot]]] = {}
    for group in programs.values():
        groups.setdefault(max(group, key=lambda dot: dot.operations).site, []).append(group)
    for site, several in groups.items():
        group = max(several, key=lambda one: max(dot.operations for dot in one))
        biggest = max(group, key=lambda dot: dot.operations)
        lines = [dot.site for dot in sorted(group, key=lambda dot: -dot.operations)]
        call = biggest.program.site
        related = [one for one in dict.fromkeys([*lines, call]) if one is not None and one != site]
        yield Finding(
            "precision.default_matmul",
            "info",
            f"`{biggest.program.name}` multiplies float32 in bfloat16 on a TPU: {quantity(len(group), 'product')} at "
            "default precision (the sums stay float32).",
            f"Largest: {biggest.shapes}. The relative error is about 2e-3, where a CPU has about 1e-7.",
            "Where that matters, give this product `precision='highest'` (4 to 6 times slower there) or set "
            "`jax.default_matmul_precision('float32')` around the call; training seldom needs it.",
            site=site,
            related=tuple(related[:5]),
            program=biggest.program.name,
            count=len(group),
            facts={"dtype": "float32", "multiplied_in": "bfloat16", "products": len(group), "largest": biggest.shapes},
        )


def cancellations(program: Program, flow: Flow) -> Iterator[Finding]:
    """Squared distances as ``|x|² + |y|² - 2xy``: the small result keeps the product's large error."""
    sums = [node for node in flow.nodes if node.operation.name in ("add", "subtract")]
    inner = {root(flow, place) for node in sums for place in node.inputs}
    told: set[SourceSite | None] = set()
    for node in sums:
        if node.outputs[0] in inner or site_of(program, node) in told:
            continue
        summands = terms(flow, node.outputs[0])
        for product in summands:
            operands = _product_operands(flow, product)
            if operands is None:
                continue
            squares = {_squared(flow, term.value) for term in summands if term.negative != product.negative}
            if set(operands) <= squares:
                told.add(site_of(program, node))
                yield _cancellation_finding(program, flow, node, product)
                break


def _product_operands(flow: Flow, term: Term) -> tuple[int, int] | None:
    """The x and y of a term ``2 x·y`` at default precision, behind transposes and factors."""
    node = term.node
    if node is None or not _is_default(flow, node) or node.operation.name != "dot_general":
        return None
    sides = [terms(flow, place, depth=2) for place in node.inputs[:2]]
    factor = term.factor or 1.0
    for side in sides:
        if len(side) != 1:
            return None
        factor *= side[0].factor or 1.0
    return (sides[0][0].value, sides[1][0].value) if factor == 2.0 else None


def _squared(flow: Flow, value: int) -> int | None:
    """The x, where the value is the sum of x² over an axis."""
    node = flow.producers.get(value)
    if node is None:
        return None
    if node.operation.name == "dot_general":
        left, right = (root(flow, place) for place in node.inputs[:2])
        return left if left == right else None
    if node.operation.name != "reduce_sum":
        return None
    square = flow.producers.get(root(flow, node.inputs[0]))
    if square is None:
        return None
    operands = {root(flow, place) for place in square.inputs}
    is_square = (
        square.operation.name == "square"
        or (square.operation.name == "integer_pow" and square.operation.attributes.get("exponent") == 2)
        or (square.operation.name == "multiply" and len(square.inputs) == 2)
    )
    return operands.pop() if is_square and len(operands) == 1 else None


def _cancellation_finding(program: Program, flow: Flow, node: Node, product: Term) -> Finding:
    assert product.node is not None
    left, right = (flow.values[place] for place in product.node.inputs[:2])
    site = site_of(program, node)
    lines = [line for line in (site_of(program, product.node), program.site) if line is not None]
    return Finding(
        "precision.matmul_cancellation",
        "warning",
        f"`{program.name}` takes squared distances as |x|² + |y|² - 2xy, and on a TPU the product xy is multiplied in "
        "bfloat16: small distances drown in its error and can come out negative.",
        f"Product: {array_text(left)} × {array_text(right)}, float32 at default precision (relative error about 2e-3).",
        "Give this product `precision='highest'`, or subtract first: `((x[:, None] - y[None]) ** 2).sum(-1)`.",
        site=site,
        related=tuple(one for one in dict.fromkeys(lines) if one != site),
        program=program.name,
        facts={"dtype": "float32", "multiplied_in": "bfloat16", "product": f"{array_text(left)} × {array_text(right)}"},
    )
