"""A call that is traced and lowered for a TPU and never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tpumagic.backends import Observation, Request
from tpumagic.backends.jax.graphs import graph_of
from tpumagic.backends.jax.lowering import callbacks_lowered, of_module, refusal
from tpumagic.backends.jax.programs import OPERATIONS, stack_reader
from tpumagic.events import Leaf, Program, SourceSite
from tpumagic.plans import Answer, Target
from tpumagic.user_code import UserCode


def dry_run(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    target: Target,
    user_code: UserCode,
) -> Observation:
    """The program of ``function(*args, **kwargs)`` and the request for the TPU compiler.

    function: jitted or not. args: arrays, ``jax.ShapeDtypeStruct`` or a mixture, in any pytree. Traces at most once;
    raises what that raises. What JAX cannot lower for a TPU becomes an answer.
    """
    traced = _trace(function, args, kwargs)
    program = _program(traced, function, user_code)
    try:
        with callbacks_lowered():
            module = traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    except Exception as error:
        return Observation(programs=(replace(program, answers=(Answer(target, "refused", error=refusal(error)),)),))
    lowered = of_module(program.name, module)
    program = replace(program, devices=tuple(range(lowered.devices)))
    if lowered.devices not in (1, target.devices):
        why = f"it runs on {lowered.devices} devices, and {target.name} has {target.devices}"
        answer = Answer(target, "unavailable", why=why, cause="devices")
        return Observation(programs=(replace(program, answers=(answer,)),))
    return Observation(programs=(program,), requests=(Request(0, lowered, target),))


def _trace(function: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    """What JAX has traced. Raises what that raises, and TypeError for what is compiled already."""
    import jax

    if isinstance(function, jax.stages.Compiled):
        raise TypeError("a dry run compiles for its target: give the function itself, not what is compiled already.")
    if hasattr(function, "trace") and hasattr(function, "lower"):
        traced = function.trace(*args, **kwargs)
        # nnx.jit gives JAX's own under this name.
        traced = traced if isinstance(traced, jax.stages.Traced) else getattr(traced, "traced", None)
        if traced is not None:
            return traced
    return jax.jit(function).trace(*args, **kwargs)


def _name(traced: Any, function: Any) -> str:
    name = str(traced.fun_name)
    return type(function).__name__ if name == "<unnamed function>" else name


def _program(traced: Any, function: Any, user_code: UserCode) -> Program:
    jaxpr = traced.jaxpr
    try:
        graph = graph_of(jaxpr, stack_reader(user_code), OPERATIONS)
    except Exception:  # an unknown kind of jaxpr costs the graph, not the answer
        graph = None
    inputs, donated = _inputs(traced)
    return Program(
        name=_name(traced, function),
        kind="aot",
        definition=_definition(function, user_code),
        inputs=inputs,
        donated=donated,
        graph=graph,
        compile_only=True,
    )


def _inputs(traced: Any) -> tuple[tuple[Leaf, ...], tuple[int, ...]]:
    """The arguments' leaves under the names that the user knows, and the places of those that are donated."""
    import jax

    infos = jax.tree.leaves(traced.args_info, is_leaf=lambda info: hasattr(info, "donated"))
    names = getattr(getattr(traced.jaxpr, "debug_info", None), "arg_names", None) or ()
    leaves: list[Leaf] = []
    for place, info in enumerate(infos):
        size = prod(info.shape) * int(getattr(info.dtype, "itemsize", 0) or 0)
        name = names[place] if place < len(names) and len(names) >= len(infos) else f"argument {place}"
        leaves.append(Leaf(str(name), tuple(info.shape), str(info.dtype), bytes=size))
    return tuple(leaves), tuple(place for place, info in enumerate(infos) if info.donated)


def _definition(function: Any, user_code: UserCode) -> SourceSite | None:
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    if code is None or not user_code.is_user(code.co_filename):
        return None
    return user_code.site(code.co_filename, code.co_firstlineno, code.co_name)
