"""What is wrong with the machine itself, whatever a notebook does on it."""

from __future__ import annotations

from collections.abc import Iterator

from tpumagic.runtime.card import Problem
from tpumagic.runtime.environment import Environment


def find(environment: Environment) -> tuple[Problem, ...]:
    """Chips that cannot be opened or are held by another process, and packages that do not fit together."""
    return (*_closed(environment), *_held(environment), *_off_pin(environment))


def _closed(environment: Environment) -> Iterator[Problem]:
    closed = [chip for chip in environment.chips if not chip.usable]
    if closed:
        nodes = ", ".join(chip.node for chip in closed if chip.node) or "no device node for them"
        yield Problem(
            f"{len(closed)} of {len(environment.chips)} TPU chips cannot be opened ({nodes}).",
            "In a container, pass the nodes (docker run --privileged, or --device for each of them); else give this user "
            "the right to read and write them.",
        )


def _held(environment: Environment) -> Iterator[Problem]:
    for owner in environment.owners:
        if owner.mine:
            continue
        what = f"the Jupyter kernel {owner.kernel}" if owner.kernel else owner.command[:80] or "a command unknown"
        yield Problem(
            f"The TPU is held by process {owner.pid}: {what}.",
            f"Shut that {'kernel' if owner.kernel else 'process'} down: only one process can use a chip at a time.",
        )


def _off_pin(environment: Environment) -> Iterator[Problem]:
    for pin in environment.pins:
        # Without a chip, a libtpu that JAX did not ask for only compiles, and may have been chosen for that.
        if pin.verdict == "off pin" and environment.chips:
            extra = "jax[tpu]" if pin.package == "jax" else f"{pin.package}[tpu]"
            yield Problem(
                f"{pin.package} {pin.version} asks for {pin.needs} {pin.wanted}, and {pin.found} is installed.",
                f"If it fails to start: pip install '{extra}=={pin.version}', then restart the kernel.",
            )
