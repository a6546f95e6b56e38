"""What passes share when they put a finding into words: code quoted in a sentence, lists of names, lines told once, and
the facts of a failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from tpumagic import sources
from tpumagic.events import CellRecord, Failure, Program, SourceSite

_MAX_CODE = 72
_MAX_RELATED = 4


def facts_of(failure: Failure) -> dict[str, str]:
    """The backend's facts by name, with the statement of the raising line empty if it is not known."""
    return {"expression": "", "statement": "", **dict(failure.facts)}


def site_of(failure: Failure) -> SourceSite | None:
    """The raising line: the innermost user line of the traceback."""
    return failure.stack[-1] if failure.stack else None


def callers_of(failure: Failure) -> tuple[SourceSite, ...]:
    """The user's lines that led to the raising one, nearest first, each once."""
    return distinct_lines(reversed(failure.stack))[1 : _MAX_RELATED + 1]


def distinct_lines(sites: Iterable[SourceSite | None]) -> tuple[SourceSite, ...]:
    """The sites that are known, each line once, whatever the function is called there."""
    lines: dict[tuple[object, ...], SourceSite] = {}
    for site in sites:
        if site is not None:
            lines.setdefault((site.cell, site.file, site.line), site)
    return tuple(lines.values())


def code(text: str) -> str:
    """Code within a sentence: in backticks, on one line; of a long call the arguments are left out."""
    line = " ".join(text.split())
    tree = expression_of(line) if len(line) > _MAX_CODE else None
    while len(line) > _MAX_CODE and isinstance(tree, ast.Call):
        line = f"{ast.unparse(tree.func)}(…)"
        tree = tree.func
    return f"`{line if len(line) <= _MAX_CODE else line[: _MAX_CODE - 1] + '…'}`"


def listing(names: Iterable[str], most: int = 3) -> str:
    """``a``, ``b`` and ``c`` as code; what is beyond ``most`` is counted."""
    texts = [code(name) for name in names]
    if len(texts) > most:
        texts = [*texts[: most - 1], f"{len(texts) - most + 1} more"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def expression_of(text: str) -> ast.expr | None:
    """An expression as syntax; None if the text is none."""
    try:
        return ast.parse(f"({text.removeprefix('assert ')})", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def function_name(record: CellRecord, program: Program) -> str:
    """What the user calls a program's function; a lambda goes by the variable that it was given to."""
    name = program.signature.function.name if program.signature is not None else program.name
    if name not in ("<lambda>", "_lambda_", "<unnamed function>"):
        return name
    source = sources.parse(record.source, record.source_lines_start)
    called = {call.callee for line in [source_line(record, program.site)] if line for call in source.calls(line)}
    line = source_line(record, program.definition)
    given = source.assigned(line) if line is not None else frozenset[str]()
    known = sorted(called & (given | record.jitted_names))
    return known[0] if known else _attribute_given(source, line) or name


def _attribute_given(source: sources.Source, line: int | None) -> str | None:
    """``self.update`` of ``self.update = jax.jit(lambda …)``; None if a line assigns to no attribute."""
    statement = source.statement(line) if line is not None else None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return next((ast.unparse(one) for one in targets if isinstance(one, ast.Attribute)), None)


def is_gradient(program: Program) -> bool:
    """Whether the user's function is wrapped in ``grad``, whose results have the types of arguments but replace none."""
    wrapper = program.signature.function.wrapper if program.signature is not None else None
    return wrapper is not None and "grad" in wrapper


def array_type(dtype: str | None, shape: tuple[int, ...]) -> str:
    """``float32[8,128]``."""
    return f"{dtype or 'array'}[{','.join(map(str, shape))}]"


def source_line(record: CellRecord, site: SourceSite | None) -> int | None:
    """The number of a site's line if it lies in this record's own source, else None."""
    if site is None or site.cell != record.cell or (site.cell is None and site.file != record.file):
        return None
    return site.line


def quoted(pattern: str, message: str) -> str | None:
    """The first group of a pattern in a message; None if it does not occur."""
    match = re.search(pattern, message)
    return match[1] if match else None
