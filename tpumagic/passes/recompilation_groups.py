"""Recompilations that have one cause: what the findings are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from tpumagic.events import Compile, Program, Signature, SourceSite
from tpumagic.passes.signature_difference import Difference


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
