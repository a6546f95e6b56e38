"""When memory is in use, worked out from a scheduled module alone: for programs whose compiler left no plan.

Values that share memory for certain (elements of tuples, the state of a loop, the two ends of an asynchronous
operation, updates in place, donated arguments) are one piece from their first definition to their last use.
"""

from __future__ import annotations

import re
from typing import Literal

from tpumagic.hlo.aliases import Leaf, Pieces, Tree
from tpumagic.hlo.loops import loop_body
from tpumagic.hlo.model import Instruction, LiveRanges, LiveValue, Module

_INDEX = re.compile(r"\bindex=(\d{1,9})")
_ALIASED_OPERANDS = re.compile(r'\{"indices":\["(\d{1,9})","(\d{1,9})"\]\}')
_CUSTOM_ALIAS = re.compile(r"\{([\d, ]*+)\}: \((\d{1,9}), \{([\d, ]*+)\}")
_RUNS_ITS_COMPUTATIONS = frozenset({"while", "conditional", "call", "async-start"})
_SAME_MEMORY = frozenset({"bitcast", "optimization-barrier", "add-dependency", "async-update", "domain"})
_OPERAND_IN_FRONT = frozenset({"all-gather-start", "collective-permute-start", "send", "async-start"})
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})


def live_ranges(module: Module) -> LiveRanges:
    """Like :func:`parse_live_ranges`, without the compiler's text: one range for each piece of HBM, under the name of
    one value in it."""
    liveness = _Liveness(module)
    ranges = {(value.name, value.index): (value.first, value.last) for value in liveness.values()}
    return LiveRanges(tuple(liveness.sequence), ranges)


def live_values(module: Module) -> tuple[LiveValue, ...]:
    """Everything that holds HBM, largest first."""
    return tuple(sorted(_Liveness(module).values(), key=lambda value: (-value.bytes, value.first, value.name)))


class _Liveness:
    """One walk over the schedule. sequence: names of the instructions as they run."""

    def __init__(self, module: Module) -> None:
        self.sequence: list[str] = []
        self._module = module
        self._pieces = Pieces()
        self._trees: dict[str, Tree] = {}
        self._in_place: list[tuple[int, Leaf, Leaf]] = []
        self._walk()

    def values(self) -> list[LiveValue]:
        """The pieces in HBM."""
        return [value for value in self._pieces.values(self._better_name) if value.bytes]

    def _better_name(self, name: str) -> bool:
        one = self._instructions.get(name)
        return one is not None and one.frame != 0 and one.opcode not in ("parameter", "constant", "while", "tuple")

    def _walk(self) -> None:
        self._instructions: dict[str, Instruction] = {}
        entry = self._module.computations.get(self._module.entry, ())
        # Bodies stand before the instruction that runs them; a stack, because programs nest deeper than Python calls.
        stack: list[tuple[tuple[Instruction, ...], int, Instruction | None]] = [(entry, 0, None)]
        entered = {self._module.entry}
        while stack:
            body, place, caller = stack.pop()
            if place == len(body):
                if caller is not None:
                    self._visit(caller)
                continue
            one = body[place]
            stack.append((body, place + 1, caller))
            fresh = [name for name in dict.fromkeys(self._run_by(one)) if name not in entered]
            if not fresh:
                self._visit(one)
                continue
            entered.update(fresh)
            self._bind(one, fresh)
            # The caller itself is visited when its last computation is finished.
            stack.append(((), 0, one))
            stack.extend((self._module.computations[name], 0, None) for name in reversed(fresh))
        self._end()

    def _run_by(self, one: Instruction) -> list[str]:
        if one.opcode not in _RUNS_ITS_COMPUTATIONS:
            return []
        called = [name for name in one.called if name in self._module.computations]
        # The condition runs before the body, whichever is named first.
        return sorted(called, key=lambda name: name == loop_body(one)) if one.opcode == "while" else called

    def _bind(self, one: Instruction, computations: list[str]) -> None:
        """Gives the parameters of computations the values of the operands."""
        operands = [self._trees.get(name) for name in one.operands]
        for place, name in enumerate(computations):
            for inner in self._module.computations[name]:
                if inner.opcode != "parameter" or not inner.argument_text.isdecimal():
                    continue
                number = int(inner.argument_text)
                if one.opcode == "conditional":
                    number += place + 1
                if number < len(operands) and (tree := operands[number]) is not None:
                    self._trees[inner.name] = tree

    def _visit(self, one: Instruction) -> None:
        now = len(self.sequence)
        self.sequence.append(one.name)
        self._instructions[one.name] = one
        operands = [self._trees.get(name) for name in one.operands]
        for tree in operands:
            if tree is not None:
                self._pieces.use(tree, now, whole=one.opcode not in ("get-tuple-element", "bitcast"))
        if one.name not in self._trees:
            self._trees[one.name] = self._result(one, operands, now)

    def _result(self, one: Instruction, operands: list[Tree | None], now: int) -> Tree:
        first = operands[0] if operands else None
        shared = self._shared(one, operands, first, now)
        if shared is not None:
            return shared
        kind: Literal["argument", "constant", "temporary"] = "temporary"
        if one.computation == self._module.entry and one.opcode == "parameter":
            kind = "argument"
        elif one.opcode == "constant":
            kind = "constant"
        tree = self._pieces.new(one.name, one.shape, now, kind)
        self._share_in_place(one, operands, tree, now)
        return tree

    def _shared(self, one: Instruction, operands: list[Tree | None], first: Tree | None, now: int) -> Tree | None:
        """The result where it is nothing but memory of operands; None where it is new."""
        opcode = one.opcode
        if opcode == "tuple":
            table = self._pieces.table(one.name, now)
            children = [tree or self._pieces.nothing() for tree in operands]
            return Tree(table, tuple(children))
        if first is None:
            return None
        if opcode == "get-tuple-element":
            found = _INDEX.search(one.attributes)
            return first.child(int(found[1])) if found else None
        if opcode in _SAME_MEMORY:
            return first
        if opcode == "while":
            self._join_roots(one, first)
            return first
        if opcode in ("call", "conditional"):
            tree = self._pieces.new(one.name, one.shape, now, "temporary")
            self._join_roots(one, tree)
            return tree
        if opcode == "copy-start":
            tree = self._pieces.new(one.name, one.shape, now, "temporary")
            return Tree(tree.leaf, (tree.children[0], first, *tree.children[2:])) if len(tree.children) > 1 else tree
        if opcode in _OPERAND_IN_FRONT:
            return self._started(one, operands, first, now)
        if opcode.endswith("-done"):
            return self._done(one, first)
        return None

    def _started(self, one: Instruction, operands: list[Tree | None], first: Tree, now: int) -> Tree:
        tree = self._pieces.new(one.name, one.shape, now, "temporary")
        if len(tree.children) < 2:
            return tree
        front = tree.children[0]
        inputs = first
        if front.children:
            inputs = Tree(front.leaf, tuple(operand or self._pieces.nothing() for operand in operands))
        tree = Tree(tree.leaf, (inputs, *tree.children[1:]))
        if one.opcode == "async-start":
            self._join_roots(one, tree.children[1])
        return tree

    def _done(self, one: Instruction, first: Tree) -> Tree | None:
        """What an asynchronous operation has made."""
        if one.opcode in ("copy-done", "recv-done") and first.children:
            if one.opcode == "copy-done":
                return first.children[0]
            return Tree(first.leaf, (first.children[0], *first.children[2:]))
        if one.opcode in ("async-done", "all-gather-done", "collective-permute-done") and len(first.children) > 1:
            return first.children[1]
        return first if one.opcode == "all-reduce-done" else None

    def _join_roots(self, one: Instruction, tree: Tree) -> None:
        """Makes what the computations of an instruction return one with what it returns itself."""
        now = len(self.sequence) - 1
        for name in self._run_by(one):
            if one.opcode == "while" and name != loop_body(one):
                continue
            root = self._module.root(name)
            if root is not None and (returned := self._trees.get(root.name)) is not None:
                self._pieces.use(returned, now, whole=True)
                self._pieces.join(tree, returned)

    def _share_in_place(self, one: Instruction, operands: list[Tree | None], tree: Tree, now: int) -> None:
        """Notes which operands a result may overwrite; those of custom calls it always does."""
        results = [tree, *tree.children]
        if one.opcode == "custom-call" and "output_to_operand_aliasing=" in one.attributes:
            text = one.attributes.partition("output_to_operand_aliasing=")[2].partition("}}")[0]
            for result, number, inner in _CUSTOM_ALIAS.findall(text + "}"):
                operand = operands[int(number)] if int(number) < len(operands) else None
                if operand is not None:
                    self._pieces.join(operand.at(_path(inner)), tree.at(_path(result)))
            return
        if one.opcode in _IN_PLACE and operands and operands[0] is not None:
            self._in_place.append((now, operands[0].leaf, tree.leaf))
        for operand_number, result_number in _ALIASED_OPERANDS.findall(one.attributes):
            number, place = int(operand_number), int(result_number) - len(operands)
            place += 1 if tree.children else 0
            if number < len(operands) and 0 <= place < len(results) and (operand := operands[number]) is not None:
                self._in_place.append((now, operand.leaf, results[place].leaf))

    def _end(self) -> None:
        end = len(self.sequence)
        root = self._module.root(self._module.entry)
        tree = self._trees.get(root.name) if root else None
        if tree is not None:
            self._pieces.use(tree, end, whole=True)
            self._pieces.mark_output(tree)
            arguments = {
                int(one.argument_text): self._trees.get(one.name)
                for one in self._module.computations[self._module.entry]
                if one.opcode == "parameter" and one.argument_text.isdecimal()
            }
            aliases = self._module.header.partition("input_output_alias=")[2].partition(") }")[0]
            for result, number, inner in _CUSTOM_ALIAS.findall(aliases):
                argument = arguments.get(int(number))
                if argument is not None:
                    self._pieces.join(argument.at(_path(inner)), tree.at(_path(result)))
        for now, operand, result in self._in_place:
            self._pieces.overwrite(operand, result, now)
        self._pieces.keep_arguments(end)


def _path(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split() if len(number) < 10)
