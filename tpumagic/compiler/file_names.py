"""The file names in a program, without what differs from kernel to kernel.

A cell's file name holds the number of the kernel's process or the cell's count, and it stands in the program as the
place of each operation. The same cell in a new kernel is to be the same program.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_MAGIC = b"ML\xefR"
_STRING_SECTION = 0
_OF_A_KERNEL = re.compile(rb"[^\0\n\"]*?ipykernel_\d+[/\\](\d+)\.py|<ipython-input-\d+-([0-9a-f]+)>")


@dataclass(frozen=True)
class Program:
    """digest: of everything but the kernel's own names. names: neutral name -> the name in this program."""

    digest: str
    names: dict[str, str]


def read(stablehlo: bytes) -> Program:
    """What identifies a program: MLIR bytecode, or text."""
    names: dict[str, str] = {}
    digest = hashlib.sha256()
    try:
        parts = _parts(stablehlo)
    except (IndexError, ValueError):
        parts = [(True, stablehlo)]
    for with_names, part in parts:
        part = _OF_A_KERNEL.sub(lambda match: _neutral(match, names), part) if with_names else part
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return Program(digest.hexdigest(), names)


def _neutral(match: re.Match[bytes], names: dict[str, str]) -> bytes:
    original = match[0].decode(errors="replace")
    for known, name in names.items():
        if name == original:
            return known.encode()
    code = (match[1] or match[2]).decode()
    # Two cells with the same text have the same hash; their order tells them apart.
    name = f"<cell {code} {sum(known.startswith(f'<cell {code} ') for known in names)}>"
    names[name] = original
    return name.encode()


def _parts(data: bytes) -> list[tuple[bool, bytes]]:
    """The sections of MLIR bytecode, the strings among them without their lengths; each with whether it has names.

    Raises ValueError or IndexError if it is none. Format: mlir.llvm.org/docs/BytecodeFormat.
    """
    if data[:4] != _MAGIC:
        raise ValueError("no bytecode")
    _, at = _number(data, 4)
    at = data.index(b"\0", at) + 1
    parts: list[tuple[bool, bytes]] = [(False, data[:at])]
    while at < len(data):
        kind = data[at]
        length, at = _number(data, at + 1)
        if kind & 0x80:
            alignment, at = _number(data, at)
            at += -at % alignment
        section = data[at : at + length]
        if len(section) != length:
            raise ValueError("cut off")
        is_strings = kind & 0x7F == _STRING_SECTION
        parts.append((is_strings, _strings(section) if is_strings else section))
        at += length
    return parts


def _strings(section: bytes) -> bytes:
    count, at = _number(section, 0)
    for _ in range(count):
        _, at = _number(section, at)
    return section[at:]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number whose first byte says by its trailing zeros how many bytes follow."""
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    more = (first & -first).bit_length() - 1
    return int.from_bytes(data[at : at + more + 1], "little") >> (more + 1), at + more + 1
