"""Replace one attribute and put it back, also when somebody else has replaced it meanwhile."""

from __future__ import annotations

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

    return restore
