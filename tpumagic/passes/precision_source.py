"""What the cell's own text says about a line that adds to something: its name, how often it runs, whether what is
added comes from the thing itself. Only lines of the cell in the record can be read; of others nothing is known."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpumagic.events import CellRecord, SourceSite
from tpumagic.sources import Loop, Source, bound_names, names_in, own_expressions, parse

_PASSES_ON_ITS_LENGTH = frozenset({"enumerate", "zip", "list", "tuple", "reversed", "sorted", "tqdm", "trange"})


def source_of(record: CellRecord) -> Source:
    """The record's cell, parsed."""
    return parse(record.source, record.source_lines_start)


def is_in_cell(record: CellRecord, site: SourceSite | None) -> bool:
    """Whether a line stands in the text of this cell."""
    if site is None or not record.source:
        return False
    if site.cell is not None or record.cell is not None:
        return site.cell == record.cell
    return site.file is None or site.file == record.file


def additions(source: Source, line: int) -> Iterator[tuple[ast.expr, ast.operator, ast.expr]]:
    """``left + right`` and ``left - right`` on a line, outer before inner; ``left += right`` as well."""
    statement = source.statement(line)
    if statement is None:
        return
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Sub):
        yield statement.target, statement.op, statement.value
    for part in own_expressions(statement):
        for node in ast.walk(part):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _covers(node, line):
                yield node.left, node.op, node.right


def _covers(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def has_operator(source: Source, line: int, operators: set[type[ast.operator]]) -> bool:
    """Whether a line applies one of these operators."""
    statement = source.statement(line)
    nodes = [node for part in own_expressions(statement) for node in ast.walk(part)] if statement is not None else []
    applied = {type(node.op) for node in [statement, *nodes] if isinstance(node, ast.BinOp | ast.AugAssign)}
    return bool(applied & operators)


def operand_text(
    record: CellRecord, site: SourceSite | None, operation: str, position: int, with_number: bool
) -> str | None:
    """How the user calls the operand of an ``add`` or ``subtract``; None where the line leaves a choice or the
    operand is no plain name. with_number: whether the other operand is a number."""
    if site is None or not is_in_cell(record, site):
        return None
    kind = ast.Add if operation == "add" else ast.Sub
    found = [sides for sides in additions(source_of(record), site.line) if isinstance(sides[1], kind)]
    pairs = [(sides[0], sides[2]) if position == 0 else (sides[2], sides[0]) for sides in found]
    operands = {ast.unparse(own): own for own, other in pairs if isinstance(other, ast.Constant) == with_number}
    if len(operands) != 1:
        return None
    text, node = operands.popitem()
    while isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
        node = node.value
    return text if isinstance(node, ast.Name) else None


def turns(record: CellRecord, line: int) -> tuple[bool, int | None]:
    """Whether a line stands in a loop of the cell, and how often the loops run it; None if that is not written."""
    source = source_of(record)
    loops = [loop for loop in source.loops(line) if loop.node is not source.statement(line)]
    product: int | None = 1
    for loop in loops:
        length = _length(source, loop)
        product = None if product is None or length is None else product * length
    return bool(loops), product


def _length(source: Source, loop: Loop) -> int | None:
    if isinstance(loop.node, ast.For | ast.AsyncFor):
        return _items(source, loop.node.iter)
    if isinstance(loop.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return _items(source, loop.node.generators[0].iter)
    return None


def _items(source: Source, node: ast.expr, depth: int = 4) -> int | None:
    """How many items an expression has, from numbers written in the cell."""
    if depth == 0:
        return None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None if any(isinstance(one, ast.Starred) for one in node.elts) else len(node.elts)
    if isinstance(node, ast.Dict):
        return len(node.keys)
    if isinstance(node, ast.Name):
        bound = assigned_once(source, node.id)
        return _items(source, bound, depth - 1) if bound is not None else None
    if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
        return _items(source, node.generators[0].iter, depth - 1)
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).rsplit(".", 1)[-1]
    if name in ("range", "arange", "trange"):
        numbers = [number(source, one) for one in node.args]
        known = [one for one in numbers if one is not None]
        if len(known) < len(numbers) or not 1 <= len(known) <= 3 or any(one != int(one) for one in known):
            return None
        try:
            return len(range(*[int(one) for one in known]))
        except (ValueError, OverflowError):
            return None
    if name in ("split", "array_split") and len(node.args) > 1:
        parts = number(source, node.args[1])
        return int(parts) if parts is not None else None
    if name in _PASSES_ON_ITS_LENGTH and node.args:
        lengths = [_items(source, one, depth - 1) for one in node.args]
        known = [one for one in lengths if one is not None]
        return min(known) if known else None
    return None


def assigned_once(source: Source, name: str) -> ast.expr | None:
    """What a name is bound to, if the cell binds it at exactly one place, by a plain assignment."""
    values: list[ast.expr | None] = []
    for statement in source.statements:
        if name in source.assigned(statement.lineno):
            plain = isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == [name]
            values.append(statement.value if isinstance(statement, ast.Assign) and plain else None)
    return values[0] if len(values) == 1 else None


def number(source: Source, node: ast.expr, depth: int = 4) -> float | None:
    """The number that an expression of constants and once-bound names has."""
    if depth == 0:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(source, node.operand, depth - 1)
        return -inner if inner is not None else None
    if isinstance(node, ast.Name):
        bound = assigned_once(source, node.id)
        return number(source, bound, depth - 1) if bound is not None else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func).rsplit(".", 1)[-1] in (
        "float32", "bfloat16", "float16", "float64", "int", "float", "asarray", "array",
    ):  # fmt: skip
        return number(source, node.args[0], depth - 1)
    if isinstance(node, ast.BinOp):
        left, right = number(source, node.left, depth - 1), number(source, node.right, depth - 1)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div | ast.FloorDiv) and right:
            return left / right if isinstance(node.op, ast.Div) else left // right
        if isinstance(node.op, ast.Pow) and abs(right) < 64 and left > 0:
            return left**right
    return None


def factor(source: Source, node: ast.expr) -> float | None:
    """The number that a product is multiplied by: 0.001 of ``lr * g`` with ``lr = 1e-3``; None if there is none."""
    if isinstance(node, ast.UnaryOp):
        return factor(source, node.operand)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div):
        return None
    left, right = number(source, node.left), number(source, node.right)
    if isinstance(node.op, ast.Mult):
        if left is not None:
            return abs(left) * (factor(source, node.right) or 1.0)
        if right is not None:
            return abs(right) * (factor(source, node.left) or 1.0)
        return factor(source, node.left) or factor(source, node.right)
    if right:
        return (factor(source, node.left) or 1.0) / abs(right)
    return factor(source, node.left)


def comes_from(source: Source, line: int, name: str, expression: ast.AST) -> bool:
    """Whether an expression on a line of a loop uses the named variable, directly or through other names that the
    loop binds or fills."""
    tainted = {name}
    loops = source.loops(line)
    inside = [one for one in source.statements if one.lineno in loops[0] and one.lineno != line] if loops else []
    for _ in range(4):
        for statement in inside:
            used = frozenset[str]().union(*(names_in(part) for part in own_expressions(statement)))
            if used & tainted:
                tainted |= _changed(statement)
    return bool(names_in(expression) & tainted)


def _changed(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement binds or fills: also ``outs`` of ``outs.append(y)`` and of ``outs[i] = y``."""
    found = bound_names(statement)
    filled: list[ast.expr] = [*statement.targets] if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        filled.append(statement.value.func)
    for node in filled:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            if isinstance(node, ast.Name):
                found |= {node.id}
    return found


def targets(statement: ast.stmt | None) -> list[str]:
    """What a statement assigns to, as text: ``state`` and ``loss`` of ``state, loss = step(state, x)``."""
    if isinstance(statement, ast.Assign):
        nodes: list[ast.expr] = list(statement.targets)
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        nodes = [statement.target]
    else:
        return []
    found: list[str] = []
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Tuple | ast.List):
            nodes = list(node.elts) + nodes
        else:
            found.append(ast.unparse(node.value if isinstance(node, ast.Starred) else node))
    return found


def fed_back(source: Source, line: int) -> Iterator[tuple[ast.Call, int | str, ast.expr]]:
    """Arguments that the same statement assigns to: of ``w = step(w, x)`` the call, 0 and the node of ``w``."""
    statement = source.statement(line)
    names = targets(statement)
    if statement is None or not names:
        return
    for part in own_expressions(statement):
        for node in ast.walk(part):
            if isinstance(node, ast.Call):
                keyed: list[tuple[int | str, ast.expr]] = list(enumerate(node.args))
                keyed += [(one.arg, one.value) for one in node.keywords if one.arg]
                for key, argument in keyed:
                    if ast.unparse(argument.value if isinstance(argument, ast.Starred) else argument) in names:
                        yield node, key, argument
