"""How much of their TensorCores' peak the devices use, as libtpu's SDK tells it, read in a child process.

The SDK is no part of the metrics service, and may crash a process that already holds another protobuf: a kernel never
imports it. Run as a script, this module is the child: it answers each line with one line of JSON, a list of texts.

Without a TPU it was seen that the SDK of libtpu 0.0.42 loads and tells an empty list. Not verified on one: that there
is one value per device in the framework's order, and that a value is told while a program runs.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any, cast

TIMEOUT_S = 0.5
START_S = 15.0
"""Until the child must have loaded the SDK; readings do not wait for it."""
ALONE_S = 60
"""The child ends if nothing is asked for so long: a fork of the kernel may hold its input open, or libtpu hang."""
LONGEST_ANSWER = 2**16

_given_up: set[str] = set()
"""Folders whose libtpu failed once in this process."""


class Reader:
    """Asks one child, started at the first reading, until ``close``. For one thread."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._child: _Child | None = None

    def read(self) -> tuple[float | None, ...]:
        """Percent of each device, None for one that is not known. Empty where nothing is told: no libtpu is installed,
        no program ran, the child is not ready or has failed. A child that fails is the last one of this process."""
        try:
            if self._child is None:
                self._folder = _folder()
                if self._folder is None or self._folder in _given_up:
                    return ()
                self._child = _Child(self._folder)
            return tuple(percent(text) for text in self._child.read())
        except (OSError, ValueError, TypeError, RuntimeError):
            if self._folder is not None:
                _given_up.add(self._folder)
            self.close()
            return ()

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _Child:
    """A started child. Raises OSError, ValueError, TypeError or RuntimeError where it cannot be started or fails."""

    def __init__(self, folder: str) -> None:
        # Not pipes: writing to one whose reader died kills a process that took SIGPIPE's default back.
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                theirs.setblocking(True)  # the user may have set a default timeout
                self._process = subprocess.Popen(  # noqa: S603 - this Python and this module
                    [sys.executable, "-I", __file__, folder],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "TPU_SKIP_MDS_QUERY": "1"},  # else minutes of asking for metadata
                    start_new_session=True,  # an interrupt of the cell is not meant for it
                )
            except BaseException:
                self._socket.close()
                raise
        self._received = b""
        self._ready = False
        self._ready_by = time.monotonic() + START_S
        try:
            self._ask()
        except OSError:
            self.close()
            raise

    def read(self) -> list[object]:
        """What the SDK tells now; empty as long as it is not loaded."""
        if not self._ready:
            try:
                self._answer(0)
            except (BlockingIOError, TimeoutError):
                if time.monotonic() < self._ready_by:
                    return []
                raise
            self._ready = True
        self._ask()
        return self._answer(TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TIMEOUT_S)

    def _ask(self) -> None:
        self._socket.settimeout(TIMEOUT_S)
        self._socket.send(b"\n", getattr(socket, "MSG_NOSIGNAL", 0))

    def _answer(self, timeout_s: float) -> list[object]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            self._socket.settimeout(max(deadline - time.monotonic(), 0))
            part = self._socket.recv(4096)
            self._received += part
            if not part or len(self._received) > LONGEST_ANSWER:
                raise ValueError("no answer")
        line, _, self._received = self._received.partition(b"\n")
        answer: Any = json.loads(line)
        if not isinstance(answer, list):
            raise TypeError("no list")
        return cast("list[object]", answer)


def percent(text: object) -> float | None:
    """A value as libtpu writes it, with or without a percent sign; None unless it is a number from 0 to 100."""
    if not isinstance(text, str):
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= 100 else None


def _folder() -> str | None:
    """The folder of the import path that has libtpu; None if none has. Imports nothing."""
    spec = PathFinder.find_spec("libtpu")
    return os.path.abspath(os.path.dirname(os.path.dirname(spec.origin))) if spec and spec.origin else None


def _serve(folder: str) -> None:
    signal.alarm(ALONE_S)
    # Isolated, the child has neither the user's packages nor what the kernel put on its path.
    sys.path.insert(0, folder)
    sdk: Any = importlib.import_module("libtpu.sdk")
    for _ in sys.stdin:
        signal.alarm(ALONE_S)
        told = sdk.tpumonitoring.get_metric("tensorcore_util").data()
        # Standard input is a socket: what libtpu prints goes elsewhere.
        os.write(0, json.dumps([str(value) for value in told]).encode() + b"\n")


if __name__ == "__main__":
    _serve(sys.argv[1])
