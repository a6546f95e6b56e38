"""Array types with their layouts, and the bytes that these take.

A type is ``bf16[12,512]{1,0:T(8,128)(2,1)S(1)}``: the order of the dimensions, fastest first, then properties: ``T``
tiles, ``S`` memory space, ``E`` bits an element takes, and others that change no size. The first tile pads the fastest
dimensions to its multiples, each further one the tile before. That is the size in HBM and VMEM to the byte (the least
tile makes a scalar 512 bytes; a tuple is a table of 512 bytes besides). Not known: scalars in SMEM take less, the few
scalars and synchronisation flags that the compiler leaves without a tile take up to 4 KiB.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

from tpumagic.hlo.model import Array

_ARRAY = re.compile(r"\b([a-z]\w*+)\[([^\[\]]*+)\](?:\{([^{}]*+)\}?)?")
_PROPERTY = re.compile(r"([A-Z#*]++)((?:\([^()]*+\))++)")
_GROUP = re.compile(r"\(([^()]*+)\)")
_COMMENT = re.compile(r"/\*index=\d++\*/")
_NUMBER = re.compile(r"\d{1,18}")

_TYPES: dict[str, tuple[str, int]] = {
    "pred": ("bool", 8),
    "bf16": ("bfloat16", 16),
    "f16": ("float16", 16),
    "f32": ("float32", 32),
    "f64": ("float64", 64),
    "tf32": ("float32", 32),
    "c64": ("complex64", 64),
    "c128": ("complex128", 128),
    **{f"s{bits}": (f"int{bits}", bits) for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": (f"uint{bits}", bits) for bits in (1, 2, 4, 8, 16, 32, 64)},
    "f4e2m1fn": ("float4_e2m1fn", 4),
    "f8e3m4": ("float8_e3m4", 8),
    "f8e4m3": ("float8_e4m3", 8),
    "f8e4m3fn": ("float8_e4m3fn", 8),
    "f8e4m3fnuz": ("float8_e4m3fnuz", 8),
    "f8e4m3b11fnuz": ("float8_e4m3b11fnuz", 8),
    "f8e5m2": ("float8_e5m2", 8),
    "f8e5m2fnuz": ("float8_e5m2fnuz", 8),
    "f8e8m0fnu": ("float8_e8m0fnu", 8),
}
"""HLO's name -> NumPy's name and bits of an element."""


@lru_cache(maxsize=4096)
def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays of a type, those of a tuple in order. Tokens and types of unknown size are left out."""
    found: list[Array] = []
    for match in _ARRAY.finditer(shape):
        name, dimensions, layout = match.groups()
        if name in _TYPES:
            found.append(_array(name, tuple(_numbers(dimensions)), layout or ""))
    return tuple(found)


@lru_cache(maxsize=4096)
def elements(shape: str) -> tuple[str, ...]:
    """The elements of a tuple type as texts, tokens and inner tuples included; of any other type the type itself."""
    if not shape.startswith("("):
        return (shape,)
    found: list[str] = []
    open_element: list[str] = []
    depth = 0
    # Within arrays no space follows a comma, so that only tuples within the tuple are cut and put together again.
    for piece in _COMMENT.sub("", shape[1:].removesuffix(")")).split(", "):
        open_element.append(piece)
        depth += piece.count("(") - piece.count(")")
        if depth <= 0:
            found.append(", ".join(open_element).strip())
            open_element, depth = [], 0
    if open_element:
        found.append(", ".join(open_element).strip())
    return tuple(text for text in found if text)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


def _array(name: str, shape: tuple[int, ...], layout: str) -> Array:
    dtype, bits = _TYPES[name]
    order_text, _, properties = layout.partition(":")
    order = tuple(_numbers(order_text))
    tiles: tuple[tuple[int, ...], ...] = ()
    space = 0
    stored_bits = max(bits, 8)
    for kind, groups in _PROPERTY.findall(properties):
        first = _numbers(groups)[:1]
        if kind == "T":
            tiles = tuple(_tile(group) for group in _GROUP.findall(groups))
        elif kind == "S" and first:
            space = first[0]
        elif kind == "E" and first:
            stored_bits = first[0] or stored_bits
    physical = [shape[dimension] for dimension in reversed(order) if dimension < len(shape)]
    if len(physical) != len(shape):
        physical = list(shape)
    logical = -(-prod(shape) * bits // 8)
    taken = -(-_padded_elements(physical, tiles) * stored_bits // 8)
    return Array(dtype, shape, order, tiles, space, logical, taken)


def _tile(text: str) -> tuple[int, ...]:
    # A star in a tile joins that dimension to the next; it pads nothing by itself.
    return tuple(int(piece) if piece.strip().isdigit() else 1 for piece in text.split(",") if len(piece) < 19)


def _padded_elements(physical: list[int], tiles: tuple[tuple[int, ...], ...]) -> int:
    dimensions = physical
    for tile in tiles:
        if len(dimensions) < len(tile):
            dimensions = [1] * (len(tile) - len(dimensions)) + dimensions
        outer = dimensions[: len(dimensions) - len(tile)]
        inner = dimensions[len(dimensions) - len(tile) :]
        blocks = [-(-size // step) if step else size for size, step in zip(inner, tile, strict=True)]
        dimensions = [*outer, *blocks, *tile]
    return prod(dimensions)
