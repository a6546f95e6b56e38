"""What a thread is doing, read from its Python frames; and whether the device has anything to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from tpumagic.events import Doing

_COMPILING = frozenset(
    {"compile_or_get_cached", "backend_compile", "backend_compile_and_load", "_compile_and_write_cache"}
)
_LOWERING = frozenset(
    {"lower_jaxpr_to_module", "_cached_lowering_to_hlo", "cached_lowering", "lower_sharding_computation"}
)
_TRACING = frozenset(
    {
        "_infer_params",
        "_infer_params_impl",
        "_infer_params_internal",
        "trace_to_jaxpr",
        "trace_to_jaxpr_dynamic",
        "inspect",
    }
)
_WAITING = frozenset({"_value", "__array__", "block_until_ready", "device_get"})


def doing(frame: FrameType, is_user: Callable[[str], bool]) -> Doing:
    """From the innermost frame up to the user's nearest line: compiling (lowering included), tracing, waiting for the
    device, otherwise at work in JAX (dispatch), or in the user's own Python."""
    result: Doing = "host"
    current: FrameType | None = frame
    while current is not None:
        name, code = current.f_globals.get("__name__", ""), current.f_code
        if name.startswith(("jax.", "jaxlib", "tpumagic.backends.jax")) or name == "jax":
            if code.co_name in _COMPILING or code.co_name in _LOWERING:
                return "compile"
            if code.co_name in _TRACING:
                result = "trace"
            elif code.co_name in _WAITING or code.co_name == "method":
                result = "wait"
            elif result == "host":
                result = "dispatch"
        elif result != "trace" and is_user(code.co_filename):
            # Tracing runs the user's function: only JAX's own frame further out tells it from plain Python.
            return result if result != "host" or not _inside_trace(current) else "trace"
        current = current.f_back
    return result


def _inside_trace(frame: FrameType) -> bool:
    current = frame.f_back
    while current is not None:
        if current.f_code.co_name in _TRACING and current.f_globals.get("__name__", "").startswith(
            ("jax.", "tpumagic.")
        ):
            return True
        current = current.f_back
    return False


def device_idle(namespace: Mapping[str, object], names: Iterable[str]) -> bool | None:
    """True if every device array among these variables is ready, so that nothing they depend on is still running;
    None if there is none to ask."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    asked = False
    for name in names:
        array: Any = _last(namespace.get(name))
        if issubclass(type(array), jax.Array) and not issubclass(type(array), jax.core.Tracer):
            if array.is_deleted():
                continue
            if not array.is_ready():
                return False
            asked = True
    return True if asked else None


def _last(value: Any) -> Any:
    """Of a container one member stands for all; read by Python's own methods, so that nothing of the user's runs."""
    for kind in (tuple, list):
        if issubclass(type(value), kind):
            return kind.__getitem__(value, -1) if kind.__len__(value) else None
    if issubclass(type(value), dict):
        return next(iter(dict.values(value)), None)
    return value
