"""The nesting of a call's arguments as neutral data, with the names a user would write.

A pytree definition holds the user's own objects (static fields), so it is turned into strings while the call is seen
and not kept.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tpumagic.events import Structure

_TEXT_LIMIT = 60
_AUX_LIMIT = 12
_PLAIN = (str, int, float, complex, bool, type(None), bytes)


def text_of(value: object, limit: int = _TEXT_LIMIT) -> str:
    """A short text for any value that runs no code of the user's: plain values as written, others by their type."""
    if isinstance(value, _PLAIN) or (
        isinstance(value, (tuple, list, frozenset, set))
        and len(value) <= 8
        and all(isinstance(v, _PLAIN) for v in value)
    ):
        text = repr(value)
    elif type(value).__name__.endswith("Device") and hasattr(value, "id"):
        text = str(value)
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        text = str(getattr(value, "__qualname__", type(value).__name__)).rsplit("<locals>.", 1)[-1]
    elif type(value).__module__ in ("numpy", "ml_dtypes") or type(value).__name__ in ("dtype", "PartitionSpec"):
        text = str(value) if getattr(value, "size", 1) == 1 else f"{type(value).__name__}"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value) if f.repr)
        inner = ", ".join(f"{name}={text_of(v, 20)}" for name, v in list(fields)[:4] if isinstance(v, _PLAIN))
        text = f"{type(value).__name__}({inner})"
    else:
        text = type(value).__name__
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def key_of(value: object) -> str:
    """Equal for two values exactly when JAX takes them for the same static value; never raises."""
    try:
        return f"{type(value).__qualname__}:{hash(value)}"
    except Exception:
        return f"{type(value).__qualname__}@{id(value)}"


def structure_of(tree: Any) -> Structure:
    """The Structure of a JAX pytree definition; ``kind`` is ``leaf`` for a leaf and ``None`` for None."""
    node = tree.node_data()
    if node is None:
        return leaf_structure() if tree.num_leaves else Structure("None")
    cls, aux = node
    children = tuple(structure_of(child) for child in tree.children())
    if cls is type(None):
        return Structure("None")
    if cls is dict:
        return Structure("dict", tuple(repr(key) for key in aux), (), children)
    if cls in (tuple, list):
        return Structure(cls.__name__, tuple(str(i) for i in range(len(children))), (), children)
    fields = getattr(cls, "_fields", None)
    if isinstance(fields, tuple) and len(fields) == len(children):
        return Structure(cls.__name__, tuple(map(str, fields)), (), children)
    return Structure(cls.__name__, _keys(cls, children), _aux(cls, aux), children)


def leaf_structure() -> Structure:
    """The Structure of one array."""
    return Structure("leaf")


def _keys(cls: type, children: tuple[Structure, ...]) -> tuple[str, ...]:
    """Names of a registered class's children: its dataclass fields where their number fits, else positions."""
    if dataclasses.is_dataclass(cls):
        names = [
            f.name
            for f in dataclasses.fields(cls)
            if not f.metadata.get("static") and f.metadata.get("pytree_node", True)
        ]
        if len(names) == len(children):
            return tuple(names)
    return tuple(str(i) for i in range(len(children)))


def _aux(cls: type, aux: object) -> tuple[tuple[str, str], ...]:
    """What a registered class keeps beside its children, by name where a dataclass tells the names."""
    values: list[object] = list(aux) if isinstance(aux, (tuple, list)) else [] if aux is None else [aux]
    names: list[str] = []
    if dataclasses.is_dataclass(cls):
        names = [
            f.name
            for f in dataclasses.fields(cls)
            if f.metadata.get("static") or not f.metadata.get("pytree_node", True)
        ]
        if len(values) == 2 and len(names) != 2 and all(isinstance(v, (tuple, list)) for v in values):
            # Some libraries keep (names of the children, values of the static fields).
            values = list(values[1])  # type: ignore[call-overload]
    pairs: list[tuple[str, str]] = []
    for i, value in enumerate(values[:_AUX_LIMIT]):
        name = names[i] if i < len(names) else f"static {i}"
        pairs.append((name, _with_key(value)))
    return tuple(pairs)


def _with_key(value: object) -> str:
    """A text that also differs where two values differ only in what the text leaves out."""
    text = text_of(value)
    if isinstance(value, _PLAIN) or (isinstance(value, tuple) and text.startswith("(")):
        return text
    return f"{text} #{key_of(value)}"


_NOISE = re.compile(r"\.states\[\d+\]|\.raw_value$|\.get_value\(\)$|\.value$|\._graphdef|\[<flat index \d+>\]$")


def leaf_path(name: str, key_path: str) -> str:
    """``batch`` and ``['mask']`` give ``batch['mask']``; the internals of flax's containers are left out."""
    return name + _NOISE.sub("", key_path)
