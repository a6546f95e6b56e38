"""How often loops run, where the program itself proves it, and how often that makes every computation run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpumagic.hlo.model import Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d{1,18})')
_BODY = re.compile(r"\bbody=%?([\w.\-]++)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]++)")
_INDEX = re.compile(r"\bindex=(\d{1,9})")
_DIRECTION = re.compile(r"\bdirection=([A-Z]{2})")
_INTEGER = re.compile(r"\s*\(?(-?\d{1,20})\)?\s*$")
_INTEGER_TYPE = re.compile(r"[su](?:8|16|32|64)\[(?:1(?:,1)*+)?\]")

_SAME_VALUE = frozenset({"copy", "bitcast", "reshape", "copy-done", "broadcast", "optimization-barrier"})
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
_STEPS = 2000
"""Instructions that are followed for one value; more of them are given up."""

Path = tuple[int, ...]


@dataclass(frozen=True)
class _Value:
    """An integer: of an element of the loop's state as it was when the trip began, plus an offset; state None: the
    offset alone."""

    state: Path | None
    offset: int


@dataclass(frozen=True)
class _Scope:
    """A computation. arguments: what its caller gives it, names in outer's computation; without outer its parameter is
    the state of a loop."""

    computation: str
    arguments: tuple[str, ...] = ()
    outer: _Scope | None = None


def trip_count(module: Module, loop: Instruction) -> int | None:
    """How often the body of a ``while`` runs; None if the program does not prove it."""
    return _Loops(module).trips(loop)


def loop_body(loop: Instruction) -> str | None:
    """Name of the computation that a ``while`` repeats."""
    found = _BODY.search(loop.attributes)
    return found[1] if found else None


def loop_condition(loop: Instruction) -> str | None:
    """Name of the computation that tells a ``while`` whether to go on."""
    found = _CONDITION.search(loop.attributes)
    return found[1] if found else None


def multiplicities(module: Module) -> dict[str, int | None]:
    """How often each computation runs in one run of the program, for those that the entry reaches; None if a loop
    around it does not say. A reducer or comparator counts with the operation that has it, a branch of a conditional as
    if it were always taken, a loop's condition as often as its body."""
    order = _callers_first(module)
    counts: dict[str, int | None] = dict.fromkeys(order, 0)
    if module.entry in counts:
        counts[module.entry] = 1
    loops = _Loops(module)
    for name in order:
        count = counts[name]
        for instruction in module.computations[name]:
            if not instruction.called:
                continue
            times = count
            if instruction.opcode == "while" and count is not None:
                trips = loops.trips(instruction)
                times = None if trips is None else count * trips
            for called in instruction.called:
                if called in counts:
                    before = counts[called]
                    counts[called] = None if before is None or times is None else before + times
    return counts


def _callers_first(module: Module) -> list[str]:
    """Computations that the entry reaches, each after all that call it. Those that call themselves, which no real
    module has, are left out."""
    calls: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    todo = [module.entry] if module.entry in module.computations else []
    while todo:
        name = todo.pop()
        if name in calls:
            continue
        calls[name] = [
            called for one in module.computations[name] for called in one.called if called in module.computations
        ]
        for called in calls[name]:
            waiting[called] = waiting.get(called, 0) + 1
        todo.extend(calls[name])
    order: list[str] = []
    ready = [module.entry] if calls and not waiting.get(module.entry) else []
    while ready:
        name = ready.pop()
        order.append(name)
        for called in calls[name]:
            waiting[called] -= 1
            if waiting[called] == 0:
                ready.append(called)
    return order


class _Loops:
    """Works out trip counts in one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._steps = 0

    def trips(self, loop: Instruction) -> int | None:
        if known := _KNOWN.search(loop.attributes):
            return int(known[1])
        body, condition = loop_body(loop), loop_condition(loop)
        if body is None or condition is None or len(loop.operands) != 1:
            return None
        self._steps = _STEPS
        compared = self._comparison(_Scope(condition))
        if compared is None:
            return None
        left, direction, right = compared
        if right.state is not None and self._step(body, right.state) != 0:
            left, direction, right = right, _MIRRORED[direction], left
        if left.state is None or (right.state is not None and self._step(body, right.state) != 0):
            return None
        step = self._step(body, left.state)
        start = self._at_start(loop, left)
        bound = self._at_start(loop, right)
        if step is None or start is None or bound is None:
            return None
        return _count(start, step, direction, bound)

    def _at_start(self, loop: Instruction, value: _Value) -> int | None:
        """A value in the first trip's condition."""
        while value.state is not None:
            start = self._value(_Scope(loop.computation), loop.operands[0], value.state)
            if start is None:
                return None
            value = _Value(start.state, start.offset + value.offset)
            if value.state is not None:
                # What a loop around this one hands on unchanged is what that one was given.
                callers = self._module.callers.get(loop.computation, ())
                if len(callers) != 1 or loop_body(callers[0]) != loop.computation or len(callers[0].operands) != 1:
                    return None
                if self._step(loop.computation, value.state) != 0:
                    return None
                loop = callers[0]
        return value.offset

    def _step(self, body: str, state: Path) -> int | None:
        """By how much a trip changes an element of the state."""
        root = self._module.root(body)
        after = self._value(_Scope(body), root.name, state) if root else None
        return after.offset if after is not None and after.state == state else None

    def _comparison(self, scope: _Scope) -> tuple[_Value, str, _Value] | None:
        """What a condition compares."""
        root = self._module.root(scope.computation)
        while root is not None and self._steps > 0:
            self._steps -= 1
            if root.opcode == "compare" and len(root.operands) == 2 and "type=TOTALORDER" not in root.attributes:
                direction = _DIRECTION.search(root.attributes)
                left = self._value(scope, root.operands[0], ())
                right = self._value(scope, root.operands[1], ())
                if direction is None or direction[1] not in _MIRRORED or left is None or right is None:
                    return None
                return left, direction[1], right
            if root.opcode in ("fusion", "call") and len(root.called) == 1:
                scope = _Scope(root.called[0], root.operands, scope)
                root = self._module.root(scope.computation)
            elif root.opcode in _SAME_VALUE and len(root.operands) == 1:
                root = self._find(scope, root.operands[0])
            else:
                return None
        return None

    def _find(self, scope: _Scope, name: str) -> Instruction | None:
        return self._module.by_name.get(scope.computation, {}).get(name)

    def _value(self, scope: _Scope, name: str, path: Path) -> _Value | None:
        """The integer at a place of a tuple, as far as additions of constants lead; None if they do not."""
        offset = 0
        while self._steps > 0:
            self._steps -= 1
            one = self._find(scope, name)
            if one is None:
                return None
            if one.opcode == "constant" and not path:
                number = _INTEGER.match(one.argument_text) if _INTEGER_TYPE.match(one.shape) else None
                return _Value(None, int(number[1]) + offset) if number else None
            if one.opcode == "parameter":
                if scope.outer is None:
                    return _Value(path, offset)
                number = int(one.argument_text) if one.argument_text.isdecimal() else len(scope.arguments)
                if number >= len(scope.arguments):
                    return None
                scope, name = scope.outer, scope.arguments[number]
            elif one.opcode == "get-tuple-element" and (index := _INDEX.search(one.attributes)):
                name, path = one.operands[0] if one.operands else "", (int(index[1]), *path)
            elif one.opcode == "tuple" and path and path[0] < len(one.operands):
                name, path = one.operands[path[0]], path[1:]
            elif one.opcode in ("fusion", "call") and len(one.called) == 1:
                root = self._module.root(one.called[0])
                scope, name = _Scope(one.called[0], one.operands, scope), root.name if root else ""
            elif (one.opcode == "copy-start" and not path and one.operands) or (
                one.opcode in _SAME_VALUE and len(one.operands) == 1
            ):
                name = one.operands[0]
            elif one.opcode in ("add", "subtract") and len(one.operands) == 2 and _INTEGER_TYPE.match(one.shape):
                added = self._addition(scope, one)
                if added is None:
                    return None
                name, more = added
                offset += more
            else:
                return None
        return None

    def _addition(self, scope: _Scope, one: Instruction) -> tuple[str, int] | None:
        """The operand that is no constant, and what is added to it."""
        left, right = one.operands
        if (constant := self._value(scope, right, ())) is not None and constant.state is None:
            return left, -constant.offset if one.opcode == "subtract" else constant.offset
        if one.opcode == "add" and (constant := self._value(scope, left, ())) is not None and constant.state is None:
            return right, constant.offset
        return None


def _count(start: int, step: int, direction: str, bound: int) -> int | None:
    """Trips of a loop that goes on while ``start + n * step <direction> bound``; None if it never ends."""
    if direction == "NE":
        if start == bound:
            return 0
        return (bound - start) // step if step and (bound - start) % step == 0 and (bound - start) // step > 0 else None
    if direction in ("GT", "GE"):
        start, step, bound = -start, -step, -bound
    if direction in ("LE", "GE"):
        bound += 1
    if start >= bound:
        return 0
    return -((start - bound) // step) if step > 0 else None
