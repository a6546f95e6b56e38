"""Why a cell failed, where JAX's own message leaves the user's names out: static arguments that cannot be hashed,
arrays used after they were donated, programs that only this CPU cannot run. Values that tracing cannot know are
explained by ``traced_values``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpumagic import sources
from tpumagic.events import CellRecord, Failure, Program, SourceSite
from tpumagic.findings import Finding
from tpumagic.numbers import needed_text
from tpumagic.passes import traced_values
from tpumagic.passes.wording import (
    callers_of,
    code,
    distinct_lines,
    expression_of,
    facts_of,
    function_name,
    listing,
    quoted,
    site_of,
    source_line,
)
from tpumagic.plans import Answer

_GONE = re.compile(
    r"Array has been deleted|buffer has been deleted or donated|deleted or donated buffer", re.IGNORECASE
)
_TWICE = re.compile(r"donate the same buffer twice|previously donated in the same call")
_ON_CPU = re.compile(
    r"Only interpret mode is supported on CPU backend|not (?:supported|implemented)[^\n]* on (?:platform )?CPU\b"
    r"|not found for platform cpu|Unsupported TPU device kind: cpu",
    re.IGNORECASE,
)


def find(record: CellRecord) -> Iterator[Finding]:
    """At most one finding: what ended the cell."""
    failure = record.failure
    if failure is None:
        return
    for explain in (_static_unhashable, _donated_twice, _donated_reuse, _cpu_only, traced_values.explain):
        finding = explain(record, failure)
        if finding is not None:
            yield finding
            return


def _static_unhashable(record: CellRecord, failure: Failure) -> Finding | None:
    if "on-hashable static argument" not in failure.message:
        return None
    facts = facts_of(failure)
    type_name = facts.get("type_name") or quoted(r"unhashable type: '([^']+)'", failure.message) or "value"
    inner = facts.get("inner_type_name", "").rpartition(".")[2]
    function, argument, passed = facts.get("function"), facts.get("argument"), facts.get("argument_text", "")
    of_function = f" of {code(function)}" if function else ""
    subject = f"Static argument {code(argument)}{of_function}" if argument else f"A static argument{of_function}"
    if type_name.endswith("Tracer"):
        title = f"{subject} is a traced value here, and a static argument must be known while tracing"
        fix = (
            f"Make {code(passed)} static in the function that passes it too, or take {code(argument)} out of the "
            "static arguments."
            if argument and passed
            else "Make it static in the function that passes it too, or take it out of the static arguments."
        )
    else:
        holds = inner and inner != type_name and type_name in ("tuple", "frozenset")
        kind = f"{_article(type_name)} that holds {_article(inner)}" if holds else _article(type_name)
        title = f"{subject} is {kind}, which cannot be hashed"
        fix = _hashable(type_name, inner if holds else "", passed)
    return Finding(
        kind="error.static_unhashable",
        severity="error",
        title=title,
        detail="JAX looks compiled programs up by the values of static arguments, so each of them needs a hash.",
        fix=fix,
        site=site_of(failure),
        related=callers_of(failure),
        facts={"argument": argument, "function": function, "type": type_name, "value": facts.get("value")},
    )


def _article(type_name: str) -> str:
    name = {"ArrayImpl": "JAX array", "ndarray": "NumPy array"}.get(type_name, type_name)
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _hashable(type_name: str, inner: str, passed: str) -> str:
    """The change that makes this value hashable. passed: the expression at the call, empty if not known."""
    tree = expression_of(passed) if passed else None
    plain = isinstance(tree, (ast.Name, ast.Attribute, ast.Subscript))
    if inner:
        return f"Use hashable parts inside as well: tuples for lists, not {_article(inner)}."
    if type_name == "list":
        if isinstance(tree, ast.List):
            return f"Pass a tuple: {code(ast.unparse(ast.Tuple(tree.elts, ast.Load())))} instead of {code(passed)}."
        return f"Pass a tuple: {code(f'tuple({passed})')}." if plain else "Pass a tuple."
    if type_name == "set":
        return f"Pass a frozenset: {code(f'frozenset({passed})')}." if passed else "Pass a frozenset."
    if type_name == "dict":
        if plain:
            return f"Pass {code(f'tuple(sorted({passed}.items()))')}, or a frozen dataclass with these fields."
        return "Pass a tuple of its items, or a frozen dataclass with these fields."
    if type_name in ("ndarray", "ArrayImpl"):
        return "Take it out of the static arguments: arrays are traced. If its values must be static, pass a tuple."
    return f"Make {code(type_name)} hashable, for example with {code('@dataclass(frozen=True)')}, or pass its fields."


def _donated_twice(record: CellRecord, failure: Failure) -> Finding | None:
    if not _TWICE.search(failure.message):
        return None
    tree = expression_of(facts_of(failure)["expression"])
    function, name = None, None
    if isinstance(tree, ast.Call):
        function = ast.unparse(tree.func)
        passed = [ast.unparse(one) for one in [*tree.args, *(keyword.value for keyword in tree.keywords)]]
        name = next((text for text in passed if passed.count(text) > 1), None)
    subject = code(name) if name else "One array"
    return Finding(
        kind="error.donated_reuse",
        severity="error",
        title=f"{subject} is passed twice{f' to {code(function)}' if function else ''} in one call that donates it",
        detail="A donated buffer is overwritten by the program, so nothing else in the same call may read it.",
        fix=f"Pass a copy the second time: {code(f'jnp.copy({name})') if name else '`jnp.copy(…)`'}.",
        site=site_of(failure),
        related=callers_of(failure),
        facts={"name": name, "function": function},
    )


def _donated_reuse(record: CellRecord, failure: Failure) -> Finding | None:
    if not _GONE.search(failure.message):
        return None
    facts = facts_of(failure)
    names = facts["deleted"].split(", ") if facts.get("deleted") else []
    function, donation = _donation(record, failure, facts)
    if function is None and (not names or _deleted_otherwise(names, record.source)):
        return None
    outside = facts.get("deleted_outside", "").split(", ")[0]
    subject = listing(names) if names else "An array"
    if outside:
        subject += f" ({code(outside)} in the calling code)"
    verb = "were" if len(names) > 1 else "was"
    if function is not None:
        title = f"{subject} {verb} donated to {code(function)} and cannot be used again"
        where = f" at {donation}" if donation is not None else ""
        detail = f"{code(function)} took over the buffer{where} (donate_argnums), so the array is gone."
    else:
        title = f"{subject} {verb} donated to a jitted function before this line and cannot be used again"
        detail = "A call with donate_argnums takes over the buffers of its arguments, so the arrays are gone."
    return Finding(
        kind="error.donated_reuse",
        severity="error",
        title=title,
        detail=detail,
        fix=_rebinding(record, outside or (names[0] if names else ""), donation),
        site=site_of(failure),
        related=distinct_lines([site_of(failure), donation, *callers_of(failure)])[1:],
        facts={"names": names, "function": function, "donated_at": str(donation) if donation is not None else None},
    )


def _donation(record: CellRecord, failure: Failure, facts: dict[str, str]) -> tuple[str | None, SourceSite | None]:
    """The function that took the buffer and the line of that call; what was seen exactly before what merely fits."""
    identities = {int(text) for text in facts.get("deleted_identities", "").split(",") if text}
    fitting: list[Program] = []
    for program in record.programs:
        for call in program.calls:
            inputs = call.inputs or program.inputs
            donated = call.donated or program.donated
            if any(i < len(inputs) and inputs[i].identity in identities for i in donated):
                return function_name(record, program), call.stack[-1] if call.stack else program.site
        if program.donated and not program.outside:
            fitting.append(program)
    if "donated_by" in facts:
        return facts["donated_by"], None
    shape = re.search(r"shape=(\w+)\[([\d,]*)\]", failure.message)
    if shape is not None:
        sizes = tuple(int(size) for size in shape[2].split(",") if size)
        fitting = [
            program
            for program in fitting
            if any(
                i < len(program.inputs) and (program.inputs[i].dtype, program.inputs[i].shape) == (shape[1], sizes)
                for i in program.donated
            )
        ]
    return (function_name(record, fitting[0]), fitting[0].site) if len(fitting) == 1 else (None, None)


def _deleted_otherwise(names: list[str], source: str) -> bool:
    """Whether the cell itself says that it was not a jitted function that took the buffers."""
    roots = "|".join(re.escape(re.split(r"[.\[]", name, maxsplit=1)[0]) for name in names)
    return re.search(rf"\b(?:{roots})\b[^\n]*\.delete\(|device_put\([^\n]*donate=", source) is not None


def _rebinding(record: CellRecord, name: str, donation: SourceSite | None) -> str:
    """How the donating call should have been written, where it is an assignment to another name."""
    line = source_line(record, donation)
    statement = sources.parse(record.source, record.source_lines_start).statement(line) if line is not None else None
    root = re.split(r"[.\[]", name, maxsplit=1)[0]
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and len(statement.targets) == 1:
        target = statement.targets[0]
        passed = {ast.unparse(one) for one in statement.value.args}
        if isinstance(target, ast.Name) and root in passed and target.id != root:
            better = f"{root} = {ast.unparse(statement.value)}"
            return (
                f"Let the result take the name: {code(better)}. If both are needed, pass {code(f'jnp.copy({root})')}."
            )
    if root:
        return f"Use the result of that call instead of {code(root)}, or pass it {code(f'jnp.copy({root})')}."
    return "Use the result of the call that took it, or donate a copy (`jnp.copy`)."


def _cpu_only(record: CellRecord, failure: Failure) -> Finding | None:
    match = _ON_CPU.search(failure.message)
    if match is None:
        return None
    expression = facts_of(failure)["expression"]
    subject = code(expression) if expression else "This line"
    verdict = ""
    precision = quoted(r"precision '([^']+)' is not supported by dot_general", failure.message)
    if precision is not None:
        title = f"{subject} multiplies with precision {precision}, which this CPU cannot do"
        fix = "Run it on a TPU, or use `precision='highest'` while it runs on CPU."
    elif "interpret mode" in match[0]:
        title = f"{subject} runs a Pallas kernel, which JAX compiles for an accelerator and not for CPU"
        interpret = (
            "pass `interpret=True` to `pallas_call`"
            if "pallas_call" in record.source
            else ("call it under `with pltpu.force_tpu_interpret_mode():`")
        )
        fix = f"To try it on CPU, {interpret}; it is slow but gives the same numbers."
        verdict, runs = _verdict(record, failure)
        if runs:
            title = f"{subject} runs a Pallas kernel, which fails only on this machine: it has no TPU"
    else:
        title = f"{subject} needs a TPU: JAX cannot run it on CPU"
        fix = "Run this cell on a TPU; on CPU only its shapes can be checked, with `jax.eval_shape`."
    return Finding(
        kind="unsupported.cpu_only",
        severity="error",
        title=title,
        detail=" ".join(filter(None, [failure.message.strip().splitlines()[0][:300], verdict])),
        fix=fix,
        site=site_of(failure),
        related=callers_of(failure),
        facts={"expression": expression},
    )


def _verdict(record: CellRecord, failure: Failure) -> tuple[str, bool]:
    """What the TPU compiler says of the program that failed here, and whether it compiles it; empty and False if it was
    not asked or did not answer."""
    line = site_of(failure)
    for program in record.programs:
        is_it = line is None or program.site is None or program.site.line == line.line
        for answer in program.answers if is_it and not program.outside else ():
            verdict = _answered(answer)
            if verdict:
                text = f"For {answer.target.name} {code(function_name(record, program))} {verdict}"
                return text, answer.status == "planned"
    return "", False


def _answered(answer: Answer) -> str:
    """What became of a program, as the end of a sentence; empty where there is no plan. A kernel's blocks are laid out
    after the plan, and only a whole compile shows that they fit."""
    if answer.error is not None and answer.error.needed_bytes and answer.error.kind in ("vmem", "smem"):
        amounts = needed_text(answer.error.needed_bytes, answer.error.available_bytes)
        return f"does not compile either: its kernel needs {amounts} of {answer.error.kind.upper()}."
    if answer.plan is None or (answer.error is not None and answer.error.kind != "hbm"):
        return ""
    needed = needed_text(answer.plan.needed_bytes, answer.plan.available_bytes)
    if not answer.plan.fits:
        return f"does not fit: {needed} of HBM."
    if answer.cost is not None:
        return f"compiles and fits: {needed} of HBM."
    return f"fits: {needed} of HBM. Whether the kernel's blocks fit into VMEM shows at the end of the compile (`--cost` waits)."
