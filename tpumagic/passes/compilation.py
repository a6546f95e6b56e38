"""What makes a single compilation dear: captured arrays, unrolled loops, a cache that is not written, sheer size."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpumagic.events import CellRecord, Compile, Constant, Program, SourceSite
from tpumagic.findings import CONSTANT_BYTES, SLOW_COMPILE_S, Finding, by_cost, quantity
from tpumagic.numbers import bytes_text, seconds_text
from tpumagic.passes import unrolled_loops
from tpumagic.passes.function_origin import MODULES
from tpumagic.passes.source_lookup import distinct_lines, source_of
from tpumagic.sources import Function, Source, bound_names, dotted, names_in

_MIN_TIME = "jax_persistent_cache_min_compile_time_secs"
_MIN_SIZE = "jax_persistent_cache_min_entry_size_bytes"
_CACHE_DIR = "jax_compilation_cache_dir"


def find(record: CellRecord) -> Iterator[Finding]:
    """All findings about compilations that are not recompilations."""
    yield from _captured_constants(record)
    unrolled = list(unrolled_loops.find(record))
    yield from unrolled
    yield from _cache_not_written(record)
    yield from _slow(record, {finding.program for finding in unrolled})


@dataclass
class _Captured:
    """Constants of one program under one name."""

    program: Program
    name: str | None
    made_inside: bool
    constants: list[Constant] = field(default_factory=list[Constant])

    @property
    def bytes(self) -> int:
        return sum(constant.bytes for constant in self.constants)


def _captured_constants(record: CellRecord) -> Iterator[Finding]:
    found: dict[tuple[str, str | None], _Captured] = {}
    for program in record.programs:
        if program.kind == "eager":
            continue
        mine: dict[str | None, _Captured] = {}
        for constant in program.constants:
            name, made_inside = _name_of(constant, record)
            mine.setdefault(name, _Captured(program, name, made_inside)).constants.append(constant)
        for name, captured in mine.items():
            key = (program.name, name)
            # The same array captured by programs for other shapes is the same finding.
            if captured.bytes >= CONSTANT_BYTES and (key not in found or found[key].bytes < captured.bytes):
                found[key] = captured
    for captured in found.values():
        yield _captured_constant(captured)


def _captured_constant(captured: _Captured) -> Finding:
    program, name, constants = captured.program, captured.name, captured.constants
    largest = max(constants, key=lambda constant: constant.bytes)
    one = f"{largest.dtype}[{','.join(map(str, largest.shape))}]"
    size = bytes_text(captured.bytes)
    many = len(constants) > 1
    what = f"`{name}` ({f'{len(constants)} arrays' if many else one}, {size})" if name else (
        f"{quantity(len(constants), 'array')} ({f'the largest {one}, ' if many else f'{one}, '}{size})"
    )  # fmt: skip
    argument = f"`{name}`" if name else "them" if many else "it"
    inside = (
        f"Make {argument} with `jnp` instead of `np` inside `{program.name}`, so that the device makes it, or pass it in "
        "as an argument."
    )
    outside = f"Pass {argument} to `{program.name}` as an argument."
    sites = [largest.site, program.site, program.definition]
    site = next((one for one in sites if one is not None), None)
    return Finding(
        kind="compile.captured_constant",
        severity="warning",
        title=f"{what} {'are' if many and not name else 'is'} part of the program `{program.name}`, not an argument.",
        detail=(
            "It is copied into every program compiled for this function: compiling takes longer, device memory holds it "
            "once more, and later changes of it are not seen."
        ),
        fix=inside if captured.made_inside else outside,
        site=site,
        related=distinct_lines(sites, but=site),
        program=program.name,
        bytes=captured.bytes,
        facts={
            "name": name,
            "bytes": captured.bytes,
            "mib": round(captured.bytes / 2**20, 1),
            "shape": str(largest.shape),
            "dtype": largest.dtype,
            "arrays": len(constants),
            "function": program.name,
        },
    )


def _name_of(constant: Constant, record: CellRecord) -> tuple[str | None, bool]:
    """The user's name of a constant, by the line of its use where the array itself is not named; and whether it is
    made with NumPy inside the traced function."""
    root = constant.name.partition("[")[0] if constant.name is not None else None
    if root is not None and not root.startswith("self."):
        root = root.partition(".")[0]
    source = source_of(constant.site, record) if constant.site is not None else None
    function = source.function(constant.site.line) if source is not None and constant.site is not None else None
    statement = source.statement(constant.site.line) if source is not None and constant.site is not None else None
    if source is None or function is None or statement is None:
        return root, False
    local = _bound_in(function)
    if root is None or root in local:
        made = [
            name for name in sorted(names_in(statement)) if name in local and _made_with_numpy(source, function, name)
        ]
        if len(made) == 1:
            return made[0], True
        if _calls_numpy(source, statement):
            return None, True
    return root or _captured_name(source, statement, local), False


def _captured_name(source: Source, statement: ast.stmt, local: frozenset[str]) -> str | None:
    """The only thing on a line that comes from outside the function: an array, an attribute of ``self``, or a model
    that is called. The line is the innermost one of the user's, so what it calls is no function of the cell."""
    callees = [dotted(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)]
    called = {name.partition(".")[0] for name in callees if name is not None}
    free = {
        name
        for name in names_in(statement)
        if not (name in local or name in source.imports or name in MODULES or hasattr(builtins, name))
    }
    attributes = {name for node in ast.walk(statement) if isinstance(node, ast.Attribute) and (name := dotted(node))}
    of_self = {name for name in attributes if name.startswith("self.") and name.count(".") == 1 and name not in callees}
    for candidates in (free - called, of_self, free & called):
        if len(candidates) == 1:
            return candidates.pop()
    return None


def _bound_in(function: Function) -> frozenset[str]:
    arguments = [node.arg for node in ast.walk(function.node) if isinstance(node, ast.arg)]
    statements = [node for node in ast.walk(function.node) if isinstance(node, ast.stmt) and node is not function.node]
    return frozenset(arguments).union(*(bound_names(node) for node in statements))


def _made_with_numpy(source: Source, function: Function, name: str) -> bool:
    return any(
        isinstance(node, ast.Assign) and name in bound_names(node) and _calls_numpy(source, node)
        for node in ast.walk(function.node)
    )


def _calls_numpy(source: Source, node: ast.AST) -> bool:
    calls = (dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
    # The import often stands in another cell: then the usual short name has to do.
    return any(name is not None and source.resolve(name).startswith(("numpy.", "np.")) for name in calls)


def _cache_not_written(record: CellRecord) -> Iterator[Finding]:
    settings = {
        name: value for backend in record.backends if backend.framework == "jax" for name, value in backend.settings
    }
    directory = settings.get(_CACHE_DIR)
    if directory in (None, "", "None"):
        return
    not_stored = [
        (program, one)
        for program in record.programs
        if program.kind != "eager"
        for one in program.compiles
        if one.cache == "miss" and one.cache_stored is False
    ]
    limit_s, limit_bytes = _number(settings.get(_MIN_TIME)), _number(settings.get(_MIN_SIZE))
    short: list[tuple[Program, Compile]] = []
    small: list[tuple[Program, Compile]] = []
    for program, one in not_stored:
        if limit_s is not None and _compile_s(one) < limit_s:
            short.append((program, one))
        elif limit_bytes is not None and limit_bytes > 0:
            small.append((program, one))
    if short:
        yield _not_written(
            short,
            f"compiled in less than {seconds_text(limit_s)}, the limit of {_MIN_TIME}",
            _MIN_TIME,
            limit_s,
        )
    if small:
        yield _not_written(
            small,
            f"may be smaller than {bytes_text(limit_bytes)}, the limit of {_MIN_SIZE}",
            _MIN_SIZE,
            limit_bytes,
        )


def _not_written(pairs: list[tuple[Program, Compile]], reason: str, setting: str, limit: float | None) -> Finding:
    names = list(dict.fromkeys(f"`{program.name}`" for program, _ in pairs))
    sites = [site for program, one in pairs if (site := one.stack[-1] if one.stack else program.site) is not None]
    seconds = sum(_compile_s(one) for _, one in pairs)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    unique = distinct_lines(sites)
    return Finding(
        kind="compile.cache_not_written",
        # Half a minute at every restart is worth a warning; less is what the limit is meant for.
        severity="warning" if seconds >= SLOW_COMPILE_S else "info",
        title=f"The persistent cache is on but did not store {shown}: {'it' if len(names) == 1 else 'they'} {reason}.",
        detail=f"After a restart of the kernel {quantity(len(pairs), 'compilation')} ({seconds_text(seconds)}) will be done again.",
        fix=f"jax.config.update('{setting}', 0), or `%tpu_env jax --cache DIR`, which sets it.",
        site=unique[0] if unique else None,
        related=unique[1:],
        program=pairs[0][0].name,
        count=len(pairs),
        seconds=seconds,
        facts={"setting": setting, "limit": limit, "functions": ", ".join(name.strip("`") for name in names)},
    )


def _slow(record: CellRecord, explained: set[str | None]) -> Iterator[Finding]:
    """Programs that took long to compile for no reason found; once each, whatever the number of compilations."""
    settings = {name: value for backend in record.backends for name, value in backend.settings}
    cached = settings.get(_CACHE_DIR) not in (None, "", "None")
    for program in record.programs:
        worst = max(program.compiles, key=lambda one: one.seconds, default=None)
        if program.kind == "eager" or program.name in explained or worst is None or worst.seconds < SLOW_COMPILE_S:
            continue
        traced = (worst.trace_s or 0.0) > 0.5 * worst.seconds
        parts = {"tracing": worst.trace_s, "lowering": worst.lower_s, "compiling": worst.compile_s}
        site: SourceSite | None = worst.stack[-1] if worst.stack else program.site
        yield Finding(
            kind="compile.slow",
            severity="info" if worst.cache_stored and not traced else by_cost(worst.seconds, record.wall_s),
            title=f"`{program.name}` took {seconds_text(worst.seconds)} to compile, once.",
            detail=", ".join(f"{name} {seconds_text(part)}" for name, part in parts.items()).capitalize() + ".",
            fix=_slow_fix(traced, cached),
            site=site,
            related=distinct_lines([program.definition], but=site),
            program=program.name,
            seconds=worst.seconds,
            facts={"function": program.name, "operations": _operations(program)},
        )


def _slow_fix(traced: bool, cached: bool) -> str:
    if traced:
        return "Most of it is Python running your function: move work that does not depend on the arguments out of it."
    if cached:
        return "Repeat equal layers with `jax.lax.scan`; the persistent cache saves the rest after a restart."
    return (
        "Turn on the persistent compilation cache (`%tpu_env jax --cache DIR`), so that a restart does not compile again; "
        "repeat equal layers with `jax.lax.scan`."
    )


def _operations(program: Program) -> int | None:
    return sum(1 for _ in program.graph.walk()) if program.graph is not None else None


def _compile_s(one: Compile) -> float:
    return one.compile_s or 0.0


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
