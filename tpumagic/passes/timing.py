"""Clocks that are read before the device is done: the time they tell is that of the dispatch.

Read from the source alone: a clock is read, a jitted function is called, the clock is read again, and nothing between
that call and the second reading waits for the result. What might wait (an unknown function given the result) counts
as waiting.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord
from tpumagic.findings import Finding
from tpumagic.passes.clocks import WAITING_METHODS, bindings, evaluated, has_clock, is_clock, may_wait, waits_outright
from tpumagic.passes.host_lines import CellLines, first_name, jitted, loaded
from tpumagic.sources import FUNCTIONS, Source, dotted

_WAITING_CALLS = frozenset({"jax.block_until_ready", "jax.device_get", "jax.effects_barrier"})
_LAZY_METHODS = frozenset({"append", "extend", "add", "insert", "update", "setdefault", "put", "appendleft"})
_LAZY_BUILTINS = frozenset(
    {
        "isinstance",
        "type",
        "len",
        "id",
        "tuple",
        "list",
        "dict",
        "zip",
        "enumerate",
        "range",
        "getattr",
        "hasattr",
        "sum",
    }
)
_LAZY_MODULES = ("jax.", "optax.", "flax.", "equinox.", "functools.", "itertools.", "time.")
_HEAVY = frozenset(
    f"jax.numpy.{name}" for name in ("dot", "matmul", "einsum", "tensordot", "vdot", "linalg.svd", "linalg.inv",
    "linalg.solve", "linalg.eigh", "linalg.qr", "linalg.cholesky", "fft.fft", "fft.fft2", "fft.fftn")
)  # fmt: skip
"""Operations outside jit that are large enough to be timed alone; they are asynchronous as well."""


@dataclass(frozen=True)
class Timed:
    """A call that a clock was stopped on too early. result: the name that it is bound to, None if it has none."""

    function: str
    line: int
    start: int
    stop: int
    result: str | None
    text: str


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each function, at its first timed call."""
    if not any(jitted(record)) and not any(one.kind == "eager" and not one.outside for one in record.programs):
        return
    lines = CellLines(record)
    by_function: dict[str, list[Timed]] = {}
    for timed in sorted(_all_timed(lines), key=lambda one: one.line):
        by_function.setdefault(timed.function, []).append(timed)
    for function, places in by_function.items():
        yield _finding(lines, function, places)


def _finding(lines: CellLines, function: str, places: list[Timed]) -> Finding:
    first = places[0]
    others = dict.fromkeys(line for one in places for line in (one.line, one.stop, one.start) if line != first.line)
    if first.start == first.stop:
        where = "The timer stops"
    else:
        where = f"The clock is started at line {first.start} and read at line {first.stop}"
    waits = f"jax.block_until_ready({first.result or first.text})"
    return Finding(
        kind="host.timing_no_block",
        severity="warning",
        title=f"The timer around `{function}` stops before the device is done: it measures the dispatch only.",
        detail=f"`{function}` returns as soon as its work is handed to the device. {where} without waiting for the result.",
        fix=f"Call `{waits}` before the clock is read.",
        site=lines.site(first.line),
        related=tuple(lines.site(line) for line in others),
        count=len({one.line for one in places}),
        facts={"function": function, "result": first.result},
    )


def _all_timed(lines: CellLines) -> Iterator[Timed]:
    source = lines.own
    scopes: list[ast.Module | ast.FunctionDef | ast.AsyncFunctionDef] = [source.tree]
    called = {call.callee.rpartition(".")[2] for call in source.all_calls}
    scopes += [one.node for one in source.functions if one.name in called]
    for node in scopes:
        scope = _Scope(lines, source, node)
        yield from scope.clock_pairs()
        yield from scope.timer_blocks()
        yield from scope.timeit_calls()
    yield from _magics(lines, source)


def _magics(lines: CellLines, source: Source) -> Iterator[Timed]:
    """``%timeit f(x)``, ``%time f(x)`` and the cells of ``%%timeit``."""
    for magic in source.magics:
        if magic.name == "timeit" and magic.cell:
            body: list[ast.stmt] = source.tree.body
            scope = _Scope(lines, source, ast.Module(body, []))
            yield from scope.unwaited(0, len(scope.order), magic.line, magic.line)
        elif magic.name in ("time", "timeit"):
            body = [node for node in source.statements if node.lineno == magic.line and node.end_lineno == magic.line]
            scope = _Scope(lines, source, ast.Module(body[:1], []))
            yield from scope.unwaited(0, len(scope.order), magic.line, magic.line)


class _Scope:
    """The code of a function or cell in the order in which it is evaluated, nested functions left out."""

    def __init__(
        self, lines: CellLines, source: Source, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        self.lines = lines
        self.source = source
        self.node = node
        self.order = [one for statement in node.body for one in evaluated(statement)]
        self.handed = self._handed_functions()
        self.results = self._results()

    def clock_pairs(self) -> Iterator[Timed]:
        """``t = clock()`` … ``clock() - t``, or … ``t2 = clock()`` … ``t2 - t``."""
        starts: dict[str, list[int]] = {}
        for index, node in enumerate(self.order):
            for name, value in bindings(node):
                if is_clock(self.source, value):
                    starts.setdefault(name, []).append(index)
        positions = {id(node): index for index, node in enumerate(self.order)}
        for node in self.order:
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
                continue
            begin, end = ast.unparse(node.right), ast.unparse(node.left)
            if is_clock(self.source, node.left):
                stop = positions.get(id(node.left))
            else:
                stop = max((one for one in starts.get(end, ()) if one < positions[id(node)]), default=None)
            if stop is None:
                continue
            start = max((one for one in starts.get(begin, ()) if one < stop), default=None)
            if start is not None:
                yield from self.unwaited(start + 1, stop, _line(self.order[start]), _line(self.order[stop]))

    def timer_blocks(self) -> Iterator[Timed]:
        """``with Timer():`` where the cell shows that it reads a clock at both ends and does not wait."""
        for node in self.order:
            if isinstance(node, ast.With) and any(self._is_timer(item.context_expr) for item in node.items):
                inside = _Scope(self.lines, self.source, ast.Module(node.body, []))
                yield from inside.unwaited(0, len(inside.order), node.lineno, node.lineno)

    def timeit_calls(self) -> Iterator[Timed]:
        """``timeit.timeit(lambda: f(x), number=10)``."""
        for node in self.order:
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Lambda)):
                continue
            if self.source.resolve(dotted(node.func) or "") in ("timeit.timeit", "timeit.repeat"):
                body = ast.Expr(node.args[0].body)
                ast.copy_location(body, node.args[0].body)
                inside = _Scope(self.lines, self.source, ast.Module([body], []))
                yield from inside.unwaited(0, len(inside.order), node.lineno, node.lineno)

    def unwaited(self, first: int, stop: int, start_line: int, stop_line: int) -> Iterator[Timed]:
        """The last jitted call among order[first:stop], if nothing behind it waits."""
        part = self.order[first:stop]
        at = max((index for index, node in enumerate(part) if self._dispatched(node) is not None), default=None)
        if at is None:
            return
        call = part[at]
        loops = [loop for loop in self.source.loops(_line(call)) if start_line < loop.first <= _line(call)]
        for index, node in enumerate(part):
            in_same_loop = any(_line(node) in loop for loop in loops)
            if (index > at or in_same_loop) and self._waits(node):
                return
        name = self._dispatched(call) or ""
        bound = [name for later in part[at:] for name, value in bindings(later) if _contains(value, call)]
        text = ast.unparse(call)
        yield Timed(name, _line(call), start_line, stop_line, bound[0] if bound else None, text)

    def _dispatched(self, node: ast.AST) -> str | None:
        """The jitted function that this node calls, as the user names it."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            names = loaded(node)
            return ast.unparse(node) if names and names <= self.lines.record.array_names else None
        if not isinstance(node, ast.Call):
            return None
        name = dotted(node.func)
        if name is None:
            makes = isinstance(node.func, ast.Call) and self.lines.makes_jit(node.func, self.source)
            return ast.unparse(node.func) if makes else None
        if name in self.handed:
            return self.handed[name]
        if name in self.lines.jitted_callees:
            return name
        return name if self.source.resolve(name) in _HEAVY else self._dispatching_function(name)

    def _dispatching_function(self, name: str) -> str | None:
        """A jitted function called by a function of this cell that neither waits itself nor hides what it calls."""
        inner = next((one for one in self.source.functions if one.name == name), None)
        if inner is None or inner.node is self.node or may_wait(self.source, inner.node):
            return None
        calls = [node for node in ast.walk(inner.node) if isinstance(node, ast.Call)]
        found = [one for call in calls if (one := dotted(call.func)) and one in self.lines.jitted_callees]
        return found[-1] if found else None

    def _waits(self, node: ast.AST) -> bool:
        """Whether the host may have to wait here for a result."""
        if isinstance(node, ast.FormattedValue):
            return self._has_result(node.value)
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            return self._has_result(node.test)
        if isinstance(node, ast.Assign):
            stores = [one for one in node.targets if isinstance(one, ast.Subscript)]
            return any(self._stores_in_numpy(one) for one in stores) and self._has_result(node.value)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in WAITING_METHODS:
            return True
        name = dotted(node.func)
        resolved = self.source.resolve(name) if name is not None else None
        if resolved in _WAITING_CALLS:
            return True
        if resolved is not None and resolved.rpartition(".")[2] in (
            "block_until_ready",
            "effects_barrier",
            "device_get",
        ):
            return True
        arguments = [*node.args, *(one.value for one in node.keywords)]
        if not any(self._has_result(one) for one in arguments):
            return False
        return not self._is_lazy(node, name, resolved)

    def _is_lazy(self, node: ast.Call, name: str | None, resolved: str | None) -> bool:
        """Whether a function given a result surely does not wait for it."""
        if self._dispatched(node) is not None:
            return True
        if name is None or resolved is None:
            return isinstance(node.func, ast.Attribute) and self._has_result(node.func.value)
        if name in _LAZY_BUILTINS or resolved.startswith(_LAZY_MODULES) or name.startswith(("jnp.", "jax.", "lax.")):
            return True
        if isinstance(node.func, ast.Attribute) and (
            node.func.attr in _LAZY_METHODS or self._has_result(node.func.value)
        ):
            return True
        own = next((one for one in self.source.functions if one.name == name), None)
        return own is not None and not may_wait(self.source, own.node)

    def _stores_in_numpy(self, target: ast.Subscript) -> bool:
        """``host[i] = …`` copies to the host unless ``host`` is a dict or list."""
        root = first_name(target)
        for statement in self.source.statements:
            if isinstance(statement, ast.Assign) and any(
                isinstance(one, ast.Name) and one.id == root for one in statement.targets
            ):
                value = statement.value
                is_container = isinstance(value, ast.Dict | ast.List | ast.ListComp | ast.DictComp) or (
                    isinstance(value, ast.Call)
                    and (dotted(value.func) or "").rpartition(".")[2] in ("dict", "list", "defaultdict")
                )
                return not is_container
        return True

    def _has_result(self, node: ast.AST) -> bool:
        """Whether an expression holds the result of a jitted call."""
        return any(
            (isinstance(one, ast.Name) and one.id in self.results) or self._dispatched(one) is not None
            for one in ast.walk(node)
        )

    def _results(self) -> frozenset[str]:
        """Names that hold results of jitted calls, or what was computed from them."""
        self.results = frozenset[str]()
        while True:
            found = set(self.results)
            for node in self.order:
                for name, value in bindings(node):
                    if self._has_result(value) and not is_clock(self.source, value):
                        found.add(name.partition(".")[0].partition("[")[0])
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _LAZY_METHODS
                ):
                    root = first_name(node.func)
                    if root is not None and any(self._has_result(one) for one in node.args):
                        found.add(root)
            if found <= self.results:
                return self.results
            self.results = frozenset(found)

    def _handed_functions(self) -> dict[str, str]:
        """Parameter of this function -> the jitted function that the cell calls it with."""
        if not isinstance(self.node, FUNCTIONS):
            return {}
        parameters = [one.arg for one in (*self.node.args.posonlyargs, *self.node.args.args)]
        found: dict[str, str] = {}
        for call in self.source.all_calls:
            if call.callee.rpartition(".")[2] != self.node.name:
                continue
            given = [
                *zip(parameters, call.node.args, strict=False),
                *((one.arg, one.value) for one in call.node.keywords),
            ]
            for parameter, value in given:
                text = dotted(value)
                if parameter is not None and text is not None and text in self.lines.jitted_callees:
                    found.setdefault(parameter, text)
        return found

    def _is_timer(self, node: ast.expr) -> bool:
        name = dotted(node.func) if isinstance(node, ast.Call) else dotted(node)
        for statement in self.source.statements:
            if isinstance(statement, ast.ClassDef) and statement.name == name:
                methods = {one.name: one for one in statement.body if isinstance(one, FUNCTIONS)}
                ends = [methods[one] for one in ("__enter__", "__exit__") if one in methods]
                return len(ends) == 2 and all(has_clock(self.source, one) and not waits_outright(one) for one in ends)
            if isinstance(statement, FUNCTIONS) and statement.name == name:
                is_manager = any((dotted(one) or "").endswith("contextmanager") for one in statement.decorator_list)
                clocks = sum(is_clock(self.source, one) for one in ast.walk(statement))
                return is_manager and clocks >= 2 and not waits_outright(statement)
        return False


def _contains(node: ast.AST, wanted: ast.AST) -> bool:
    return any(one is wanted for one in ast.walk(node))


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line
