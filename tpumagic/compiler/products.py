"""Matrix products and convolutions that the program does on the matrix unit, by the user's line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tpumagic.compiler.program_facts import Program, operation
from tpumagic.compiler.written import PRODUCTS, Written, WrittenProduct, precision
from tpumagic.events import Stack
from tpumagic.hlo import Instruction, arrays
from tpumagic.plans import Product

_TRANSFORMS = frozenset({"fft", "cumsum", "cumprod", "cumlogsumexp", "cholesky", "triangular_solve", "lu", "eigh"})
"""Operations that the compiler itself makes of products."""

_MOVES = frozenset({"bitcast", "copy", "reshape", "transpose", "get-tuple-element", "copy-done", "copy-start"})


def products(program: Program, reached: Iterable[str], written: Written | None) -> tuple[Product, ...]:
    """Products of the computations that the program reaches, those of one line and kind together. Without what the
    user wrote, the types are followed back through the conversions that the compiler put in."""
    found: dict[tuple[object, ...], Product] = {}
    for name in reached:
        for instruction in program.module.computations.get(name, ()):
            if instruction.opcode not in PRODUCTS:
                continue
            stack = program.stack(instruction) or _caller_stack(program, instruction)
            product = _product(program, instruction, stack, written)
            if product is None:
                continue
            key = (stack, product.dtype, product.precision)
            before = found.get(key)
            found[key] = replace(before, count=before.count + 1) if before is not None else product
    return tuple(found.values())


def _caller_stack(program: Program, instruction: Instruction) -> Stack:
    caller = program.callers.get(instruction.computation)
    return program.stack(caller) if caller is not None else ()


def _product(program: Program, instruction: Instruction, stack: Stack, written: Written | None) -> Product | None:
    kinds = arrays(instruction.shape)
    if not kinds or operation(instruction) in _TRANSFORMS:
        return None
    shape = kinds[0].shape
    meant: WrittenProduct | None = None
    if written is not None and stack and stack[-1].file is not None:
        candidates = written.products.get((stack[-1].file, stack[-1].line), ())
        if not candidates:
            return None
        meant = _meant(candidates, shape, precision(instruction))
    dtype = meant.dtype if meant is not None else _dtype(program, instruction)
    asked = meant.precision if meant is not None else precision(instruction)
    return Product(dtype, asked, dtype == "float32" and asked == "default", stack=stack, shape=shape)


def _meant(candidates: tuple[WrittenProduct, ...], shape: tuple[int, ...], asked: str) -> WrittenProduct:
    """Of the products that the user wrote in this line, the one that became this."""
    same = [one for one in candidates if one.precision == asked] or list(candidates)
    return next((one for one in same if sorted(one.shape) == sorted(shape)), same[0])


def _dtype(program: Program, instruction: Instruction) -> str:
    """The wider type of the two factors, before the compiler narrowed them."""
    widest, size = "", 0.0
    for number in range(min(2, len(instruction.operands))):
        factor = program.operand(instruction, number)
        factor = _before(program, factor) if factor is not None else None
        for array in arrays(factor.shape)[:1] if factor is not None else ():
            bytes_each = array.logical_bytes / max(1, _elements(array.shape))
            if bytes_each > size:
                widest, size = array.dtype, bytes_each
    return widest


def _before(program: Program, factor: Instruction) -> Instruction:
    """A factor as it was before the compiler converted it."""
    for _ in range(16):
        source: Instruction | None = None
        if factor.opcode == "parameter":
            caller = program.callers.get(factor.computation)
            if caller is not None and caller.opcode == "fusion":
                source = program.operand(caller, int(factor.argument_text))
        elif factor.opcode == "fusion":
            source = program.roots.get(factor.called[0]) if factor.called else None
        elif factor.opcode in _MOVES or (
            factor.opcode == "convert" and operation(factor) not in ("convert_element_type", "astype")
        ):
            source = program.operand(factor)
        if source is None or source.shape.startswith("("):
            return factor
        factor = source
    return factor


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
