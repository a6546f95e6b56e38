"""From a call that JAX has traced to StableHLO for a TPU, without running user code again and without a TPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tpumagic.backends.jax.patching import patch
from tpumagic.plans import CompilerError, Lowered

_NO_RULE = re.compile(r"translation rule for primitive '(?P<name>[^']+)' not found for platform", re.IGNORECASE)
_NOT_THERE = re.compile(r"not (?:supported|implemented|available)|only (?:supported|available|implemented)|unsupported", re.IGNORECASE)  # fmt: skip
_TPU = re.compile(r"\btpus?\b|\bmosaic\b", re.IGNORECASE)
_MESSAGE_LENGTH = 2000


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced call, ready to be lowered again. arguments: their types and shardings without their data. parameters:
    what JAX lowers with; live objects, kept until the cell's record is made."""

    arguments: tuple[Any, ...]
    parameters: Mapping[str, Any] = field(repr=False)


def note(arguments: Sequence[Any], parameters: Mapping[str, Any]) -> Traced:
    """Keep what a later lowering needs of the arguments of JAX's own lowering function."""
    kept = {
        name: value
        for name, value in parameters.items()
        if name not in ("lowering_platforms", "lowering_parameters", "pgle_profiler")
    }
    return Traced(tuple(_without_data(argument) for argument in arguments), kept)


def lower(name: str, traced: Traced) -> Lowered | CompilerError:
    """StableHLO of a traced call for TPUs; or why JAX has none. Raises what JAX raises where it is no answer about the
    program, among others where this version of JAX has other parts inside."""
    from jax._src import pjit
    from jax._src.interpreters import mlir

    try:
        with callbacks_lowered():
            computation = pjit._resolve_and_lower(
                traced.arguments,
                **traced.parameters,
                lowering_platforms=("tpu",),
                lowering_parameters=mlir.LoweringParameters(),
                pgle_profiler=None,
            )
    except Exception as error:
        return refusal(error)
    return of_module(name, computation.stablehlo(), _options(traced.parameters.get("compiler_options_kvs", ())))


def of_module(name: str, module: Any, options: tuple[tuple[str, str], ...] = ()) -> Lowered:
    """An MLIR module of JAX's as bytes."""
    from jax._src.interpreters import mlir

    attributes = module.operation.attributes
    count = attributes["mhlo.num_partitions"].value if "mhlo.num_partitions" in attributes else 1
    return Lowered(name, mlir.module_to_bytecode(module), devices=int(count), options=options)


def refusal(error: Exception) -> CompilerError:
    """Why JAX cannot lower a program for a TPU, where that is the program's fault. Raises the error again where not."""
    message = str(error)
    found = _NO_RULE.search(message)
    if found is not None:
        return CompilerError("unsupported", message[:_MESSAGE_LENGTH], operation=found["name"])
    # Much else is not supported by something else: by this machine's CPU, or by JAX itself.
    if isinstance(error, NotImplementedError) or (_NOT_THERE.search(message) and _TPU.search(message)):
        return CompilerError("unsupported", f"{type(error).__name__}: {message}"[:_MESSAGE_LENGTH])
    raise error


@contextmanager
def callbacks_lowered() -> Iterator[None]:
    """Let JAX lower host callbacks for a TPU that is not there: it asks the TPU's client to wrap the function, and the
    compiler needs only the channels."""
    from jax._src.interpreters import mlir

    def wrap(original: Any) -> Any:
        def get_backend(context: Any, *args: Any, **parameters: Any) -> Any:
            try:
                return original(context, *args, **parameters)
            except (ValueError, RuntimeError):
                if tuple(context.platforms) == ("tpu",):
                    return _AbsentTpu()
                raise

        return get_backend

    try:
        restore = patch(mlir.ModuleContext, "get_backend", wrap)
    except Exception:  # private: without it programs with callbacks cannot be lowered, and JAX says so
        yield
        return
    try:
        yield
    finally:
        restore()


class _AbsentTpu:
    """In place of the client of a TPU while a program is lowered for it."""

    platform = "tpu"

    def make_python_callback_from_host_send_and_recv(self, *args: Any) -> object:
        """Nothing will ever call it."""
        return object()


def _options(pairs: Sequence[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in pairs)


def _without_data(argument: Any) -> Any:
    if type(argument).__name__ in ("MetaTy", "ShapeDtypeStruct"):
        return argument
    import jax

    committed = getattr(argument, "committed", False) and getattr(argument, "sharding", None) is not None
    aval = jax.typeof(argument)
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=argument.sharding if committed else None,
        weak_type=bool(getattr(aval, "weak_type", False)),
    )
