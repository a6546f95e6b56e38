"""Replace one attribute and put it back, also when somebody else has replaced or imported it meanwhile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

Restore = Callable[[], None]


def patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Restore:
    """Replace ``owner.name`` by ``wrap(original)``; AttributeError where there is none."""
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    replacement = wrap(original)
    setattr(owner, name, replacement)

    def restore() -> None:
        # If somebody wrapped it since, theirs stays: ours inside it only passes calls on.
        current = owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
        if current is replacement:
            setattr(owner, name, original)
        del current  # a reference of our own, which would look like somebody else's
        _give_back(replacement, original)

    return restore


def _give_back(replacement: Any, original: Any) -> None:
    """Let modules and variables that hold the replacement (``from jax import device_put``) hold the original."""
    if sys.getrefcount(replacement) <= _OWN_REFERENCES:
        return  # looking through all objects of the process takes time
    for holder in gc.get_referrers(replacement):
        if type(holder) is dict:
            for key, value in list(holder.items()):
                if value is replacement:
                    holder[key] = original


_OWN_REFERENCES = 3
"""Of the replacement in ``_give_back``: the closure of ``restore``, the argument here, and that of the counting."""
