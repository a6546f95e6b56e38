"""What the user wrote, from the module as the compiler received it: types before any was changed, whole shapes before
they were split over devices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tpumagic.compiler.program_facts import operation, stack_of, target
from tpumagic.events import Stack
from tpumagic.hlo import Frame, Instruction, arrays, parse

_PRECISION = re.compile(r"operand_precision=\{([^}]*)\}")
_WIDE = frozenset({"float64", "int64", "uint64", "complex128"})
_NO_WORK = frozenset(
    {
        "parameter", "constant", "broadcast", "tuple", "get-tuple-element", "reshape", "bitcast", "copy", "iota",
        "while", "call", "conditional", "custom-call", "transpose", "slice",
    }
)  # fmt: skip
PRODUCTS = frozenset({"dot", "convolution"})

Line = tuple[str, int]


@dataclass(frozen=True)
class WrittenProduct:
    """dtype: the wider of the two factors'."""

    dtype: str
    precision: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """products: by file and line of the innermost frame. shapes: type and shape of everything, whole. wide: operations
    on 64-bit arrays, (dtype, JAX's name of the operation, stack). calls: targets of the user's custom calls."""

    products: dict[Line, tuple[WrittenProduct, ...]] = field(default_factory=dict[Line, tuple[WrittenProduct, ...]])
    shapes: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    wide: tuple[tuple[str, str, Stack], ...] = ()
    calls: frozenset[str] = frozenset()

    def wide_lines(self) -> frozenset[tuple[str | None, int, str]]:
        """File, line and operation of the work on 64-bit arrays."""
        return frozenset((stack[-1].file, stack[-1].line, name) for _, name, stack in self.wide if stack)


def written(text: str) -> Written:
    """Reads ``before_optimizations.txt``."""
    module = parse(text)
    products: dict[Line, list[WrittenProduct]] = {}
    shapes: set[tuple[str, tuple[int, ...]]] = set()
    wide: list[tuple[str, str, Stack]] = []
    calls: set[str] = set()
    for body in module.computations.values():
        own = {instruction.name: instruction for instruction in body}
        for instruction in body:
            kinds = arrays(instruction.shape)
            shapes.update((kind.dtype, kind.shape) for kind in kinds)
            if instruction.opcode in PRODUCTS and kinds:
                factors = [own[name] for name in instruction.operands if name in own]
                line = line_of(module.stack(instruction))
                if line is not None and factors:
                    product = WrittenProduct(_widest(factors), precision(instruction), kinds[0].shape)
                    products.setdefault(line, []).append(product)
            dtype = next((kind.dtype for kind in kinds if kind.dtype in _WIDE and kind.shape), None)
            if dtype is not None and instruction.opcode not in _NO_WORK and instruction.frame:
                wide.append((dtype, operation(instruction), stack_of(module, instruction)))
            if instruction.opcode == "custom-call":
                calls.add(target(instruction))
    return Written(
        {line: tuple(all_) for line, all_ in products.items()}, frozenset(shapes), tuple(wide), frozenset(calls)
    )


def line_of(stack: tuple[Frame, ...]) -> Line | None:
    """File and line of the innermost frame."""
    return (stack[-1].file, stack[-1].line) if stack else None


def precision(instruction: Instruction) -> str:
    """What a product asks for: ``default``, ``high`` or ``highest``; the higher of its two factors'."""
    found = _PRECISION.search(instruction.attributes)
    asked = found[1].split(",") if found else []
    return next((level for level in ("highest", "high") if level in [one.strip() for one in asked]), "default")


def _widest(factors: list[Instruction]) -> str:
    kinds = [kind for factor in factors for kind in arrays(factor.shape)[:1]]
    return max(kinds, key=lambda kind: kind.logical_bytes / max(1, _count(kind.shape))).dtype if kinds else ""


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
