"""Which TPU a cell, a call or a run is compiled for: the one that it names, else the notebook's default, else the TPU of
this host."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tpumagic.numbers import capacity_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpumagic.events import Backend
    from tpumagic.plans import Target
    from tpumagic.runtime import Environment

_default: Target | None = None


def default() -> Target | None:
    """What ``%tpu_env --target`` or ``tpumagic run --target`` has set for this process; None if nothing."""
    return _default


def set_default(target: Target | None) -> None:
    """Set it, or take it away with None."""
    global _default
    _default = target


def parse(name: str) -> Target:
    """The target of a name. Raises UnknownTargetError, a ValueError of one sentence."""
    from tpumagic.compiler.targets import parse_target

    return parse_target(name)


def in_words(target: Target) -> str:
    """``v5e-8: 8 chips, 8 devices, 15.75 GiB HBM per device``."""
    chips = f"{count_text(target.chips)} chip{'' if target.chips == 1 else 's'}"
    devices = f"{count_text(target.devices)} device{'' if target.devices == 1 else 's'}"
    return f"{target.name}: {chips}, {devices}, {capacity_text(target.hbm_bytes)} HBM per device"


def chosen(named: Target | None) -> Target | None:
    """The named target, else the default, else what this host is itself; None on a host without a TPU."""
    return named or default() or of_this_host()


def of_this_host() -> Target | None:
    """The target that this host's own TPU is, as JAX sees it or, before JAX has started, as its PCI bus tells; None
    without a TPU. Starts nothing."""
    from tpumagic import runtime
    from tpumagic.backends.set_up import describe_imported

    return of_host(describe_imported(), runtime.detect)


def of_host(backends: Sequence[Backend], detect: Callable[[], Environment]) -> Target | None:
    """The same from what frameworks say of themselves, and from the machine, which is looked at only if they are not
    running."""
    from tpumagic.compiler.targets import CHIPS, target_for

    for backend in backends:
        if backend.framework == "jax" and backend.platform is not None:
            is_tpu = backend.platform == "tpu" and backend.device_kind and backend.device_count
            return target_for(backend.device_kind or "", backend.device_count or 0) if is_tpu else None
    environment = detect()
    usable = [chip.model for chip in environment.chips if chip.usable]
    model = CHIPS.get(usable[0].name) if usable else None
    if model is None:
        return None
    chips = len(usable) * (environment.hosting.worker_count or 1)
    return target_for(model.device_kinds[0], chips * model.devices_per_chip)


def prepare_cpu_devices(target: Target) -> None:
    """Give JAX, which has not started, as many CPU devices as the target has; nothing where it will use a real TPU."""
    from tpumagic import runtime
    from tpumagic.runtime.plan import cpu_device_steps, plan

    if plan("jax", runtime.detect(), os.environ, frozenset(sys.modules)).cpu is None:
        return
    for step in cpu_device_steps(target.devices, os.environ):
        os.environ[step.name] = step.value or ""
