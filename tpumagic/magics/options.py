"""The options of the magics and of the command line, each described once: for parsing, help, completion and the text
step. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpumagic.frameworks import FRAMEWORKS, ON_JAX


def target_names() -> tuple[str, ...]:
    """Every target, generation by generation."""
    from tpumagic.compiler.targets import known_targets

    return tuple(target.name for target in known_targets())


@dataclass(frozen=True)
class Option:
    """One option. metavar: what its value is called, None for a switch. values: what may be meant, for completion."""

    flag: str
    help: str
    metavar: str | None = None
    values: Callable[[], tuple[str, ...]] = tuple

    @property
    def arguments(self) -> dict[str, Any]:
        """For argparse, and for IPython's way of declaring the same."""
        return {"help": self.help} | ({"metavar": self.metavar} if self.metavar else {"action": "store_true"})


_JAX = " or ".join(ON_JAX)

NAME = Option("--name", "a name for this profile", "NAME")
QUIET = Option("--quiet", "keep the report for %%tpu_last and show nothing")
WIDGET = Option("--widget", "show the live view beside the static report (needs anywidget)")
TARGET = Option(
    "--target",
    "the TPU to compile for, to say whether it fits: v5e-1, v6e-8, …; `tpumagic targets` lists all",
    "TARGET",
    target_names,
)
COST = Option("--cost", "wait for the compiler's estimate of the time; an interrupt keeps the plan without it")
REMEDIES = Option(
    "--remedies", "compile it again with donation, jax.checkpoint and other changes, and show what each of them needs"
)
CACHE = Option("--cache", f"with {_JAX}: keep compiled programs in this directory, small ones too", "DIR")
PREVIEW = Option("--preview", "with a framework: only say what would be done")
UNDO = Option("--undo", "put back every variable and setting that %%tpu_env has changed, the default target too")
DEFAULT_TARGET = Option(
    "--target",
    f"the TPU that every profile and dry run of this notebook is for, unless it names another; `none`: no longer. "
    f"With {_JAX}: on a machine without a TPU, also as many CPU devices as that has",
    "TARGET",
    lambda: ("none", *target_names()),
)

PROFILE = (NAME, QUIET, WIDGET, TARGET, COST)
DRY_RUN = (TARGET, COST, REMEDIES)
ENVIRONMENT = (CACHE, DEFAULT_TARGET, PREVIEW, UNDO)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "%%tpu_profile": PROFILE,
    "%tpu_profile": PROFILE,
    "%%tpu_dryrun": DRY_RUN,
    "%tpu_dryrun": DRY_RUN,
    "%tpu_auto": (),
    "%tpu_env": ENVIRONMENT,
    "%tpu_last": (),
}
"""Magic -> its options."""

WORDS: dict[str, tuple[str, ...]] = {"%tpu_auto": ("on", "off"), "%tpu_env": FRAMEWORKS}
"""Magic -> words that may follow besides."""

WITH_CODE = ("%tpu_profile", "%tpu_dryrun")
"""Magics whose options are followed by code of the user's."""

VALUED = tuple(sorted({option.flag for options in OPTIONS.values() for option in options if option.metavar}))
"""Options that have a value."""
