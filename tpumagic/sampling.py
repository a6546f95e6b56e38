"""Where the time of a cell's thread goes, by looking at its stack about ten times a second.

The looking is done from a thread of its own, so the cell runs the same code as without it. A sample stands for the
real time since the one before. The sampler touches no frame and none of the user's objects: it keeps sites and seconds.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, thread_time

from tpumagic.events import Doing, LineTime, SourceSite
from tpumagic.stack_dump import CodeLine, StackDump

Lines = tuple[CodeLine, ...]

INTERVAL_S = 0.02
COST_SHARE = 0.01
"""The sampler slows down until its own processor time is below this share of a core."""
LONGEST_INTERVAL_S = 1.0
MOST_STACKS = 1000
"""Further stacks are counted under their outermost line, so that a deep recursion cannot grow the table."""


@dataclass
class _Total:
    seconds: float = 0.0
    idle_s: float | None = None


class Sampler:
    """Samples one thread between start and stop.

    user_stack: the user's sites among a thread's lines, outermost first; a sample without any is not counted. doing:
    what the thread does there, None for what should not be counted. Both get the lines innermost first. idle: whether the device has nothing to
    do, None if that is not known; asked only where the user's own Python runs. All three are called in the
    sampler's thread; what they raise loses that sample. thread_ident: as ``threading.get_ident`` tells it.
    """

    def __init__(
        self,
        user_stack: Callable[[Lines], tuple[SourceSite, ...]],
        doing: Callable[[Lines], Doing | None],
        idle: Callable[[], bool | None],
        thread_ident: int,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._user_stack = user_stack
        self._doing = doing
        self._idle = idle
        self._thread_ident = thread_ident
        self._interval_s = interval_s
        self._totals: dict[tuple[tuple[SourceSite, ...], Doing], _Total] = {}
        self._running = False
        self._counting = _thread.allocate_lock()
        self._end = _thread.allocate_lock()

    def start(self) -> None:
        """Begins to sample; where the process may have no further thread, nothing is sampled."""
        self._end.acquire()
        self._running = True
        try:
            # Not threading.Thread: its start waits for the new thread, and the user's threading.enumerate() would
            # list it.
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            self._running = False

    def stop(self) -> tuple[LineTime, ...]:
        """Ends the sampling and tells the time by stack, longest first."""
        if self._running:
            # In a forked child nobody gives the lock back: hence the limit.
            held = self._counting.acquire(timeout=0.5)
            self._running = False
            if held:
                self._counting.release()
            self._end.release()
        found = [LineTime(stack, doing, one.seconds, one.idle_s) for (stack, doing), one in self._totals.items()]
        return tuple(sorted(found, key=lambda line: -line.seconds))

    def _run(self) -> None:
        try:
            dump = StackDump()
        except OSError:  # no file can be opened any more: nothing is sampled
            self._end.acquire()
            self._end.release()
            return
        last = perf_counter()
        interval_s = self._interval_s
        spent = thread_time()
        samples = 0
        while not self._end.acquire(timeout=interval_s):
            now = perf_counter()
            # A sample is worth less than the cell that an exception here would disturb.
            with suppress(Exception):
                self._sample(dump, now - last)
            last = now
            samples += 1
            cost_s = (thread_time() - spent) / samples
            interval_s = min(max(self._interval_s, cost_s / COST_SHARE), LONGEST_INTERVAL_S)
        self._end.release()
        dump.close()

    def _sample(self, dump: StackDump, seconds: float) -> None:
        lines = dump.lines(self._thread_ident)
        doing = self._doing(lines)
        stack = self._user_stack(lines) if doing is not None else ()
        if doing is None or not stack:
            return
        idle = self._idle() if doing == "host" else None
        with self._counting:
            if not self._running:
                return
            if (stack, doing) not in self._totals and len(self._totals) >= MOST_STACKS:
                stack = stack[:1]
            total = self._totals.setdefault((stack, doing), _Total())
            total.seconds += seconds
            if idle is not None:
                total.idle_s = (total.idle_s or 0.0) + (seconds if idle else 0.0)
