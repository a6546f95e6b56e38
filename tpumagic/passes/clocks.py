"""Clocks and waits in source, and the order in which an expression's parts are evaluated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpumagic.sources import FUNCTIONS, Source, dotted, own_expressions

CLOCKS = frozenset(
    f"time.{name}{unit}" for name in ("time", "perf_counter", "monotonic", "process_time") for unit in ("", "_ns")
) | {"timeit.default_timer", "datetime.now", "datetime.datetime.now", "datetime.utcnow", "datetime.datetime.utcnow"}
_BARE_CLOCKS = frozenset(name.rpartition(".")[2] for name in CLOCKS) - {"time", "now", "utcnow"}
"""Names that mean a clock even where the import stands in another cell."""

WAITING_METHODS = frozenset({"block_until_ready", "item", "tolist", "copy_to_host", "__array__", "__float__"})


def has_clock(source: Source, scope: ast.AST) -> bool:
    """Whether a clock is read anywhere in a function or cell."""
    return any(isinstance(node, ast.Call) and is_clock(source, node) for node in ast.walk(scope))


def is_clock(source: Source, node: ast.AST) -> bool:
    """Whether this is a call such as ``time.perf_counter()``, however it was imported."""
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func)
    if name is None:
        return False
    return name in _BARE_CLOCKS or source.resolve(name) in CLOCKS


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it in the order of evaluation: operands before the operation, a value before the
    target that it is bound to, the test of an ``if`` before its body. Code of nested functions is not run here."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, ast.If | ast.While):
        yield from evaluated(node.test)
        yield node
        for part in (*node.body, *node.orelse):
            yield from evaluated(part)
        return
    if isinstance(node, ast.For | ast.AsyncFor | ast.With | ast.AsyncWith):
        for expression in own_expressions(node):
            yield from evaluated(expression)
        yield node
        for part in (*node.body, *getattr(node, "orelse", [])):
            yield from evaluated(part)
        return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
        children = [node.value]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        children = [*node.generators, node.elt]
    for child in children:
        yield from evaluated(child)
    yield node


def bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(target, value) of an assignment; tuples on both sides are taken apart."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        pairs = [(node.target, node.value)]
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
            yield from ((ast.unparse(one), held) for one, held in zip(target.elts, values, strict=False))
        else:
            yield ast.unparse(target), value


def may_wait(source: Source, node: ast.AST) -> bool:
    """Whether a function contains anything by which a host waits, whatever it is applied to."""
    if waits_outright(node):
        return True
    names = [dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(
        name in ("float", "int", "bool", "print", "str", "repr") or source.resolve(name).startswith("numpy.")
        for name in names
        if name is not None
    )


def waits_outright(node: ast.AST) -> bool:
    """Whether a function contains a call that is there to wait. A timer that only prints is handed no result."""
    waiting = WAITING_METHODS | {"device_get", "effects_barrier"}
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any((dotted(one.func) or getattr(one.func, "attr", "")).rpartition(".")[2] in waiting for one in calls)
