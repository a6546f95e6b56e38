"""The exception that ended a cell, with what can only be read while its objects are alive.

The facts, all text: ``expression`` and ``statement`` of the raising user line; ``cause_type`` and ``cause`` of a
chained exception; and, where the error is of that sort, ``traced`` (names that hold traced values, with their types),
``deleted`` (names whose buffers are gone, as the innermost user frame calls them), ``deleted_outside`` (the same
arrays as the outermost frame calls them), ``deleted_identities``, ``function``, ``argument``, ``argument_text`` and
``type_name`` of an unhashable static argument, ``placed`` (names with the ids of their devices), ``device_list``
(a name that holds devices), ``index`` (of a subscript out of range) and ``mapped_by`` (a function made by ``jax.pmap``
that was called).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpumagic.backends.jax.raising import MISSING, Raising, raising_frames
from tpumagic.backends.jax.reachable import Reach
from tpumagic.events import Failure, Stack
from tpumagic.user_code import UserCode

IdentityOf = Callable[[object], "int | None"]
"""The number under which the signatures of calls know an array (``Leaf.identity``)."""

_MAX_MESSAGE = 6000
_MAX_NAMES = 4
_AHEAD_OF_TIME = ("lower", "trace", "eval_shape")
_HASHED = re.compile(r"of type <class '(?P<type>[^']+)'>(?:, (?P<value>.*?)\. The error was:\s*TypeError: unhashable type: '(?P<inner>[^']+)')?", re.DOTALL)  # fmt: skip
_PMAP_FILE = os.path.join("jax", "_src", "pmap.py")
_DISPLAYS = {
    ast.List: "list", ast.ListComp: "list", ast.Dict: "dict", ast.DictComp: "dict", ast.Set: "set", ast.SetComp: "set",
    ast.Tuple: "tuple",
}  # fmt: skip


def failure(
    error: BaseException, stack: Stack, namespace: Mapping[str, object], user_code: UserCode, identity_of: IdentityOf
) -> Failure:
    """What happened; holds nothing of the error. stack: the user's frames of its traceback."""
    message = _text(error)
    facts: dict[str, str] = {}
    cause = _cause(error)
    if cause is not None:
        facts["cause_type"], facts["cause"] = type(cause).__name__, _text(cause)[:1000]
    try:
        frames = raising_frames(error.__traceback__, user_code)
        if frames:
            facts["expression"], facts["statement"] = frames[0].expression[:400], frames[0].statement[:400]
            for pattern, read in _READERS:
                if pattern.search(f"{type(error).__name__}: {message}\n{facts.get('cause_type', '')}"):
                    facts.update(read(frames, message, identity_of))
    except Exception as fault:  # explaining a failure must never add one
        facts["unread"] = type(fault).__name__
    return Failure(type(error).__name__, message, stack, tuple(facts.items()))


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception:  # an exception class of the user's may fail to print itself
        return ""


def _cause(error: BaseException) -> BaseException | None:
    """The exception behind this one, unless it is JAX's way to carry a stack trace."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or type(cause).__name__ in ("JaxStackTraceBeforeTransformation", "UnfilteredStackTrace"):
        return None
    return cause


def _traced(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    tracer_type = sys.modules["jax"].core.Tracer
    found: list[str] = []
    for name, value in frames[0].variables():
        if issubclass(type(value), tracer_type):
            shape = ",".join(map(str, value.aval.shape))
            found.append(f"{name}: {value.aval.dtype}[{shape}]")
    return {"traced": "; ".join(found[:_MAX_NAMES])} if found else {}


def _deleted(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    by_frame = [gone for frame in frames if (gone := _deleted_in(frame))]
    if not by_frame:
        return {}
    inner, outer = by_frame[0], by_frame[-1]
    identities = [str(number) for array in inner.values() if (number := identity_of(array)) is not None]
    facts = {"deleted": ", ".join(inner), "deleted_identities": ",".join(identities)}
    if list(outer) != list(inner):
        facts["deleted_outside"] = ", ".join(outer)
    return facts


def _deleted_in(frame: Raising) -> dict[str, Any]:
    """Names of deleted arrays that the frame's expression mentions, and the arrays."""
    found: dict[str, Any] = {}
    for name, array in _arrays_in(frame):
        if array.is_deleted() and len(found) < _MAX_NAMES:
            found[name] = array
    return found


def _arrays_in(frame: Raising) -> Iterator[tuple[str, Any]]:
    """The arrays behind the names that an expression mentions, by their paths."""
    jax: Any = sys.modules["jax"]
    for text, value in frame.variables():
        reach = Reach(jax.Array, jax.core.Tracer, keep=True)
        for identity in itertools.islice(reach.add([(text, value)]), 2000):
            yield reach.names(identity)[0], reach.kept[identity]


def _static_argument(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    """Which static argument could not be hashed, matched by what the call passes and by the type JAX names."""
    match = _HASHED.search(message)
    facts: dict[str, str] = {}
    if match is None:
        return facts
    facts["type_name"] = match["type"].rpartition(".")[2]
    if match["inner"] and match["inner"] != facts["type_name"]:
        facts["inner_type_name"] = match["inner"]
    if match["value"]:
        facts["value"] = match["value"][:80]
    for frame in frames:
        for call in _calls(frame.tree()):
            function, name = _jitted(frame, call)
            if function is None:
                continue
            facts["function"] = name
            options = getattr(function, "_jit_info", None)
            passed = list(_passed(frame, call, function))
            static = [one for one in passed if _is_static(one, options)] or passed
            typed = [one for one in static if _type_name(frame, one[2]) == facts["type_name"]] or static
            named = [one for one in typed if ast.unparse(one[2]) == facts.get("value")] or typed
            if len(named) == 1:
                facts["argument"], facts["argument_text"] = named[0][1], ast.unparse(named[0][2])[:80]
            return facts
    return facts


def _calls(tree: ast.AST | None) -> Iterator[ast.Call]:
    """Calls in an expression, outermost first: the call that raised is the whole expression."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else iter(())


def _jitted(frame: Raising, call: ast.Call) -> tuple[Any, str]:
    """The jitted function that a call calls, lowers or traces, and its name; None for another call."""
    candidates: list[ast.expr] = [call.func]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _AHEAD_OF_TIME:
        candidates.append(call.func.value)
    for expression in candidates:
        function = frame.resolve(expression)
        if type(function).__name__ == "PjitFunction":
            return function, ast.unparse(expression)
    return None, ""


def _passed(frame: Raising, call: ast.Call, function: Any) -> Iterator[tuple[int | None, str, ast.expr]]:
    """Each argument: position (None for a keyword), name of the parameter, expression."""
    arguments: list[ast.expr] = list(call.args)
    if isinstance(call.func, ast.Attribute) and _is_method(frame.resolve(call.func.value), call.func.attr, function):
        arguments.insert(0, call.func.value)
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []
    for position, expression in enumerate(arguments):
        yield position, parameters[position] if position < len(parameters) else f"argument {position}", expression
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield None, keyword.arg, keyword.value


def _is_method(holder: Any, name: str, function: Any) -> bool:
    """Whether ``holder.name`` is this function with the holder as first argument."""
    return any(vars(base).get(name) is function for base in type(holder).__mro__)


def _is_static(argument: tuple[int | None, str, ast.expr], options: Any) -> bool:
    position, name, _ = argument
    numbers, names = getattr(options, "static_argnums", None) or (), getattr(options, "static_argnames", None) or ()
    return position in numbers or name in names


def _type_name(frame: Raising, expression: ast.expr) -> str | None:
    """The type of an argument as far as it can be told without evaluating it."""
    value = frame.resolve(expression)
    if value is not MISSING:
        return type(value).__name__
    if isinstance(expression, ast.Call):
        made = frame.resolve(expression.func)
        return made.__name__ if isinstance(made, type) else None
    return _DISPLAYS.get(type(expression))


def _placed(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    """Names by the devices they live on, one name for each set of devices and argument."""
    found: dict[str, str] = {}
    for name, array in _arrays_in(frames[0]):
        ids = sorted(device.id for device in array.sharding.device_set)
        found.setdefault(name, ",".join(map(str, ids)))
    sets = dict.fromkeys(found.values())
    one_each = [next(name for name in found if found[name] == ids) for ids in sets]
    return {"placed": "; ".join(f"{name}: {found[name]}" for name in one_each)} if len(sets) > 1 else {}


def _device_list(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    facts: dict[str, str] = {}
    for name, value in frames[0].variables():
        if type(value).__name__ == "ndarray" and value.dtype == object and value.size:
            first = value.flat[0]
        elif type(value) in (list, tuple) and value:
            first = value[0]
        else:
            continue
        if type(first).__module__.partition(".")[0] == "jaxlib" and type(first).__name__.endswith("Device"):
            facts["device_list"] = name
    tree = frames[0].tree()
    if isinstance(tree, ast.Subscript):
        index = tree.slice.value if isinstance(tree.slice, ast.Constant) else frames[0].resolve(tree.slice)
        if type(index) is int:
            facts["index"] = str(index)
    return facts


def _mapped_by(frames: list[Raising], message: str, identity_of: IdentityOf) -> dict[str, str]:
    """The function of ``jax.pmap`` that a frame calls: since it is made of ``jit``, its errors no longer name it."""
    for frame in frames:
        for call in _calls(frame.tree()):
            code = getattr(frame.resolve(call.func), "__code__", None)
            if code is not None and code.co_filename.endswith(_PMAP_FILE):
                return {"mapped_by": ast.unparse(call.func)}
    return {}


_READERS: tuple[tuple[re.Pattern[str], Callable[[list[Raising], str, IdentityOf], dict[str, str]]], ...] = (
    (re.compile("Tracer|Concret|concrete|static"), _traced),
    (re.compile("deleted|donate"), _deleted),
    (re.compile("[Nn]on-hashable"), _static_argument),
    (re.compile("incompatible devices|does not match the sharding"), _placed),
    (re.compile("reshape|index out of range|mesh"), _device_list),
    (re.compile("axis to squeeze out|axis 0 is partitioned"), _mapped_by),
)
"""What is read for which sort of error: by its type, its message and the type of its cause."""
