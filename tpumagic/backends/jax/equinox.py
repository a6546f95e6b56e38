"""``equinox.filter_jit`` packs a call into three arguments of its own; this gives the user's call back.

Its arguments are (donated arrays, other arrays, static parts), the latter two split into the function, the first
argument and the rest, each as flat leaves with None in the place of what the other half holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpumagic.backends.jax.structures import key_of, leaf_path, text_of
from tpumagic.events import StaticValue


@dataclass(frozen=True)
class EquinoxCall:
    """The function the user wrote and the arrays it was called with by parameter; what filter_jit holds static is in
    ``statics``."""

    function: Any
    args: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    statics: tuple[StaticValue, ...]


def unwrap(fun: Any, packed: Sequence[Any], names_of: Callable[[Any], Sequence[str]]) -> EquinoxCall | None:
    """The user's call inside a filter_jit call, None if this is no such call or its packing is not known.

    names_of: function -> the names of its parameters.
    """
    if not str(getattr(fun, "__module__", "")).startswith("equinox") or len(packed) != 3:
        return None
    import jax

    try:
        arrays = {**packed[1], **packed[0]}
        (function_leaves, function_tree), (first_leaves, first_tree), (rest_leaves, rest_tree) = packed[2]
        dynamic_function = arrays.get("fun", (None,) * len(function_leaves))
        function = jax.tree_util.tree_unflatten(
            function_tree, [s if d is None else d for d, s in zip(dynamic_function, function_leaves, strict=True)]
        )
        unflatten = jax.tree_util.tree_unflatten
        dynamic, keywords = unflatten(rest_tree, list(arrays["rest"]))
        static, static_keywords = unflatten(rest_tree, list(rest_leaves))
        dynamic = (unflatten(first_tree, list(arrays["first"])), *dynamic)
        static = (unflatten(first_tree, list(first_leaves)), *static)
        while dynamic and dynamic[-1] is None and static[-1] is None:  # filter_jit appends one of its own
            dynamic, static = dynamic[:-1], static[:-1]
        names = list(names_of(function))[: len(dynamic)]
        args: dict[str, Any] = {}
        statics: list[StaticValue] = []
        for i, name in enumerate(names):
            held = _statics(static[i], name)
            statics += held
            # An argument without any array is a static argument, no empty pytree.
            if not (held and not jax.tree_util.tree_leaves(dynamic[i])):
                args[name] = dynamic[i]
        for name, value in static_keywords.items():
            statics += _statics(value, name)
    except (KeyError, TypeError, ValueError):
        return None
    return EquinoxCall(function, args, keywords, tuple(statics))


def _statics(tree: Any, name: str) -> list[StaticValue]:
    import jax

    keyed = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        StaticValue(leaf_path(name, jax.tree_util.keystr(path)), text_of(value), type(value).__name__, key_of(value))
        for path, value in keyed
    ]
