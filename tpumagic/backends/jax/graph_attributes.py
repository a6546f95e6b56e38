"""What passes need to know of a JAX equation beyond its values: one small function per primitive.

Every value is a string, a number, a boolean or a tuple of them, so that nothing of the user's stays alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

BODY_PARAMETERS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Under which names an equation keeps the jaxpr it calls."""


def attributes_of(primitive: str, parameters: dict[str, Any]) -> dict[str, object]:
    """The attributes of Operation; empty where nothing is known or a version of JAX keeps it differently."""
    read = ATTRIBUTES.get(primitive)
    if read is None:
        return {}
    try:
        return read(parameters)
    except Exception:  # parameters are private to JAX: a new form must not cost the report
        return {}


_OPERATORS = frozenset(
    {"ufunc.__call__", "where", "maximum", "minimum", "power", "_forward_operator_to_aval.<locals>.op"}
)


def is_implicit(source_info: Any) -> bool:
    """Whether a conversion was made because the user's own line mixed two types, not because a cast was written.

    JAX's frames tell: an operator or a ufunc called from user code promotes, ``astype``, ``asarray`` or ``mean`` is a
    choice. False where the frames do not tell.
    """
    traceback = getattr(source_info, "traceback", None)
    called = ""
    for frame in getattr(traceback, "frames", ()):
        if not frame.file_name.startswith(_jax_directory()):
            operator = called in _OPERATORS or called.startswith("_operator_") or called.endswith("deferring_binary_op")
            return operator and not in_installed_package(frame.file_name)
        called = frame.function_name
    return False


@cache
def _jax_directory() -> str:
    import jax

    return os.path.dirname(jax.__file__) + os.sep


def in_installed_package(file: str) -> bool:
    """Whether a source file belongs to an installed package, not to the user's code."""
    parts = file.split(os.sep)
    return "site-packages" in parts or "dist-packages" in parts


def size_of(dimension: Any) -> int:
    """A symbolic dimension counts as 1."""
    try:
        return int(dimension)
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return 1
    except Exception:  # JAX's own errors for symbolic dimensions differ between versions
        return 1


def _dtype_text(dtype: Any) -> str | None:
    return None if dtype is None else str(getattr(dtype, "name", dtype))


def _precision(parameters: dict[str, Any]) -> str:
    """``default``, ``high``, ``highest``, two of them with a comma where the operands differ, or an algorithm."""
    precision = parameters.get("precision")
    if precision is None:
        return "default"
    each = precision if isinstance(precision, tuple) else (precision,)
    names = [str(getattr(one, "name", one)).lower() if one is not None else "default" for one in each]
    return names[0] if len(set(names)) == 1 else ",".join(names)


def _dot_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    (left, right), (left_batch, right_batch) = parameters["dimension_numbers"]
    return {
        "precision": _precision(parameters),
        "preferred_dtype": _dtype_text(parameters.get("preferred_element_type")),
        "contracting": (_integers(left), _integers(right)),
        "batch": (_integers(left_batch), _integers(right_batch)),
    }


def _convolution_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    return {
        "precision": _precision(parameters),
        "preferred_dtype": _dtype_text(parameters.get("preferred_element_type")),
        "strides": _integers(parameters.get("window_strides") or ()),
        "feature_groups": parameters.get("feature_group_count"),
    }


def _integers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple([int(value) for value in values])


def _axes(parameters: dict[str, Any]) -> dict[str, object]:
    axes = parameters.get("axes", parameters.get("dimensions", ()))
    return {"axes": tuple([axis if isinstance(axis, str) else size_of(axis) for axis in axes])}


def _cumulative(parameters: dict[str, Any]) -> dict[str, object]:
    return {"axes": (int(parameters["axis"]),), "reverse": bool(parameters.get("reverse"))}


def _call_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    name = parameters.get("name")
    if name is None:
        debug_info = getattr(opened_body(parameters), "debug_info", None)
        name = getattr(debug_info, "func_name", None)
    return {"function": str(name)} if name is not None else {}


def opened_body(parameters: dict[str, Any]) -> Any:
    """The Jaxpr that an equation calls, without its constants; None if it calls none."""
    body = next((parameters[key] for key in BODY_PARAMETERS if key in parameters), None)
    return getattr(body, "jaxpr", body)


def _scan_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    if "num_carry" in parameters:
        constants, carries = parameters["num_consts"], parameters["num_carry"]
    else:  # jax 0.12 keeps the nesting of (constants, carry, scanned values)
        constants, carries = (len(list(part.vals)) for part in parameters["ft_in"].elts[:2])
    return {
        "length": int(parameters["length"]),
        "carry_count": carries,
        "constant_count": constants,
        "reverse": bool(parameters.get("reverse")),
    }


def _while_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    return {
        "condition_constant_count": parameters["cond_nconsts"],
        "body_constant_count": parameters["body_nconsts"],
    }


def _shard_map_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    shape = getattr(parameters.get("mesh"), "shape", {})
    return {"mesh": tuple([(str(axis), int(size)) for axis, size in dict(shape).items()])}


def _sharding_constraint(parameters: dict[str, Any]) -> dict[str, object]:
    sharding = parameters.get("sharding")
    spec = getattr(sharding, "spec", None)
    return {
        "sharding": f"P({', '.join(map(repr, spec))})" if spec is not None else str(sharding),
        "replicated": bool(getattr(sharding, "is_fully_replicated", False)),
    }


def _callback(parameters: dict[str, Any]) -> dict[str, object]:
    return {"callback": _callback_name(parameters.get("callback"))}


def _callback_name(function: Any) -> str:
    """The name of the user's function, looked for inside JAX's wrappers and partials."""
    for _ in range(8):
        inner = getattr(function, "callback_func", None) or getattr(function, "func", None)
        if inner is None and getattr(function, "__name__", "") == "_flat_callback":
            inner = _captured(function, "callback")
        if inner is None:
            break
        function = inner
    name = str(getattr(function, "__qualname__", None) or type(function).__name__)
    return name.rsplit(".<locals>.", 1)[-1]


def _captured(function: Any, name: str) -> Any:
    """What a closure holds under this name, None if nothing."""
    names = function.__code__.co_freevars
    cells = dict(zip(names, function.__closure__ or (), strict=False))
    return cells[name].cell_contents if name in cells else None


def _kernel_attributes(parameters: dict[str, Any]) -> dict[str, object]:
    name = parameters.get("name")
    if name is None:
        name = getattr(getattr(opened_body(parameters), "debug_info", None), "func_name", None)
    return {"kernel": str(name), "interpret": bool(parameters.get("interpret"))}


ATTRIBUTES: dict[str, Callable[[dict[str, Any]], dict[str, object]]] = {
    "dot_general": _dot_attributes,
    "conv_general_dilated": _convolution_attributes,
    "convert_element_type": lambda parameters: {"new_dtype": _dtype_text(parameters["new_dtype"])},
    "integer_pow": lambda parameters: {"exponent": int(parameters["y"])},
    "fft": lambda parameters: {
        "kind": str(getattr(parameters.get("fft_type"), "name", parameters.get("fft_type"))).lower(),
        "lengths": tuple([size_of(n) for n in parameters.get("fft_lengths", ())]),
    },
    "transpose": lambda parameters: {"permutation": _integers(parameters["permutation"])},
    "broadcast_in_dim": lambda parameters: {"dimensions": _integers(parameters["broadcast_dimensions"])},
    "reduce_precision": lambda parameters: {
        "exponent_bits": int(parameters["exponent_bits"]),
        "mantissa_bits": int(parameters["mantissa_bits"]),
    },
    "ffi_call": lambda parameters: {"target": str(parameters.get("target_name"))},
    "pallas_call": _kernel_attributes,
    "scan": _scan_attributes,
    "while": _while_attributes,
    "shard_map": _shard_map_attributes,
    "sharding_constraint": _sharding_constraint,
    "pure_callback": _callback,
    "io_callback": _callback,
    "debug_callback": _callback,
    "debug_print": lambda _: {"callback": "jax.debug.print"},
    **dict.fromkeys(
        ("reduce", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor",
         "argmax", "argmin", "psum", "psum_invariant", "pmax", "pmin", "reduce_scatter"), _axes),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulative),
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
         "xla_pmap"), _call_attributes),
}  # fmt: skip
"""What passes need to know of an operation beyond its values, by JAX primitive."""
