"""Which operation really writes a value.

The compiler's plan names a piece of memory after whoever reserves it: a loop, an ``AllocateBuffer`` without any source,
a fusion that ends in a copy. The user knows the operation whose result lies there. It is found through the elements of
tuples, into the bodies of loops and fusions, and from an update of a slice to what the slice is filled with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpumagic.compiler.program_facts import Program, called, element, target
from tpumagic.hlo import Instruction, arrays

Index = tuple[int, ...]

_MOVES = frozenset(
    {
        "bitcast", "copy", "copy-done", "slice-done", "opt-barrier", "optimization-barrier", "async-done",
        "async-update",
    }
)  # fmt: skip
_STARTS = frozenset({"copy-start", "slice-start", "async-start"})
JOINED = "ConcatBitcast"
"""Puts together again what was copied in slices."""

_TOGETHER = frozenset({"all-reduce", "all-reduce-start"})
"""What the compiler does to several values at once, each of them made elsewhere."""

_WITH_THE_LOOP = _MOVES | {"convert", "broadcast", "reshape", "dynamic-slice", "transpose", "slice", "pad"}
"""What a loop does to its slices before it stacks them; at the loop's own line none of it is the user's."""

_DEPTH = 64
_USES = 400


@dataclass(frozen=True)
class Origin:
    """operation: that computes the value; inside a fusion, the part that matters. place: the operation whose line of
    source to show for it, another one where the compiler made this one itself; None if there is no line. argument: the
    program's argument that the value is, or is a copy or another form of. loop: that stacks the value, a slice each
    trip. body: the fusion or the operation itself, as it stands in the schedule."""

    operation: Instruction
    place: Instruction | None = None
    argument: Instruction | None = None
    loop: Instruction | None = None
    body: Instruction | None = None


def origin(program: Program, name: str, index: Index = ()) -> Origin | None:
    """Where the value of an instruction comes from; None if there is no such instruction."""
    found = _follow(program, name, index, set())
    if found is None:
        itself = program.instructions.get(name)
        if itself is None:
            return None
        found = Origin(itself, body=itself)
    if program.stack(found.operation):
        return replace(found, place=found.operation)
    found = _with_source(program, found)
    if found.place is None:
        used = next((use for use in uses(program, name, index) if program.stack(use)), None)
        found = replace(found, place=used)
    return found


def _follow(program: Program, name: str, index: Index, seen: set[tuple[str, Index]]) -> Origin | None:
    instruction = program.instructions.get(name)
    if instruction is None or (name, index) in seen or len(seen) > _DEPTH:
        return None
    seen.add((name, index))
    opcode = instruction.opcode
    if opcode == "parameter":
        return _parameter(program, instruction, index, seen)
    if opcode == "get-tuple-element":
        return _operand(program, instruction, 0, (element(instruction), *index), seen)
    if opcode == "tuple":
        return _operand(program, instruction, index[0], index[1:], seen) if index else None
    if opcode == "while":
        return _loop(program, instruction, index, seen)
    if opcode in ("call", "conditional"):
        branches = [program.roots[branch] for branch in instruction.called if branch in program.roots]
        found = [one for root in branches if (one := _follow(program, root.name, index, seen)) is not None]
        return next((one for one in found if program.stack(one.operation)), found[0] if found else Origin(instruction))
    if opcode == "fusion":
        return _fusion(program, instruction, index, seen)
    if opcode in _STARTS:
        return _operand(program, instruction, 0, (), seen)
    if opcode in _TOGETHER and len(instruction.operands) > 1 and index:
        return _operand(program, instruction, index[0], (), seen)
    if (opcode in _MOVES and not _is_meant(program, instruction)) or target(instruction) == JOINED:
        return _moved(program, instruction, index, seen)
    if target(instruction) == "AllocateBuffer":
        return _reserved(program, instruction, seen)
    if opcode == "dynamic-update-slice":
        return _update(program, instruction, instruction)
    return Origin(instruction, body=instruction)


def _operand(program: Program, instruction: Instruction, number: int, index: Index, seen: set[tuple[str, Index]]):
    if number >= len(instruction.operands):
        return None
    return _follow(program, instruction.operands[number], index, seen)


def _is_meant(program: Program, instruction: Instruction) -> bool:
    """Whether the user asked for this copy (a transpose, a broadcast), and not the compiler."""
    if instruction.opcode != "copy" or not instruction.op_name:
        return False
    source = program.operand(instruction)
    return source is None or source.op_name != instruction.op_name


def _moved(program: Program, instruction: Instruction, index: Index, seen: set[tuple[str, Index]]) -> Origin | None:
    found = _operand(program, instruction, 0, index, seen)
    return replace(found, body=found.body or instruction) if found else None


def _parameter(program: Program, parameter: Instruction, index: Index, seen: set[tuple[str, Index]]) -> Origin | None:
    if parameter.computation == program.module.entry:
        return Origin(parameter, argument=parameter)
    caller = program.callers.get(parameter.computation)
    if caller is None:
        return None
    if caller.opcode == "while":
        return _loop(program, caller, index, seen)
    number = next((n for n, one in program.parameters[parameter.computation].items() if one is parameter), 0)
    if caller.opcode == "conditional":
        number = 1 + caller.called.index(parameter.computation)
    return _operand(program, caller, number, index, seen)


def _loop(program: Program, loop: Instruction, index: Index, seen: set[tuple[str, Index]]) -> Origin | None:
    """What the body writes into an element of its state; if it only hands that on, what it was before the loop."""
    root = program.roots.get(called(loop, "body"))
    if root is not None and root.opcode == "tuple" and index and index[0] < len(root.operands):
        written = program.instructions.get(root.operands[index[0]])
        unchanged = written is not None and written.opcode == "get-tuple-element" and element(written) == index[0]
        if written is not None and not unchanged:
            found = _follow(program, written.name, index[1:], seen)
            if found is not None and (found.argument is None or found.loop is not None):
                return found
    return _operand(program, loop, 0, index, seen)


def _fusion(program: Program, fusion: Instruction, index: Index, seen: set[tuple[str, Index]]) -> Origin:
    root = program.roots.get(called(fusion, "calls"))
    found = _follow(program, root.name, index, seen) if root is not None else None
    if found is None:
        return Origin(fusion, body=fusion)
    if found.argument is None and not program.stack(found.operation):
        named = _named_part(program, found.operation)
        found = replace(found, operation=named or (fusion if program.stack(fusion) else found.operation))
    return replace(found, body=fusion)


def _named_part(program: Program, instruction: Instruction) -> Instruction | None:
    """The operation that this one only moves or converts, if the compiler says where that is from."""
    current: Instruction | None = instruction
    while current is not None and current.opcode in _WITH_THE_LOOP:
        current = program.operand(current)
        if current is not None and program.stack(current):
            return current
    return None


def size(instruction: Instruction) -> int:
    """Bytes of all that an instruction yields, without padding."""
    return sum(array.logical_bytes for array in arrays(instruction.shape))


def _update(program: Program, update: Instruction, body: Instruction) -> Origin:
    """An update of a slice. In a loop that stacks its results, what is stacked; else the update itself."""
    loop = program.loop_around(update.computation)
    if loop is None or not _belongs(program, update, loop):
        return Origin(update, body=body)
    name = update.operands[1] if len(update.operands) > 1 else ""
    found: Origin | None = None
    for _ in range(_DEPTH):
        found = _follow(program, name, (), set())
        if found is None or found.argument is not None:
            break
        if found.operation.opcode not in _WITH_THE_LOOP | {"select"} or not _belongs(program, found.operation, loop):
            break
        name = _moved_from(program, found.operation)
    if found is None:
        return Origin(update, loop=loop, body=body)
    return replace(found, loop=loop, body=body)


def _moved_from(program: Program, part: Instruction) -> str:
    """What an operation moves; of a choice between two values, the one that is no constant."""
    choices = part.operands[1:] if part.opcode == "select" else part.operands[:1]
    for name in choices:
        one = program.instructions.get(name)
        if one is not None and one.opcode not in ("broadcast", "constant"):
            return name
    return choices[0] if choices else ""


def _belongs(program: Program, part: Instruction, loop: Instruction) -> bool:
    """Whether an operation comes with the loop and is not the user's own."""
    mine, loops = program.stack(part), program.stack(loop)
    return not mine or not loops or (mine[-1].file, mine[-1].line) == (loops[-1].file, loops[-1].line)


def _reserved(program: Program, buffer: Instruction, seen: set[tuple[str, Index]]) -> Origin:
    """A buffer that is only reserved here: whoever writes into it first."""
    for user in program.users.get(buffer.name, ()):
        if user.opcode == "tuple":
            position = user.operands.index(buffer.name)
            for loop in program.users.get(user.name, ()):
                found = _loop(program, loop, (position,), seen) if loop.opcode == "while" else None
                if found is not None and target(found.operation) != "AllocateBuffer":
                    return found
        elif user.opcode in ("fusion", "dynamic-update-slice"):
            found = _follow(program, user.name, (), seen)
            if found is not None:
                return found
    return Origin(buffer, body=buffer)


def _with_source(program: Program, found: Origin) -> Origin:
    """An operation that the compiler put in belongs to what it changes: an argument or another operation."""
    current = found.operation
    for _ in range(_DEPTH):
        if current.opcode == "parameter" and current.computation == program.module.entry:
            return replace(found, argument=current)
        if program.stack(current):
            return replace(found, place=current)
        before = [one for name in current.operands if (one := program.instructions.get(name)) is not None]
        if current.opcode in ("parameter", "get-tuple-element") or not before:
            traced = _follow(program, current.name, (), set())
            if traced is None or traced.operation is current:
                return found
            current = traced.operation
        else:
            current = max(before, key=size)
    return found


def uses(program: Program, name: str, index: Index = ()) -> Iterator[Instruction]:
    """The operations that read a value, also inside fusions, loops and calls, and behind what the compiler put in
    itself; at most some hundred."""
    frontier: list[tuple[str, Index]] = [(name, index)]
    seen: set[tuple[str, Index]] = set()
    for name, index in frontier:
        if (name, index) in seen or len(seen) > _USES:
            continue
        seen.add((name, index))
        for user in program.users.get(name, ()):
            opcode = user.opcode
            if opcode == "get-tuple-element":
                if not index or element(user) == index[0]:
                    frontier.append((user.name, index[1:]))
            elif opcode == "tuple":
                frontier += [(user.name, (n, *index)) for n, one in enumerate(user.operands) if one == name]
                frontier += _handed_on(program, user, name, index)
            elif opcode == "while":
                body = program.parameters.get(called(user, "body"), {}).get(0)
                frontier += [(user.name, index)] + ([(body.name, index)] if body is not None else [])
            elif opcode in ("fusion", "call", "conditional"):
                yield user
                frontier += _entered(program, user, name, index)
                if not user.op_name:
                    frontier.append((user.name, ()))
            elif opcode in _MOVES or target(user) == JOINED:
                frontier.append((user.name, index))
            elif opcode in _STARTS:
                frontier.append((user.name, (0,) if opcode == "copy-start" else ()))
            else:
                yield user
                if not user.op_name:
                    frontier.append((user.name, ()))


def _handed_on(program: Program, tuple_: Instruction, name: str, index: Index) -> list[tuple[str, Index]]:
    """A root hands its elements to whoever runs its computation."""
    caller = program.callers.get(tuple_.computation) if tuple_.is_root else None
    if caller is None or caller.opcode not in ("while", "call", "conditional"):
        return []
    return [(caller.name, (n, *index)) for n, one in enumerate(tuple_.operands) if one == name]


def _entered(program: Program, caller: Instruction, name: str, index: Index) -> list[tuple[str, Index]]:
    found: list[tuple[str, Index]] = []
    for computation in caller.called:
        for number, parameter in program.parameters.get(computation, {}).items():
            at = number if caller.opcode != "conditional" else 1 + caller.called.index(computation)
            if at < len(caller.operands) and caller.operands[at] == name:
                found.append((parameter.name, index))
    return found
