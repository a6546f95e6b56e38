"""Arguments and results of a program: their names, which results lie in whose memory, and which more could."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tpumagic.compiler.program_facts import Program, name_of
from tpumagic.compiler.updates import updated_arguments
from tpumagic.hlo import Array, arrays
from tpumagic.plans import Donation

_ALIASES = re.compile(r"input_output_alias=\{(.*?\)) ?\}")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")
_DONORS = re.compile(r"buffer_donor=\{(.*?\)) ?\}")
_DONOR = re.compile(r"\((\d+), \{([\d, ]*)\}\)")
_RESULT = re.compile(r'jax\.result_info = "((?:[^"\\]|\\.)*)"')
_STEP = re.compile(r"\[[^\]]*\]|\.\w+")

Place = tuple[int, tuple[int, ...]]
"""Number of a parameter and the index within it."""

Kind = tuple[str, tuple[int, ...], int]
"""Type, shape and bytes: what can share memory."""


@dataclass(frozen=True)
class Leaf:
    """One array that goes in or comes out."""

    name: str
    array: Array
    place: Place


def aliases(header: str) -> dict[int, Place]:
    """Number of a result -> the argument in whose memory it lies."""
    found = _ALIASES.search(header)
    if found is None:
        return {}
    pairs = _ALIAS.findall(found[1])
    return {(_numbers(result) or (0,))[0]: (int(number), _numbers(index)) for result, number, index in pairs}


def donors(header: str) -> set[Place]:
    """Arguments that the user gives away, whether a result takes them or not."""
    found = _DONORS.search(header)
    given = {(int(number), _numbers(index)) for number, index in _DONOR.findall(found[1])} if found else set[Place]()
    return given | set(aliases(header).values())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(",", " ").split())


def argument_leaves(program: Program) -> tuple[Leaf, ...]:
    """The arguments in order, tuples by their elements."""
    found: list[Leaf] = []
    for number, parameter in sorted(program.arguments().items()):
        kinds = arrays(parameter.shape)
        if not parameter.shape.startswith("("):
            found += [Leaf(name_of(parameter), array, (number, ())) for array in kinds]
        else:
            found += [Leaf(f"{name_of(parameter)}[{n}]", array, (number, (n,))) for n, array in enumerate(kinds)]
    return tuple(found)


def result_leaves(program: Program, names: Sequence[str]) -> tuple[Leaf, ...]:
    """The results in order; place is their own number."""
    found: list[Leaf] = []
    for number, (name, index) in enumerate(program.results()):
        instruction = program.instructions.get(name)
        kinds = arrays(instruction.shape) if instruction is not None else ()
        position = index[0] if index else 0
        if position < len(kinds) and (index or len(kinds) == 1):
            title = names[number] if number < len(names) else f"result[{number}]"
            found.append(Leaf(title, kinds[position], (number, ())))
    return tuple(found)


def result_names(stablehlo: str, count: int) -> tuple[str, ...]:
    """``result[0]['w']`` of every result, from the text of the program as JAX gave it to the compiler; by number where
    that does not say."""
    head = stablehlo[: stablehlo.find("{\n", stablehlo.find("@main")) + 1] if "@main" in stablehlo else ""
    names = [re.sub(r"\\(.)", r"\1", name) or "result" for name in _RESULT.findall(head)]
    if len(names) == count:
        return tuple(names)
    return ("result",) if count == 1 else tuple(f"result[{number}]" for number in range(count))


def donations(program: Program, arguments: Sequence[Leaf], results: Sequence[Leaf]) -> tuple[Donation, ...]:
    """Pairs that could share memory and do not: a result that is an argument's next value, of the same type, shape and
    bytes; each argument once. Of several the one that the user calls most alike, then the first, as JAX would take it.
    An argument that only has the shape of a result, as weights have that of their gradient, is needed elsewhere."""
    given, aliased = donors(program.module.header), aliases(program.module.header)
    places = program.results()
    free: dict[Kind, list[Leaf]] = {}
    for argument in arguments:
        free.setdefault(_kind(argument), []).append(argument)
    spare = Counter(_kind(result) for result in results if result.place[0] not in aliased)
    # Results that lie in donated memory already take part: with more donated, another of them may lie there.
    waiting = [result for result in results if spare[_kind(result)] and _kind(result) in free]
    before = {result.place[0]: updated_arguments(program, *places[result.place[0]]) for result in waiting}
    waiting.sort(key=lambda result: len(before[result.place[0]]))
    pairs: list[tuple[Leaf, Leaf]] = []
    for alike in (True, False):
        for result in list(waiting):
            candidates = [one for one in free[_kind(result)] if one.place[0] in before[result.place[0]]]
            best = max(candidates, key=lambda one: _likeness(one.name, result.name), default=None)
            if best is None or (alike and not _likeness(best.name, result.name)):
                continue
            free[_kind(result)].remove(best)
            waiting.remove(result)
            pairs.append((best, result))
    found: list[Donation] = []
    for argument, result in sorted(pairs, key=lambda pair: (-pair[0].array.bytes, pair[1].place[0])):
        if argument.place not in given and spare[_kind(result)]:
            spare[_kind(result)] -= 1
            found.append(Donation(argument.name, result.place[0], argument.array.bytes))
    return tuple(found)


def _kind(leaf: Leaf) -> Kind:
    return leaf.array.dtype, leaf.array.shape, leaf.array.bytes


def _likeness(argument: str, result: str) -> int:
    """How many of the last steps of two paths agree: ``['mu']['w']``."""
    mine, other = _STEP.findall(argument), _STEP.findall(result)
    count = 0
    for left, right in zip(reversed(mine), reversed(other), strict=False):
        if left != right:
            break
        count += 1
    return count
