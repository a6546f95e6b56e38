"""Recompilations that have one cause: what the findings are made of."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from tpumagic.events import Compile, Program, Signature, SourceSite
from tpumagic.passes.signature_difference import FORGOTTEN, Difference

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|inf|nan)j?", re.IGNORECASE)
_ARRAY = re.compile(r"[a-z]+\d*[a-z0-9_]*\[[\d,]*\]")


@dataclass(frozen=True)
class Recompilation:
    """One compilation with its cause. old: the signature it is compared with, None if an equal one was dropped;
    found: in what they differ, the cause first; site: the line of the call."""

    kind: str
    program: Program
    compilation: Compile
    new: Signature
    old: Signature | None
    found: tuple[Difference, ...]
    site: SourceSite | None

    @property
    def causes(self) -> tuple[Difference, ...]:
        """The differences of the kind that explains it."""
        return tuple(difference for difference in self.found if difference.kind == self.kind)


@dataclass(frozen=True)
class Group:
    """Recompilations of one function with one kind of cause at one line, in order."""

    members: tuple[Recompilation, ...]

    @property
    def kind(self) -> str:
        """What kind of cause it is, without the family."""
        return self.members[0].kind

    @property
    def last(self) -> Recompilation:
        """The latest compilation."""
        return self.members[-1]

    @property
    def count(self) -> int:
        """How many compilations there are."""
        return len(self.members)

    @property
    def seconds(self) -> float:
        """What they took together."""
        return sum(one.compilation.seconds for one in self.members)

    @cached_property
    def main(self) -> Difference:
        """A difference of the name that changed most often."""
        counts = Counter(difference.name for one in self.members for difference in one.causes)
        best = max(counts.values())
        return next(d for one in self.members for d in one.causes if counts[d.name] == best)

    @cached_property
    def values(self) -> list[str]:
        """What the main name was, in order and without repetition, the value before the first change included."""
        found: list[str] = []
        for one in self.members:
            for difference in one.causes:
                if difference.name == self.main.name:
                    found += [difference.old_text, difference.new_text]
        return list(dict.fromkeys(found))

    @cached_property
    def others(self) -> list[str]:
        """Other names that changed in the same way."""
        names = [difference.name for one in self.members for difference in one.causes]
        return [name for name in dict.fromkeys(names) if name != self.main.name]

    @cached_property
    def captured(self) -> list[str]:
        """Texts of the captured values that are not the same in all functions of the group."""
        found: list[str] = []
        for one in self.members:
            if one.old is not None:
                before, after = dict(one.old.function.closure), dict(one.new.function.closure)
                for name in {**before, **after}:
                    if before.get(name) != after.get(name):
                        found += [before.get(name, FORGOTTEN), after.get(name, FORGOTTEN)]
        return found


def is_number(text: str) -> bool:
    """Whether a value's text is that of a number; flags are none."""
    return _NUMBER.fullmatch(text) is not None


def is_data(text: str) -> bool:
    """Whether a captured value could have been an argument: a number or an array."""
    return is_number(text) or _ARRAY.fullmatch(text) is not None
