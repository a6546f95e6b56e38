"""TPU chips of this machine, from the PCI bus and the device nodes.

Nothing is opened: looking never takes a chip from anyone. Every path is read below a root, ``/`` on a real machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tpumagic.runtime.files import entries, text

GOOGLE_PCI_VENDOR = 0x1AE0
GIB = 2**30


@dataclass(frozen=True)
class ChipModel:
    """One generation of chips. hbm_bytes: memory of a chip; devices_per_chip: how many devices JAX shows for it;
    peak_bf16_tflops per chip. None where no source says it."""

    name: str
    hbm_bytes: int | None
    devices_per_chip: int | None
    peak_bf16_tflops: int | None = None

    @property
    def hbm_bytes_per_device(self) -> int | None:
        """Memory of one device, None where no source says it."""
        if self.hbm_bytes is None or self.devices_per_chip is None:
            return None
        return self.hbm_bytes // self.devices_per_chip


V2 = ChipModel("v2", 16 * GIB, 2)
V3 = ChipModel("v3", 32 * GIB, 2)

CHIP_MODELS: dict[int, ChipModel] = {
    0x0027: V3,
    0x005E: ChipModel("v4", 32 * GIB, 1, 275),
    0x0062: ChipModel("v5p", 95 * GIB, 1, 459),
    0x0063: ChipModel("v5e", 16 * GIB, 1, 197),
    0x006F: ChipModel("v6e", 32 * GIB, 1, 918),
    0x0076: ChipModel("tpu7x", 192 * GIB, 2, 2307),
    0x007C: ChipModel("tpu8t", None, None),
    0x0083: ChipModel("tpu8i", None, None),
}
"""PCI device number -> model.

Numbers as in JAX's hardware_utils, tpu-info's TpuChip and PyTorch/XLA's tpu module; memory and peak from the tables of
TorchTPU and cloud.google.com/tpu/docs. v2 and v3 have 8 and 16 GiB for each of their two cores.
"""

CHIP_MODELS_BY_SUBSYSTEM: dict[tuple[int, int], ChipModel] = {(0x0027, 0x004E): V2, (0x0027, 0x004F): V3}
"""v2 and v3 share a device number; the subsystem tells them apart (tpu-info)."""

_PCI_ADDRESS = re.compile(r"(?P<chip>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]")
_ACCEL_NODE = re.compile(r"accel(\d+)")


@dataclass(frozen=True)
class Chip:
    """A chip on the PCI bus. nodes: its device nodes, two where it shows two functions, none if there are none.
    usable: every function has a node that this process may open."""

    address: str
    model: ChipModel
    nodes: tuple[str, ...]
    usable: bool


def find_chips(root: Path = Path("/")) -> tuple[Chip, ...]:
    """All TPU chips, in the order of their PCI addresses. What cannot be read counts as absent.

    A TPU7x shows two functions (``.0`` and ``.1``) for one chip, so functions are grouped by their address.
    """
    functions: dict[str, tuple[ChipModel, list[Path]]] = {}
    for path in entries(root / "sys/bus/pci/devices"):
        match = _PCI_ADDRESS.fullmatch(path.name)
        model = _model(path) if match else None
        if match and model:
            functions.setdefault(match["chip"], (model, []))[1].append(path)
    accel_nodes = sorted(
        (path.name for path in entries(root / "dev") if _ACCEL_NODE.fullmatch(path.name)),
        key=lambda name: int(name.removeprefix("accel")),
    )
    chips: list[Chip] = []
    for index, (address, (model, paths)) in enumerate(functions.items()):
        nodes = tuple(node for path in paths if (node := _vfio_node(root, path)))
        complete = len(nodes) == len(paths)
        if not nodes and index < len(accel_nodes):
            nodes, complete = (f"/dev/{accel_nodes[index]}",), True
        chips.append(Chip(address, model, nodes, complete and all(_may_open(root, node) for node in nodes)))
    return tuple(chips)


def _model(device: Path) -> ChipModel | None:
    if _hexadecimal(device / "vendor") != GOOGLE_PCI_VENDOR:
        return None
    number = _hexadecimal(device / "device")
    subsystem = _hexadecimal(device / "subsystem_device")
    if number is None:
        return None
    if subsystem is not None and (number, subsystem) in CHIP_MODELS_BY_SUBSYSTEM:
        return CHIP_MODELS_BY_SUBSYSTEM[number, subsystem]
    return CHIP_MODELS.get(number)


def _vfio_node(root: Path, device: Path) -> str | None:
    """``/dev/vfio/N`` of a PCI function; N is its IOMMU group, not the chip's index."""
    with contextlib.suppress(OSError):
        group = os.path.basename(os.readlink(device / "iommu_group"))
        if group.isdecimal() and (root / "dev/vfio" / group).exists():
            return f"/dev/vfio/{group}"
    return None


def _may_open(root: Path, node: str) -> bool:
    return os.access(root / node.lstrip("/"), os.R_OK | os.W_OK)


def _hexadecimal(path: Path) -> int | None:
    try:
        return int(text(path), 16)
    except ValueError:
        return None
