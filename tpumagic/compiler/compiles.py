"""One program on its way through a process of the compiler, and the answers that come out of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tpumagic.compiler.process import Worker, WorkerEndedError
from tpumagic.compiler.protocol import Reply, Request
from tpumagic.compiler.targets import topology_of
from tpumagic.numbers import seconds_text
from tpumagic.plans import Answer, Lowered, Target


@dataclass(frozen=True)
class Limits:
    """How long to wait, in seconds. start_s: until a process has imported its framework, and again until the compiler
    is loaded. plan_s, cost_s: from the start of a compile. background_s: for the costs of one ``ask`` that nobody waits
    for, in all. grace_s: for the rest of a compile whose plan is there, while other programs wait."""

    start_s: float = 120.0
    plan_s: float = 60.0
    cost_s: float = 600.0
    background_s: float = 60.0
    grace_s: float = 0.5


def unavailable(target: Target, why: str, compiler: str | None = None) -> Answer:
    """The answer that nobody could give."""
    return Answer(target, "unavailable", why=why, compiler=compiler)


class Compile:
    """A compile in a process. compiler: version of libtpu, for the answers."""

    def __init__(self, worker: Worker, lowered: Lowered, target: Target, compiler: str | None, limits: Limits) -> None:
        self.worker = worker
        self._lowered = lowered
        self._target = target
        self._compiler = compiler
        self._limits = limits
        self._began_s = time.monotonic()
        self.is_over = False
        """The process has said all it had to say of this program and can take the next one."""

    def plan(self, *, background: bool = False) -> Answer:
        """Starts the compile and waits for its plan, or for why there is none; ``pending`` if it goes on to the cost.

        Raises WorkerEndedError.
        """
        reply = self._start(background)
        if reply is None:
            try:
                reply = self.worker.receive(self._limits.plan_s)
            except TimeoutError:
                return self._unavailable(
                    f"The TPU compiler had no plan of this program after {seconds_text(self._limits.plan_s)}."
                )
        if reply.kind != "plan" or reply.plan is None:
            return self._settled(None, reply)
        plan = replace(reply.plan, seconds=reply.seconds)
        return Answer(self._target, "planned", plan=plan, compiler=self._compiler, pending=True)

    def cost(self, answer: Answer, timeout_s: float) -> Answer:
        """The answer with its cost, or without if there will be none. Raises TimeoutError, WorkerEndedError."""
        left_s = max(0.0, self._began_s + self._limits.cost_s - time.monotonic())
        try:
            return self._settled(answer, self.worker.receive(min(timeout_s, left_s)))
        except TimeoutError:
            if time.monotonic() < self._began_s + self._limits.cost_s:
                raise
            return without_cost(answer, f"after {seconds_text(self._limits.cost_s)}")

    def _start(self, background: bool) -> Reply | None:
        """What ended it before the compiler had begun, else None."""
        try:
            reply = self.worker.make_ready(self._limits.start_s)
            if reply.kind != "ready":
                return reply
            program, dump = self.worker.new_program(self._lowered.stablehlo)
            request = Request(
                program,
                self._target,
                topology_of(self._target),
                dump,
                self._lowered.devices,
                self._lowered.options,
                background,
            )
            self.worker.send(request)
            reply = self.worker.receive(self._limits.start_s)
        except TimeoutError:
            why = f"The TPU compiler's process was not ready after {seconds_text(self._limits.start_s)}."
            return Reply("failed", why=why)
        except OSError as error:
            why = f"The program could not be handed to the TPU compiler: {error.strerror or error}."
            return Reply("failed", why=why)
        self._began_s = time.monotonic()
        return None if reply.kind == "started" else reply

    def _settled(self, answer: Answer | None, reply: Reply) -> Answer:
        """The last word on a program. answer: its plan, None if there was none before."""
        self.is_over = reply.kind in ("cost", "refused")
        if reply.kind == "cost" and reply.cost is not None and answer is not None:
            return replace(answer, cost=replace(reply.cost, compile_s=reply.seconds), pending=False)
        if reply.kind == "refused" and reply.error is not None:
            plan = reply.plan or (answer.plan if answer else None)
            if plan is not None and reply.error.kind == "hbm":
                # The last check counts the program's own code: what fits only just in the plan may fail it.
                plan = replace(plan, fits=False, seconds=plan.seconds or reply.seconds)
                return Answer(self._target, "planned", plan=plan, error=reply.error, compiler=self._compiler)
            return Answer(self._target, "refused", plan=plan, error=reply.error, compiler=self._compiler)
        why = reply.why or "The TPU compiler's process said something that tpumagic does not understand."
        return replace(answer, pending=False, why=why) if answer else self._unavailable(why)

    def _unavailable(self, why: str) -> Answer:
        return unavailable(self._target, why, self._compiler)


def without_cost(answer: Answer, when: str) -> Answer:
    """A plan whose cost was given up."""
    return replace(answer, pending=False, why=f"The TPU compiler was not done with the cost {when}.")


def crashed(answer: Answer, ended: WorkerEndedError) -> Answer:
    """A plan whose compile ended before its cost."""
    return replace(answer, pending=False, why=f"The TPU compiler crashed before the cost: {ended}.")
