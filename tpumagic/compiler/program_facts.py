"""A compiled program with what is asked of it again and again: instructions by name, their users, who calls what."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from tpumagic.events import SourceSite, Stack
from tpumagic.hlo import Instruction, Module, elements

_INDEX = re.compile(r"\bindex=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_ESCAPED = re.compile(r"\\(.)")
_COUNTED = re.compile(r"[.\d]+$")


@dataclass(frozen=True)
class Program:
    """users: of an instruction, within its computation. callers: of a computation, the instruction that runs it; a
    computation that several call has the first. parameters: of a computation, by number. wide: where the user computes
    with 64 bits, (file, line, operation)."""

    module: Module
    instructions: dict[str, Instruction]
    users: dict[str, list[Instruction]]
    roots: dict[str, Instruction]
    parameters: dict[str, dict[int, Instruction]]
    callers: dict[str, Instruction]
    wide: frozenset[tuple[str | None, int, str]] = frozenset()

    def operand(self, instruction: Instruction, number: int = 0) -> Instruction | None:
        """One of its operands; None if there is none."""
        if number >= len(instruction.operands):
            return None
        return self.instructions.get(instruction.operands[number])

    def stack(self, instruction: Instruction) -> Stack:
        """Where an instruction comes from, outermost first; empty if the compiler does not say."""
        return stack_of(self.module, instruction)

    def arguments(self) -> dict[int, Instruction]:
        """The parameters of the whole program."""
        return self.parameters.get(self.module.entry, {})

    def results(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What the program returns: instruction and index within its tuple, in order."""
        root = self.roots.get(self.module.entry)
        if root is None:
            return ()
        if root.opcode == "tuple":
            return tuple((name, ()) for name in root.operands)
        if root.shape.startswith("("):
            return tuple((root.name, (number,)) for number in range(len(elements(root.shape))))
        return ((root.name, ()),)

    def loop_around(self, computation: str) -> Instruction | None:
        """The innermost loop whose body runs a computation."""
        seen: set[str] = set()
        while computation in self.callers and computation not in seen:
            seen.add(computation)
            caller = self.callers[computation]
            if caller.opcode == "while":
                return caller
            computation = caller.computation
        return None


def index(module: Module, wide: frozenset[tuple[str | None, int, str]] = frozenset()) -> Program:
    """A module, indexed in one pass. wide: as in Program."""
    instructions: dict[str, Instruction] = {}
    users: dict[str, list[Instruction]] = defaultdict(list)
    roots: dict[str, Instruction] = {}
    parameters: dict[str, dict[int, Instruction]] = defaultdict(dict)
    callers: dict[str, Instruction] = {}
    for name, body in module.computations.items():
        for instruction in body:
            instructions[instruction.name] = instruction
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
            for called in instruction.called:
                callers.setdefault(called, instruction)
            if instruction.opcode == "parameter" and instruction.argument_text.strip().isdigit():
                parameters[name][int(instruction.argument_text)] = instruction
            if instruction.is_root:
                roots[name] = instruction
    return Program(module, instructions, dict(users), roots, dict(parameters), callers, wide)


def stack_of(module: Module, instruction: Instruction) -> Stack:
    """Where an instruction of a module comes from, outermost first."""
    return tuple(
        SourceSite(frame.line, file=frame.file, function=frame.function.rpartition(".")[2] or None)
        for frame in module.stack(instruction)
    )


def element(instruction: Instruction) -> int:
    """Which element a get-tuple-element takes."""
    found = _INDEX.search(instruction.attributes)
    return int(found[1]) if found else 0


def target(instruction: Instruction) -> str:
    """What a custom call calls; empty for anything else."""
    found = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    return found[1] if found else ""


def called(instruction: Instruction, role: str) -> str:
    """The computation that an instruction names as ``body``, ``calls`` …; empty if there is none."""
    found = re.search(rf"\b{role}=%?([\w.\-]+)", instruction.attributes)
    return found[1] if found else ""


def name_of(instruction: Instruction) -> str:
    """The user's name of an argument, ``params['w']``; without one, what the compiler calls it."""
    return _ESCAPED.sub(r"\1", instruction.op_name) or instruction.name


def operation(instruction: Instruction) -> str:
    """What it does in JAX's words (``dot_general``); in HLO's where JAX gave no name."""
    last = instruction.op_name.rpartition("/")[2]
    if last and last.isidentifier():
        return last
    if instruction.opcode == "fusion":
        words = _COUNTED.sub("", instruction.name).removesuffix("_fusion")
        return words if words != "fusion" else "fusion"
    return target(instruction) or instruction.opcode
