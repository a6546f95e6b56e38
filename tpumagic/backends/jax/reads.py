"""Sees device values read by the host, and 64-bit values that become 32-bit, on the line where it happens."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import numpy as np

from tpumagic.backends.jax.patching import patch
from tpumagic.backends.jax.signatures import SignatureReader
from tpumagic.events import Conversion, Stack, Transfer
from tpumagic.user_code import UserCode

_WHOLE_RECORDS = 8
"""At one line the first reads are recorded whole, the rest only counted: a loop may read a million times."""

_CHECKED_ELEMENTS = 2**20


class _Nested(threading.local):
    """Whether this thread is inside a read already: ``item`` reads by way of ``_value``."""

    now = False


class Reads:
    """Records into ``transfers`` and ``conversions`` while installed."""

    def __init__(self, user_code: UserCode, reader: SignatureReader, mine: Callable[[], bool]) -> None:
        self._user_code = user_code
        self._reader = reader
        self._mine = mine
        self._counts: dict[tuple[Any, int, str], int] = {}
        self._firsts: dict[tuple[Any, int, str], Transfer] = {}
        self._nested = _Nested()
        self.active = True
        self._transfers: list[Transfer] = []
        self.conversions: dict[tuple[Any, ...], Conversion] = {}

    def transfers(self) -> list[Transfer]:
        """What was read: the first few at each line one by one, then one Transfer with the count of the others."""
        result = list(self._transfers)
        for key, count in list(self._counts.items()):  # threads of the cell may still be reading
            if count > _WHOLE_RECORDS:
                first = self._firsts[key]
                result.append(
                    Transfer(first.direction, first.how, first.stack, first.bytes, first.shape, first.dtype, first.name, None, False, count - _WHOLE_RECORDS)
                )  # fmt: skip
        return result

    def install(self) -> Callable[[], None]:
        """Hook the array class and the conversion functions; returns what takes the hooks away."""
        import jax
        import jax.numpy as jnp
        from jax._src import array, dtypes

        restores: list[Callable[[], None]] = []

        def restore() -> None:
            self.active = False
            while restores:
                restores.pop()()

        places: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
            (array.ArrayImpl, "_value", self._wrap_value),
            (array.ArrayImpl, "item", self._wrap_method("read")),
            (array.ArrayImpl, "block_until_ready", self._wrap_method("wait")),
            (dtypes, "check_and_canonicalize_user_dtype", self._wrap_requested),
            (jnp, "array", self._wrap_conversion),
            (jnp, "asarray", self._wrap_conversion),
            (jax, "device_put", self._wrap_placement),
        )
        try:
            for owner, name, wrap in places:
                restores.append(patch(owner, name, wrap))
        except Exception:
            restore()  # half a set would misread the rest
            raise
        return restore

    def argument(self, path: str, value: Any, stack: Stack) -> None:
        """Look at a 64-bit host array among a program's arguments."""
        self._convert(value, path, stack)

    def _wrap_value(self, original: Any) -> Any:
        fget = original.fget

        def _value(array: Any) -> Any:
            if self.active and not self._nested.now:
                self._read(array, "read")
            return fget(array)

        return property(_value)

    def _wrap_method(self, how: Literal["read", "wait"]) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            def method(array: Any, *args: Any) -> Any:
                if not self.active or self._nested.now:
                    return original(array, *args)
                self._read(array, how)
                self._nested.now = True
                try:
                    return original(array, *args)
                finally:
                    self._nested.now = False

            method.__name__ = method.__qualname__ = original.__name__
            return method

        return wrap

    def _read(self, array: Any, how: Literal["read", "wait"]) -> None:
        try:
            frame = _outside_jax(sys._getframe(2))
            if frame is None or not self._mine():
                return
            if how == "wait" and not self._user_code.is_user(frame.f_code.co_filename):
                return  # libraries wait for values of their own that are long there
            key = (frame.f_code, frame.f_lineno, how)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count > _WHOLE_RECORDS:
                return
            stack = self._user_code.stack(frame)
            if not stack:
                return
            user_frame = next(self._user_code.user_frames(frame), frame)
            transfer = Transfer(
                direction="to_host",
                how=how,
                stack=stack,
                bytes=int(array.nbytes),
                shape=tuple(array.shape),
                dtype=str(array.dtype),
                name=variable_name(user_frame, array),
                identity=self._reader.identities.of(array),
            )
            self._firsts.setdefault(key, transfer)
            self._transfers.append(transfer)
        except Exception:
            # A read that cannot be described (a deleted array) fails in JAX itself, with JAX's own words.
            return

    def _wrap_conversion(self, original: Any) -> Any:
        @functools.wraps(original)
        def convert(value: Any, *args: Any, **kwargs: Any) -> Any:
            if self.active and isinstance(value, (np.ndarray, np.generic)):
                self._host_array(value)
            return original(value, *args, **kwargs)

        return convert

    def _wrap_placement(self, original: Any) -> Any:
        """``device_put`` also takes whole batches: dicts and lists of arrays."""
        of_one = self._wrap_conversion(original)

        @functools.wraps(original)
        def device_put(x: Any, *args: Any, **kwargs: Any) -> Any:
            if self.active and type(x) in (dict, list, tuple):
                for leaf in list(x.values() if isinstance(x, dict) else x)[:_WHOLE_RECORDS]:
                    if isinstance(leaf, (np.ndarray, np.generic)):
                        self._host_array(leaf)
            return of_one(x, *args, **kwargs)

        return device_put

    def _host_array(self, value: Any) -> None:
        try:
            if not self._mine():
                return
            frame = _outside_jax(sys._getframe(2))
            stack = self._user_code.stack(frame)
            if not stack or frame is None:
                return
            name = variable_name(next(self._user_code.user_frames(frame), frame), value)
            if value.shape:
                identity = self._reader.identities.of(value)
                self._transfers.append(
                    Transfer(
                        "to_device", "convert", stack, value.nbytes, value.shape, str(value.dtype), name, identity, True
                    )
                )
            if str(value.dtype) in ("int64", "uint64", "float64"):
                self._convert(value, name, stack)
        except Exception:
            return

    def _convert(self, value: Any, name: str | None, stack: Stack) -> None:
        from jax._src.config import config

        if config.jax_enable_x64 or not stack:  # type: ignore[attr-defined]
            return
        old = str(value.dtype)
        new = old.replace("64", "32")
        key = (stack[-1], old, name)
        known = self.conversions.get(key)
        if known is not None and known.lost is not None:
            return
        self.conversions[key] = Conversion(stack, old, new, tuple(value.shape), False, lost_value(value), name)

    def _wrap_requested(self, original: Any) -> Any:
        def check_and_canonicalize_user_dtype(dtype: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(dtype, *args, **kwargs)
            if self.active and str(result) in ("int32", "uint32", "float32", "complex64"):
                self._requested(dtype, str(result))
            return result

        return check_and_canonicalize_user_dtype

    def _requested(self, dtype: Any, new: str) -> None:
        try:
            # Python's own int and float mean "the default", which JAX grants.
            if (
                (isinstance(dtype, type) and dtype in (int, float, complex))
                or np.dtype(dtype).name == new
                or not self._mine()
            ):
                return
            frame = _outside_jax(sys._getframe(2))
            # Only what the user's own line asked for, not what a library asked for on its way.
            if frame is None or not self._user_code.is_user(frame.f_code.co_filename):
                return
            stack = self._user_code.stack(frame)
            old = np.dtype(dtype).name
            self.conversions.setdefault((stack[-1], old, "requested"), Conversion(stack, old, new, (), True))
        except Exception:
            return


def lost_value(value: Any) -> tuple[str, str] | None:
    """One element that the 32-bit type cannot hold, before and after; None if there is none among those looked at.

    Whole numbers are looked at in int64, uint64 and float64 arrays: identifiers and times in seconds, which no
    rounding may change. Fractions that merely round are no loss of this kind. At most 2**20 elements, evenly spread.
    """
    flat = np.asarray(value).reshape(-1)
    if flat.size > _CHECKED_ELEMENTS:
        flat = flat[:: flat.size // _CHECKED_ELEMENTS + 1]
    with np.errstate(all="ignore"):
        narrow = flat.astype(flat.dtype.name.replace("64", "32"))
        changed = narrow.astype(flat.dtype) != flat
        if flat.dtype.kind == "f":
            finite = np.isfinite(flat)
            whole = np.where(finite, flat, 0)
            if np.all(whole == np.floor(whole)):
                changed &= finite
            else:
                changed = finite & ~np.isfinite(narrow)
    where = np.flatnonzero(changed)
    if not where.size:
        return None
    before, after = flat[where[0]], narrow[where[0]]
    if flat.dtype.kind == "f":
        return f"{before:.0f}" if abs(before) < 1e18 else f"{before:g}", f"{after:.0f}" if abs(
            after
        ) < 1e18 else f"{after:g}"
    return str(before), str(after)


def variable_name(frame: FrameType, value: Any) -> str | None:
    """The name under which this very object is known in a frame, None if it has none there."""
    for namespace in (frame.f_locals, frame.f_globals):
        for name, held in list(namespace.items()):
            if held is value and not name.startswith("_"):
                return name
        if namespace is frame.f_globals:
            break
    return None


def _outside_jax(frame: FrameType | None) -> FrameType | None:
    """The nearest frame that is neither JAX's nor ours; None if JAX writes the value into a program as a constant."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "jax._src.interpreters.mlir":
            return None
        if not name.startswith(("jax.", "jaxlib", "tpumagic.")) and name != "jax":
            return frame
        frame = frame.f_back
    return None
