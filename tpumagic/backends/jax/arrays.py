"""Device arrays that are alive: by the user's names, or by what else keeps them.

Nothing here starts JAX's backend, waits for the device or executes anything of the user's.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from tpumagic.backends.jax.raising import locals_of, running_frames
from tpumagic.backends.jax.reachable import Reach
from tpumagic.backends.jax.setup import started
from tpumagic.backends.jax.signatures import sharding_text
from tpumagic.events import LiveArray, MemorySample, SourceSite
from tpumagic.user_code import UserCode

_SHELL_NAMES = frozenset({"In", "Out", "_ih", "_oh", "_dh", "exit", "quit", "get_ipython"})
_SHOWN_NAME = re.compile(r"_{1,3}|_\d+")
_INPUT_NAME = re.compile(r"_i{1,3}|_i\d+")
_OUT_NAME = re.compile(r"Out\[(\d+)\]")
_MAX_FRAMES = 64
_CHECKED_BYTES = 2**18
_MAX_CHECKED = 500


def live_arrays(
    namespace: Mapping[str, object],
    *,
    out: Mapping[int, object] | None,
    traceback: TracebackType | None,
    before: frozenset[int],
    limit: int,
    user_code: UserCode,
) -> tuple[LiveArray, ...]:
    """The ``limit`` largest arrays on the default backend, largest first.

    out: IPython's ``Out``, None where there is none. traceback: of the last exception. before: ``identities`` at the
    start of the cell. Empty where JAX has not been started.
    """
    alive = _alive()
    if not alive:
        return ()
    jax: Any = sys.modules["jax"]
    reach = Reach(jax.Array, jax.core.Tracer)
    reach.add(_user_names(namespace, out))
    shown = set(reach.add(_shown_names(namespace, out)))
    held: dict[int, SourceSite | None] = {}
    for site, variables in _frames(traceback, user_code):
        held.update(dict.fromkeys(reach.add(variables), site))
    sizes = [array.size * array.dtype.itemsize for array in alive]
    views = _views(alive, sizes, lambda array: id(array) in reach.found)
    order = sorted((i for i in range(len(alive)) if i not in views), key=lambda i: -sizes[i])[:limit]
    inputs = namespace.get("In")
    found: list[LiveArray] = []
    for position in order:
        array, identity = alive[position], id(alive[position])
        names = reach.names(identity)
        site = _shown_site(names, inputs) if identity in shown else held.get(identity)
        sharding = array.sharding
        devices = tuple(sorted(device.id for device in sharding.device_set))
        found.append(
            LiveArray(
                names=names,
                shape=tuple(array.shape),
                dtype=str(array.dtype),
                bytes=sizes[position],
                sharding=sharding_text(sharding),
                devices=devices,
                traceback=identity in held,
                new=identity not in before,
                site=site,
            )
        )
    return tuple(found)


def reachable_from(namespace: Mapping[str, object]) -> Reach:
    """The arrays that the user's variables lead to, with their paths."""
    jax: Any = sys.modules["jax"]
    reach = Reach(jax.Array, jax.core.Tracer)
    reach.add(_user_names(namespace, None))
    return reach


def identities() -> frozenset[int]:
    """Which arrays are alive, to tell later which are new. Only good as long as the arrays themselves live."""
    return frozenset(map(id, _alive()))


def total_live_bytes() -> int | None:
    """Bytes of all live arrays, each counted once however many devices hold it; None where JAX has not been started."""
    if not started():
        return None
    alive = _alive()
    sizes = [array.size * array.dtype.itemsize for array in alive]
    return sum(sizes) - sum(sizes[i] for i in _views(alive, sizes, None))


def device_memory() -> tuple[int | None, int | None, int | None]:
    """Limit, bytes in use and peak of the fullest device of this process; None where the device does not tell."""
    if not started():
        return None, None, None
    jax: Any = sys.modules["jax"]
    try:
        told = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    except Exception:  # not every platform implements it
        return None, None, None
    if not told:
        return None, None, None
    fullest = max(told, key=lambda stats: stats.get("bytes_in_use", 0))
    return fullest.get("bytes_limit"), fullest.get("bytes_in_use"), fullest.get("peak_bytes_in_use")


def memory_in_use() -> tuple[MemorySample, ...]:
    """Every device of this process that tells its memory, in JAX's order, ``at_s`` 0; empty on CPU."""
    if not started():
        return ()
    jax: Any = sys.modules["jax"]
    try:
        told = [(device.id, stats) for device in jax.local_devices() if (stats := device.memory_stats())]
    except Exception:  # not every platform implements it
        return ()
    return tuple(
        MemorySample(0.0, number, stats.get("bytes_in_use"), stats.get("bytes_limit")) for number, stats in told
    )


def _alive() -> list[Any]:
    jax: Any = sys.modules.get("jax")
    return jax.live_arrays() if started() else []


def _views(alive: list[Any], sizes: list[int], named: Callable[[Any], bool] | None) -> set[int]:
    """Positions of arrays that only look at the buffer of another.

    JAX keeps one beside an array that was printed, or whose shards were looked at. Only large arrays are checked.
    named: whether an array is the user's own; None if nobody knows.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    shards: set[tuple[Any, ...]] = set()
    for position in [i for i, size in enumerate(sizes) if size >= _CHECKED_BYTES][:_MAX_CHECKED]:
        array = alive[position]
        devices = array.sharding.device_set
        if len(devices) == 1:
            groups.setdefault((array.shape, str(array.dtype), next(iter(devices)).id), []).append(position)
        else:
            shape = array.sharding.shard_shape(array.shape)
            shards |= {(shape, str(array.dtype), device.id) for device in devices}
    views: set[int] = set()
    for key, members in groups.items():
        own = [i for i in members if named is None or named(alive[i])]
        if key in shards and named is not None:
            views.update(set(members) - set(own))
        elif len(members) > 1:
            known: set[object] = set()
            for i in [*own, *(i for i in members if i not in own)]:
                pointer = _pointer(alive[i])
                if pointer in known:
                    views.add(i)
                known.add(pointer)
    return views


def _pointer(array: Any) -> object:
    """Where the buffer lies; does not wait for the device. Equal only for arrays that share it."""
    try:
        return array.unsafe_buffer_pointer()
    except Exception:  # deleted meanwhile, or a platform without addresses
        return id(array)


def _user_names(namespace: Mapping[str, object], out: Mapping[int, object] | None) -> Iterator[tuple[str, object]]:
    shown = set(map(id, out.values())) if out is not None else set[int]()
    for name, value in list(namespace.items()):
        if name in _SHELL_NAMES or _INPUT_NAME.fullmatch(name):
            continue
        # `_` may be the user's own loop variable: then IPython leaves it alone.
        if out is None or not _SHOWN_NAME.fullmatch(name) or (name == "_" and id(value) not in shown):
            yield name, value


def _shown_names(namespace: Mapping[str, object], out: Mapping[int, object] | None) -> Iterator[tuple[str, object]]:
    if out is None:
        return
    for count, value in list(out.items()):
        yield f"Out[{count}]", value
    for name, value in list(namespace.items()):
        if _SHOWN_NAME.fullmatch(name):
            yield name, value


def _frames(
    traceback: TracebackType | None, user_code: UserCode
) -> Iterator[tuple[SourceSite | None, list[tuple[str, object]]]]:
    """The local variables of the traceback's functions, outermost first, each with the user's line they belong to."""
    site = None
    running = running_frames()
    for _ in range(_MAX_FRAMES):
        if traceback is None:
            return
        frame, code = traceback.tb_frame, traceback.tb_frame.f_code
        if user_code.is_user(code.co_filename):
            site = user_code.site(code.co_filename, traceback.tb_lineno or code.co_firstlineno, code.co_name)
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function: what a cell's own frame holds has names already
            yield site, list(locals_of(frame, running).items())
        traceback = traceback.tb_next


def _shown_site(names: tuple[str, ...], inputs: object) -> SourceSite | None:
    """The last statement of the cell whose result ``Out`` keeps."""
    matches = filter(None, map(_OUT_NAME.match, names))
    count = next((int(match[1]) for match in matches), None)
    if count is None:
        return None
    text = inputs[count] if isinstance(inputs, list) and 0 <= count < len(inputs) else ""
    try:
        body = ast.parse(text).body if isinstance(text, str) else []
    except (SyntaxError, ValueError):
        body = []
    return SourceSite(line=body[-1].lineno if body else 1, cell=count)
