"""Programs that were asked about for a TPU that is not here: code that took this machine's branch, and a compiler that
gave no answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpumagic import sources
from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import Finding, Severity
from tpumagic.passes.source_lookup import source_of
from tpumagic.passes.unsupported import crashing_conversions
from tpumagic.passes.wording import code, distinct_lines, function_name
from tpumagic.plans import Cause
from tpumagic.sources import Function, Source

_MAX_RELATED = 5


def find(record: CellRecord) -> Iterator[Finding]:
    """Branches once for each line, missing answers once for all programs."""
    yield from _cpu_branches(record)
    yield from _unavailable(record)


def _cpu_branches(record: CellRecord) -> Iterator[Finding]:
    """Traced functions that ask which platform runs them: for a TPU they would have been another program."""
    told: set[SourceSite] = set()
    for program in record.programs:
        targets = [one.target.name for one in program.answers if one.status != "unavailable"]
        if program.outside or program.compile_only or not targets or _on_tpu(record):
            continue
        for site, question in _questions(record, program):
            if site in told:
                continue
            told.add(site)
            name = function_name(record, program)
            lines = distinct_lines([site, program.site, program.definition])
            yield Finding(
                kind="compile.cpu_branch",
                severity="warning",
                title=f"{code(name)} decides by {code(question)} while it is traced, and got this machine's answer: what was compiled "
                f"for {targets[0]} is the branch for {_platform(record)}",
                detail="The program that a TPU would run may differ in memory, time and precision.",
                fix="Let the choice be made at compile time: `jax.lax.platform_dependent(…, tpu=…, default=…)`, or pass it "
                "as a static argument.",
                site=site,
                related=lines[1 : _MAX_RELATED + 1],
                program=name,
                facts={"expression": question, "target": targets[0], "platform": _platform(record)},
            )


def _platform(record: CellRecord) -> str:
    return next((one.platform.upper() for one in record.backends if one.framework == "jax" and one.platform), "CPU")


def _on_tpu(record: CellRecord) -> bool:
    return any(one.platform == "tpu" for one in record.backends)


def _questions(record: CellRecord, program: Program) -> Iterator[tuple[SourceSite, str]]:
    """Lines of the program's own functions that depend on the platform, with the expression that asks."""
    for source, function, example in _functions(record, program):
        asked = _asked_names(source)
        for node in ast.walk(function.node):
            question = next((text for part in _deciding(node) if (text := _asks(part, asked)) is not None), None)
            if question is not None and isinstance(node, ast.stmt | ast.expr | ast.keyword):
                site = SourceSite(line=node.lineno, cell=example.cell, file=example.file, function=function.name)
                yield site, question


def _functions(record: CellRecord, program: Program) -> list[tuple[Source, Function, SourceSite]]:
    """The user's functions in which operations of the program stand, or that it is made of."""
    stacks = [operation.stack for _, operation in program.graph.walk()] if program.graph is not None else []
    callers = {(site.line, site.cell, site.file) for site in program.stack}
    inner = {site for stack in stacks for site in stack if (site.line, site.cell, site.file) not in callers}
    if program.definition is not None:
        inner.add(program.definition)
    found: dict[tuple[object, ...], tuple[Source, Function, SourceSite]] = {}
    for site in sorted(inner, key=lambda one: one.line):
        source = source_of(site, record)
        function = source.function(site.line) if source is not None else None
        if source is not None and function is None:
            function = next((one for one in source.functions if one.line <= site.line <= one.first), None)
        if source is not None and function is not None:
            found.setdefault((site.cell, site.file, function.line), (source, function, site))
    return list(found.values())


def _deciding(node: ast.AST) -> tuple[ast.AST, ...]:
    """The expression on which a statement, expression or keyword decides."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return (node.test,)
    if isinstance(node, ast.Match):
        return (node.subject,)
    if isinstance(node, ast.keyword) and node.arg in ("interpret", "backend", "implementation", "use_pallas"):
        return (node.value,)
    return ()


def _asks(node: ast.AST, asked: frozenset[str]) -> str | None:
    """The part of an expression that asks for the platform, as text."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in asked:
            return part.id
        if _is_question(part):
            return ast.unparse(part)
    return None


def _is_question(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = sources.dotted(node.func) or ""
        return name.rpartition(".")[2] == "default_backend"
    if isinstance(node, ast.Attribute) and node.attr in ("platform", "device_kind"):
        return "devices(" in ast.unparse(node.value)
    return False


def _asked_names(source: Source) -> frozenset[str]:
    """Variables that hold the platform, or whether it is one: ``on_tpu = jax.default_backend() == 'tpu'``."""
    names: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value
            plain = isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp) or _is_question(value)
            if plain and any(_is_question(part) for part in ast.walk(value)):
                names.add(node.targets[0].id)
    return frozenset(names)


_REMEDY: dict[Cause, str] = {
    "compiler": "`tpumagic compiler status` shows which compiler is used; `tpumagic compiler install` gets one that works "
    "beside the installed packages.",
    "devices": "Name a target with as many devices as the program runs on; `tpumagic targets` lists them.",
    "lowering": "`jax.jit(f).trace(*args).lower(lowering_platforms=('tpu',))` shows where JAX fails.",
    "interrupted": "Run it again, and let it finish.",
    "memory": "Free some memory (delete large arrays, end other kernels) and run it again.",
    "size": "Give the large arrays to the function as arguments: as constants they are part of the program.",
}


def _unavailable(record: CellRecord) -> Iterator[Finding]:
    """Nobody could ask the compiler: once, with the reason and the programs."""
    silent = [
        (program, answer)
        for program in record.programs
        for answer in program.answers
        if answer.status == "unavailable" and not program.outside and not crashing_conversions(program, answer)
    ]
    if not silent:
        return
    # A program made for devices that are not there was compiled by the cell itself: nobody waits for another answer.
    # What the user interrupted is no news to them.
    asked = [one for one in silent if not one[0].compile_only and one[1].cause != "interrupted"]
    severity: Severity = "warning" if asked else "info"
    program, answer = (asked or silent)[0]
    names = list(dict.fromkeys(code(function_name(record, one)) for one, _ in silent))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    why = (answer.why or "it did not say why").strip()
    sentence = why if why.endswith((".", "!", "?")) else f"{why}."
    yield Finding(
        kind="env.compiler_missing",
        severity=severity,
        title=f"The TPU compiler gave no answer for {answer.target.name}: {sentence.rstrip('.')}",
        detail=f"So it is not known whether {names[0]}{more} would fit or what it would cost.",
        fix=_REMEDY[answer.cause],
        site=program.site,
        count=len(silent),
        facts={"target": answer.target.name, "why": why, "programs": len(names)},
    )
