"""Why jitted functions were compiled again: one finding for each function, cause and line of the call.

The signature of each compilation is compared with those known before; see ``signature_difference`` for what counts
as a difference, ``recompilation_texts`` for the wording. The first compilation of a function is no finding, and
neither are operations outside jit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpumagic.events import CellRecord, Compile, Program, Signature, SourceSite
from tpumagic.findings import REPETITIONS, Finding, Severity, by_cost
from tpumagic.passes import function_origin
from tpumagic.passes.clocks import has_clock
from tpumagic.passes.function_origin import Origin
from tpumagic.passes.recompilation_groups import Group, Recompilation, is_data, is_number
from tpumagic.passes.recompilation_texts import texts
from tpumagic.passes.signature_difference import closest
from tpumagic.passes.source_lookup import distinct_lines, in_cell, line_text, source_of
from tpumagic.sources import CallText, parse

_PLAIN = re.compile(r"['\"(\[{b].*|True|False|None", re.DOTALL)


def find(record: CellRecord) -> Iterator[Finding]:
    """Findings in the order in which the causes first appeared."""
    groups: dict[tuple[object, ...], list[Recompilation]] = {}
    for program in record.programs:
        if program.kind == "eager":
            continue
        for compilation in program.compiles:
            recompilation = _explain(program, compilation)
            if recompilation is not None:
                function = recompilation.new.function
                key = (function.name, function.code_key, recompilation.kind, recompilation.site)
                groups.setdefault(key, []).append(recompilation)
    for recompilations in groups.values():
        group = Group(tuple(recompilations))
        origin = _origin(group, record)
        severity = _severity(group, record, origin)
        if severity is not None:
            yield _finding(group, severity, origin, record)


def _explain(program: Program, compilation: Compile) -> Recompilation | None:
    """The cause of one compilation; None for the first of a function."""
    new = compilation.signature
    if new is None:
        return None
    site = compilation.stack[-1] if compilation.stack else new.site or program.site
    nearest = closest(new, compilation.earlier)
    if nearest is None:
        return Recompilation("evicted", program, compilation, new, None, (), site) if compilation.evicted else None
    old, found = nearest
    if compilation.evicted:
        kind, found = "evicted", []
    elif not found:
        kind = "unknown"
    else:
        kind = found[0].kind
    if kind in ("new_function", "redefined") and _unrelated(new, old, kind):
        return None
    return Recompilation(kind, program, compilation, new, old, tuple(found), site)


def _unrelated(new: Signature, old: Signature, kind: str) -> bool:
    """Whether two functions of one name have nothing to do with each other: lambdas of different source, functions
    written at different lines of one cell, another transformation of the same function."""
    one, other = new.function, old.function
    if one.wrapper != other.wrapper:
        return True
    if one.code_key != other.code_key:
        first, second = other.definition, one.definition
        if one.is_lambda or first is None or second is None:
            return True
        return first.cell == second.cell and first.file == second.file and first.line != second.line
    return kind == "new_function" and one.definition != other.definition


def _severity(group: Group, record: CellRecord, origin: Origin | None) -> Severity | None:
    """A warning unless the code means to compile again; None where there is nothing worth saying."""
    kind = group.kind
    if kind == "new_function":
        return _new_function(group, origin)
    if kind == "redefined":
        return _redefined(group)
    if kind == "transform":
        # The first gradient or batch of a jitted function has to be compiled; the third at one line is a loop.
        return "warning" if group.count >= REPETITIONS else "info"
    if kind == "unknown":
        # No cause means no advice: loud only where it costs.
        return by_cost(group.seconds, record.wall_s)
    if kind == "evicted":
        return "warning"
    if all(one.program.kind == "aot" for one in group.members):
        # ``lower(...).compile()`` asks for exactly this program.
        return "info"
    if kind == "static":
        return _static(group)
    if kind == "static_identity":
        return _static_identity(group, record, origin)
    if kind == "shape" and (_is_warm_up(group, record) or _is_benchmark(group, record)):
        return "info"
    return "warning"


def _new_function(group: Group, origin: Origin | None) -> Severity | None:
    """Loud where the line itself makes the function again for the same code, or with other data captured.

    Functions kept in a list, a dict or an object, or handed in by the caller, were made once each: by design. So were
    those that differ in what cannot be an argument: a captured function, model, flag or mode.
    """
    one_line = [one for one in group.members if one.old is not None and one.old.site == one.site]
    if not one_line:
        return None
    has_objects = _captures_objects(group)
    if origin is None:
        # Code that is not in this cell: only a plain repetition along the same path is clear.
        stacks = {one.compilation.stack for one in group.members}
        clear = group.count + 1 >= REPETITIONS and len(stacks) == 1 and not has_objects
        return "warning" if clear and not group.captured else "info"
    if not origin.made_here:
        return None
    if group.captured:
        return "warning" if all(is_data(text) for text in group.captured) else "info"
    return "info" if origin.configuration or (has_objects and origin.captured) else "warning"


def _redefined(group: Group) -> Severity:
    """Changed source is meant to compile, and so is a factory called for another object: which object a function
    captured is not known. An unchanged one that the persistent cache answered is already mended."""
    changed = any(one.new.function.code_key != one.old.function.code_key for one in group.members if one.old)
    by_factory = any(one.new.function.definition == one.old.function.definition for one in group.members if one.old)
    answered = all(one.compilation.cache == "hit" for one in group.members)
    meant = changed or bool(group.captured) or (by_factory and _captures_objects(group))
    return "info" if meant or answered else "warning"


def _captures_objects(group: Group) -> bool:
    return any(not is_data(text) and not _PLAIN.fullmatch(text) for _, text in group.last.new.function.closure)


def _static(group: Group) -> Severity:
    """Numbers could have been traced. Flags, modes, functions and classes select a program: that is what static
    arguments are for, and they have few values. Texts and objects in which only a number changes are counted."""
    values = group.values
    if all(is_number(text) or _is_number_tuple(text) for text in values):
        return "warning"
    if len({re.sub(r"\d+", "", text) for text in values}) > 1:
        return "info"
    at_one_line = all(one.old is not None and one.old.site == one.site for one in group.members)
    is_text = values[0][:1] in "'\""
    return "warning" if len(values) >= REPETITIONS or (at_one_line and not is_text) else "info"


def _is_number_tuple(text: str) -> bool:
    if text[:1] not in ("(", "["):
        return False
    parts = [part.strip() for part in text.strip("()[], ").split(",")]
    return all(is_number(part) for part in parts)


def _static_identity(group: Group, record: CellRecord, origin: Origin | None) -> Severity:
    """Loud where equal objects are made for each call. Two objects held in two variables may well mean two things."""
    main = group.main
    if "(" in main.new_text:  # the text shows the values, and they are equal
        return "warning"
    if origin is None or not origin.made_here:
        return "info"
    for one in group.members:
        old = one.old.site if one.old is not None else None
        if one.site is None or old is None:
            return "info"
        if old == one.site:
            continue
        texts_of = [_written(record, one.new, main.name, site) for site in (old, one.site)]
        if texts_of[0] != texts_of[1]:
            return "info"
    return "warning"


def _written(record: CellRecord, signature: Signature, name: str, site: SourceSite) -> str | None:
    source = source_of(site, record)
    if source is None:
        return None
    return function_origin.argument_text(source, site.line, name, _position(signature, name))


def _position(signature: Signature, name: str) -> int | None:
    return signature.positional.index(name) if name in signature.positional else None


def _origin(group: Group, record: CellRecord) -> Origin | None:
    site = group.last.site
    source = source_of(site, record) if site is not None else None
    if site is None or source is None:
        return None
    if group.kind == "new_function":
        return function_origin.of_function(source, site.line)
    if group.kind == "static_identity":
        name = group.main.name
        return function_origin.of_argument(source, site.line, name, _position(group.last.new, name))
    return None


def _is_warm_up(group: Group, record: CellRecord) -> bool:
    """Whether the user says so, in the name of a function or beside the call: compiling every size is then the point."""
    site = group.last.site
    frames = group.last.compilation.stack
    if any("warm" in (frame.function or "").lower() for frame in frames):
        return True
    source = source_of(site, record) if site is not None else None
    if site is None or source is None:
        return False
    said = {site.line, *(loop.first for loop in source.loops(site.line))}
    above = min(said) - 1
    if line_text(site, record, above).lstrip().startswith("#"):
        said.add(above)
    return any("warm" in line_text(site, record, line).lower() for line in said)


def _is_benchmark(group: Group, record: CellRecord) -> bool:
    """Whether each shape is run again under a clock: how the time depends on the size is then what is asked for."""
    if any(len(one.program.calls) < 2 for one in group.members):
        return False
    for frame in group.last.compilation.stack:
        source = source_of(frame, record)
        function = source.function(frame.line) if source is not None else None
        loops = source.loops(frame.line) if source is not None and function is None else ()
        scope = function.node if function is not None else loops[0].node if loops else None
        if source is not None and scope is not None and has_clock(source, scope):
            return True
    return False


def _finding(group: Group, severity: Severity, origin: Origin | None, record: CellRecord) -> Finding:
    title, detail, fix, facts = texts(group, origin)
    related = _related(group, record)
    drops = _cache_drops(record) if group.kind == "evicted" else []
    if drops:
        call = f"{drops[0].callee}()"
        detail += f" `{call}` drops it (line {', '.join(str(one.line) for one in drops[:3])})."
        facts = facts | {"dropped_by": call}
        related = distinct_lines(
            [*(SourceSite(one.line, record.cell, record.file) for one in drops[:3]), *related], but=group.last.site
        )
    return Finding(
        kind=f"recompile.{group.kind}",
        severity=severity,
        title=title,
        detail=detail,
        fix=fix,
        site=group.last.site,
        related=related,
        program=group.last.program.name,
        count=group.count,
        seconds=group.seconds,
        facts=facts,
    )


def _cache_drops(record: CellRecord) -> list[CallText]:
    """The calls of this cell that empty JAX's caches, or those of one function."""
    source = parse(record.source, record.source_lines_start)
    return [one for one in source.all_calls if one.callee.rpartition(".")[2] in ("clear_caches", "clear_cache")]


def _related(group: Group, record: CellRecord) -> tuple[SourceSite, ...]:
    """The lines of this cell that led to the call, innermost first; the call it is compared with; the definition."""
    first = group.members[0]
    sites = [site for site in reversed(first.compilation.stack[:-1]) if in_cell(site, record)]
    return distinct_lines(
        [*sites, first.old.site if first.old else None, first.new.function.definition], but=first.site
    )
