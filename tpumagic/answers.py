"""The TPU compiler is asked about a cell's programs, and its answers stand with them in the cell's record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from tpumagic.backends import Request, Variant
from tpumagic.events import CellRecord
from tpumagic.plans import Answer, Remedy
from tpumagic.user_code import UserCode

Late = Callable[[int, Answer], None]
"""Gets a program's place and its answer when the estimate of the cost has come."""

_KERNEL = b"tpu_custom_call"
_KERNEL_S = 20.0
"""A kernel by itself takes the compiler seconds; one in a large model may take minutes with the rest of it."""
_OPEN = (
    "its compile has not ended, and only the end tells whether its kernel's own memory suffices; --cost waits for it"
)


def expect() -> None:
    """There is going to be something to ask: the compiler gets ready meanwhile."""
    from tpumagic.compiler import service

    service.shared().stand_by()


def ask(
    record: CellRecord, requests: Sequence[Request], user_code: UserCode, *, cost: bool, late: Late | None
) -> CellRecord:
    """The record with an answer for each request. cost: wait for the estimates of the time. late: gets those that come
    afterwards, in another thread. An interrupt ends the wait for the estimates, the next one that for the plans; there
    is a report all the same."""
    if not requests:
        return record

    # Not sooner: most cells ask nothing.
    from tpumagic.compiler import service
    from tpumagic.compiler.sites import localized

    def later(place: int, answer: Answer) -> None:
        if late is not None:
            late(requests[place].program, localized(answer, user_code.user_site))

    pairs = [(request.lowered, request.target) for request in requests]
    kernels = frozenset(place for place, (lowered, _) in enumerate(pairs) if _KERNEL in lowered.stablehlo)
    ends = _Ends(kernels, later if late is not None else None)
    try:
        try:
            listens = late is not None or bool(kernels)
            answers = service.shared().ask(pairs, wait_for_cost=cost, on_cost=ends if listens else None)
            answers = ends.awaited(answers)
        except KeyboardInterrupt:
            if not cost:
                raise
            # Plans that have come are on the disk.
            answers = tuple(_not_waited_for(answer) for answer in service.shared().ask(pairs))
    except KeyboardInterrupt:
        answers = tuple(
            Answer(
                request.target,
                "unavailable",
                why="it was interrupted before the compiler answered",
                cause="interrupted",
            )
            for request in requests
        )
    for request, answer in zip(requests, answers, strict=True):
        record = with_answer(record, request.program, localized(answer, user_code.user_site))
    return record


class _Ends:
    """Hears how compiles end after their plans. Those of kernels are waited for a while, since only the end tells
    whether their own memory suffices; the others, and what comes too late, go on to ``late``."""

    def __init__(self, kernels: frozenset[int], late: Late | None) -> None:
        self._late = late
        self._awaited = set(kernels)
        self._came: dict[int, Answer] = {}
        self._changed = threading.Condition()

    def __call__(self, place: int, answer: Answer) -> None:
        with self._changed:
            if place in self._awaited:
                self._awaited.discard(place)
                self._came[place] = answer
                self._changed.notify_all()
                return
        if self._late is not None:
            self._late(place, answer)

    def awaited(self, answers: Sequence[Answer]) -> tuple[Answer, ...]:
        """The answers with the ends that have come by now, or come soon."""
        with self._changed:
            self._awaited -= {place for place, answer in enumerate(answers) if not answer.pending}
            try:
                self._changed.wait_for(lambda: not self._awaited, _KERNEL_S)
            except KeyboardInterrupt:  # the plans are there
                pass
            still_open, self._awaited = self._awaited, set[int]()
            found = tuple(self._came.get(place, answer) for place, answer in enumerate(answers))
        if self._late is not None:
            return found
        return tuple(
            replace(answer, pending=False, why=_OPEN if place in still_open else answer.why)
            for place, answer in enumerate(found)
        )


def _not_waited_for(answer: Answer) -> Answer:
    lacks_cost = answer.status == "planned" and answer.cost is None and answer.error is None
    return replace(answer, why="the wait for it was interrupted") if lacks_cost else answer


def measured(answer: Answer, variants: Iterable[Variant]) -> Answer:
    """The answer with what each variant of its program comes to, by a compile of its own."""
    from tpumagic.compiler import service

    found = list(variants)
    made = [variant.lowered for variant in found if variant.lowered is not None]
    told = iter(service.shared().ask([(lowered, answer.target) for lowered in made]))
    return replace(answer, remedies=tuple(_measure(variant, told) for variant in found))


def _measure(variant: Variant, told: Iterator[Answer]) -> Remedy:
    if variant.lowered is None:
        return variant.remedy
    answer = next(told)
    if answer.plan is not None:
        return replace(variant.remedy, fits=answer.plan.fits, needed_bytes=answer.plan.needed_bytes)
    return replace(variant.remedy, why=answer.why or (answer.error.message if answer.error is not None else None))


def with_answer(record: CellRecord, place: int, answer: Answer) -> CellRecord:
    """The record with this answer in place of an earlier one for the same target, whose remedies stay."""
    programs = list(record.programs)
    earlier = [other for other in programs[place].answers if other.target == answer.target]
    kept = tuple(other for other in programs[place].answers if other.target != answer.target)
    if earlier and not answer.remedies:
        answer = replace(answer, remedies=earlier[0].remedies)
    programs[place] = replace(programs[place], answers=(*kept, answer))
    return replace(record, programs=tuple(programs))
