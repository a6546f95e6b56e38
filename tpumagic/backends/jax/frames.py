"""What a thread is doing, read from the lines of its stack; and whether the device has anything to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tpumagic.events import Doing
from tpumagic.stack_dump import CodeLine

_JAX = re.compile(r"[/\\](?:jax|jaxlib|tpumagic[/\\]backends[/\\]jax)[/\\]")

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


def doing(lines: Sequence[CodeLine], is_user: Callable[[str], bool]) -> Doing:
    """From the innermost line out to the user's nearest one: compiling (lowering included), tracing, waiting for the
    device, otherwise at work in JAX (dispatch), or in the user's own Python."""
    result: Doing = "host"
    for place, line in enumerate(lines):
        if _is_jax(line.filename):
            if line.function in _COMPILING or line.function in _LOWERING:
                return "compile"
            if line.function in _TRACING:
                result = "trace"
            elif line.function in _WAITING or line.function == "method":
                result = "wait"
            elif result == "host":
                result = "dispatch"
        elif result != "trace" and is_user(line.filename):
            # Tracing runs the user's function: only JAX's own line further out tells it from plain Python.
            traced = any(outer.function in _TRACING and _is_jax(outer.filename) for outer in lines[place + 1 :])
            return "trace" if result == "host" and traced else result
    return result


def _is_jax(filename: str) -> bool:
    return _JAX.search(filename) is not None


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
