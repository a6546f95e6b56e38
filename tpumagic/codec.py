"""Dataclasses to strict JSON values and back: no NaN, no code, unknown fields ignored, wrong types named."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: object) -> Any:
    """The value as JSON knows it. A number that JSON cannot hold (NaN, infinite) was not known: null."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in cast("tuple[object, ...]", value)]
    return {name: encode(getattr(value, name)) for name in _hints(type(value))}


def decode(kind: type[T], value: object, path: str) -> T:
    """An object of the dataclass from what json.loads gave. Missing fields take their defaults.

    Raises ValueError that names the field when its value has the wrong type or a field without default is missing.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not an object")  # noqa: TRY004 - to its reader a damaged file is a wrong value
    data = cast("dict[str, object]", value)
    fields: dict[str, Any] = {
        name: _decode_value(hint, data[name], f"{path}.{name}") for name, hint in _hints(kind).items() if name in data
    }
    try:
        return kind(**fields)
    except TypeError:
        missing = sorted(_required(kind) - set(fields))
        raise ValueError(f"{path} lacks {', '.join(missing)}") from None


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _required(kind: Any) -> set[str]:
    absent = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is absent and field.default_factory is absent}


def _decode_value(hint: Any, value: object, path: str) -> object:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _decode_value(next(a for a in arguments if a is not type(None)), value, path)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{path} is {value!r:.40}, not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _decode_tuple(arguments, value, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{path} is not an object")
        return cast("dict[str, object]", value)
    if dataclasses.is_dataclass(hint):
        return decode(cast("type[object]", hint), value, path)
    return _decode_scalar(hint, value, path)


def _decode_tuple(arguments: tuple[Any, ...], value: object, path: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{path} is not a list")  # noqa: TRY004 - as above
    items = cast("list[object]", value)
    hints = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
    if len(hints) != len(items):
        raise ValueError(f"{path} does not have {len(hints)} values")
    return tuple(
        _decode_value(hint, item, f"{path}[{n}]") for n, (hint, item) in enumerate(zip(hints, items, strict=True))
    )


def _decode_scalar(hint: type, value: object, path: str) -> object:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise ValueError(f"{path} is not {names[hint]}")
    return value
