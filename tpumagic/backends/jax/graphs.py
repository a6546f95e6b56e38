"""JAX's jaxpr as a neutral Graph.

One pass over the equations: every sub-jaxpr is read once and shared between the operations that use it, and nothing of
the user's stays alive in the result (strings, numbers and tuples only). A primitive that is not known here becomes an
operation under JAX's own name, without a body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpumagic.backends.jax.graph_attributes import (
    BODY_PARAMETERS,
    attributes_of,
    in_installed_package,
    is_implicit,
    size_of,
)
from tpumagic.events import SourceSite
from tpumagic.graph import Graph, Operation, Value

StackOf = Callable[[Any], tuple[SourceSite, ...]]

STABLEHLO_NAMES = {
    "add_any": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "rem": "remainder", "neg": "negate",
    "exp": "exponential", "exp2": "exponential_base2", "expm1": "exponential_minus_one", "log1p": "log_plus_one",
    "pow": "power", "sin": "sine", "cos": "cosine", "max": "maximum", "min": "minimum", "select_n": "select",
    "convert_element_type": "convert", "conv_general_dilated": "convolution", "squeeze": "reshape",
    "expand_dims": "reshape", "rng_bit_generator": "rng_bit_generator", "rev": "reverse", "scatter-add": "scatter_add",
    "scatter_mul": "scatter_multiply", "while": "while", "ffi_call": "custom_call", "remat2": "remat",
    "checkpoint": "remat", "psum_invariant": "psum", "jit": "call", "pjit": "call", "closed_call": "call",
    "core_call": "call", "custom_jvp_call": "call", "custom_vjp_call": "call", "custom_vjp_call_jaxpr": "call",
    "xla_pmap": "pmap",
}  # fmt: skip
"""Where StableHLO (or Operation's own vocabulary) says it differently from JAX."""

_NO_BODY = frozenset({"pallas_call", "reduce", "run_scoped", "core_map", "mpmd_map"})
"""Their jaxpr is a kernel on references or a scalar combiner: its inputs are not the operation's inputs."""


def graph_of(jaxpr: Any, stack_of: StackOf, limit: int) -> Graph:
    """What a Jaxpr or ClosedJaxpr computes.

    stack_of: user frames of an equation's ``source_info``; asked once per distinct traceback. limit: number of
    operations, bodies included, after which reading stops; the graph then says ``truncated``.
    """
    return _Reader(stack_of, limit).graph(jaxpr, None)


class _Reader:
    """The state of one reading: how many operations are left, and what was seen already."""

    def __init__(self, stack_of: StackOf, limit: int) -> None:
        self.literal_type = _literal_type()
        self.stack_of = stack_of
        self.left = limit
        self.truncated = False
        self.stacks: dict[Any, tuple[SourceSite, ...]] = {}
        self.bodies: dict[tuple[int, int], Graph] = {}
        self.values: dict[tuple[Any, ...], Value] = {}
        self.dtype_names: dict[Any, str] = {}

    def graph(self, jaxpr: Any, caller: tuple[SourceSite, ...] | None) -> Graph:
        """caller: the stack of every operation in here, for a body whose own frames are no use (None: its own)."""
        opened = getattr(jaxpr, "jaxpr", jaxpr)
        key = (id(opened), id(caller))
        if key in self.bodies:
            return self.bodies[key]
        values: list[Value] = []
        index: dict[Any, int] = {}
        literal_type = self.literal_type

        def position(atom: Any) -> int:
            if type(atom) is literal_type:
                values.append(self.value(atom.aval, _number(atom.val)))
                return len(values) - 1
            place = index.get(atom)
            if place is None:
                place = index[atom] = len(values)
                values.append(self.value(atom.aval, None))
            return place

        for variable, constant in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False):
            index[variable] = len(values)
            values.append(self.value(variable.aval, _number(constant)))
        inputs = tuple([position(variable) for variable in opened.invars])
        operations: list[Operation] = []
        for equation in opened.eqns:
            if self.left <= 0:
                self.truncated = True
                break
            self.left -= 1
            stack = caller if caller is not None else self.stack(equation.source_info)
            name = equation.primitive.name
            operands = tuple([position(atom) for atom in equation.invars])
            results = tuple([position(variable) for variable in equation.outvars])
            attributes = attributes_of(name, equation.params)
            if _in_backward_pass(equation.source_info):
                attributes["gradient"] = True
            if name == "convert_element_type" and _raises(equation):
                attributes["implicit"] = is_implicit(equation.source_info)
            bodies = self.operation_bodies(name, equation, stack)
            if name == "while":
                attributes["length"] = trip_count(bodies, [values[i] for i in operands], attributes)
            neutral_name = STABLEHLO_NAMES.get(name) or name.replace("-", "_")
            operations.append(Operation(neutral_name, operands, results, stack, attributes, bodies))
        outputs = tuple([position(atom) for atom in opened.outvars])
        graph = Graph(tuple(values), inputs, outputs, tuple(operations), self.truncated)
        self.bodies[key] = graph
        return graph

    def operation_bodies(self, name: str, equation: Any, stack: tuple[SourceSite, ...]) -> tuple[Graph, ...]:
        parameters = equation.params
        if name == "cond":
            return tuple([self.graph(branch, None) for branch in parameters["branches"]])
        if name == "while":
            return (self.graph(parameters["cond_jaxpr"], None), self.graph(parameters["body_jaxpr"], None))
        if name in _NO_BODY:
            return ()
        for key in BODY_PARAMETERS:
            body = parameters.get(key)
            opened = getattr(body, "jaxpr", body)
            if hasattr(opened, "eqns") and len(opened.invars) == len(equation.invars):
                # JAX traces its own functions once for all callers: their frames are those of the first caller.
                return (self.graph(body, stack if _is_library(opened) else None),)
        return ()

    def stack(self, source_info: Any) -> tuple[SourceSite, ...]:
        traceback = getattr(source_info, "traceback", None)
        if traceback is None:
            return ()
        found = self.stacks.get(traceback)
        if found is None:
            found = self.stacks[traceback] = self.stack_of(source_info)
        return found

    def value(self, aval: Any, literal: float | None) -> Value:
        """Equal values are one object: most programs know only a few shapes."""
        inner = getattr(aval, "inner_aval", aval)
        dtype = getattr(inner, "dtype", None)
        shape = getattr(inner, "shape", ())
        weak = getattr(inner, "weak_type", False)
        key = (shape, dtype, weak, literal)
        try:
            found = self.values.get(key)
        except TypeError:  # a shape with a traced dimension
            return Value((), self.dtype_name(dtype, inner), weak, literal)
        if found is None:
            sizes = tuple([n if type(n) is int else size_of(n) for n in shape])
            found = self.values[key] = Value(sizes, self.dtype_name(dtype, inner), bool(weak), literal)
        return found

    def dtype_name(self, dtype: Any, aval: Any) -> str:
        if dtype is None:
            return type(aval).__name__
        name = self.dtype_names.get(dtype)
        if name is None:
            name = self.dtype_names[dtype] = str(getattr(dtype, "name", dtype))
        return name


def _number(value: Any) -> float | None:
    """A scalar's number; None for an array, a complex number, or one that lies on a device."""
    if isinstance(value, (bool, int, float)):
        return _float(value)
    if getattr(value, "shape", None) != () or hasattr(value, "sharding"):
        return None
    return _float(value)


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _literal_type() -> type:
    """The class of numbers written into a jaxpr."""
    try:
        from jax._src.core import Literal
    except ImportError:  # the public name costs 50 ms of imports
        from jax.extend.core import Literal
    return Literal


def _in_backward_pass(source_info: Any) -> bool:
    """Whether differentiation made this equation on its way back to the parameters."""
    for entry in getattr(getattr(source_info, "name_stack", None), "stack", ()):
        if getattr(entry, "name", None) == "transpose":
            return True
    return False


def _raises(equation: Any) -> bool:
    """A conversion from a 16-bit float to float32: the only kind of which it matters who asked for it."""
    if str(equation.params.get("new_dtype")) != "float32":
        return False
    return str(getattr(equation.invars[0].aval, "dtype", "")) in ("bfloat16", "float16")


def trip_count(bodies: tuple[Graph, ...], operands: list[Value], attributes: dict[str, object]) -> int | None:
    """How often a ``while`` runs that counts one carry up by a number to a number; None if it is another kind."""
    condition, body = bodies
    condition_constants, body_constants = (attributes.get(f"{of}_constant_count") for of in ("condition", "body"))
    if not isinstance(condition_constants, int) or not isinstance(body_constants, int):
        return None
    tests = [operation for operation in condition.operations if condition.outputs[:1] == operation.outputs]
    if len(tests) != 1 or tests[0].name not in ("lt", "le"):
        return None

    def number(place: int) -> float | None:
        """The number behind a value of the condition: written there, or handed in unchanged by every turn."""
        if place not in condition.inputs:
            return condition.values[place].literal
        position = condition.inputs.index(place)
        if position < condition_constants:
            return operands[position].literal
        carry = position - condition_constants
        if body.outputs[carry] != body.inputs[body_constants + carry]:
            return None
        return operands[condition_constants + body_constants + carry].literal

    counter, limit = tests[0].inputs[0], number(tests[0].inputs[1])
    if limit is None or counter not in condition.inputs:
        return None
    carry = condition.inputs.index(counter) - condition_constants
    if carry < 0:
        return None
    start = operands[condition_constants + body_constants + carry].literal
    step = body.producers().get(body.outputs[carry])
    if start is None or step is None or step.name != "add" or step.inputs[0] != body.inputs[body_constants + carry]:
        return None
    stride = body.values[step.inputs[1]].literal
    if stride is None or stride <= 0:
        return None
    distance = limit - start + (stride if tests[0].name == "le" else 0)
    return max(0, int(-(-distance // stride)))


def _is_library(jaxpr: Any) -> bool:
    """Whether the traced function stands in an installed package, not in the user's code."""
    file = getattr(getattr(jaxpr, "debug_info", None), "func_filename", None)
    return isinstance(file, str) and in_installed_package(file)
