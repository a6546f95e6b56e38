"""Errors of code that needs a value while JAX only knows its shape: sizes that depend on data, and Python decisions on
traced values."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from tpumagic.events import CellRecord, Failure
from tpumagic.findings import Finding
from tpumagic.passes.wording import callers_of, code, expression_of, facts_of, listing, quoted, site_of

_TRACER_ERRORS = frozenset(
    {"TracerBoolConversionError", "TracerIntegerConversionError", "TracerArrayConversionError",
     "ConcretizationTypeError"}
)  # fmt: skip
_SIZE_ERRORS = re.compile(
    r"Shapes must be 1D sequences of concrete values|must have static start/stop/step"
    r"|Slice entries must be static integers. Got slice[^\n]*Tracer"
    r"|parameter (?:reps|shape|new_sizes|dimensions|sizes|slice_sizes) was not hashable: .*Tracer"
)

_FIXED_SIZE = {
    **dict.fromkeys(
        ("nonzero", "flatnonzero", "argwhere", "unique", "unique_values", "unique_counts", "unique_inverse", "unique_all",
         "setdiff1d", "union1d", "intersect1d", "setxor1d", "extract", "compress", "where"), "size"),
    "repeat": "total_repeat_length", "bincount": "length",
}  # fmt: skip
"""Functions whose result is as large as the data say, and the argument that fixes its size."""
_SHAPED = frozenset(
    {"zeros", "ones", "full", "empty", "eye", "identity", "tri", "arange", "linspace", "logspace", "geomspace", "reshape",
     "broadcast_to", "broadcasted_iota", "iota", "tile", "one_hot", "top_k", "split", "array_split", "resize", "delete",
     "insert", "normal", "uniform", "randint", "bernoulli", "permutation", "choice", "categorical", "dynamic_slice",
     "dynamic_slice_in_dim", "ShapeDtypeStruct", "pad"}
)  # fmt: skip
"""Functions one of whose arguments is a size."""
_NUMPY_NAMES = frozenset({"np", "numpy", "onp"})


@dataclass(frozen=True)
class _Spot:
    """The place that needed a value. tree: None if its source is not known. arguments: what the value came from, as
    JAX says, empty if it does not. traced: names in the expression that hold traced values, with their types."""

    expression: str
    tree: ast.expr | None
    statement: ast.stmt | None
    arguments: tuple[str, ...]
    traced: tuple[str, ...]
    function: str | None

    @property
    def callee(self) -> str:
        """The last name of the function that the expression calls; empty if it is no call."""
        if not isinstance(self.tree, ast.Call):
            return ""
        return ast.unparse(self.tree.func).rpartition(".")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the value: the arguments it came from, else the names on the line."""
        return self.arguments or tuple(one.partition(":")[0] for one in self.traced)

    @property
    def while_tracing(self) -> str:
        """``while `f` is traced``."""
        return f"while {code(self.function)} is traced" if self.function else "while JAX traces the function"


def explain(record: CellRecord, failure: Failure) -> Finding | None:
    """unsupported.dynamic_shape or unsupported.traced_control_flow; None for any other failure."""
    facts = facts_of(failure)
    spot = _spot(failure, facts)
    kind_of_error = (
        failure.type_name if failure.type_name not in ("ValueError", "TypeError") else facts.get("cause_type")
    )
    if failure.type_name == "NonConcreteBooleanIndexError":
        return _mask(failure, spot)
    if _SIZE_ERRORS.search(failure.message):
        return _size(failure, spot)
    if failure.type_name in _TRACER_ERRORS or kind_of_error in _TRACER_ERRORS:
        if spot.callee in _FIXED_SIZE and not _is_conversion(failure.message):
            return _data_size(failure, spot)
        if spot.callee in _SHAPED:
            return _size(failure, spot)
        return _decision(failure, spot)
    if re.search(r"unsupported format string passed to \w*Tracer|unhashable type: '\w*Tracer'", failure.message):
        return _decision(failure, spot)
    return None


def _spot(failure: Failure, facts: dict[str, str]) -> _Spot:
    told = quoted(
        r"depends on the values? of the arguments? ([^\n]+?)\.(?:\s|$)", failure.message + "\n" + facts.get("cause", "")
    )
    function = quoted(r"tracing the function (\S+) at ", failure.message + "\n" + facts.get("cause", ""))
    site = site_of(failure)
    if function is None and site is not None:
        function = site.function
    traced = tuple(part for part in facts.get("traced", "").split("; ") if part)
    return _Spot(
        expression=facts["expression"],
        tree=expression_of(facts["expression"]) if facts["expression"] else None,
        statement=_statement(facts["statement"]),
        arguments=tuple(re.split(r", (?:and )?| and ", told)) if told else (),
        traced=traced,
        function=None if function in (None, "<lambda>", "<module>") else function,
    )


def _statement(text: str) -> ast.stmt | None:
    """A statement, or the header of a compound one, as syntax."""
    for complete in (text, f"{text} pass", f"if x: pass\n{text} pass"):
        try:
            body = ast.parse(complete).body
        except (SyntaxError, ValueError):
            continue
        found = body[-1] if body else None
        return found.orelse[0] if complete.startswith("if x: pass\n") and isinstance(found, ast.If) else found
    return None


def _is_conversion(message: str) -> bool:
    return (
        re.search(r"the `(?:int|float|bool|complex)` function|item\(\) method|tolist\(\) method", message) is not None
    )


def _finding(kind: str, failure: Failure, spot: _Spot, title: str, fix: str, why: str) -> Finding:
    types = f" Traced here: {', '.join(one.replace(': ', ' ') for one in spot.traced)}." if spot.traced else ""
    return Finding(
        kind=kind,
        severity="error",
        title=title,
        detail=why + types,
        fix=fix,
        site=site_of(failure),
        related=callers_of(failure),
        facts={
            "expression": spot.expression,
            "names": list(spot.names),
            "traced": list(spot.traced),
            "function": spot.function,
        },
    )


_SHAPES_FIRST = "Every shape must be known before the program runs; values are not known yet."


def _mask(failure: Failure, spot: _Spot) -> Finding:
    tree = spot.tree
    indexed, mask = "x", "mask"
    if isinstance(tree, ast.Subscript):
        indexed, mask = ast.unparse(tree.value), ast.unparse(tree.slice)
    if indexed.endswith(".at") or ".at[" in spot.expression:
        subject = code(spot.expression) if spot.expression else "This update"
        title = f"{subject} updates the elements that a mask selects, whose number depends on the values"
        fix = "Use `jnp.where(mask, new, old)`: it keeps the shape."
    else:
        subject = code(spot.expression) if spot.expression else "Indexing with a boolean mask"
        title = f"{subject} keeps what a boolean mask selects, so its size depends on the values"
        where = code(f"jnp.where({mask}, {indexed}, 0)") if spot.expression else "`jnp.where(mask, x, 0)`"
        fix = (
            f"Keep the shape with {where} and count with {code(f'({mask}).sum()')}; or select with "
            f"{code(f'jnp.nonzero({mask}, size=…)')}."
        )
    return _finding("unsupported.dynamic_shape", failure, spot, title, fix, _SHAPES_FIRST)


def _data_size(failure: Failure, spot: _Spot) -> Finding:
    """A function whose result is as large as its data say."""
    argument = _FIXED_SIZE[spot.callee]
    title = f"The size of {code(spot.expression)} depends on the values of {_values(spot)}"
    fix = f"Fix the size with {code(f'{argument}=…')}{' (unused places are filled)' if argument == 'size' else ''}."
    if spot.callee == "where":
        fix += " Or use the form with three arguments, `jnp.where(mask, x, 0)`, which keeps the shape."
    return _finding("unsupported.dynamic_shape", failure, spot, title, fix, _SHAPES_FIRST)


def _size(failure: Failure, spot: _Spot) -> Finding:
    """A shape, slice or length taken from a traced value."""
    subject = code(spot.expression) if spot.expression else "This line"
    whole = [one.partition(":")[0] for one in spot.traced if re.search(r": u?int\d+\[\]$", one)]
    names = listing(spot.arguments or whole) or "a traced value"
    title = f"The shape of {subject} depends on the value of {names}, which is traced"
    fix = _make_static(spot)
    if isinstance(spot.tree, ast.Subscript):
        fix = f"Take a slice of fixed size: `jax.lax.dynamic_slice_in_dim(x, start, size)`. {fix}"
    return _finding("unsupported.dynamic_shape", failure, spot, title, fix, _SHAPES_FIRST)


def _make_static(spot: _Spot) -> str:
    plain = [name for name in spot.arguments if name.isidentifier()]
    if plain:
        return f"Make {listing(plain)} static: {code(_static_option(plain))}; each new value then compiles once."
    return "Compute the size from shapes (`x.shape`), or pass it as a static argument."


def _static_option(names: list[str]) -> str:
    quotes = ", ".join(f"'{name}'" for name in names)
    return f"static_argnames={quotes}" if len(names) == 1 else f"static_argnames=({quotes})"


def _values(spot: _Spot) -> str:
    return listing(spot.names) if spot.names else "a traced value"


def _decision(failure: Failure, spot: _Spot) -> Finding:
    """Python needed a number, a truth value or a NumPy array where there is only a traced value."""
    place, fix = _remedy(failure, spot)
    verb = "are" if len(spot.names) > 1 else "is"
    value = "values" if len(spot.names) > 1 else "value"
    title = f"{place} needs the {value} of {_values(spot)}, which {verb} not known {spot.while_tracing}"
    why = (
        "Python runs once, while tracing; it cannot decide on, convert or print values that only the device will know."
    )
    return _finding("unsupported.traced_control_flow", failure, spot, title, fix, why)


def _remedy(failure: Failure, spot: _Spot) -> tuple[str, str]:
    """What stands there, as code, and what to write instead."""
    tree, statement, expression = spot.tree, spot.statement, spot.expression
    place = code(expression) if expression else "This line"
    if isinstance(statement, ast.If | ast.While) and tree is not None and _holds(statement.test, tree):
        word = "if" if isinstance(statement, ast.If) else "while"
        place = code(f"{word} {ast.unparse(statement.test)}")
        if word == "while":
            return (
                place,
                "Use `jax.lax.while_loop(condition, body, start)`, or run the loop outside the jitted function.",
            )
        return place, (
            f"Choose between values with {code(f'jnp.where({ast.unparse(statement.test)}, …, …)')}, between computations "
            "with `jax.lax.cond`, or test outside the jitted function."
        )
    if isinstance(statement, ast.Assert):
        return code(f"assert {ast.unparse(statement.test)}"), (
            "Check the result outside the jitted function, or use `checkify.check` of `jax.experimental.checkify`."
        )
    if statement is not None and tree is not None and (choice := _ternary(statement, tree)) is not None:
        return code(ast.unparse(choice)), (
            f"Use {code(f'jnp.where({ast.unparse(choice.test)}, {ast.unparse(choice.body)}, {ast.unparse(choice.orelse)})')}."
        )
    if isinstance(tree, ast.BoolOp | ast.UnaryOp):
        return place, "Use `&`, `|` and `~` on arrays in place of `and`, `or` and `not`; mind the parentheses."
    if isinstance(tree, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in tree.ops):
        return place, "Use `jnp.isin(x, values)`."
    if isinstance(tree, ast.Compare):
        return place, "Compare once per pair and join with `&`: `(a < b) & (b < c)`."
    if isinstance(tree, ast.JoinedStr) or "format string" in failure.message:
        return place, "Print while it runs with `jax.debug.print('{}', x)`, or return the value and print it outside."
    if "unhashable type" in failure.message:
        return place, (
            "Only a value known while tracing can be looked up in a dict, a set or a cache: choose between computations "
            f"with `jax.lax.switch`, between numbers by indexing an array, or make it known. {_make_static(spot)}"
        )
    if isinstance(tree, ast.Call):
        return place, _instead_of_call(failure, spot, tree)
    if isinstance(tree, ast.Subscript):
        if "cause_type" in dict(failure.facts):
            return place, "Build it with JAX: `a = jnp.zeros(…)`, then `a = a.at[i].set(x)`."
        return place, f"Index an array: {code(f'jnp.asarray({ast.unparse(tree.value)})[{ast.unparse(tree.slice)}]')}."
    return place, "Compute it with `jax.numpy`, or outside the jitted function."


def _holds(test: ast.expr, part: ast.expr) -> bool:
    """Whether an expression is, or stands within, a test. Compared as text: they were read from different sources."""
    wanted = ast.unparse(part)
    return any(isinstance(node, ast.expr) and ast.unparse(node) == wanted for node in ast.walk(test))


def _ternary(statement: ast.stmt, tree: ast.expr) -> ast.IfExp | None:
    """The ``a if test else b`` whose test failed."""
    choices = [node for node in ast.walk(statement) if isinstance(node, ast.IfExp)]
    return next((node for node in choices if _holds(node.test, tree)), None)


def _instead_of_call(failure: Failure, spot: _Spot, call: ast.Call) -> str:
    callee, name = ast.unparse(call.func), spot.callee
    head = callee.partition(".")[0]
    if callee == "range":
        fix = "Use `jax.lax.fori_loop(0, n, body, start)`."
        return f"{fix} {_make_static(spot)}" if spot.arguments else fix
    if head in _NUMPY_NAMES:
        better = "asarray" if name in ("array", "asarray", "ascontiguousarray") else name
        return f"Use JAX's function: {code(f'jnp.{better}')} instead of {code(callee)}."
    if head in ("math", "cmath"):
        return f"Use JAX's function: {code(f'jnp.{_MATH.get(name, name)}')} instead of {code(callee)}."
    if callee in ("max", "min"):
        return f"Use {code(f'jnp.{callee}imum(a, b)')}."
    if callee in ("sorted", "any", "all", "sum", "abs", "round"):
        return f"Use {code(f'jnp.{_BUILTINS.get(callee, callee)}')}."
    if callee in ("int", "float", "bool", "complex"):
        return f"Keep it an array ({code(f'.astype({_JAX_TYPES[callee]})')} changes its type), or convert outside the jitted function."
    if name in ("item", "tolist"):
        return f"Leave out {code(f'.{name}()')} here; read the value outside the jitted function."
    if failure.type_name == "TracerArrayConversionError":
        return f"{code(callee)} works on NumPy arrays: use JAX's counterpart, or call it through `jax.pure_callback`."
    return "Compute it with `jax.numpy`, or outside the jitted function."


_MATH = {"fabs": "abs", "pow": "power", "atan2": "arctan2", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_BUILTINS = {"sorted": "sort"}
_JAX_TYPES = {"int": "jnp.int32", "float": "jnp.float32", "bool": "bool", "complex": "jnp.complex64"}
