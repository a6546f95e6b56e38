"""The compiler's stacks, turned into lines of the user's code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tpumagic.events import SourceSite, Stack
from tpumagic.plans import Answer

T = TypeVar("T")


def localized(answer: Answer, site_of: Callable[[str, int, str], SourceSite | None]) -> Answer:
    """The answer with the user's frames alone in every stack. site_of: the site of a full file name, a line and a
    function; None for code that is not the user's."""

    def own(stack: Stack) -> Stack:
        found = (site_of(frame.file or "", frame.line, frame.function or "") for frame in stack)
        return tuple(site for site in found if site is not None)

    return with_stacks(answer, own)


def with_files(answer: Answer, name_of: Callable[[str], str]) -> Answer:
    """The answer with other file names in every stack."""

    def renamed(stack: Stack) -> Stack:
        return tuple(
            dataclasses.replace(frame, file=name_of(frame.file)) if frame.file is not None else frame for frame in stack
        )

    return with_stacks(answer, renamed)


def with_stacks(value: T, change: Callable[[Stack], Stack]) -> T:
    """The same data with every field named ``stack`` changed, at any depth; what does not change is kept as it is."""
    return cast("T", _changed(value, change))


def _changed(value: Any, change: Callable[[Stack], Stack]) -> Any:
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        if not items or isinstance(items[0], (int, float, str)):
            return items
        new = tuple(_changed(item, change) for item in items)
        return items if all(a is b for a, b in zip(new, items, strict=True)) else new
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        if old is None or isinstance(old, (int, float, str)):
            continue
        new = change(old) if field.name == "stack" else _changed(old, change)
        if new is not old and new != old:
            changes[field.name] = new
    return dataclasses.replace(value, **changes) if changes else value
