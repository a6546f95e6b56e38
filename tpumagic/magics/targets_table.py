"""``tpumagic targets``: every target with the figures of its chips, and where these are from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tpumagic.compiler.targets import CHIPS, chip, known_targets
from tpumagic.numbers import bandwidth_text, capacity_text, count_text, flops_text

_HEADS = ("target", "chips", "devices", "HBM per device", "bf16 peak", "HBM bandwidth")


def text() -> str:
    """The table for a terminal; all figures are per device."""
    rows = [
        (
            target.name,
            count_text(target.chips),
            count_text(target.devices),
            capacity_text(target.hbm_bytes),
            flops_text(chip(target.chip).bf16_flops),
            bandwidth_text(chip(target.chip).hbm_bytes_per_s),
        )
        for target in known_targets()
    ]
    widths = [max(len(row[n]) for row in (_HEADS, *rows)) for n in range(len(_HEADS))]
    lines = [_line(row, widths) for row in (_HEADS, *rows)]
    counts = {target.chip: target.name == f"{target.chip}-{target.chips}" for target in known_targets()}
    by_chips = [name for name, counts_chips in counts.items() if counts_chips]
    lines += ["", f"The number in a name counts chips for {' and '.join(by_chips)}, TensorCores for the others."]
    lines.append(
        "HBM is what the compiler lets a program use; peak and bandwidth are of one device as JAX counts them."
    )
    lines += ["", "Sources", *_sources()]
    return "\n".join(lines)


def data() -> dict[str, Any]:
    """The same for programs. bf16_flops and hbm_bytes_per_s: of one device, per second."""
    return {
        "version": 1,
        "targets": [
            {
                **asdict(target),
                "bf16_flops": chip(target.chip).bf16_flops,
                "hbm_bytes_per_s": chip(target.chip).hbm_bytes_per_s,
                "sources": list(chip(target.chip).sources),
            }
            for target in known_targets()
        ],
    }


def _sources() -> list[str]:
    """Each source once, with the chips that it is for where it is not for all."""
    chips: dict[str, list[str]] = {}
    for name, model in CHIPS.items():
        for source in model.sources:
            chips.setdefault(source, []).append(name)
    found: list[str] = []
    for source, names in sorted(chips.items()):
        what, _, where = source.partition(": ")
        found.append(f"  {what}{'' if len(names) == len(CHIPS) else ' of ' + ', '.join(names)}: {where}")
    return found


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, *figures = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join((name.strip().ljust(widths[0]), *figures))
