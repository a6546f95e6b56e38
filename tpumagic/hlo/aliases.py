"""Pieces of memory, and which values share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tpumagic.hlo.model import LiveValue
from tpumagic.hlo.types import arrays, elements

TABLE_BYTES = 512
"""Of the table of addresses that a tuple is."""

DEPTH = 32
"""Tuples within tuples that are followed."""

Leaf = int
"""Number of a piece before any are joined."""

Kind = Literal["argument", "output", "constant", "temporary"]


@dataclass(frozen=True)
class Tree:
    """Memory of a value: an array's, or a tuple's table and its elements."""

    leaf: Leaf
    children: tuple[Tree, ...] = ()

    def child(self, index: int) -> Tree | None:
        """An element of a tuple."""
        return self.children[index] if index < len(self.children) else None

    def at(self, path: tuple[int, ...]) -> Tree:
        """The element at a place; what is nearest to it if there is no such place."""
        tree = self
        for index in path:
            if index >= len(tree.children):
                break
            tree = tree.children[index]
        return tree

    def walk(self) -> Iterator[Tree]:
        """This value and everything in it."""
        todo: list[Tree] = [self]
        while todo:
            tree = todo.pop()
            yield tree
            todo.extend(tree.children)


@dataclass(slots=True)
class _Piece:
    name: str
    index: tuple[int, ...]
    shape: str
    bytes: int
    kind: Kind
    first: int
    last: int


class Pieces:
    """All pieces of a program; those joined have one representative."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._parent: list[Leaf] = []

    def new(self, name: str, shape: str, now: int, kind: Kind, index: tuple[int, ...] = ()) -> Tree:
        """Memory for a value of a type."""
        if shape.startswith("(") and len(index) < DEPTH:
            children = [
                self.new(name, inner, now, kind, (*index, place)) for place, inner in enumerate(elements(shape))
            ]
            return Tree(self._add(_Piece(name, index, shape, TABLE_BYTES, kind, now, now)), tuple(children))
        size = sum(array.bytes for array in arrays(shape) if array.memory_space == 0)
        return Tree(self._add(_Piece(name, index, shape, size, kind, now, now)))

    def table(self, name: str, now: int) -> Leaf:
        """Memory for the table of a tuple whose elements are there already."""
        return self._add(_Piece(name, (), "()", TABLE_BYTES, "temporary", now, now))

    def nothing(self) -> Tree:
        """Memory of a value of which nothing is known."""
        return Tree(self._add(_Piece("", (), "", 0, "temporary", 0, 0)))

    def _add(self, piece: _Piece) -> Leaf:
        self._pieces.append(piece)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _find(self, leaf: Leaf) -> Leaf:
        parent = self._parent
        while parent[leaf] != leaf:
            parent[leaf] = parent[parent[leaf]]
            leaf = parent[leaf]
        return leaf

    def use(self, tree: Tree, now: int, *, whole: bool) -> None:
        """Notes that a value is read; whole: its elements too."""
        for part in tree.walk() if whole else (tree,):
            piece = self._pieces[self._find(part.leaf)]
            piece.last = max(piece.last, now)

    def join(self, one: Tree, other: Tree) -> None:
        """Makes two values of the same type share their memory."""
        todo = [(one, other)]
        while todo:
            left, right = todo.pop()
            self._join(left.leaf, right.leaf)
            todo.extend(zip(left.children, right.children, strict=False))

    def _join(self, one: Leaf, other: Leaf) -> None:
        one, other = self._find(one), self._find(other)
        if one == other:
            return
        # The names of all are kept until one is chosen; the smaller number is the earlier value.
        one, other = min(one, other), max(one, other)
        kept, gone = self._pieces[one], self._pieces[other]
        if gone.kind == "argument" or (gone.kind == "output" and kept.kind == "temporary"):
            kept.kind = gone.kind
        kept.bytes = max(kept.bytes, gone.bytes)
        kept.first = min(kept.first, gone.first)
        kept.last = max(kept.last, gone.last)
        self._parent[other] = one

    def overwrite(self, operand: Leaf, result: Leaf, now: int) -> None:
        """Lets a result take an operand's memory, if nobody reads the operand afterwards and it is large enough."""
        source, target = self._pieces[self._find(operand)], self._pieces[self._find(result)]
        if source.last <= now <= target.first and source.bytes == target.bytes and source.kind == "temporary":
            self._join(operand, result)

    def mark_output(self, tree: Tree) -> None:
        """Says that a value is the program's result."""
        for part in tree.walk():
            piece = self._pieces[self._find(part.leaf)]
            if piece.kind == "temporary":
                piece.kind = "output"

    def keep_arguments(self, end: int) -> None:
        """Arguments are there all the time: their memory is the caller's."""
        for piece in self._pieces:
            if piece.kind == "argument":
                piece.first, piece.last = 0, end

    def values(self, better: Callable[[str], bool]) -> list[LiveValue]:
        """The pieces, each under the name of its first value that is better than others, else of its first."""
        chosen: dict[Leaf, Leaf] = {}
        for leaf, piece in enumerate(self._pieces):
            root = self._find(leaf)
            if root not in chosen or (not better(self._pieces[chosen[root]].name) and better(piece.name)):
                chosen[root] = leaf
        found: list[LiveValue] = []
        for root, leaf in chosen.items():
            piece, named = self._pieces[root], self._pieces[leaf]
            named = piece if piece.kind == "argument" else named
            found.append(
                LiveValue(named.name, named.index, named.shape, piece.bytes, piece.kind, piece.first, piece.last)
            )
        return found
