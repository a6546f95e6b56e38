"""The nesting of a call's arguments as neutral data, with the names a user would write.

A pytree definition holds the user's own objects (static fields), so it is turned into strings while the call is seen
and not kept.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

from tpumagic.events import Structure

_TEXT_LIMIT = 60
_AUX_LIMIT = 12
_PLAIN = (str, int, float, complex, bool, type(None), bytes)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)


def text_of(value: object, limit: int = _TEXT_LIMIT) -> str:
    """A short text for any value that runs no code of the user's: plain values as written, others by their type."""
    cls: type = type(value)
    plain: Any = next((base for base in _PLAIN if issubclass(cls, base)), None)
    if issubclass(cls, enum.Enum):
        text = f"{cls.__name__}.{vars(value).get('_name_', '?')}"
    elif plain is not None:
        text = repr(value) if cls.__module__ in ("builtins", "numpy") else plain.__repr__(value)
    elif cls in (tuple, list, frozenset, set) and _is_short(value):
        text = repr(value)
    elif cls.__name__.endswith("Device") and cls.__module__.startswith("jax"):
        text = str(value)
    elif issubclass(cls, (type, *_FUNCTIONS)) or (cls.__module__.startswith("jax") and callable(value)):
        text = str(getattr(value, "__qualname__", cls.__name__)).rsplit("<locals>.", 1)[-1]
    elif type(value).__module__ in ("numpy", "ml_dtypes") or type(value).__name__ in ("dtype", "PartitionSpec"):
        text = str(value) if getattr(value, "size", 1) == 1 else f"{type(value).__name__}"
    elif any("__dataclass_fields__" in vars(base) for base in cls.__mro__):  # a metaclass is not asked
        fields = ((f.name, _stored(value, f.name)) for f in dataclasses.fields(cast("Any", cls)) if f.repr)
        inner = ", ".join(f"{name}={text_of(v, 20)}" for name, v in list(fields)[:4] if issubclass(type(v), _PLAIN))
        text = f"{type(value).__name__}({inner})"
    else:
        text = type(value).__name__
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _is_short(values: Any) -> bool:
    return len(values) <= 8 and all(type(value) in _PLAIN for value in values)


def _stored(value: object, name: str) -> object:
    """A field as the instance keeps it, without running a property or ``__getattribute__``."""
    found = inspect.getattr_static(value, name, None)
    if not inspect.ismemberdescriptor(found):
        return found
    try:
        return found.__get__(value)
    except AttributeError:  # an empty slot
        return None


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
    return Structure(cls.__name__, _keys(cls, children), _aux(cls, aux, len(children)), children)


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


def _aux(cls: type, aux: object, child_count: int) -> tuple[tuple[str, str], ...]:
    """What a registered class keeps beside its children, by name where the class or the value itself tells the names."""
    if isinstance(aux, dict):
        return tuple((str(name), _with_key(value)) for name, value in list(aux.items())[:_AUX_LIMIT])
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
        if len(values) == len(names) + 1:
            # equinox puts something of its own before the static fields.
            values = values[1:]
    if len(names) != len(values):
        names = _flattened_attributes(cls, child_count, len(values)) or names
    pairs: list[tuple[str, str]] = []
    for i, value in enumerate(values[:_AUX_LIMIT]):
        name = names[i] if i < len(names) else f"static {i}"
        pairs.append((name, _with_key(value)))
    return tuple(pairs)


def _flattened_attributes(cls: type, child_count: int, aux_count: int) -> list[str]:
    """The attributes that a class's own ``tree_flatten`` keeps beside the children, in its order; empty if it does more
    than list attributes."""
    code = getattr(getattr(cls, "tree_flatten", None), "__code__", None)
    names: list[str] = list(getattr(code, "co_names", ()))
    return names[child_count:] if len(names) == child_count + aux_count else []


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
