"""The TPU compiler of this kernel: asked for the plans of programs, and for their costs behind the user's back."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

from tpumagic.compiler import cache, conditions, libraries, pairs, process
from tpumagic.compiler.background import Background, Budget, Job
from tpumagic.compiler.compiles import Compile, Limits, crashed, unavailable
from tpumagic.compiler.libraries import Library
from tpumagic.compiler.process import WorkerEndedError
from tpumagic.compiler.workers import Workers
from tpumagic.numbers import bytes_text
from tpumagic.plans import Answer, Lowered, Target

BACKEND = "tpumagic.backends.jax.compile_only"
"""Named, not imported: it runs in the compiler's process."""

Request = tuple[Lowered, Target]

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""A process that is killed from outside says nothing about the compiler; one that ends with these does."""

_PROOF = Lowered(
    "proof",
    b"module @proof { func.func public @main(%a: tensor<8x128xf32>) -> tensor<8x128xf32> {"
    b" %0 = stablehlo.add %a, %a : tensor<8x128xf32> return %0 : tensor<8x128xf32> } }",
)


@dataclass
class _Asked:
    """A program and target, at all places where it was asked for."""

    lowered: Lowered
    target: Target
    key: cache.Key
    places: list[int]
    answer: Answer | None = None
    compile: Compile | None = None

    @property
    def lacks_cost(self) -> bool:
        """There is a plan of it, and the cost is still to be found."""
        return self.answer is not None and self.answer.status == "planned" and self.answer.pending


@dataclass(frozen=True)
class _Call:
    """The arguments of ``ask``."""

    requests: tuple[Request, ...]
    wait_for_cost: bool
    on_cost: Callable[[int, Answer], None] | None
    progress: Callable[[str], None] | None

    def tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)


class _PairCrashedError(Exception):
    """The compiler in use is now known to crash."""


class Compiler:
    """Never raises for what goes wrong with the compiler: the answer says it. An interrupt ends its process and passes.

    module: what compiles (see ``worker``). limits: how long to wait.
    """

    def __init__(self, module: str = BACKEND, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._asking = threading.Lock()
        self._workers = Workers(module)
        self._background = Background(self._workers, self._limits)

    def stand_by(self) -> None:
        """Gets a process ready in the background; does nothing where there is no compiler or little memory."""
        library, _ = _usable()
        if library is not None and conditions.why_not_now() is None:
            self._workers.stand_by(library)

    def close(self) -> None:
        """Ends everything for good. What is being asked is answered with ``unavailable``."""
        self._background.close()
        self._workers.close()

    def ask(
        self,
        requests: Sequence[Request],
        *,
        wait_for_cost: bool = False,
        on_cost: Callable[[int, Answer], None] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> tuple[Answer, ...]:
        """The plans of programs for their targets, in the order of the requests.

        wait_for_cost: no answer is ``pending``. on_cost: called in another thread, with the place of the request, when
        a pending answer has its cost or will have none; without it only costs that are known or waited for are given.
        progress: told what is being waited for.
        """
        call = _Call(tuple(requests), wait_for_cost, on_cost, progress)
        with self._asking:
            while True:
                try:
                    return self._answers(call)
                except _PairCrashedError:
                    continue
                except Exception as error:
                    # A fault of ours must not become one of the user's cell.
                    words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                    why = f"tpumagic failed to ask the TPU compiler: {words}."
                    return tuple(unavailable(target, why) for _, target in call.requests)

    def _answers(self, call: _Call) -> tuple[Answer, ...]:
        library, why = _usable()
        if library is None:
            return tuple(unavailable(target, why or "") for _, target in call.requests)
        asked = _grouped(call.requests, library)
        for one in asked:
            one.answer = _impossible(one.lowered, one.target) or cache.find(one.key)
            if one.answer and one.answer.status == "planned" and one.answer.cost is None and one.answer.error is None:
                # A cost that was given up once is tried again only for somebody who waits.
                given_up = one.answer.why is not None
                wanted = call.wait_for_cost or (call.on_cost is not None and not given_up)
                one.answer = replace(one.answer, pending=wanted, why=None if wanted else one.answer.why)
        new = [one for one in asked if one.answer is None]
        if new or (call.wait_for_cost and any(one.lacks_cost for one in asked)):
            self._ask_worker(call, library, asked, new)
        else:
            self._leave_costs(call, library, asked)
        by_place = {place: one.answer for one in asked for place in one.places}
        return tuple(answer for _, answer in sorted(by_place.items()) if answer is not None)

    def _ask_worker(self, call: _Call, library: Library, asked: list[_Asked], new: list[_Asked]) -> None:
        if why := conditions.why_not_now():
            for one in new:
                one.answer = replace(unavailable(one.target, why), cause="memory")
            for one in asked:
                if one.lacks_cost and one.answer is not None:
                    one.answer = replace(one.answer, pending=False, why=why)
            return
        with self._background.paused(), ExitStack() as on_error:
            # While the background is paused every process that was taken is one of ours.
            on_error.callback(self._workers.end_busy)
            for position, one in enumerate(new):
                call.tell(f"{one.lowered.name} for {one.target.name}: asking the TPU compiler")
                self._plan(library, one, new[position - 1] if position else None)
                if position + 1 < len(new):
                    self._workers.stand_by(library)
                    self._grace(one)
            if call.wait_for_cost:
                # The compile that is still running first.
                for one in sorted(asked, key=lambda one: one.compile is None):
                    if one.lacks_cost:
                        call.tell(f"{one.lowered.name} for {one.target.name}: the compiler works on the cost")
                        self._cost(library, one)
            self._leave_costs(call, library, asked)
            on_error.pop_all()

    def _plan(self, library: Library, one: _Asked, before: _Asked | None) -> None:
        """The plan of one program. before: the program whose process is to be used, if it is done with it."""
        worker = None
        if before is not None and before.compile is not None:
            if before.compile.is_over:
                worker, before.compile = before.compile.worker, None
            else:
                self._end(before)
        try:
            worker = worker or self._workers.take(library)
            one.compile = Compile(worker, one.lowered, one.target, library.version, self._limits)
            one.answer = one.compile.plan()
        except OSError as error:
            one.answer = unavailable(
                one.target, f"The TPU compiler's process could not be started: {error.strerror or error}."
            )
        except WorkerEndedError as ended:
            self._end(one)
            if self._is_crashing(library, one.target, ended):
                raise _PairCrashedError from None
            one.answer = unavailable(one.target, f"The TPU compiler gave no plan: {ended}.", library.version)
        if one.answer.status == "unavailable":
            self._end(one)
            return
        cache.store(one.key, one.answer)
        _remember(library, "works")

    def _grace(self, one: _Asked) -> None:
        """Waits a little for the rest of a compile while others wait for the compiler: until it is over, or until
        there is another process to go on with."""
        began_s = time.monotonic()
        while one.answer is not None and one.lacks_cost and one.compile is not None:
            try:
                self._settle(one, one.compile.cost(one.answer, 0.05))
            except TimeoutError:
                waited_s = time.monotonic() - began_s
                ready = self._workers.is_standby_ready()
                if waited_s > self._limits.grace_s and (ready or waited_s > 20 * self._limits.grace_s):
                    return
            except WorkerEndedError as ended:
                self._settle(one, crashed(one.answer, ended))
                self._end(one)

    def _cost(self, library: Library, one: _Asked) -> None:
        """Waits for the cost of one program."""
        assert one.answer is not None
        try:
            if one.compile is None:
                worker = self._workers.take(library)
                one.compile = Compile(worker, one.lowered, one.target, library.version, self._limits)
                again = one.compile.plan()
                if again.status == "unavailable":
                    self._settle(one, replace(one.answer, pending=False, why=again.why))
                    return
                one.answer = again
            while one.lacks_cost:
                with suppress(TimeoutError):
                    self._settle(one, one.compile.cost(one.answer, 3600.0))
        except (OSError, WorkerEndedError) as error:
            ended = error if isinstance(error, WorkerEndedError) else WorkerEndedError(str(error))
            self._settle(one, crashed(one.answer, ended))
        finally:
            self._end(one)

    def _settle(self, one: _Asked, answer: Answer) -> None:
        one.answer = answer
        if not answer.pending:
            cache.store(one.key, answer)

    def _leave_costs(self, call: _Call, library: Library, asked: list[_Asked]) -> None:
        """Hands over to the background what lacks its cost, if somebody listens, and ends the other processes."""
        on_cost = call.on_cost
        budget = Budget(self._limits.background_s)
        jobs: list[Job] = []
        for one in sorted(asked, key=lambda one: one.compile is None):
            if on_cost is None or not one.lacks_cost or one.answer is None:
                self._end(one)
                one.answer = one.answer and replace(one.answer, pending=False)
                continue
            if one.compile is not None:
                with suppress(WorkerEndedError):
                    one.compile.worker.stand_back()

            listener = partial(_tell, on_cost, tuple(one.places))
            jobs.append(Job(one.key, one.lowered, one.answer, library, budget, [listener], one.compile))
        if jobs:
            self._background.add(jobs)
        else:
            self._workers.stand_by(library)

    def _end(self, one: _Asked) -> None:
        if one.compile is not None:
            self._workers.end(one.compile.worker)
            one.compile = None

    def _is_crashing(self, library: Library, target: Target, ended: WorkerEndedError) -> bool:
        """Whether the compiler crashes on everything, after it crashed on one program."""
        jax = libraries.jax_version() or ""
        if ended.signal not in _CRASHES or pairs.state(jax, library) == "works" or process.flags():
            return False
        worker = self._workers.take(library)
        try:
            proof = Compile(worker, _PROOF, target, library.version, self._limits).plan()
            if proof.status != "unavailable":
                pairs.remember(jax, library, "works")
            return False
        except WorkerEndedError as again:
            if again.signal in _CRASHES:
                pairs.remember(jax, library, "crashes")
            return again.signal in _CRASHES
        finally:
            self._workers.end(worker)


def _usable() -> tuple[Library | None, str | None]:
    """The first compiler that is not known to crash, or why there is none."""
    jax, found = libraries.jax_version(), libraries.candidates()
    if why := conditions.why_never(jax, found):
        return None, why
    for library in found:
        if pairs.state(jax or "", library) != "crashes":
            return library, None
    return None, (
        f"JAX {jax} with {found[0].name} crashes when it compiles for a TPU that is not there: "
        "`tpumagic compiler install` fetches a libtpu that does not."
    )


def _tell(on_cost: Callable[[int, Answer], None], places: tuple[int, ...], answer: Answer) -> None:
    for place in places:
        on_cost(place, answer)


def _remember(library: Library, state: pairs.State) -> None:
    pairs.remember(libraries.jax_version() or "", library, state)


def _grouped(requests: tuple[Request, ...], library: Library) -> list[_Asked]:
    asked: dict[str, _Asked] = {}
    for place, (lowered, target) in enumerate(requests):
        key = cache.key(lowered, target, library.identity, process.flags())
        asked.setdefault(key.digest, _Asked(lowered, target, key, [])).places.append(place)
    return list(asked.values())


def _impossible(lowered: Lowered, target: Target) -> Answer | None:
    if lowered.devices > target.devices:
        why = f"The program runs on {lowered.devices} devices, and {target.name} has {target.devices}."
        return replace(unavailable(target, why), cause="devices")
    size = len(lowered.stablehlo)
    if size > conditions.PROGRAM_LIMIT_BYTES:
        why = (
            f"The program is {bytes_text(size)} of StableHLO, most of it data written into it as constants, "
            f"and the TPU compiler is asked for at most {bytes_text(conditions.PROGRAM_LIMIT_BYTES)}."
        )
        return replace(unavailable(target, why), cause="size")
    return None


_shared: tuple[int, Compiler] | None = None
_shared_lock = threading.Lock()


def shared() -> Compiler:
    """The compiler of this process; closed when it ends."""
    global _shared
    with _shared_lock:
        # A fork of the kernel has a copy that speaks through the same pipes.
        if _shared is None or _shared[0] != os.getpid():
            compiler = Compiler()
            _shared = os.getpid(), compiler
            atexit.register(compiler.close)
        return _shared[1]
