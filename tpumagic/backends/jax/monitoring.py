"""JAX's public event listeners: timings for the calls the hooks see, and all that is known of compilations outside
any cell (widget callbacks, background threads), which no private hook watches."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tpumagic.backends.jax.observer import COMPILE, LOWER, TRACE, Observer
from tpumagic.events import Compile, Program
from tpumagic.user_code import UserCode

_MAX_OUTSIDE = 200


class Monitor:
    """Listens from the first profiled cell until ``close``; costs nothing while nothing is compiled."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._outside: list[Program] = []
        self._timings = threading.local()
        self.observer: Observer | None = None
        self._listening = False

    def listen(self) -> None:
        """Register with JAX, once."""
        if self._listening:
            return
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._duration)
        jax.monitoring.register_event_listener(self._event)
        self._listening = True

    def close(self) -> None:
        """Unregister."""
        if not self._listening:
            return
        self._listening = False
        from jax._src import monitoring

        # Public from jax 0.8.2 on, before that by a private name.
        for public, private, callback in (
            ("unregister_event_duration_listener", "_unregister_event_duration_listener_by_callback", self._duration),
            ("unregister_event_listener", "_unregister_event_listener_by_callback", self._event),
        ):
            unregister = getattr(monitoring, public, None) or getattr(monitoring, private, None)
            if unregister is not None:
                unregister(callback)

    def take_outside(self) -> tuple[Program, ...]:
        """Programs compiled outside any cell since the last call of this."""
        taken, self._outside = tuple(self._outside), []
        return taken

    def _event(self, event: str, **_: Any) -> None:
        if self.observer is not None and event.startswith("/jax/compilation_cache/"):
            self.observer.cache_event(event)

    def _duration(self, event: str, duration_secs: float, **details: str | int) -> None:
        if event not in (TRACE, LOWER, COMPILE) or not self._listening:
            return
        observer = self.observer
        if observer is not None and observer.duration(event, duration_secs):
            return
        if event != COMPILE:
            setattr(self._timings, "trace_s" if event == TRACE else "lower_s", duration_secs)
        elif observer is None or not observer.mine():
            self._note_outside(str(details.get("fun_name", "?")), duration_secs)

    def _note_outside(self, name: str, seconds: float) -> None:
        if len(self._outside) >= _MAX_OUTSIDE:
            return
        try:
            stack = self._user_code.stack(sys._getframe(1))
            trace_s, lower_s = getattr(self._timings, "trace_s", None), getattr(self._timings, "lower_s", None)
            self._timings.__dict__.clear()
            compiled = Compile(None, stack, trace_s, lower_s, seconds)
            self._outside.append(
                Program(
                    name=name.removeprefix("jit(").removesuffix(")"),
                    kind="jit",
                    stack=stack,
                    thread=threading.current_thread().name,
                    compiles=(compiled,),
                    outside=True,
                )
            )
        except Exception:
            return
