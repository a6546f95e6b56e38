"""``equinox.filter_jit`` packs a call into three arguments of its own; this gives the user's call back.

Its arguments are (donated arrays, other arrays, static parts), the latter two split into the function, the first
argument and the rest, each as flat leaves with None in the place of what the other half holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpumagic.backends.jax.structures import key_of, leaf_path, text_of
from tpumagic.events import StaticValue


@dataclass(frozen=True)
class EquinoxCall:
    """The function the user wrote and the arrays it was called with; what filter_jit holds static is in ``statics``,
    named by the positions the arguments have."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    statics: tuple[StaticValue, ...]


def unwrap(fun: Any, args: Sequence[Any], names_of: Any) -> EquinoxCall | None:
    """The user's call inside a filter_jit call, None if this is no such call or its packing is not known.

    names_of: function -> the names of its parameters.
    """
    if not str(getattr(fun, "__module__", "")).startswith("equinox") or len(args) != 3:
        return None
    import jax

    try:
        arrays = {**args[1], **args[0]}
        (function_leaves, function_tree), (first_leaves, first_tree), (rest_leaves, rest_tree) = args[2]
        dynamic_function = arrays.get("fun", (None,) * len(function_leaves))
        function = jax.tree_util.tree_unflatten(
            function_tree, [s if d is None else d for d, s in zip(dynamic_function, function_leaves, strict=True)]
        )
        names = list(names_of(function)) + ["argument"] * 32
        unflatten = jax.tree_util.tree_unflatten
        first = unflatten(first_tree, list(arrays["first"]))
        rest, keywords = unflatten(rest_tree, list(arrays["rest"]))
        statics = _statics(unflatten(first_tree, list(first_leaves)), names[0])
        static_rest, static_keywords = unflatten(rest_tree, list(rest_leaves))
        for name, value in [*zip(names[1:], static_rest, strict=False), *static_keywords.items()]:
            statics += _statics(value, name)
    except (KeyError, TypeError, ValueError):
        return None
    return EquinoxCall(function, (first, *rest), keywords, tuple(statics))


def _statics(tree: Any, name: str) -> list[StaticValue]:
    import jax

    keyed = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        StaticValue(leaf_path(name, jax.tree_util.keystr(path)), text_of(value), type(value).__name__, key_of(value))
        for path, value in keyed
    ]
