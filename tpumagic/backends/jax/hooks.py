"""The private places of JAX where a cell can be watched, one guarded patch each.

Tried on jax 0.7.2, 0.10.2 and 0.12.0. A place that is missing in some version is reported as unavailable and the rest
goes on; ``jax.monitoring``, which is public, is the floor.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tpumagic.backends.jax.observer import Observer, clear_fast_paths
from tpumagic.backends.jax.patching import Restore, patch
from tpumagic.events import Unavailable


def install(observer: Observer) -> Restore:
    """Put every hook in place; what cannot be hooked is added to ``observer.unavailable``. Returns what takes them
    all away again; that never raises and may be called twice."""
    import jax

    restores: list[Restore] = []
    for what, hook in (
        ("calls of jitted functions", _argument_inspection),
        ("runs of programs", _program_runs),
        ("repeated calls", _fast_path_data),
        ("lowerings", _lowerings),
        ("compilations", _compilations),
        ("ahead-of-time programs", _ahead_of_time_calls),
    ):
        try:
            restores.append(hook(observer))
        except Exception:
            observer.unavailable.append(Unavailable(what, f"not observable on jax {jax.__version__}"))
    try:
        restores.append(observer.reads.install())
    except Exception:
        observer.unavailable.append(Unavailable("reads of device values", f"not observable on jax {jax.__version__}"))
    with suppress(Exception):  # without it our lines show in tracebacks, and nothing else is wrong
        _hide_our_frames()
    try:
        clear_fast_paths()
    except Exception:
        observer.unavailable.append(
            Unavailable("programs compiled before this cell", f"not observable on jax {jax.__version__}")
        )

    def restore_all() -> None:
        while restores:
            restores.pop()()

    return restore_all


def _argument_inspection(observer: Observer) -> Restore:
    from jax._src import pjit

    def wrap(original: Any) -> Any:
        def _infer_params(fun: Any, ji: Any, args: Any, kwargs: Any) -> Any:
            return observer.inspect(original, fun, ji, args, kwargs)

        return _infer_params

    return patch(pjit, "_infer_params", wrap)


def _program_runs(observer: Observer) -> Restore:
    from jax._src import pjit

    def wrap(original: Any) -> Any:
        def _pjit_call_impl_python(*args: Any, **parameters: Any) -> Any:
            return observer.call(original, args, parameters)

        return _pjit_call_impl_python

    return patch(pjit, "_pjit_call_impl_python", wrap)


def _fast_path_data(observer: Observer) -> Restore:
    from jax._src import pjit

    def wrap(original: Any) -> Any:
        def _get_fastpath_data(executable: Any, *args: Any, **parameters: Any) -> Any:
            if observer.keep_off_fast_path(executable):
                return None
            return original(executable, *args, **parameters)

        return _get_fastpath_data

    return patch(pjit, "_get_fastpath_data", wrap)


def _lowerings(observer: Observer) -> Restore:
    from jax._src import pjit

    def wrap(original: Any) -> Any:
        def _resolve_and_lower(*args: Any, **parameters: Any) -> Any:
            return observer.lower(original, args, parameters)

        return _resolve_and_lower

    return patch(pjit, "_resolve_and_lower", wrap)


def _compilations(observer: Observer) -> Restore:
    from jax._src import compiler

    def wrap(original: Any) -> Any:
        def compile_or_get_cached(*args: Any, **parameters: Any) -> Any:
            return observer.compile(original, args, parameters)

        return compile_or_get_cached

    return patch(compiler, "compile_or_get_cached", wrap)


def _ahead_of_time_calls(observer: Observer) -> Restore:
    from jax._src import stages

    def wrap(original: Any) -> Any:
        function = original.__func__ if isinstance(original, staticmethod) else original

        def call(*args: Any, **kwargs: Any) -> Any:
            observer.call_ahead_of_time(args[0])
            return function(*args, **kwargs)

        return staticmethod(call)

    return patch(stages.Compiled, "call", wrap)


def _hide_our_frames() -> None:
    """Our wrappers stand between the user's line and JAX: keep them out of its tracebacks and source lines."""
    from jax._src import source_info_util, traceback_util

    from tpumagic.backends.jax import observer, reads

    for register in (source_info_util.register_exclusion, traceback_util.register_exclusion):
        for module in (__file__, observer.__file__, reads.__file__):
            if module not in _hidden.setdefault(register.__module__, set()):
                _hidden[register.__module__].add(module)
                register(module)


_hidden: dict[str, set[str | None]] = {}
