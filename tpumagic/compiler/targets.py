"""Targets in Google's spellings, the slice that each of them is, and what its chips can do."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tpumagic.plans import Target

GIB = 2**30
MIB = 2**20


class UnknownTargetError(ValueError):
    """There is no such target; the message says in one sentence which there are."""


@dataclass(frozen=True)
class Chip:
    """One generation of TPU. All figures are per device as JAX counts them; None where no source says it.

    devices_per_chip: as JAX shows it. cores_per_chip: TensorCores. clock_hz: of a TensorCore, which the compiler's
    cycles count. bf16_flops, int8_flops, fp8_flops: peaks per second. hbm_bytes_per_s: published bandwidth;
    effective_hbm_bytes_per_s: what the compiler itself reckons with. hbm_bytes: what it lets a program use.
    chip_hbm_bytes: memory of a whole chip. ici_bytes_per_s: of one link, one way. sources: where the figures are from.
    """

    name: str
    device_kinds: tuple[str, ...]
    cores_per_chip: int
    devices_per_chip: int
    clock_hz: float
    bf16_flops: float
    hbm_bytes_per_s: float
    effective_hbm_bytes_per_s: float
    hbm_bytes: int
    chip_hbm_bytes: int
    int8_flops: float | None = None
    fp8_flops: float | None = None
    ici_bytes_per_s: float | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """How the compiler is asked for a target. name: ``v5e:2x4``. chips_per_host_bounds: None for the chip's usual
    hosts. chip_config: None for the usual one."""

    name: str
    chips_per_host_bounds: tuple[int, int, int] | None = None
    chip_config: str | None = None


_PEAKS = "peaks and bandwidth: cloud.google.com/tpu/docs and JAX's pallas/mosaic/tpu_info.py"
_LIMIT = "memory per device: the largest program that libtpu 0.0.42.1 accepts"
_EFFECTIVE = "effective bandwidth: what libtpu's own cost model divides by"
_PUBLIC_CLOCK = "clock: public tables, within 0.3 % of peak over the matrix unit's operations a cycle"
_XPROF_CLOCK = "clock: openxla/xprof, xplane_to_utilization_viewer.cc"
_BOOK_CLOCK = "clock: How to Scale Your Model, tpus"
_LINKS = "links: How to Scale Your Model, tpus"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip(
            name="v2",
            device_kinds=("TPU v2",),
            cores_per_chip=2,
            devices_per_chip=2,
            clock_hz=700e6,
            bf16_flops=23e12,
            hbm_bytes_per_s=350e9,
            effective_hbm_bytes_per_s=317e9,
            hbm_bytes=7662 * MIB,
            chip_hbm_bytes=16 * GIB,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _PUBLIC_CLOCK),
        ),
        Chip(
            name="v3",
            device_kinds=("TPU v3",),
            cores_per_chip=2,
            devices_per_chip=2,
            clock_hz=940e6,
            bf16_flops=61.5e12,
            hbm_bytes_per_s=450e9,
            effective_hbm_bytes_per_s=430e9,
            hbm_bytes=15854 * MIB,
            chip_hbm_bytes=32 * GIB,
            ici_bytes_per_s=100e9,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _PUBLIC_CLOCK, _LINKS),
        ),
        Chip(
            name="v4",
            device_kinds=("TPU v4",),
            cores_per_chip=2,
            devices_per_chip=1,
            clock_hz=1050e6,
            bf16_flops=275e12,
            int8_flops=275e12,
            hbm_bytes_per_s=1228e9,
            effective_hbm_bytes_per_s=982e9,
            hbm_bytes=31485 * MIB,
            chip_hbm_bytes=32 * GIB,
            ici_bytes_per_s=45e9,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _PUBLIC_CLOCK, _LINKS),
        ),
        Chip(
            name="v5e",
            device_kinds=("TPU v5 lite", "TPU v5e", "TPU v5litepod"),
            cores_per_chip=1,
            devices_per_chip=1,
            clock_hz=1500e6,
            bf16_flops=197e12,
            int8_flops=393e12,
            hbm_bytes_per_s=819e9,
            effective_hbm_bytes_per_s=738e9,
            hbm_bytes=16126 * MIB,
            chip_hbm_bytes=16 * GIB,
            ici_bytes_per_s=45e9,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _BOOK_CLOCK, _LINKS),
        ),
        Chip(
            name="v5p",
            device_kinds=("TPU v5", "TPU v5p"),
            cores_per_chip=2,
            devices_per_chip=1,
            clock_hz=1750e6,
            bf16_flops=459e12,
            int8_flops=918e12,
            hbm_bytes_per_s=2765e9,
            effective_hbm_bytes_per_s=2350e9,
            hbm_bytes=98041 * MIB,
            chip_hbm_bytes=96 * GIB,
            ici_bytes_per_s=90e9,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _PUBLIC_CLOCK, _LINKS),
        ),
        Chip(
            name="v6e",
            device_kinds=("TPU v6 lite", "TPU v6e"),
            cores_per_chip=1,
            devices_per_chip=1,
            clock_hz=1750e6,
            bf16_flops=918e12,
            int8_flops=1836e12,
            hbm_bytes_per_s=1638e9,
            effective_hbm_bytes_per_s=1638e9,
            hbm_bytes=31996 * MIB,
            chip_hbm_bytes=32 * GIB,
            ici_bytes_per_s=90e9,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _XPROF_CLOCK, _LINKS),
        ),
        Chip(
            name="tpu7x",
            device_kinds=("TPU7x", "TPU v7x", "TPU v7"),
            cores_per_chip=2,
            devices_per_chip=2,
            clock_hz=1900e6,
            bf16_flops=1154e12,
            fp8_flops=2307e12,
            hbm_bytes_per_s=3686e9,
            effective_hbm_bytes_per_s=3686e9,
            hbm_bytes=97020 * MIB,
            chip_hbm_bytes=192 * GIB,
            sources=(_PEAKS, _EFFECTIVE, _LIMIT, _XPROF_CLOCK),
        ),
    )
}
"""Generation -> figures. v2 and v3 have no integer or fp8 peaks: no faster arithmetic is published for them."""

_COUNTS_CHIPS = frozenset({"v5e", "v6e"})
"""Generations whose suffix counts chips; that of the others counts TensorCores."""

_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16"
_SLICES: dict[str, str] = {
    "v2": "2x2 4x4 8x8 8x16 16x16",
    "v3": "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32",
    "v4": _CUBES,
    "v5e": _FLAT,
    "v5p": f"{_CUBES} 12x16x16 16x16x16 16x16x24",
    "v6e": _FLAT,
    "tpu7x": f"1x1x1 {_CUBES}",
}
"""Chips of the slices that Google offers, as cloud.google.com/tpu/docs lists them, smallest first."""

_ONE_HOST: dict[str, tuple[int, int, int]] = {"1x1": (1, 1, 1), "1x1x1": (1, 1, 1), "2x4": (2, 4, 1)}
"""Slices of one host that is not the usual one of 2x2 chips."""

_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "7x": "tpu7x", "tpu7": "tpu7x"}


def chip(name: str) -> Chip:
    """Figures of a generation, named as in ``Target.chip``. Raises KeyError for an unknown one."""
    return CHIPS[name]


def known_targets() -> tuple[Target, ...]:
    """Every target that there is, generation by generation, smallest first."""
    return tuple(target for target, _ in _KNOWN.values())


def parse_target(text: str) -> Target:
    """A target from Google's spelling, in any case; ``v5litepod-8`` is v5e-8, ``v7x-8`` is tpu7x-8.

    Raises UnknownTargetError.
    """
    wanted = re.sub(r"[\s_]+", "-", text.strip().lower())
    wanted = re.sub(r"^tpu-?(?=v\d)", "", wanted)
    generation, dash, size = wanted.rpartition("-")
    name = f"{_ALIASES.get(generation, generation)}{dash}{size}"
    if name in _KNOWN:
        return _KNOWN[name][0]
    raise UnknownTargetError(_unknown(text, wanted))


def topology_of(target: Target) -> Topology:
    """How to ask the compiler for a target of ``known_targets``. Raises UnknownTargetError for another one."""
    try:
        return _KNOWN[target.name][1]
    except KeyError:
        raise UnknownTargetError(_unknown(target.name, target.name)) from None


def target_for(device_kind: str, devices: int) -> Target | None:
    """The target that so many devices of JAX's kind (``TPU v5 lite``) are; None for other kinds or no whole chips.

    Also for numbers of devices that no slice on offer has, as where a process sees a part of its host.
    """
    for model in CHIPS.values():
        if device_kind in model.device_kinds and devices > 0 and devices % model.devices_per_chip == 0:
            return _target(model, devices // model.devices_per_chip)
    return None


def _target(model: Chip, chips: int) -> Target:
    suffix = chips if model.name in _COUNTS_CHIPS else chips * model.cores_per_chip
    return Target(f"{model.name}-{suffix}", model.name, chips, chips * model.devices_per_chip, model.hbm_bytes)


def _known() -> dict[str, tuple[Target, Topology]]:
    known: dict[str, tuple[Target, Topology]] = {}
    for generation, slices in _SLICES.items():
        for bounds in slices.split():
            chips = 1
            for size in bounds.split("x"):
                chips *= int(size)
            target = _target(CHIPS[generation], chips)
            # Without it v4 is compiled as two devices a chip, each with half of the memory: a false "does not fit".
            config = "megacore" if generation == "v4" else None
            flat = len(bounds.split("x")) == 2 and generation in _COUNTS_CHIPS
            host = _ONE_HOST.get(bounds) if flat or bounds == "1x1x1" else None
            known[target.name] = target, Topology(f"{generation}:{bounds}", host, config)
    return known


_KNOWN = _known()


def _unknown(text: str, wanted: str) -> str:
    generation = _ALIASES.get(wanted.partition("-")[0], wanted.partition("-")[0])
    if generation in _SLICES:
        names = [name for name, (target, _) in _KNOWN.items() if target.chip == generation]
        return f"There is no target {text.strip()!r:.40}: known of {generation} are {', '.join(names)}."
    compact = wanted.replace("-", "")
    close = next((name for name in _KNOWN if name.replace("-", "") == compact), None)
    close = close or next(iter(difflib.get_close_matches(wanted, _KNOWN, n=1, cutoff=0.75)), None)
    names = [name for name, (target, _) in _KNOWN.items() if _is_one_host(target)]
    hint = f" (did you mean {close}?)" if close else ""
    return f"There is no target {text.strip()!r:.40}{hint}: known are {', '.join(names)} and larger slices."


def _is_one_host(target: Target) -> bool:
    return target.chips <= (8 if target.chip in _COUNTS_CHIPS else 4)
