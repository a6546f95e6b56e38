"""Where numbers lose precision against a CPU or GPU: the entry point, and what is read from types of operations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import Finding, quantity
from tpumagic.graph import Graph, Value
from tpumagic.passes import low_precision, precision_conversions, precision_cumulative, precision_matmul
from tpumagic.passes import precision_source as written
from tpumagic.passes.precision_flow import Flow, Node, array_text, flows, opened, root, site_of, types_of

RAISED_SIZE = 64
"""Elements from which a raised array is told: below, it is a few numbers that someone looks at."""
MAX_FOLLOWED = 256
"""Values that are looked at on the way from a raised array to the next product."""
FLOAT16_MAX = 65504.0
_ONLY_MOVES = frozenset({"convert", "broadcast_in_dim", "reshape"})
_SIXTEEN_BIT = frozenset({"bfloat16", "float16"})
_TELLING = frozenset({"float32", "bfloat16", "float16", "float64", "complex128"})
_PRODUCTS = frozenset({"dot_general", "convolution"})
_DOUBLE = frozenset({"float64", "complex128"})
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "subtract": ast.Sub, "multiply": ast.Mult, "divide": ast.Div, "power": ast.Pow,
}  # fmt: skip
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "select", "atan2"})


@dataclass(frozen=True)
class Seen:
    """An operation of a program that a finding is about."""

    program: Program
    node: Node
    value: Value

    @property
    def site(self) -> SourceSite | None:
        """The user's line, or that of the program's call."""
        return site_of(self.program, self.node)


@dataclass(frozen=True)
class Raised:
    """A 16-bit array that became float32. other: the float32 operand. product: an array of 16 bits that a later
    product had to raise as well, None if there is none."""

    seen: Seen
    other: Value
    product: Value | None

    @property
    def is_unmeant(self) -> bool:
        """One number, or an array in front of weights that stayed in 16 bits: nobody wanted float32."""
        return self.other.size == 1 or self.product is not None


def find(record: CellRecord) -> Iterator[Finding]:
    """All findings of the family ``precision``."""
    yield from precision_conversions.find(record)
    memory: dict[int, Flow] = {}

    def flow_of(graph: Graph) -> Flow:
        if id(graph) not in memory:
            memory[id(graph)] = opened(graph)
        return memory[id(graph)]

    yield from low_precision.find(record, flow_of)
    yield from precision_cumulative.find(record, flow_of)
    doubles: list[Seen] = []
    halves: list[Seen] = []
    overflows: list[Seen] = []
    raised: list[Raised] = []
    dots: list[precision_matmul.Dot] = []
    for program in record.programs:
        if program.graph is None or program.outside:
            continue
        types = types_of(program.graph)
        if not types & _TELLING or (
            program.kind == "eager" and not types & (_TELLING - {"float32"}) and not _is_product(program)
        ):
            continue
        for flow in flows(flow_of(program.graph)):
            if "float32" in types:
                dots += precision_matmul.default_dots(program, flow)
                yield from precision_matmul.cancellations(program, flow)
            if types & _DOUBLE:
                doubles += _of_types(program, flow, _DOUBLE)
            if "float16" in types:
                halves += _of_types(program, flow, frozenset({"float16"}))
                overflows += _infinite(record, program, flow)
            if "float32" in types and types & _SIXTEEN_BIT:
                raised += _raised(record, program, flow)
    yield from precision_matmul.default_findings(dots)
    if doubles:
        yield _double_finding(doubles)
    yield from _overflow_findings(record, overflows)
    if halves:
        yield _half_finding(halves)
    yield from _promotion_findings(raised)


def _is_product(program: Program) -> bool:
    return program.name in precision_matmul.EAGER_PRODUCTS


def _of_types(program: Program, flow: Flow, types: frozenset[str]) -> Iterator[Seen]:
    """Operations on arrays (not single numbers) of these types; conversions between types are not counted."""
    for node in flow.nodes:
        if node.operation.bodies or node.operation.name in ("convert", "broadcast_in_dim", "iota"):
            continue
        for place in (*node.inputs, *node.outputs):
            value = flow.values[place]
            if value.dtype in types and value.size > 1:
                yield Seen(program, node, value)
                break


def _double_finding(seen: list[Seen]) -> Finding:
    biggest = max(seen, key=lambda one: one.value.size)
    dtype = biggest.value.dtype
    return Finding(
        "precision.f64_emulated",
        "info",
        f"`{biggest.program.name}` computes in {dtype} ({quantity(len(seen), 'operation')}): a TPU has no {dtype} and "
        "imitates it with several float32 operations each.",
        f"Largest array: {array_text(biggest.value)}.",
        "Use float32 where its 7 digits are enough, and keep float64 work on the host.",
        site=biggest.site,
        program=biggest.program.name,
        count=len(seen),
        facts={"dtype": dtype, "operations": len(seen), "largest": array_text(biggest.value)},
    )


def _half_finding(seen: list[Seen]) -> Finding:
    biggest = max(seen, key=lambda one: one.value.size)
    return Finding(
        "precision.fp16_use",
        "info",
        f"`{biggest.program.name}` computes in float16 ({quantity(len(seen), 'operation')}): a TPU has no float16 units, "
        "and float16 ends at 65,504.",
        f"Largest array: {array_text(biggest.value)}.",
        "Use bfloat16: the same size, the range of float32, and what a TPU multiplies natively.",
        site=biggest.site,
        program=biggest.program.name,
        count=len(seen),
        facts={"dtype": "float16", "operations": len(seen), "largest": array_text(biggest.value)},
    )


def _infinite(record: CellRecord, program: Program, flow: Flow) -> Iterator[Seen]:
    """Operations on a float16 number that is infinite though the line has a finite one, too large for float16."""
    for node in flow.nodes:
        for place in node.inputs if node.operation.name not in _ONLY_MOVES else ():
            number = flow.values[root(flow, place)].literal if flow.values[place].dtype == "float16" else None
            if (
                number is not None
                and abs(number) > FLOAT16_MAX
                and _large_number(record, site_of(program, node)) is not None
            ):
                yield Seen(program, node, flow.values[place])
                break


def _large_number(record: CellRecord, site: SourceSite | None) -> str | None:
    """The finite number above float16's range that is written on a line of the cell."""
    if site is None or not written.is_in_cell(record, site):
        return None
    source = written.source_of(record)
    statement = source.statement(site.line)
    for node in ast.walk(statement) if statement is not None else ():
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, int | float) and FLOAT16_MAX < abs(value) < float("inf"):
            return f"{value:g}"
    return None


def _overflow_findings(record: CellRecord, seen: list[Seen]) -> Iterator[Finding]:
    groups: dict[SourceSite | None, list[Seen]] = {}
    for one in seen:
        groups.setdefault(one.site, []).append(one)
    for site, group in groups.items():
        number = _large_number(record, site)
        yield Finding(
            "precision.fp16_overflow",
            "warning",
            f"{number} becomes infinite in float16, which ends at 65,504.",
            f"`{group[0].program.name}` uses it with {array_text(group[0].value)}.",
            "Use bfloat16 or float32 here; to mask values, `jnp.finfo(x.dtype).min` is the lowest finite number.",
            site=site,
            program=group[0].program.name,
            count=len(group),
            facts={"number": number, "dtype": "float16", "largest": 65504},
        )


def _raised(record: CellRecord, program: Program, flow: Flow) -> Iterator[Raised]:
    """Arrays of 16 bits that an operator of the user's made float32 because of its other operand."""
    if program.kind == "eager" and not _is_operator(record, program, flow):
        return
    for node in flow.nodes:
        implicit = node.operation.attributes.get("implicit")
        if node.operation.name != "convert" or not (implicit or (implicit is not None and program.kind == "eager")):
            continue
        before, after = flow.values[node.inputs[0]], node.outputs[0]
        if before.size < RAISED_SIZE:
            continue
        for user in flow.users.get(after, ()):
            others = [place for place in user.inputs if place != after]
            if user.operation.name not in _ARITHMETIC or not others or user.operation.site != node.operation.site:
                continue
            other = flow.values[root(flow, others[-1])]
            if other.dtype == "float32" and not _rounds_back(flow, user.outputs[0]):
                yield Raised(Seen(program, user, before), other, _raised_by_product(flow, user.outputs[0]))
                break


def _raised_by_product(flow: Flow, value: int) -> Value | None:
    """The 16-bit operand of the first product that a float32 value reaches, if JAX had to raise it for that."""
    seen, todo = {value}, [value]
    while todo and len(seen) < MAX_FOLLOWED:
        for user in flow.users.get(todo.pop(0), ()):
            if user.operation.name in _PRODUCTS:
                for place in user.inputs[:2]:
                    operand = _before_raising(flow, place) if place not in seen else None
                    if operand is not None:
                        return operand
            elif not user.operation.bodies:
                new = [one for one in user.outputs if one not in seen and flow.values[one].dtype == "float32"]
                seen.update(new)
                todo += new
    return None


def _before_raising(flow: Flow, place: int) -> Value | None:
    """The 16-bit array behind an operand that nobody asked to be float32."""
    if flow.values[place].dtype in _SIXTEEN_BIT:
        return flow.values[place]
    node = flow.producers.get(place)
    while node is not None and node.operation.name in ("reshape", "transpose", "broadcast_in_dim"):
        node = flow.producers.get(node.inputs[0])
    if node is None or node.operation.name != "convert" or not node.operation.attributes.get("implicit"):
        return None
    before = flow.values[node.inputs[0]]
    return before if before.dtype in _SIXTEEN_BIT else None


def _is_operator(record: CellRecord, program: Program, flow: Flow) -> bool:
    """Whether an eager program is an operator written on its line, its result not converted back there.

    A cast outside of jit is a program of its own, so a conversion within an operator's program is its promotion.
    """
    site = program.site
    if site is None or not written.is_in_cell(record, site):
        return False
    operators = {operator for name, operator in _OPERATORS.items() if name in {n.operation.name for n in flow.nodes}}
    return written.has_operator(written.source_of(record), site.line, operators) and not any(
        other.kind == "eager"
        and other.site == site
        and other.graph is not None
        and any(
            one.name == "convert" and one.attributes.get("new_dtype") in _SIXTEEN_BIT for one in other.graph.operations
        )
        for other in record.programs
    )


def _rounds_back(flow: Flow, value: int) -> bool:
    """Whether everything made of a value is converted to 16 bits at once: then float32 was only passed through."""
    users = flow.users.get(value, [])
    return bool(users) and value not in flow.outputs and all(
        user.operation.name == "convert" and flow.values[user.outputs[0]].dtype in _SIXTEEN_BIT for user in users
    )  # fmt: skip


def _promotion_findings(raised: list[Raised]) -> Iterator[Finding]:
    """A warning where float32 was not wanted; an array that meets a float32 array may be meant so."""
    groups: dict[tuple[SourceSite | None, bool], list[Raised]] = {}
    for one in raised:
        groups.setdefault((one.seen.site, one.other.size == 1), []).append(one)
    for (site, by_number), group in groups.items():
        biggest = max(group, key=lambda one: (one.is_unmeant, one.seen.value.size))
        seen, other, product = biggest.seen, biggest.other, biggest.product
        dtype, what = seen.value.dtype, "a float32 number" if by_number else array_text(other)
        fix = (
            f"Use a plain Python number, which takes the array's type, or convert the number: `.astype(jnp.{dtype})`."
            if by_number
            else f"If {dtype} was meant, convert the float32 operand with `.astype(jnp.{dtype})`; if float32 was meant, "
            "write it: `x.astype(jnp.float32)`."
        )
        later = f", and a later product raises its {array_text(product)} as well" if product is not None else ""
        yield Finding(
            "precision.promotion",
            "warning" if biggest.is_unmeant else "info",
            f"{array_text(seen.value)} becomes float32 because it meets {what}.",
            f"From here on the result takes twice the bytes{later}.",
            fix,
            site=site,
            program=seen.program.name,
            count=len(group),
            facts={"old_dtype": dtype, "new_dtype": "float32", "array": array_text(seen.value), "because_of": what},
        )
