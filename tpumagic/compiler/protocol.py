"""What the kernel and the compiler's process say to each other: lines of JSON over two pipes."""

from __future__ import annotations

import json
import os
import select
import time
from dataclasses import dataclass
from typing import Literal, TypeVar

from tpumagic import codec
from tpumagic.compiler.targets import Topology
from tpumagic.plans import CompilerError, Cost, Plan, Target

T = TypeVar("T")

LINE_LIMIT_BYTES = 64 * 2**20
"""A longer line is no message of ours: plans are kilobytes."""

_CHUNK_BYTES = 1 << 16
_INTERRUPT_CHECK_S = 0.25


class RefusedError(Exception):
    """The compiler refused a program; the message is its own."""


class UnusableError(Exception):
    """The compiler cannot be asked; the message is one sentence for the user."""


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


@dataclass(frozen=True)
class Request:
    """Compile a program. program: file with its StableHLO. devices: partitions. dump: empty folder of our own.
    cost: go on to the cost. background: others on this machine come first."""

    program: str
    target: Target
    topology: Topology
    dump: str
    devices: int = 1
    options: tuple[tuple[str, str], ...] = ()
    background: bool = False


@dataclass(frozen=True)
class Reply:
    """What the worker has to say. kind: ``ready``: JAX is imported; ``started``: the compiler is loaded and compiles;
    ``plan`` and then ``cost`` of a program; ``refused`` instead of either, perhaps with a plan; ``failed``: it could
    not be asked, why is a sentence. seconds: from ``started`` to this reply. own_s: of them, processor time that was
    not the compiler's."""

    kind: Literal["ready", "started", "plan", "cost", "refused", "failed"]
    plan: Plan | None = None
    cost: Cost | None = None
    error: CompilerError | None = None
    why: str | None = None
    seconds: float | None = None
    own_s: float | None = None


def line(message: Request | Reply) -> bytes:
    """A message as it goes over the pipe."""
    return json.dumps(codec.encode(message), ensure_ascii=True, allow_nan=False).encode() + b"\n"


def message(kind: type[T], data: bytes) -> T:
    """A message from its line. Raises ProtocolError."""
    try:
        return codec.decode(kind, json.loads(data), "message")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


class Lines:
    """Whole lines from a pipe, with a time limit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: list[bytes] = []
        self._size = 0
        self._rest = b""

    def read(self, timeout_s: float) -> bytes | None:
        """The next line; None when the pipe is closed.

        Raises TimeoutError if there is none in time, ProtocolError if a line has no end.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            head, newline, rest = self._rest.partition(b"\n")
            self._parts.append(head)
            self._size += len(head)
            self._rest = rest
            if newline:
                whole = b"".join(self._parts)
                self._parts, self._size = [], 0
                return whole
            if self._size > LINE_LIMIT_BYTES:
                raise ProtocolError("a line without end")
            # poll, unlike select, knows no highest file descriptor.
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN | select.POLLHUP)
            left_s = deadline - time.monotonic()
            # An interrupt that another thread received does not wake this one.
            if not poll.poll(min(max(0.0, left_s), _INTERRUPT_CHECK_S) * 1000):
                if left_s <= _INTERRUPT_CHECK_S:
                    raise TimeoutError
                continue
            self._rest = os.read(self._descriptor, _CHUNK_BYTES)
            if not self._rest:
                return None
