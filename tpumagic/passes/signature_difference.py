"""What differs between two signatures of a function: pure comparison, the truth about why a call compiled again.

A difference has the kind of the finding it would become (``shape`` for ``recompile.shape``). Comparing the other way
round gives the same kinds for the same names, and a signature does not differ from itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import Leaf, Signature, StaticValue, Structure

PRECEDENCE = (
    "new_function", "redefined", "options", "context", "transform", "call_style", "pytree", "static_identity",
    "static_field", "static", "dtype", "shape", "weak_type", "sharding", "committed",
)  # fmt: skip
"""Which difference explains a compilation when there are several: a new function compiles whatever it is called with,
a setting for whatever arguments, another structure whatever its leaves; sharding follows from the arrays it is of."""

FORGOTTEN = "not given"


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. name: the argument, leaf path, setting or captured variable, as the user would
    write it. old_text and new_text: before and after. change: what happened in words, where two texts alone do not
    tell (``gained key 'mask'``)."""

    kind: str
    name: str
    old_text: str
    new_text: str
    change: str = ""


Pairs = tuple[tuple[str, str], ...]


def differences(new: Signature, old: Signature) -> list[Difference]:
    """Everything in which new differs from old, the best explanation first."""
    if new == old:
        return []
    found = [
        *_function(new, old),
        *_named("options", new.options, old.options),
        *_named("context", new.context, old.context),
        *_transform(new, old),
        *_call_style(new, old),
        *_structures(new, old),
        *_statics(new, old),
        *_leaves(new, old),
    ]
    return sorted(found, key=lambda difference: PRECEDENCE.index(difference.kind))


def closest(new: Signature, earlier: tuple[Signature, ...]) -> tuple[Signature, list[Difference]] | None:
    """The earlier signature that differs least, and in what; the latest of several. None without earlier ones.

    Signatures of the very same function object come before those of its likes, whatever they differ in: what a
    function object was not called with yet is the cause, not that an older object of the same name was. Likewise the
    same source comes before another.
    """
    same = tuple(one for one in earlier if one.function.identity == new.function.identity)
    alike = tuple(one for one in earlier if one.function.code_key == new.function.code_key)
    best: tuple[tuple[int, int], Signature, list[Difference]] | None = None
    for one in reversed(same or alike or earlier):
        found = differences(new, one)
        rank = (len({difference.kind for difference in found}), len(found))
        if best is None or rank < best[0]:
            best = (rank, one, found)
        if rank == (1, 1):
            break  # nothing comes closer, and of equals the latest counts
    return (best[1], best[2]) if best is not None else None


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as NumPy prints it: ``(32, 8)``."""
    return str(tuple(shape))


def _function(new: Signature, old: Signature) -> Iterator[Difference]:
    one, other = new.function, old.function
    if one.code_key != other.code_key:
        yield Difference("redefined", one.name, "earlier source", "changed source", "its source changed")
    elif one.identity != other.identity:
        kind = "redefined" if _other_run(new, old) else "new_function"
        before, after = _changed(dict(one.closure), dict(other.closure))
        yield Difference(kind, one.name, before, after, "captured values changed" if before != after else "")


def _other_run(new: Signature, old: Signature) -> bool:
    """Whether the two were made by two runs of one cell: the same line under another execution count."""
    first, second = old.function.definition, new.function.definition
    if first is None or second is None or (first.cell == second.cell and first.file == second.file):
        # Made by a factory that did not run again as a cell; the calling cell may have.
        first, second = old.site, new.site
    if first is None or second is None or first.cell is None or second.cell is None:
        return False
    return first.cell != second.cell and first.line == second.line


def _changed(new: dict[str, str], old: dict[str, str]) -> tuple[str, str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return (
        ", ".join(f"{name}={old.get(name, FORGOTTEN)}" for name in names),
        ", ".join(f"{name}={new.get(name, FORGOTTEN)}" for name in names),
    )


def _named(kind: str, first: Pairs, second: Pairs) -> Iterator[Difference]:
    if first == second:
        return
    new, old = dict(first), dict(second)
    for name in {**old, **new}:
        before, after = old.get(name, "not set"), new.get(name, "not set")
        # JAX derives the names from the numbers, or the other way round.
        if before != after and (kind != "options" or not _derived(name, new, old)):
            yield Difference(kind, name, before, after)


def _derived(name: str, new: dict[str, str], old: dict[str, str]) -> bool:
    numbers = name.replace("argnames", "argnums")
    return numbers != name and new.get(numbers) != old.get(numbers)


def _transform(new: Signature, old: Signature) -> Iterator[Difference]:
    if new.transform != old.transform:
        yield Difference("transform", new.function.name, old.transform or "none", new.transform or "none")


def _call_style(new: Signature, old: Signature) -> Iterator[Difference]:
    for name in sorted(set(new.keywords) & set(old.positional) - set(new.positional) - set(old.keywords)):
        yield Difference("call_style", name, "by position", "by keyword")
    for name in sorted(set(new.positional) & set(old.keywords) - set(new.keywords) - set(old.positional)):
        yield Difference("call_style", name, "by keyword", "by position")


def _structures(new: Signature, old: Signature) -> Iterator[Difference]:
    one, other = dict(new.structure), dict(old.structure)
    for name in {**other, **one}:
        if name not in one:
            yield Difference("pytree", name, "given", FORGOTTEN, "is no longer given")
        elif name not in other:
            yield Difference("pytree", name, FORGOTTEN, "given", "is now given")
        else:
            yield from _structure(name, one[name], other[name])


def _structure(path: str, new: Structure, old: Structure) -> Iterator[Difference]:
    if new == old:
        return
    if new.kind != old.kind:
        yield Difference("pytree", path, _kind_text(old), _kind_text(new), "changed its type")
        return
    if len(new.children) != len(old.children) and _by_position(new) and _by_position(old):
        before, after = (f"{node.kind} of {len(node.children)}" for node in (old, new))
        yield Difference("pytree", path, before, after, "changed its length")
        return
    if new.keys != old.keys or len(new.children) != len(old.children):
        yield Difference("pytree", path, _keys_text(old), _keys_text(new), _keys_change(new.keys, old.keys))
        return
    for name, before, after in _changed_fields(new, old):
        yield Difference("static_field", f"{path}.{name}", before, after)
    for i, (child, other) in enumerate(zip(new.children, old.children, strict=True)):
        key = new.keys[i] if i < len(new.keys) else str(i)
        yield from _structure(_join(path, new, key), child, other)


def _changed_fields(new: Structure, old: Structure) -> Iterator[tuple[str, str, str]]:
    one, other = dict(new.aux), dict(old.aux)
    for name in {**other, **one}:
        before, after = other.get(name, FORGOTTEN), one.get(name, FORGOTTEN)
        if before != after:
            yield name, before.partition(" #")[0], after.partition(" #")[0]


def _by_position(node: Structure) -> bool:
    return all(key.isdigit() for key in node.keys)


def _join(path: str, node: Structure, key: str) -> str:
    return f"{path}[{key}]" if node.kind == "dict" or key.isdigit() else f"{path}.{key}"


def _kind_text(node: Structure) -> str:
    return "an array" if node.kind == "leaf" else node.kind


def _keys_text(node: Structure) -> str:
    shown = ", ".join(node.keys[:8])
    return f"keys {shown}{f', … {len(node.keys) - 8} more' if len(node.keys) > 8 else ''}" if node.keys else "no keys"


def _keys_change(new: tuple[str, ...], old: tuple[str, ...]) -> str:
    gained, lost = [k for k in new if k not in old], [k for k in old if k not in new]
    parts = [
        f"{verb} {'key' if len(keys) == 1 else 'keys'} {', '.join(keys[:4])}{' …' if len(keys) > 4 else ''}"
        for verb, keys in (("gained", gained), ("lost", lost))
        if keys
    ]
    return " and ".join(parts) or "has its keys in another order"


def _statics(new: Signature, old: Signature) -> Iterator[Difference]:
    one = {static.name: static for static in new.statics}
    other = {static.name: static for static in old.statics}
    for name in {**other, **one}:
        after, before = one.get(name), other.get(name)
        if after is None or before is None:
            yield Difference("static", name, _static_text(before), _static_text(after))
        elif after.key != before.key or after.type_name != before.type_name:
            alike = after.text == before.text and after.type_name == before.type_name
            kind = "static_identity" if alike and after.by_identity and before.by_identity else "static"
            yield Difference(kind, name, before.text, after.text)


def _static_text(static: StaticValue | None) -> str:
    return FORGOTTEN if static is None else static.text


def _leaves(new: Signature, old: Signature) -> Iterator[Difference]:
    if len(new.leaves) == len(old.leaves):
        # The usual case by far: the same arguments, one of them different.
        changed = [pair for pair in zip(new.leaves, old.leaves, strict=True) if pair[0] != pair[1]]
        if all(after.path == before.path for after, before in changed):
            for after, before in changed:
                yield from _leaf(after.path, after, before)
            return
    one, other = _by_path(new.leaves), _by_path(old.leaves)
    for path in one:
        for after, before in zip(one[path], other.get(path, []), strict=False):
            if after != before:
                yield from _leaf(path, after, before)


def _by_path(leaves: tuple[Leaf, ...]) -> dict[str, list[Leaf]]:
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        found.setdefault(leaf.path, []).append(leaf)
    return found


def _leaf(path: str, new: Leaf, old: Leaf) -> Iterator[Difference]:
    if new.dtype != old.dtype:
        yield Difference("dtype", path, _dtype_text(old), _dtype_text(new))
    if new.shape != old.shape:
        yield Difference("shape", path, shape_text(old.shape), shape_text(new.shape))
    if new.weak_type != old.weak_type:
        yield Difference("weak_type", path, _kind_of_value(old), _kind_of_value(new))
    if new.sharding != old.sharding or (_on_device(new) and _on_device(old) and new.devices != old.devices):
        yield Difference("sharding", path, _place(old), _place(new))
    elif _on_device(new) != _on_device(old):
        yield Difference("committed", path, _commitment(old), _commitment(new))


def _dtype_text(leaf: Leaf) -> str:
    return f"{leaf.dtype} (Python scalar)" if leaf.origin == "scalar" else leaf.dtype


def _kind_of_value(leaf: Leaf) -> str:
    if not leaf.weak_type:
        return f"{leaf.dtype} array"
    return f"Python {_python_type(leaf)}" if leaf.origin == "scalar" else f"weakly typed {leaf.dtype} array"


def _python_type(leaf: Leaf) -> str:
    return leaf.dtype.rstrip("0123456789")


def _on_device(leaf: Leaf) -> bool:
    """Whether the call must run where this array lies: host values and uncommitted arrays go anywhere."""
    return leaf.committed is True


def _place(leaf: Leaf) -> str:
    if leaf.sharding is not None:
        return leaf.sharding
    if leaf.origin != "device":
        return "on the host"
    return f"device {leaf.devices[0]}" if len(leaf.devices) == 1 else "not sharded"


def _commitment(leaf: Leaf) -> str:
    return f"committed to {_place(leaf)}" if _on_device(leaf) else "not committed to a device"
