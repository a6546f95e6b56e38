"""What a TPU or its compiler cannot do, told before it fails there: operations without a rule for TPU, types that it has
not, and operations for which it has only a slow algorithm."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpumagic import sources
from tpumagic.events import CellRecord, Failure, Program, SourceSite
from tpumagic.findings import Finding, quantity
from tpumagic.graph import Graph, Operation
from tpumagic.passes.wording import (
    callers_of,
    code,
    distinct_lines,
    function_name,
    quoted,
    site_of,
)
from tpumagic.plans import Answer

_MAX_RELATED = 5
_NO_RULE = r"MLIR translation rule for primitive '([\w-]+)' not found for platform tpu"
_COMPLEX = re.compile(r"\bc128\b|\bcomplex128\b", re.IGNORECASE)
_DOUBLE = re.compile(r"\b[fsu]64\b|\bfloat64\b|\bu?int64\b", re.IGNORECASE)
_FOURIER = re.compile(r"\bfft\b[^\n]{0,40}\bf64\b", re.IGNORECASE)
"""The transform of a real float64 array is complex128, though the message names only what it was given."""
_REFUSED = re.compile(
    r"UNIMPLEMENTED|INVALID_ARGUMENT|not (?:supported|implemented)|unsupported|Unexpected operand type", re.IGNORECASE
)
_FOR_OPERATION = re.compile(r"operand type for (\w+)|implemented in (\w+)|%?(\w[\w-]*?)(?:\.\d+)? = c128\[")
_TPU = re.compile(r"\btpu\b", re.IGNORECASE)
_CRASHED = re.compile(r"ended with SIG(?:ABRT|SEGV|BUS|ILL|FPE)")
_COMPILER_ERRORS = frozenset({"JaxRuntimeError", "XlaRuntimeError"})

FUNCTIONS_OF: dict[str, tuple[str, ...]] = {
    "eig": ("eig", "eigvals", "roots"),
    "schur": ("schur", "sqrtm", "funm", "rsf2csf"),
    "hessenberg": ("hessenberg",),
    "tridiagonal": ("tridiagonal",),
    "geqp3": ("qr",),
    "spsolve": ("spsolve",),
}
"""Primitives that JAX compiles for CPU (some for GPU) and not for TPU, and the public functions that use them."""

_ON_CPU = "run it outside of the jitted function on the CPU: `with jax.default_device(jax.devices('cpu')[0]):`"
_INSTEAD: dict[str, str] = {
    "eig": f"If the matrix is symmetric, use `jnp.linalg.eigh`. If not, {_ON_CPU}, or call NumPy with `jax.pure_callback`.",
    "schur": f"For a symmetric matrix `jnp.linalg.eigh` gives the same. If it is not, {_ON_CPU}, or call SciPy with "
    "`jax.pure_callback`.",
    "geqp3": f"Use `jnp.linalg.qr` without pivoting, or `jnp.linalg.svd`; with pivoting, {_ON_CPU}.",
}

_SLOW: dict[str, tuple[str, str]] = {
    "QrDecompositionBlock": ("QR decomposition", "qr"),
    "LuDecompositionBlock": ("LU decomposition", "lu"),
    "Cholesky": ("Cholesky decomposition", "cholesky"),
    "EighTpu": ("eigendecomposition", "eigh"),
    "Eigh": ("eigendecomposition", "eigh"),
}
"""Custom calls of a TPU program that work column by column or by repeated rotations. Name -> in words, function."""


def find(record: CellRecord) -> Iterator[Finding]:
    """Refusals of the cell itself and of the compiler once each, then what is slow."""
    programs = [program for program in record.programs if not program.outside]
    told: set[tuple[str, object]] = set()
    found = [*_of_failure(record, programs), *(one for program in programs for one in _of_answers(record, program))]
    for finding in [*found, *(one for program in programs for one in _slow(record, program))]:
        key = finding.kind, finding.facts.get("operation")
        if key not in told or finding.kind == "unsupported.slow_op":
            told.add(key)
            yield finding


def _of_failure(record: CellRecord, programs: list[Program]) -> Iterator[Finding]:
    failure = record.failure
    if failure is None:
        return
    operation = quoted(_NO_RULE, failure.message)
    if operation is not None:
        yield _operation(record, None, None, operation, failure)
        return
    program = _failing(programs, failure)
    is_tpu = _TPU.search(failure.message) is not None or (program is not None and _for_tpu(record, program))
    if _COMPLEX.search(failure.message):
        is_tpu = True  # other compilers have complex128
    if is_tpu and failure.type_name in _COMPILER_ERRORS and _REFUSED.search(failure.message):
        yield from _type(record, program, None, failure.message, failure)


def _failing(programs: list[Program], failure: Failure) -> Program | None:
    """The program of the raising line, else the last that was compiled."""
    line = site_of(failure)
    compiled = [program for program in programs if program.kind != "eager"]
    here = [one for one in compiled if one.site is not None and line is not None and one.site.line == line.line]
    return next(iter([*reversed(here), *reversed(compiled)]), None)


def _for_tpu(record: CellRecord, program: Program) -> bool:
    return program.compile_only or bool(program.answers) or any(one.platform == "tpu" for one in record.backends)


def crashing_conversions(program: Program, answer: Answer) -> tuple[Operation, ...]:
    """Conversions of float64 to complex128, of a program at which the TPU compiler's process ended itself: it has
    no rule for them, though it imitates other complex128 arithmetic."""
    graph = program.graph
    if graph is None or answer.status != "unavailable" or not _CRASHED.search(answer.why or ""):
        return ()
    return tuple(
        operation
        for owner, operation in graph.walk()
        if operation.name == "convert"
        and owner.values[operation.outputs[0]].dtype == "complex128"
        and owner.values[operation.inputs[0]].dtype == "float64"
    )


def _of_answers(record: CellRecord, program: Program) -> Iterator[Finding]:
    for answer in program.answers:
        error = answer.error
        if conversions := crashing_conversions(program, answer):
            yield _conversion(record, program, answer, conversions)
            return
        if answer.status != "refused" or error is None or error.kind not in ("unsupported", "other"):
            continue
        operation = quoted(_NO_RULE, error.message)
        typed = list(_type(record, program, answer, error.message, None)) if _REFUSED.search(error.message) else []
        if operation is not None:
            yield _operation(record, program, answer, operation, None)
        elif typed:
            yield from typed
        elif error.kind == "unsupported":
            yield _other(record, program, answer)
        return


def _operation(
    record: CellRecord, program: Program | None, answer: Answer | None, operation: str, failure: Failure | None
) -> Finding:
    """An operation for which JAX has no rule on TPU."""
    stack = answer.error.stack if answer is not None and answer.error is not None else ()
    graph = program.graph if program is not None else None
    used = [one for _, one in graph.walk() if one.name == operation] if graph is not None else []
    written = _written(record, operation)
    call = [
        site_of(failure) if failure is not None else None,
        *(callers_of(failure) if failure is not None else ()),
        program.site if program is not None else None,
        program.definition if program is not None else None,
    ]
    lines = distinct_lines([*stack[-1:], *(one.site for one in used), *written, *call])
    name = function_name(record, program) if program is not None else None
    function = next((one.function for one in written), None) if name is None else name
    subject = f"{code(function)} uses {code(operation)}" if function else f"{code(operation)} is used"
    callee = _callee(record, operation)
    by = f" (by {code(callee)})" if callee is not None and callee.rpartition(".")[2] != operation else ""
    fails = (
        "that is why the cell failed."
        if failure is not None
        else "on CPU it works, and on a TPU the call fails with a NotImplementedError."
    )
    return Finding(
        kind="unsupported.op",
        severity="error",
        title=f"{subject}{by}, which JAX cannot compile for TPU",
        detail=f"JAX has {code(operation)} only for other platforms; {fails}",
        fix=_INSTEAD.get(
            operation, f"{_ON_CPU[0].upper()}{_ON_CPU[1:]}, or call NumPy or SciPy with `jax.pure_callback`."
        ),
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        facts={"operation": operation, "target": answer.target.name if answer is not None else None},
    )


def _callee(record: CellRecord, operation: str) -> str | None:
    """The user's function call that comes down to this operation, as they write it; None if there are several."""
    functions = FUNCTIONS_OF.get(operation, (operation,))
    calls = sources.parse(record.source, record.source_lines_start).all_calls
    found = {one.callee for one in calls if one.callee.rpartition(".")[2] in functions}
    return found.pop() if len(found) == 1 else None


def _written(record: CellRecord, operation: str) -> list[SourceSite]:
    """Lines of the cell that call a function of this operation."""
    source = sources.parse(record.source, record.source_lines_start)
    functions = FUNCTIONS_OF.get(operation, (operation,))
    lines: dict[int, str | None] = {}
    for one in source.all_calls:
        first, _, last = one.callee.rpartition(".")
        pivots = operation != "geqp3" or "pivoting=True" in one.arguments
        # A call outside of functions is an eager one, unless the operation stands in the failing call itself.
        function = source.function(one.line)
        if last in functions and pivots and (first or last in source.imports) and function is not None:
            lines.setdefault(one.line, function.name)
        elif one.callee.rpartition(".")[2] == "jit" and set(functions) & set(
            re.findall(r"\w+", " ".join(one.arguments))
        ):
            lines.setdefault(one.line, None)
    return [SourceSite(line, record.cell, record.file, function) for line, function in lines.items()]


def _type(
    record: CellRecord, program: Program | None, answer: Answer | None, message: str, failure: Failure | None
) -> Iterator[Finding]:
    """A program refused for a 64-bit type."""
    graph = program.graph if program is not None else None
    name = function_name(record, program) if program is not None else None
    subject = code(name) if name else "This program"
    where = f" for {answer.target.name}" if answer is not None else ""
    if _COMPLEX.search(message) or _FOURIER.search(message):
        types, kind, dtype, instead = frozenset({"complex128"}), "unsupported.c128", "complex128", "complex64"
    elif _DOUBLE.search(message):
        types = frozenset({"float64", "int64", "uint64"})
        kind, dtype, instead = "unsupported.x64", "64-bit numbers", "32-bit ones"
    else:
        return
    used = _with_type(graph, types) if graph is not None else []
    said = answer.error.operation if answer is not None and answer.error is not None else None
    match = _FOR_OPERATION.search(message) if said is None else None
    operation = next((group for group in match.groups() if group), None) if match is not None else said
    fitting = [one for one in used if operation and _alike(one.name, operation)] or used
    operation = fitting[0].name if fitting else operation.lower() if operation else None
    stack = answer.error.stack if answer is not None and answer.error is not None else ()
    call = [
        site_of(failure) if failure is not None else None,
        program.site if program is not None else None,
        program.definition if program is not None else None,
    ]
    lines = distinct_lines([*stack[-1:], *(one.site for one in fitting), *call])
    for_operation = f" for {code(operation)}" if operation else ""
    inputs = [
        leaf
        for leaf in (program.inputs if program is not None else ())
        if leaf.dtype in ("float64", "complex128", "int64")
    ]
    because = ""
    if kind == "unsupported.c128" and inputs and all(leaf.dtype != "complex128" for leaf in inputs):
        because = (
            f"Nobody wrote complex128: {code(inputs[0].path)} is {inputs[0].dtype}, and its transform is complex128. "
        )
    fix = f"Use {instead}"
    if inputs:
        smaller = {"complex128": "complex64", "float64": "float32", "int64": "int32"}[inputs[0].dtype]
        fix = f"Pass {code(f'{inputs[0].path}.astype(jnp.{smaller})')}"
        fix += f", which makes it {instead}" if kind == "unsupported.c128" and smaller != instead else ""
    yield Finding(
        kind=kind,
        severity="error",
        title=f"{subject} needs {dtype}{for_operation}, which the TPU compiler refuses{where}",
        detail=f"{because}The compiler: {_first_line(message)}",
        fix=f"{fix}, or do this part on the host with NumPy.",
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        facts={"operation": operation, "dtype": dtype, "target": answer.target.name if answer is not None else None},
    )


def _conversion(record: CellRecord, program: Program, answer: Answer, conversions: tuple[Operation, ...]) -> Finding:
    """A program at whose conversion to complex128 the compiler crashed."""
    name = function_name(record, program)
    lines = distinct_lines([*(one.site for one in conversions), program.site, program.definition])
    return Finding(
        kind="unsupported.c128",
        severity="error",
        title=f"{code(name)} converts float64 to complex128, at which the TPU compiler for {answer.target.name} crashes",
        detail="Its process ended while it compiled this program; on a TPU that is the process of the notebook.",
        fix="Use float32, which makes it complex64; or make the complex numbers with `jax.lax.complex(real, imaginary)`, "
        "which it compiles.",
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        count=len(conversions),
        facts={"operation": "convert", "dtype": "complex128", "target": answer.target.name},
    )


def _other(record: CellRecord, program: Program, answer: Answer) -> Finding:
    """Anything else that the compiler says it does not support."""
    error = answer.error
    assert error is not None
    name = function_name(record, program)
    lines = distinct_lines([*error.stack[-1:], program.site, program.definition])
    subject = f"{code(error.operation)} in {code(name)}" if error.operation else code(name)
    return Finding(
        kind="unsupported.op",
        severity="error",
        title=f"The TPU compiler cannot compile {subject} for {answer.target.name}",
        detail=f"The compiler: {_first_line(error.message)}",
        fix="Write this operation in another way, or do it on the host.",
        site=lines[0] if lines else None,
        related=lines[1 : _MAX_RELATED + 1],
        program=name,
        facts={"operation": error.operation, "target": answer.target.name},
    )


def _slow(record: CellRecord, program: Program) -> Iterator[Finding]:
    """Custom calls of the planned program that a TPU works off step by step."""
    plan = next((answer.plan for answer in program.answers if answer.plan is not None), None)
    told: set[tuple[str, SourceSite | None]] = set()
    for one in plan.calls if plan is not None else ():
        words, function = _SLOW.get(one.name, ("", ""))
        site = one.stack[-1] if one.stack else program.site
        if one.kind != "custom" or not words or (function, site) in told:
            continue
        told.add((function, site))
        name = function_name(record, program)
        lines = distinct_lines([site, program.site, program.definition])
        yield Finding(
            kind="unsupported.slow_op",
            severity="info",
            title=f"{code(name)} has {quantity(one.count, words)} ({code(function)}), which a TPU computes step by step",
            detail="Each step waits for the one before it, so the matrix units are mostly idle.",
            fix="If it takes much of the time, compute it less often or for smaller matrices, or on the host.",
            site=lines[0] if lines else None,
            related=lines[1 : _MAX_RELATED + 1],
            program=name,
            count=one.count,
            facts={"operation": function, "call": one.name, "program": name},
        )


def _with_type(graph: Graph, types: frozenset[str]) -> list[Operation]:
    """Operations whose results have one of these types, in the order of the program."""
    return [
        operation
        for owner, operation in graph.walk()
        if not operation.bodies and any(owner.values[place].dtype in types for place in operation.outputs)
    ]


def _alike(name: str, said: str) -> bool:
    one, other = (re.sub(r"[^a-z]", "", text.lower()) for text in (name, said))
    return one in other or other in one


def _first_line(message: str) -> str:
    line = next((line for line in message.splitlines() if line.strip()), "").strip()
    return re.sub(r"\s+@ +0x.*", "", line)[:300]
