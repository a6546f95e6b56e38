"""JAX, 0.7.2 to 0.12: what a cell compiles and runs, reads and converts, and what stays on the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import GetSetDescriptorType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tpumagic.backends import Observation, Variant
from tpumagic.events import Backend, DeviceMemory, Doing, Failure, MemorySample, Stack, Unavailable
from tpumagic.plans import Answer, Lowered, Target
from tpumagic.stack_dump import CodeLine
from tpumagic.user_code import UserCode

if TYPE_CHECKING:
    from tpumagic.backends.jax.monitoring import Monitor
    from tpumagic.backends.jax.observer import Observer
    from tpumagic.backends.jax.recording import History
    from tpumagic.backends.jax.signatures import SignatureReader

MODULE = "jax"
_LIVE_ARRAYS = 300
_OLDEST = (0, 7, 2)


@dataclass(eq=False)
class JaxBackend:
    """Observes JAX for one notebook. Nothing here imports JAX before the user's own code has."""

    user_code: UserCode

    def __post_init__(self) -> None:
        self._observer: Observer | None = None
        self._restore: Callable[[], None] | None = None
        self._monitor: Monitor | None = None
        self._reader: SignatureReader | None = None
        self._history: History | None = None
        self._before: frozenset[int] = frozenset()
        self._memories: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._answers: WeakKeyDictionary[Any, Answer | None] = WeakKeyDictionary()
        self._live_before: int | None = None
        self._peak_before: int | None = None
        self._target: Target | None = None

    @property
    def loaded(self) -> bool:
        """JAX has been imported, whole."""
        module = sys.modules.get(MODULE)
        return issubclass(type(module), ModuleType) and "jit" in vars(module)

    def start(self, mine: Callable[[], bool], target: Target | None = None) -> None:
        """Begin to observe; JAX must be loaded. mine: whether what happens now belongs to the cell. target: its
        programs are going to be compiled for this TPU."""
        from tpumagic.backends.jax import arrays, hooks
        from tpumagic.backends.jax.monitoring import Monitor
        from tpumagic.backends.jax.observer import Observer
        from tpumagic.backends.jax.reads import Reads
        from tpumagic.backends.jax.recording import History
        from tpumagic.backends.jax.signatures import SignatureReader

        if self._restore is not None:
            return
        if self._monitor is None or self._reader is None or self._history is None:
            self._monitor, self._reader, self._history = (
                Monitor(self.user_code),
                SignatureReader(self.user_code),
                History(),
            )
        reads = Reads(self.user_code, self._reader, mine)
        self._target = target
        keep = target is not None
        self._observer = Observer(self.user_code, self._reader, self._history, mine, reads, keep_traced=keep)
        if _version() < _OLDEST:
            why = f"jax {sys.modules[MODULE].__version__} is older than 0.7.2; pip install -U jax"
            self._observer.unavailable.append(Unavailable("JAX programs", why))
            self._restore = lambda: None
            return
        self._monitor.listen()
        self._monitor.observer = self._observer
        self._before = arrays.identities()
        self._live_before = arrays.total_live_bytes()
        self._peak_before = arrays.device_memory()[2]
        self._restore = hooks.install(self._observer)

    def stop(self) -> None:
        """Take every hook away; what was recorded stays until ``observation``."""
        if self._observer is not None:
            self._observer.active = False
        if self._monitor is not None:
            self._monitor.observer = None
        if self._restore is not None:
            self._restore()
            self._restore = None

    def wait(self) -> None:
        """Until everything dispatched is done. What a program raises late is the user's to see when they use it."""
        if not self.loaded or not self.started():
            return
        for array in sys.modules[MODULE].live_arrays():
            with suppress(Exception):
                if not array.is_deleted():
                    array.block_until_ready()

    def observation(
        self, namespace: Mapping[str, object], *, out: Mapping[int, object] | None, traceback: TracebackType | None
    ) -> Observation:
        """What was seen since ``start``, as neutral data; drops every reference to the user's objects."""
        from tpumagic.backends.jax import arrays
        from tpumagic.backends.jax.programs import Freezer
        from tpumagic.backends.jax.targets import for_tpus

        observer, monitor, reader = self._observer, self._monitor, self._reader
        if observer is None or monitor is None or reader is None:
            return Observation()
        self._observer = None
        observer.add_lowered()
        raws = list(observer.programs.values())
        programs = Freezer(self.user_code, namespace, self._memories).freeze(raws)
        programs, requests, left_out = for_tpus(raws, programs, self._target, self.user_code, self._answers)
        reader.forget()
        observer.forget()
        if not self.loaded:
            why = "the cell took jax out of sys.modules; restart the kernel to import it afresh"
            return Observation(programs=programs, unavailable=(Unavailable("arrays of JAX", why),))
        limit, _, peak = arrays.device_memory()
        live = arrays.live_arrays(
            namespace, out=out, traceback=traceback, before=self._before, limit=_LIVE_ARRAYS, user_code=self.user_code
        )
        memory = DeviceMemory(
            limit_bytes=limit,
            peak_bytes=peak,
            cell_peak_bytes=peak if peak is not None and peak > (self._peak_before or 0) else None,
            live_before_bytes=self._live_before,
            live_after_bytes=arrays.total_live_bytes(),
            live=live,
        )
        return Observation(
            programs=(*programs, *monitor.take_outside()),
            transfers=(*observer.transfers, *observer.reads.transfers()),
            conversions=tuple(observer.reads.conversions.values()),
            memory=memory,
            unavailable=(*observer.unavailable, *left_out),
            requests=requests,
        )

    def dry_run(
        self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], target: Target
    ) -> Observation:
        """The program of a call, without running it, and the request for the TPU compiler. Raises what tracing the
        user's function raises."""
        from tpumagic.backends.jax.dry_run import dry_run

        return dry_run(function, args, kwargs, target, self.user_code)

    def variants(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        lowered: Lowered,
        answer: Answer,
    ) -> Iterable[Variant]:
        """Changes to a program that can be made without knowing what it is for. answer: to the program as it is."""
        from tpumagic.backends.jax.remedies import variants

        return variants(function, args, kwargs, lowered, answer)

    def describe(self) -> Backend | None:
        """What JAX says of itself, None if it is not imported."""
        if not self.loaded:
            return None
        from tpumagic.backends.jax.setup import describe

        return describe()

    def started(self) -> bool:
        """A backend of JAX is running."""
        from tpumagic.backends.jax.setup import started

        return started()

    def failure(self, error: BaseException, stack: Stack, namespace: Mapping[str, object]) -> Failure:
        """The cell's exception with what can be read from the live objects."""
        from tpumagic.backends.jax.failures import failure

        known = self._reader.identities.of if self._reader is not None else lambda _: None
        return failure(error, stack, namespace, self.user_code, known)

    def doing(self, lines: Sequence[CodeLine]) -> Doing:
        """What a thread with these lines on its stack, innermost first, is doing."""
        from tpumagic.backends.jax.frames import doing

        return doing(lines, self.user_code.is_user)

    def idle(self, namespace: Mapping[str, object], names: frozenset[str]) -> bool | None:
        """Whether the device has nothing to do, as far as these variables tell."""
        from tpumagic.backends.jax.frames import device_idle

        return device_idle(namespace, names)

    def memory_in_use(self) -> tuple[MemorySample, ...]:
        """Memory of each device of this process now, ``at_s`` 0; empty on CPU."""
        from tpumagic.backends.jax.arrays import memory_in_use

        return memory_in_use()

    def named_values(self, namespace: Mapping[str, object]) -> tuple[frozenset[str], frozenset[str]]:
        """Variables that are jitted functions, and variables that are device arrays; ``model.step`` counts as well."""
        if not self.loaded:
            return frozenset(), frozenset()
        array_type = sys.modules[MODULE].Array
        jitted = {name for name, value in list(namespace.items()) if _is_jitted(value)}
        for name, value in list(namespace.items()):
            if not name.startswith("_"):
                held = _attributes(value) if _is_plain_object(value) else {}
                jitted.update(f"{name}.{attribute}" for attribute, v in held.items() if _is_jitted(v))
        held_arrays = {
            name
            for name, value in list(namespace.items())
            if issubclass(type(value), array_type) and not name.startswith("_")
        }
        return frozenset(jitted), frozenset(held_arrays)

    def close(self) -> None:
        """Nothing of ours is left in JAX."""
        self.stop()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


def _version() -> tuple[int, ...]:
    text = getattr(sys.modules.get(MODULE), "__version__", "0")
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _is_jitted(value: object) -> bool:
    return type(value).__name__ in ("PjitFunction", "JitFn", "JitWrapped", "_JitWrapper", "JitWrapper") or (
        callable(value) and _defines(type(value), "lower") and _defines(type(value), "trace")
    )


def _defines(cls: type, name: str) -> bool:
    """Whether a class has this attribute, without asking a metaclass of the user's."""
    return any(name in vars(base) for base in cls.__mro__)


def _attributes(value: object) -> dict[str, object]:
    """What an object and its class hold by name, read without running properties or ``__getattribute__``."""
    stored = next((vars(base)["__dict__"] for base in type(value).__mro__ if "__dict__" in vars(base)), None)
    own = stored.__get__(value) if isinstance(stored, GetSetDescriptorType) else {}
    return {name: held for name, held in (*vars(type(value)).items(), *own.items()) if type(name) is str}


def _is_plain_object(value: object) -> bool:
    return not issubclass(type(value), type) and type(value).__module__ == "__main__"
