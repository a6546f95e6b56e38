"""Sees every program that a cell compiles or runs.

JAX answers a repeated call of a jitted function in C++, without Python. At the start of a cell its C++ look-up tables
are emptied (the executables stay), so that each program's next call passes through Python once and is seen; the first
three calls of a small program are kept off the fast path, which tells a loop from a single use.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from tpumagic.backends.jax.lowering import note, of_module
from tpumagic.backends.jax.reads import Reads
from tpumagic.backends.jax.recording import History, Notes, Pending, RawProgram
from tpumagic.backends.jax.signatures import SignatureReader, user_function
from tpumagic.events import Call, Leaf, Transfer, Unavailable
from tpumagic.user_code import UserCode

TRACE = "/jax/core/compile/jaxpr_trace_duration"
LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"

_WATCHED_CALLS = 3
_WATCHED_LEAVES = 64
_MAX_REFRESHES = 32
_MAX_PROGRAMS = 5000


class Observer:
    """Records into ``programs`` and ``transfers`` while its hooks are installed (see ``hooks.install``).

    mine: whether what happens now, in this thread, belongs to the cell. keep_traced: programs are going to be lowered
    again, for a TPU; ``lowered`` then has those that JAX lowered, whether it compiled and ran them or not.
    """

    def __init__(
        self,
        user_code: UserCode,
        reader: SignatureReader,
        history: History,
        mine: Callable[[], bool],
        reads: Reads,
        *,
        keep_traced: bool = False,
    ) -> None:
        self.user_code = user_code
        self.reader = reader
        self.history = history
        self.mine = mine
        self.reads = reads
        self.programs: dict[int, RawProgram] = {}
        self.transfers: list[Transfer] = []
        self.unavailable: list[Unavailable] = []
        self.lowered: list[Pending] = []
        self.active = True
        self._keep_traced = keep_traced
        self._modules: dict[int, tuple[Any, Pending]] = {}
        self._notes = Notes()
        self._lock = threading.Lock()
        self._sequence = 0
        self._refreshes = 0
        self._faults = 0

    # What the hooks call. Each is entered on the user's own path through JAX: none may raise.

    def inspect(self, proceed: Callable[..., Any], fun: Any, options: Any, args: Any, kwargs: Any) -> Any:
        """Around JAX's look at a call's arguments (where it also traces)."""
        notes = self._notes
        depth = len(notes.pending)
        if self.active and self.mine():
            if not notes.inspecting:
                depth = self._drop_stale(notes)
            if depth == 0 or _clean():
                self._guard(self._begin, fun, options, args, kwargs)
        notes.inspecting += 1
        try:
            result = proceed(fun, options, args, kwargs)
        except BaseException:
            del notes.pending[depth:]
            raise
        finally:
            notes.inspecting -= 1
        del notes.pending[depth + 1 :]
        if len(notes.pending) > depth:
            # Only an ahead-of-time compilation needs it from here: a call tells its own.
            notes.pending[-1].jaxpr = (
                getattr(result[0], "params", {}).get("jaxpr") if isinstance(result, tuple) else None
            )
        return result

    def call(self, proceed: Callable[..., Any], args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
        """Around the run of a program."""
        notes = self._notes
        if not (self.active and self.mine()):
            return proceed(*args, **parameters)
        if not notes.pending:
            self._guard(self._begin_unnamed, parameters)
        if notes.pending:
            notes.pending[-1].calling = True
        try:
            result = proceed(*args, **parameters)
            self._guard(self._ran, args, parameters, result)
            return result
        finally:
            if notes.pending:
                notes.pending.pop()

    def lower(self, proceed: Callable[..., Any], args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
        """Around a lowering, of a call or ahead of time."""
        if not (self.active and self.mine()):
            return proceed(*args, **parameters)
        self._guard(self._lowers, args, parameters)
        result = proceed(*args, **parameters)
        self._guard(self._lowered, result)
        return result

    def compile(self, proceed: Callable[..., Any], args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
        """Around a compilation."""
        if not (self.active and self.mine()):
            return proceed(*args, **parameters)
        notes = self._notes
        _, lowered = self._modules.get(id(_computation(args, parameters)), (None, None))
        if lowered is not None and (not notes.pending or notes.pending[-1] is not lowered):
            notes.pending.append(lowered)  # lowered a while ago, other programs since
        elif notes.pending and notes.pending[-1].within_trace and not notes.pending[-1].calling:
            # Left over from a function traced as a part of another one, which is what is being compiled now.
            notes.pending.clear()
        ahead_of_time = not notes.pending or not (notes.inspecting or notes.pending[-1].calling)
        try:
            result = proceed(*args, **parameters)
        except Exception:
            self._guard(self._refused, args, parameters)
            raise
        self._guard(self._compiled, args, parameters, result, ahead_of_time)
        return result

    def call_ahead_of_time(self, parameters: Any) -> None:
        """Before a call of an ahead-of-time compiled program; ``parameters`` is JAX's record of that program."""
        if self.active and self.mine():
            self._guard(self._called_ahead_of_time, parameters)

    def keep_off_fast_path(self, executable: Any) -> bool:
        """Whether this program's next call shall still be seen."""
        if not self.active or self._refreshes >= _MAX_REFRESHES:
            return False
        raw = self.programs.get(id(getattr(executable, "xla_executable", None)))
        return raw is not None and raw.visits < _WATCHED_CALLS and _leaf_count(raw) <= _WATCHED_LEAVES

    def duration(self, event: str, seconds: float) -> bool:
        """A timing JAX reports; True if it belongs to a call on its way."""
        if not self._notes.pending:
            return False
        pending = self._notes.pending[-1]
        if event == TRACE:
            # Traces nest; the outermost ends last and contains the others.
            pending.trace_s = max(pending.trace_s or 0.0, seconds)
        elif event == LOWER:
            pending.lower_s = (pending.lower_s or 0.0) + seconds
        elif event == COMPILE:
            pending.compile_s = (pending.compile_s or 0.0) + seconds
        return True

    def cache_event(self, event: str) -> None:
        """What the persistent cache reports: asked, hit, and stored (which JAX calls a miss)."""
        if not self._notes.pending:
            return
        pending = self._notes.pending[-1]
        if event.endswith("/compile_requests_use_cache"):
            # JAX counts a request also where no folder is set and nothing can be found.
            pending.cache_asked = _has_cache_folder()
        elif event.endswith("/cache_hits"):
            pending.cache_hit = True
        elif event.endswith("/cache_misses"):
            pending.cache_stored = True

    # The recording itself.

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self._faults += 1
            if self._faults == 1:
                why = f"{type(error).__name__}: {str(error)[:120]} (please report it)"
                self.unavailable.append(Unavailable("some programs of this cell", why))

    def _drop_stale(self, notes: Notes) -> int:
        if _clean():
            notes.pending.clear()
        return len(notes.pending)

    def _begin(self, fun: Any, options: Any, args: Any, kwargs: Any) -> None:
        frame = sys._getframe(1)
        stack = self.user_code.stack(frame)
        if len(self.programs) >= _MAX_PROGRAMS:
            return
        signature = self.reader.read(fun, options, args, kwargs, stack[-1] if stack else None)
        for path, value in self.reader.wide:
            self.reads.argument(path, value, stack)
        self.reader.wide.clear()
        raw = user_function(fun)
        pending = Pending(signature.function.name, _kind(fun, raw), stack, signature, signature.function.definition)
        pending.within_trace = not _clean()
        self._notes.pending.append(pending)

    def _begin_unnamed(self, parameters: dict[str, Any]) -> None:
        """A program whose call was not looked at: the backward pass of a jitted function, say."""
        stack = self.user_code.stack(sys._getframe(1))
        name = str(parameters.get("name", "?")).removeprefix("jit_")
        self._notes.pending.append(
            Pending(name, "jit" if self._is_users(parameters.get("jaxpr")) else "eager", stack, None)
        )

    def _is_users(self, jaxpr: Any) -> bool:
        info = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
        filename = str(getattr(info, "func_filename", None) or "")
        return not filename or "/jax/_src/" not in filename.replace("\\", "/")

    def _ran(self, args: tuple[Any, ...], parameters: dict[str, Any], result: Any) -> None:
        if not self._notes.pending:
            return
        pending = self._notes.pending[-1]
        outputs, executable = result[0], result[1]
        loaded = getattr(executable, "xla_executable", None)
        raw = self.programs.get(id(loaded))
        pending.known = True
        if raw is None:
            raw = self._add(pending, executable, loaded)
            raw.jaxpr = parameters.get("jaxpr")
            raw.donated = tuple(i for i, donated in enumerate(parameters.get("donated_invars", ())) if donated)
        self._note_compile(raw, pending)
        raw.visits += 1
        if raw.visits == _WATCHED_CALLS and _leaf_count(raw) <= _WATCHED_LEAVES and self._refreshes < _MAX_REFRESHES:
            # JAX remembers that this program had no fast path; forgetting it lets the next call have one.
            self._refreshes += 1
            clear_fast_paths()
        if len(raw.calls) < _WATCHED_CALLS:
            self._note_call(raw, pending, outputs)
        if pending.signature is not None:
            self.history.add(pending.signature)

    def _lowers(self, args: tuple[Any, ...], parameters: dict[str, Any]) -> None:
        pending = self._notes.pending[-1] if self._notes.pending else None
        if self._keep_traced and pending is not None and pending.kind != "eager" and pending.traced is None:
            pending.traced = note(args[0], parameters)
            pending.jaxpr = pending.jaxpr or parameters.get("jaxpr")
            self.lowered.append(pending)

    def _lowered(self, computation: Any) -> None:
        pending = self._notes.pending[-1] if self._notes.pending else None
        if pending is not None and not pending.calling:
            module = computation.stablehlo()
            self._modules[id(module)] = module, pending

    def add_lowered(self) -> None:
        """Make programs of what was lowered and never became an executable."""
        for pending in self.lowered:
            if not pending.known:
                self._add(pending, None, None).jaxpr = pending.jaxpr

    def forget(self) -> None:
        """Let go of every object of the user's and of JAX's."""
        self.programs.clear()
        self.lowered.clear()
        self._modules.clear()

    def _refused(self, args: tuple[Any, ...], parameters: dict[str, Any]) -> None:
        """A TPU's compiler, there or not, has raised."""
        backend = args[0] if args else parameters.get("backend")
        if getattr(backend, "platform", None) != "tpu":
            return
        notes = self._notes
        module = _computation(args, parameters)
        pending = notes.pending[-1] if notes.pending else self._unknown(module)
        if not pending.calling:
            pending.kind = "aot"
        raw = self._add(pending, None, None)
        raw.jaxpr = pending.jaxpr
        raw.module = of_module(raw.name, module)
        self._note_devices(raw, args, parameters)
        self._note_compile(raw, pending)

    def _note_devices(self, raw: RawProgram, args: tuple[Any, ...], parameters: dict[str, Any]) -> None:
        backend = args[0] if args else parameters.get("backend")
        devices: Any = args[2] if len(args) > 2 else parameters.get("devices")
        if getattr(backend, "platform", None) == "tpu":
            raw.device_kind, raw.device_count = str(devices.flat[0].device_kind), int(devices.size)
            raw.compile_only = "CompileOnly" in type(backend).__name__

    def _unknown(self, module: Any) -> Pending:
        """A compilation of which nothing was seen before."""
        name = str(module.operation.attributes["sym_name"]).strip('"').removeprefix("jit_").removeprefix("pmap_")
        return Pending(name, "aot", self.user_code.stack(sys._getframe(1)), None)

    def _add(self, pending: Pending, executable: Any, loaded: Any) -> RawProgram:
        pending.known = True
        raw = RawProgram(
            name=pending.name,
            kind=pending.kind,
            stack=pending.stack,
            thread=threading.current_thread().name,
            signature=pending.signature,
            definition=pending.definition,
            executable=executable,
            loaded=loaded,
            traced=pending.traced,
        )
        with self._lock:
            self.programs[id(raw if loaded is None else loaded)] = raw
        return raw

    def _note_compile(self, raw: RawProgram, pending: Pending) -> None:
        if not (pending.compiled or pending.lower_s):
            return
        signature = pending.signature
        earlier = self.history.earlier(signature) if signature is not None else ()
        evicted = signature is not None and self.history.knows(signature)
        raw.compiles.append(pending.compile_event(earlier, evicted))

    def _note_call(self, raw: RawProgram, pending: Pending, outputs: Any) -> None:
        self._sequence += 1
        inputs: tuple[Leaf, ...] = pending.signature.leaves if pending.signature is not None else ()
        identities = tuple(self.reader.identities.of(out) for out in outputs[:_WATCHED_LEAVES])
        raw.calls.append(Call(pending.stack, self._sequence, inputs, identities, raw.donated))
        if not raw.out_avals:
            raw.out_avals = tuple(getattr(out, "aval", None) for out in outputs)
        for leaf in inputs:
            if leaf.origin == "host" and leaf.bytes:
                self.transfers.append(
                    Transfer(
                        "to_device",
                        "argument",
                        pending.stack,
                        leaf.bytes,
                        leaf.shape,
                        leaf.dtype,
                        leaf.path,
                        leaf.identity,
                    )
                )

    def _compiled(self, args: tuple[Any, ...], parameters: dict[str, Any], result: Any, ahead_of_time: bool) -> None:
        notes = self._notes
        if not notes.pending:
            notes.pending.append(self._unknown(_computation(args, parameters)))
            ahead_of_time = True
        pending = notes.pending[-1]
        pending.compiled = True
        if ahead_of_time:
            pending.kind = "aot"
            raw = self._add(pending, None, result)
            raw.jaxpr = pending.jaxpr
            self._note_devices(raw, args, parameters)
            self._note_compile(raw, pending)
            notes.pending.pop()

    def _called_ahead_of_time(self, parameters: Any) -> None:
        executable = getattr(parameters, "executable", None)
        loaded = getattr(executable, "xla_executable", None)
        if loaded is None:
            return
        stack = self.user_code.stack(sys._getframe(1))
        raw = self.programs.get(id(loaded))
        if raw is None:
            name = str(getattr(loaded, "name", "?")).removeprefix("jit_")
            raw = self._add(Pending(name, "aot", stack, None), executable, loaded)
        raw.visits += 1
        if len(raw.calls) < _WATCHED_CALLS:
            self._sequence += 1
            raw.calls.append(Call(stack, self._sequence))


def _computation(args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
    """The module among the arguments of JAX's own compile function."""
    return args[1] if len(args) > 1 else parameters.get("computation")


def clear_fast_paths() -> None:
    """Empty JAX's C++ look-up tables; nothing is compiled again for it."""
    from jax._src import pjit
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    pjit._cpp_pjit_cache_fun_only.clear()
    pjit._cpp_pjit_cache_explicit_attributes.clear()
    _jax.PjitFunctionCache.clear_all()


def _clean() -> bool:
    """Nothing is being traced in this thread; True as well where this version of JAX does not say."""
    from jax._src import core

    try:
        return bool(core.trace_state_clean())
    except AttributeError:  # private, and asked on the user's own path through JAX
        return True


def _has_cache_folder() -> bool:
    import jax

    config: Any = jax.config  # its settings carry no types
    return bool(config.jax_compilation_cache_dir)


def _leaf_count(raw: RawProgram) -> int:
    return len(raw.signature.leaves) if raw.signature is not None else 0


def _kind(fun: Any, raw: Any) -> str:
    """``eager`` for JAX's own functions called outside jit, ``jit`` for everybody else's."""
    module = str(getattr(raw, "__module__", None) or "")
    if getattr(fun, "_apply_primitive", False):
        return "eager"
    return "eager" if module.split(".", maxsplit=1)[0] in ("jax", "jaxlib") and "pmap" not in module else "jit"
