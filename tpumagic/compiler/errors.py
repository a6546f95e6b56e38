"""What the compiler means when it refuses a program."""

from __future__ import annotations

import re

from tpumagic import memory_errors
from tpumagic.plans import CompilerError

MESSAGE_LENGTH = 500

_UNSUPPORTED = (
    re.compile(r"UNIMPLEMENTED"),
    re.compile(
        r"\b(?:is|are) not (?:yet )?(?:supported|implemented)\b|\bunsupported\b|\bnot implemented\b", re.IGNORECASE
    ),
    re.compile(r"Element type (\w+) is not supported on TPU", re.IGNORECASE),
    re.compile(r"No registered implementation for (?:custom )?call to \"?([\w$.-]+)", re.IGNORECASE),
    re.compile(r"custom.?call target '?\"?([\w$.-]+)'?\"? ", re.IGNORECASE),
)
_OPERATION = (
    re.compile(r"[Cc]ustom.?call (?:to |target )?[\"'`]?([\w$]+)[\"'`]?"),
    re.compile(r"HLO (?:instruction|op(?:code|eration)?)s?:? [\"'`%]?([\w.-]+)"),
    re.compile(r"%[\w.-]+ = \S+(?: \S+)? ([\w-]+)\("),
)
_PROTO = re.compile(r"\s*\[type\.googleapis\.com/.*\Z", re.DOTALL)
_TRACE = re.compile(r"\s*=== Source Location Trace.*\Z", re.DOTALL)
_SEE = re.compile(r"\s*See https?://\S+ for more details\.?")


def explain(message: str) -> CompilerError:
    """The kind of an error, its figures and its words, from the compiler's message."""
    words = _shortened(message)
    memory = memory_errors.parse(message)
    if memory is not None and memory.space in (None, "hbm", "vmem", "smem"):
        kind = memory.space or "hbm"
        return CompilerError(kind, words, memory.needed_bytes, memory.available_bytes)  # pyright: ignore[reportArgumentType]
    operation = next((match[1] for pattern in _OPERATION if (match := pattern.search(message))), None)
    if any(pattern.search(message) for pattern in _UNSUPPORTED):
        return CompilerError("unsupported", words, operation=operation)
    return CompilerError("other", words, operation=operation)


def _shortened(message: str) -> str:
    for pattern in (_PROTO, _TRACE, _SEE):
        message = pattern.sub("", message)
    words = " ".join(message.split())
    return words if len(words) <= MESSAGE_LENGTH else words[: MESSAGE_LENGTH - 1] + "…"
