"""What matrix products and convolutions come to: multiplications and additions, and their time at a chip's peak.

The TPU compiler writes most products as convolutions, batch dimensions as dilated spatial ones: only the positions where
a window meets an element count.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tpumagic.compiler.program_facts import Program
from tpumagic.compiler.targets import Chip
from tpumagic.hlo import Array, Instruction, arrays

PRODUCTS = frozenset({"convolution", "dot"})

_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_PAIR = re.compile(r"(\w+)=([\dx_\-]+)")
_GROUPS = re.compile(r"\b(feature|batch)_group_count=(\d+)")
_PRECISION = re.compile(r"\boperand_precision=\{(\w+)(?:,\s*(\w+))?\}")
_ALGORITHM = re.compile(r"\balgorithm=\w+?_x(\d)\b")
_DIMENSIONS = r"\b{}=\{{([\d,]*)\}}"

_PASSES = {"highest": 6, "high": 3}
"""Multiplications in bfloat16 that make one of float32."""

_FAR = 100_000
"""Window positions that are gone through one by one; larger windows count as if every position met an element."""


@dataclass(frozen=True)
class _Dimension:
    """One spatial dimension of a convolution."""

    input: int
    output: int
    size: int = 1
    stride: int = 1
    low: int = 0
    input_dilation: int = 1
    window_dilation: int = 1

    def meetings(self) -> int:
        """Pairs of an output position and a window position at which there is an element of the input."""
        if self.size > _FAR:
            return self.size * self.output
        last = (self.input - 1) * self.input_dilation
        shared = math.gcd(self.stride, self.input_dilation)
        period = self.input_dilation // shared
        inverse = pow(self.stride // shared, -1, period) if period > 1 else 0
        count = 0
        for position in range(self.size):
            shift = position * self.window_dilation - self.low
            if shift % shared:
                continue
            first = max(0, -(shift // self.stride))
            end = min(self.output - 1, (last - shift) // self.stride)
            wanted = (-(shift // shared) * inverse) % period if period > 1 else 0
            first += (wanted - first) % period
            count += max(0, (end - first) // period + 1)
        return count


def products_in(program: Program, instruction: Instruction) -> tuple[Instruction, ...]:
    """The products and convolutions of an instruction: itself, or those that its fusion holds."""
    if instruction.opcode in PRODUCTS:
        return (instruction,)
    found: list[Instruction] = []
    seen: set[str] = set()
    waiting = list(instruction.called)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in program.module.computations.get(name, ()):
            if inner.opcode in PRODUCTS:
                found.append(inner)
            waiting.extend(inner.called)
    return tuple(found)


def flops(program: Program, product: Instruction) -> int | None:
    """Multiplications and additions of one product or convolution; None if its text does not tell."""
    left, right = _operand(program, product, 0), _operand(program, product, 1)
    result = next(iter(arrays(product.shape)), None)
    if left is None or right is None or result is None:
        return None
    try:
        if product.opcode == "dot":
            return _dot_flops(product.attributes, left, result)
        return _convolution_flops(product.attributes, left, right, result)
    except (IndexError, ValueError, ZeroDivisionError):
        return None


def peak_seconds(program: Program, product: Instruction, chip: Chip) -> float | None:
    """Its time if the chip multiplied at its peak throughout: by the type of the operands, float32 in as many passes
    as its precision takes. None if its size is not known."""
    count = flops(program, product)
    if count is None:
        return None
    types = [operand.dtype for n in (0, 1) if (operand := _operand(program, product, n)) is not None]
    return count * _passes(product.attributes, types) / _peak(types, chip)


def _operand(program: Program, product: Instruction, number: int) -> Array | None:
    operand = program.operand(product, number)
    return next(iter(arrays(operand.shape)), None) if operand is not None else None


def _passes(attributes: str, types: list[str]) -> int:
    if "float32" not in types:
        return 1
    if found := _ALGORITHM.search(attributes):
        return int(found[1])
    if found := _PRECISION.search(attributes):
        return max(_PASSES.get(name, 1) for name in found.groups() if name)
    return 1


def _peak(types: list[str], chip: Chip) -> float:
    if chip.fp8_flops and all(name.startswith("float8") for name in types):
        return chip.fp8_flops
    if chip.int8_flops and all(name in {"int8", "uint8", "int4", "uint4"} for name in types):
        return chip.int8_flops
    return chip.bf16_flops


def _numbers(name: str, attributes: str) -> list[int]:
    found = re.search(_DIMENSIONS.format(name), attributes)
    return [int(number) for number in found[1].split(",") if number] if found else []


def _dot_flops(attributes: str, left: Array, result: Array) -> int:
    contracted = math.prod(left.shape[dimension] for dimension in _numbers("lhs_contracting_dims", attributes))
    return 2 * contracted * math.prod(result.shape)


def _convolution_flops(attributes: str, left: Array, right: Array, result: Array) -> int | None:
    labels = _LABELS.search(attributes)
    if labels is None:
        return None
    of_input, of_window, of_output = labels.groups()
    groups = {name: int(count) for name, count in _GROUPS.findall(attributes)}
    count = (
        2
        * (left.shape[of_input.index("b")] // groups.get("batch", 1))
        * (left.shape[of_input.index("f")] // groups.get("feature", 1))
        * result.shape[of_output.index("f")]
    )
    window = _WINDOW.search(attributes)
    described = dict(_PAIR.findall(window[1])) if window else {}
    for dimension in (label for label in of_input if label.isdigit()):
        count *= _dimension(
            described,
            int(dimension),
            left.shape[of_input.index(dimension)],
            result.shape[of_output.index(dimension)],
            right.shape[of_window.index(dimension)],
        ).meetings()
    return count


def _dimension(described: dict[str, str], number: int, of_input: int, of_output: int, size: int) -> _Dimension:
    def value(name: str, otherwise: int) -> int:
        text = described.get(name)
        return int(text.split("x")[number].partition("_")[0]) if text else otherwise

    return _Dimension(
        of_input,
        of_output,
        size,
        max(value("stride", 1), 1),
        value("pad", 0),
        max(value("lhs_dilate", 1), 1),
        max(value("rhs_dilate", 1), 1),
    )
