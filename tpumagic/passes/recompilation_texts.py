"""How a recompilation is told: title, detail, fix and facts, in the user's own names."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from tpumagic.findings import quantity
from tpumagic.numbers import seconds_text
from tpumagic.passes.function_origin import Origin
from tpumagic.passes.recompilation_groups import Group, is_data
from tpumagic.passes.signature_difference import FORGOTTEN

Facts = dict[str, object]


class Wording(NamedTuple):
    """What one kind of cause says. reason: what follows ``was compiled again``."""

    reason: str
    fix: str
    facts: Facts


_SHOWN_VALUES = 4
_SHOWN_NAMES = 3


def texts(group: Group, origin: Origin | None) -> tuple[str, str, str, Facts]:
    """Title, detail, fix and facts."""
    reason, fix, facts = _WORDING[group.kind](group, origin)
    function = group.last.new.function.name
    times = "again" if group.count == 1 else f"{group.count} more times"
    first: Facts = {"function": function, "compiles": group.count}
    return f"`{function}` was compiled {times} {reason}.", _detail(group), fix, first | facts


def _detail(group: Group) -> str:
    sentences = [f"{quantity(group.count, 'extra compilation')}, {seconds_text(group.seconds)}."]
    hits = sum(one.compilation.cache == "hit" for one in group.members)
    if hits:
        which = (
            "The persistent cache answered" if hits == group.count else f"The persistent cache answered {hits} of them"
        )
        sentences.append(f"{which}: only tracing and lowering had to be done again.")
    first = group.members[0]
    if first.old is not None and first.old.site not in (None, first.site):
        sentences.append(f"Compared with the call at {first.old.site}.")
    rest = {(d.name, d.kind): d for one in group.members for d in one.found if d.kind != group.kind}
    if rest:
        shown = [f"`{d.name}` ({d.kind}) {d.old_text} -> {d.new_text}" for d in list(rest.values())[:_SHOWN_NAMES]]
        more = f" and {len(rest) - len(shown)} more" if len(rest) > len(shown) else ""
        sentences.append(f"Also changed: {', '.join(shown)}{more}.")
    return " ".join(sentences)


def _chain(values: list[str]) -> str:
    """``1 -> 2 -> 3``; of more than four values the first three, the last and the number."""
    if len(values) <= _SHOWN_VALUES:
        return " -> ".join(values)
    return f"{' -> '.join(values[: _SHOWN_VALUES - 1])} -> … -> {values[-1]} ({len(values)} values)"


def _so_did(group: Group) -> str:
    """``; so did `yb` and 3 more``, or nothing."""
    names = [f"`{name}`" for name in group.others[:_SHOWN_NAMES]]
    if not names:
        return ""
    more = len(group.others) - len(names)
    return f"; so did {', '.join(names)}{f' and {more} more' if more else ''}"


def _changed(group: Group, name: str = "argument") -> Facts:
    facts: Facts = {name: group.main.name, "old": group.main.old_text, "new": group.main.new_text}
    if len(group.values) > 2:
        facts |= {"values": group.values[:8], "value_count": len(group.values)}
    if group.others:
        facts["also"] = group.others[:8]
    return facts


def _shape(group: Group, origin: Origin | None) -> Wording:
    name = group.main.name
    shapes = [tuple(ast.literal_eval(text)) for text in group.values]
    return Wording(
        f"because `{name}` changed shape: {_chain(group.values)}{_so_did(group)}",
        _shape_fix(group, name, shapes),
        _changed(group),
    )


def _shape_fix(group: Group, name: str, shapes: list[tuple[int, ...]]) -> str:
    if len({len(shape) for shape in shapes}) > 1:
        return f"Give `{name}` the same number of axes in every call, or accept one program for each."
    axes = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    sizes = [shape[axes[0]] for shape in shapes] if axes else []
    old, new = shapes[0], shapes[-1]
    first = group.members[0]
    same_line = first.old is not None and first.old.site == first.site
    if len(shapes) == 2 and axes == [0] and new[0] < old[0] and same_line:
        return (
            f"Drop the incomplete last batch, or pad `{name}` to {old[0]} rows and mask the padding, "
            f"so that every call has shape {old}."
        )
    if len(axes) != 1 or len(shapes) == 2:
        return (
            f"Bring `{name}` to one shape before the call: pad it to the larger one and mask the padding, "
            "or cut it into equal pieces. Each shape is a program of its own."
        )
    powers = sorted({max(1, 1 << (size - 1).bit_length()) for size in sizes if size > 0})
    steps = {b - a for a, b in pairwise(sizes)}
    padding = (
        f"pad axis {axes[0]} to powers of two ({len(powers)} programs up to {powers[-1]} instead of {len(shapes)}) "
        "and mask the padding"
        if powers and len(powers) < len(shapes)
        else f"pad axis {axes[0]} to {max(sizes)} and mask the padding"
    )
    if len(steps) == 1 and min(steps) > 0:
        return (
            f"`{name}` grows by {min(steps)} along axis {axes[0]} from call to call: {padding}, "
            "or make the loop a `jax.lax.scan` over an array of the final length."
        )
    return f"Use few lengths for `{name}`: {padding}."


def _dtype(group: Group, origin: Origin | None) -> Wording:
    name, wanted = group.main.name, group.main.old_text.partition(" ")[0]
    from_scalar = "Python scalar" in group.main.new_text
    how = f"`jnp.asarray({name}, {_jnp(wanted)})`" if from_scalar else f"`{name}.astype({_jnp(wanted)})`"
    return Wording(
        f"because `{name}` changed dtype: {_chain(group.values)}{_so_did(group)}",
        f"Give `{name}` dtype {wanted} in every call: {how}, or `dtype={_jnp(wanted)}` where it is made.",
        _changed(group),
    )


def _jnp(dtype: str) -> str:
    return f"jnp.{dtype}" if dtype.isidentifier() and dtype != "bool" else dtype


def _weak_type(group: Group, origin: Origin | None) -> Wording:
    name, main = group.main.name, group.main
    strong = main.old_text if main.old_text.endswith(" array") and "weakly" not in main.old_text else main.new_text
    dtype = strong.partition(" ")[0]
    from_python = "Python" in main.old_text + main.new_text
    contrast = (
        "once a Python number (weakly typed) and once a typed array"
        if from_python
        else "once weakly typed and once not"
    )
    return Wording(
        f"because `{name}` was {contrast}: {_chain(group.values)}{_so_did(group)}",
        f"Pass the same kind every time: `jnp.asarray({name}, {_jnp(dtype)})` before the first call.",
        _changed(group),
    )


def _static(group: Group, origin: Origin | None) -> Wording:
    name = group.main.name
    return Wording(
        f"because static argument `{name}` took {'a new value' if group.count == 1 else 'new values'}: "
        f"{_chain(group.values)}{_so_did(group)}",
        _static_fix(group, name),
        _changed(group),
    )


def _static_fix(group: Group, name: str) -> str:
    if not any(character.isdigit() for value in group.values for character in value):
        return f"Each value of `{name}` selects a program of its own: right for a flag or mode, as long as it has few values."
    if not any(option.startswith("static_arg") for option, _ in group.last.new.options):
        # A filtering jit takes everything that is no array for static.
        return f"Pass `{name}` as an array, `jnp.asarray({name})`, so that it is traced."
    return (
        f"Take `{name}` out of `static_argnums`/`static_argnames` so that it is traced; if it has to be static "
        "(it sets a shape, a branch or a loop's length), give it few values."
    )


def _static_identity(group: Group, origin: Origin | None) -> Wording:
    name, value = group.main.name, group.main.new_text
    static = next((one for one in group.last.new.statics if one.name == name), None)
    type_name = static.type_name if static is not None else value
    facts = _changed(group) | {"type": type_name}
    if type_name in ("function", "method", "builtin_function_or_method", "partial"):
        return Wording(
            f"because static argument `{name}` is a new function object (`{value}`) each time, and functions are "
            "compared by identity",
            f"Define the function for `{name}` once, outside the loop, and pass that one.",
            facts,
        )
    return Wording(
        f"because static argument `{name}` is a new `{type_name}` object each time (`{value}`), and these are compared "
        "by identity",
        f"Make one object and pass it in every call, or give `{type_name}` equality by value: "
        "`@dataclasses.dataclass(frozen=True)`, or `__eq__` and `__hash__`.",
        facts,
    )


def _static_field(group: Group, origin: Origin | None) -> Wording:
    owner, _, field = group.main.name.rpartition(".")
    what = f"a static part of `{owner}`" if field.startswith("static ") else f"static field `{field}` of `{owner}`"
    return Wording(
        f"because {what} changed: {_chain(group.values)}{_so_did(group)}",
        f"Keep it constant between calls, or make `{field if not field.startswith('static ') else owner}` data: "
        "a field that is a leaf of the pytree (an array) is traced and does not compile again.",
        _changed(group) | {"field": field},
    )


def _pytree(group: Group, origin: Origin | None) -> Wording:
    main = group.main
    given = FORGOTTEN in (main.old_text, main.new_text)
    if given:
        fix = f"Pass `{main.name}` in every call, with its default value where there is nothing to pass."
    elif "None" in (main.old_text, main.new_text):
        fix = f"Pass an array for `{main.name}` in every call (zeros or ones of its shape where there is none)."
    elif "key" in main.change:
        fix = f"Give `{main.name}` the same keys in every call, with a neutral value where there is nothing to say."
    elif "length" in main.change:
        fix = f"Keep the length of `{main.name}`, or stack its parts into one array with a leading axis."
    else:
        fix = f"Give `{main.name}` the same structure in every call."
    change = "" if given else f": {_chain(group.values)}"
    facts = _changed(group) | {"change": main.change}
    return Wording(f"because `{main.name}` {main.change}{change}{_so_did(group)}", fix, facts)


def _call_style(group: Group, origin: Origin | None) -> Wording:
    name, function = group.main.name, group.last.new.function.name
    return Wording(
        f"because `{name}` was passed {group.main.new_text} after it had been passed {group.main.old_text}"
        f"{_so_did(group)}",
        f"Call `{function}` one way: `{name}` always {group.main.old_text} (the program is the same).",
        _changed(group),
    )


def _context(group: Group, origin: Origin | None) -> Wording:
    name, function = group.main.name, group.last.new.function.name
    if "mesh" in name:
        return Wording(
            f"because the mesh in force changed: {_chain(group.values)}",
            f"Enter the mesh once, around every call of `{function}`.",
            _changed(group, "setting"),
        )
    what = "x64 setting" if "x64" in name else "setting"
    return Wording(
        f"because the {what} {name} changed: {_chain(group.values)}{_so_did(group)}",
        f"Set {name} once, before the first call of `{function}`, and leave it.",
        _changed(group, "setting"),
    )


def _sharding(group: Group, origin: Origin | None) -> Wording:
    name = group.main.name
    return Wording(
        f"because `{name}` came with another sharding: {_chain(group.values)}{_so_did(group)}",
        f"Put `{name}` into one sharding before every call, `jax.device_put({name}, sharding)`"
        + (
            ", the first call included."
            if _becomes_sharded(group)
            else ", or name it in `jax.jit(..., in_shardings=)`."
        ),
        _changed(group),
    )


def _becomes_sharded(group: Group) -> bool:
    return not group.main.old_text.startswith("P(") and group.main.new_text.startswith("P(")


def _committed(group: Group, origin: Origin | None) -> Wording:
    name = group.main.name
    return Wording(
        f"because `{name}` is {group.main.new_text} and was {group.main.old_text}{_so_did(group)}",
        f"Treat `{name}` the same way before every call: always `jax.device_put({name}, device)`, or never.",
        _changed(group),
    )


def _new_function(group: Group, origin: Origin | None) -> Wording:
    function = group.last.new.function
    captured = group.main.name if not group.values or not group.main.change else None
    facts: Facts = {"functions": group.count + 1}
    names = list(origin.captured) if origin is not None else []
    change = ""
    if captured is None:
        facts |= {"old": group.main.old_text, "new": group.main.new_text}
        change = f", with other captured values: {_chain(group.values)}"
        names = names or [group.main.new_text.partition("=")[0]]
    what = "a lambda" if function.is_lambda else f"`{function.name}`"
    fix = f"Make and jit {what} once, outside what is repeated, and call that function each time"
    selects = origin is not None and origin.configuration and captured is not None
    if selects or not all(is_data(text) for text in group.captured):
        fix = "Nothing to do where each function is meant to be another one; keep them if they are called again"
    elif names:
        facts["captured"] = ", ".join(names)
        fix += (
            f"; pass {', '.join(f'`{name}`' for name in names[:_SHOWN_NAMES])} as an argument instead of capturing it"
        )
    return Wording(
        f"because this line makes a new function each time: {group.count + 1} functions of the same code{change}",
        fix + ".",
        facts,
    )


def _redefined(group: Group, origin: Origin | None) -> Wording:
    first = group.members[0]
    function = first.new.function
    old = first.old.function if first.old is not None else function
    before = first.old.site if first.old is not None else None
    where = f" at {function.definition}" if function.definition is not None else ""
    if function.code_key != old.code_key:
        return Wording(
            f"because its source changed{where}",
            "Nothing to do: new code needs a new program.",
            {"old": "earlier source", "new": "changed source"},
        )
    change = f", with other captured values: {_chain(group.values)}" if group.main.change else ""
    by_factory = function.definition == old.definition
    how = "made again from the same source" if by_factory else f"defined again{where}, with the same source"
    return Wording(
        f"because it was {how}{change}: a new function has no programs yet",
        f"{'Make' if by_factory else 'Define'} `{function.name}` in a cell of its own that is not run again, or turn on "
        "JAX's persistent compilation cache (`%tpu_env jax --cache DIR`).",
        {"old": str(before), "new": str(first.site)}
        if by_factory
        else {"old": str(old.definition), "new": str(function.definition)},
    )


def _options(group: Group, origin: Origin | None) -> Wording:
    name, function = group.main.name, group.last.new.function.name
    return Wording(
        f"because it was jitted again with another {name}: {_chain(group.values)}{_so_did(group)}",
        f"Jit `{function}` once, with the options that all calls can share, and call that one.",
        _changed(group, "option"),
    )


def _evicted(group: Group, origin: Origin | None) -> Wording:
    return Wording(
        "although the same call had been compiled before: its program was dropped from JAX's caches",
        "Do not call `jax.clear_caches()` (or `clear_cache()`) between calls; for restarts, turn on JAX's persistent "
        "compilation cache (`%tpu_env jax --cache DIR`).",
        {},
    )


def _transform(group: Group, origin: Origin | None) -> Wording:
    main = group.main
    return Wording(
        f"because it was called under another transformation: {_chain(group.values)}",
        "Nothing to do for a first gradient or batch. In a loop, make and jit the transformed function once, before it.",
        {"old": main.old_text, "new": main.new_text},
    )


def _unknown(group: Group, origin: Origin | None) -> Wording:
    return Wording(
        "though nothing that tpumagic can see differs from an earlier call",
        "Look at JAX's own explanation: `jax.config.update('jax_explain_cache_misses', True)`.",
        {},
    )


_WORDING: dict[str, Callable[[Group, Origin | None], Wording]] = {
    "shape": _shape, "dtype": _dtype, "weak_type": _weak_type, "static": _static, "static_identity": _static_identity,
    "static_field": _static_field, "pytree": _pytree, "call_style": _call_style, "context": _context,
    "sharding": _sharding, "committed": _committed, "new_function": _new_function, "redefined": _redefined,
    "options": _options, "evicted": _evicted, "transform": _transform, "unknown": _unknown,
}  # fmt: skip
