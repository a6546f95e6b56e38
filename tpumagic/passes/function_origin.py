"""Where a called function or an argument comes from, read from the text of the cell: made anew for each call, or kept.

A function that a loop makes and jits again compiles for nothing; one that a loop takes out of a list of models
compiles because there are several models. The objects look the same, the text tells them apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.sources import FUNCTIONS, CallText, Function, Source, bound_names, dotted, names_in

_MAKES_A_FUNCTION = ("jit", "pmap", "filter_jit", "filter_pmap")
MODULES = frozenset({"jax", "jnp", "lax", "np", "numpy"})
"""Names that mean modules also where the import stands in another cell."""
_CALLS_WHAT_IT_WRAPS = frozenset({"partial", "grad", "value_and_grad", "vmap", "getattr"})

Creator = ast.Call | ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Origin:
    """made_here: each run of the line makes a new one; else it was made elsewhere and is kept. captured: names that
    the making uses and the loop or function binds anew. configuration: one of those is called or asked for
    attributes there, so that it is another function or model each time and not data."""

    made_here: bool
    captured: tuple[str, ...] = ()
    configuration: bool = False


def of_function(source: Source, line: int) -> Origin | None:
    """The origin of the jitted function that is called on a line; None where the text does not tell."""
    scope = _Scope(source, line)
    kept: Origin | None = None
    for call in _calls(source, line):
        found = scope.of_callee(source, call)
        if found is not None and found.made_here:
            return found
        kept = kept or found
    return kept


def of_argument(source: Source, line: int, name: str, position: int | None) -> Origin | None:
    """The origin of an argument, given by keyword or position, of the call on a line (``self``: what stands before
    the dot); None where the text does not tell."""
    nodes = (_argument(call.node, name, position) for call in _calls(source, line))
    node = next((node for node in nodes if node is not None), None)
    return _Scope(source, line).of_value(node) if node is not None else None


def argument_text(source: Source, line: int, name: str, position: int | None) -> str | None:
    """The argument as written on that line; None if it is not there."""
    nodes = (_argument(call.node, name, position) for call in _calls(source, line))
    return next((ast.unparse(node) for node in nodes if node is not None), None)


def _calls(source: Source, line: int) -> Iterator[CallText]:
    span = source.span(line)
    return reversed(source.calls(span.first, span.last))


def _argument(call: ast.Call, name: str, position: int | None) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if name == "self" and isinstance(call.func, ast.Attribute):
        return call.func.value
    if position is None or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if isinstance(call.func, ast.Name) and position < len(call.args):
        return call.args[position]
    return None


class _Scope:
    """What is bound anew whenever a line runs: the names of the loops around it and of its function."""

    def __init__(self, source: Source, line: int) -> None:
        loops, function = source.loops(line), source.function(line)
        self.targets: frozenset[str] = frozenset().union(*(loop.targets for loop in loops))
        self.made: dict[str, ast.expr | ast.stmt] = {}
        parameters: frozenset[str] = frozenset()
        region = (loops[0].first, loops[0].last) if loops else (0, -1)
        if function is not None:
            region = (function.line + 1, function.last)
            parameters = _parameters(function.node.args)
        for statement in source.statements:
            if not region[0] <= statement.lineno <= region[1] or isinstance(statement, ast.For | ast.AsyncFor):
                continue
            if _enclosing(source, statement) != function:
                continue
            for name in bound_names(statement):
                value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else statement
                if value is not None:
                    self.made[name] = value
        self.kept = (self.targets | parameters) - self.made.keys()
        self.bound = self.kept | self.made.keys()

    def of_callee(self, source: Source, call: CallText) -> Origin | None:
        """Where the function that this call calls comes from; None for a call that calls no function of the user's."""
        callee = call.node.func
        if isinstance(callee, ast.Call):
            name = source.resolve(dotted(callee.func) or "").rpartition(".")
            if name[2] in _CALLS_WHAT_IT_WRAPS or (name[0].startswith("jax") and name[2] not in _MAKES_A_FUNCTION):
                return None
            return self.of_value(callee)
        if isinstance(callee, ast.Name):
            return self.of_value(callee) if callee.id in self.bound else None
        root = _root(callee)
        if root is None or root in source.imports or root in MODULES:
            return None
        return Origin(made_here=False)

    def of_value(self, node: ast.expr) -> Origin | None:
        """Where a value comes from; None for one that is bound nowhere near."""
        seen: set[str] = set()
        while isinstance(node, ast.Name):
            value = self.made.get(node.id)
            if node.id in self.kept:
                return Origin(made_here=False)
            if value is None or node.id in seen:
                return None
            seen.add(node.id)
            if isinstance(value, FUNCTIONS):
                return self._made(value)
            if not isinstance(value, ast.expr):
                return Origin(made_here=False)
            node = value
        if isinstance(node, ast.Lambda):
            return self._made(node)
        if isinstance(node, ast.Call):
            if (dotted(node.func) or "").rpartition(".")[2] in _MAKES_A_FUNCTION and node.args:
                inner = node.args[0]
                if not isinstance(inner, ast.Call) or dotted(inner.func) is not None:
                    return self.of_value(inner)
            return self._made(node)
        return Origin(made_here=False)

    def _made(self, creator: Creator) -> Origin:
        own = frozenset[str]() if isinstance(creator, ast.Call) else _parameters(creator.args)
        if isinstance(creator, FUNCTIONS):
            own |= {creator.name}.union(*(bound_names(one) for one in ast.walk(creator) if isinstance(one, ast.stmt)))
        captured = sorted(_free_names(creator) & self.bound - own - _called_makers(creator))
        used_as_object = {
            root
            for node in ast.walk(creator)
            if isinstance(node, ast.Attribute | ast.Call)
            and (root := _root(node if isinstance(node, ast.Attribute) else node.func)) is not None
        }
        return Origin(True, tuple(captured), any(name in used_as_object for name in captured))


def _enclosing(source: Source, statement: ast.stmt) -> Function | None:
    """The function whose body a statement is part of; for a ``def`` not itself, even where it is all on one line."""
    around = [one for one in source.functions if one.line < statement.lineno <= one.last]
    return max(around, key=lambda one: one.line, default=None)


def _free_names(node: ast.AST) -> frozenset[str]:
    """The names that are used, without the parameters of lambdas where these use them."""
    if isinstance(node, ast.Name):
        return frozenset({node.id})
    found = frozenset[str]().union(*(_free_names(child) for child in ast.iter_child_nodes(node)))
    return found - _parameters(node.args) if isinstance(node, ast.Lambda) else found


def _called_makers(creator: Creator) -> frozenset[str]:
    """Names that the making itself calls (``make`` in ``make(n)``): they are no captured values."""
    return names_in(creator.func) if isinstance(creator, ast.Call) else frozenset()


def _parameters(arguments: ast.arguments) -> frozenset[str]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return frozenset(one.arg for one in found if one is not None)


def _root(node: ast.AST) -> str | None:
    """``model`` of ``model.layers[0].apply``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
