"""TPU chips of this machine, from the PCI bus and the device nodes; and the processes that hold them.

Nothing is opened: looking never takes a chip from anyone. Every path is read below a root, ``/`` on a real machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


V2 = ChipModel("v2", 16 * GIB, 2)
V3 = ChipModel("v3", 32 * GIB, 2)

CHIP_MODELS: dict[int, ChipModel] = {
    0x0027: V3,
    0x005E: ChipModel("v4", 32 * GIB, 1, 275),
    0x0062: ChipModel("v5p", 95 * GIB, 1, 459),
    0x0063: ChipModel("v5e", 16 * GIB, 1, 197),
    0x006F: ChipModel("v6e", 32 * GIB, 1, 918),
    0x0076: ChipModel("tpu7x", 192 * GIB, 2, 2307),
}
"""PCI device number -> model.

Numbers as in JAX's hardware_utils, tpu-info's TpuChip and PyTorch/XLA's tpu module; memory and peak from the tables of
TorchTPU and cloud.google.com/tpu/docs. v2 and v3 have 8 and 16 GiB for each of their two cores.
"""

CHIP_MODELS_BY_SUBSYSTEM: dict[tuple[int, int], ChipModel] = {(0x0027, 0x004E): V2, (0x0027, 0x004F): V3}
"""v2 and v3 share a device number; the subsystem tells them apart (tpu-info)."""

_PCI_ADDRESS = re.compile(r"(?P<chip>[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]")
_ACCEL_NODE = re.compile(r"accel(\d+)")
_TPU_NODE = re.compile(r"/dev/(?:accel|vfio/)\d+")
_KERNEL_FILE = re.compile(r"kernel-([\w-]+)\.json")


@dataclass(frozen=True)
class Chip:
    """A chip on the PCI bus. node: its device node, None if there is none. usable: this process may open the node."""

    address: str
    model: ChipModel
    node: str | None
    usable: bool


@dataclass(frozen=True)
class Owner:
    """A process that has chips open. kernel: the id of the Jupyter kernel it is, None if it is none. mine: it is this
    very process."""

    pid: int
    command: str
    kernel: str | None
    nodes: tuple[str, ...]
    mine: bool


def find_chips(root: Path = Path("/")) -> tuple[Chip, ...]:
    """All TPU chips, in the order of their PCI addresses. What cannot be read counts as absent.

    A TPU7x shows two functions (``.0`` and ``.1``) for one chip, so functions are grouped by their address.
    """
    functions: dict[str, tuple[Path, ChipModel]] = {}
    for path in _entries(root / "sys/bus/pci/devices"):
        match = _PCI_ADDRESS.fullmatch(path.name)
        model = _model(path) if match else None
        if match and model and match["chip"] not in functions:
            functions[match["chip"]] = (path, model)
    accel_nodes = sorted(
        (path.name for path in _entries(root / "dev") if _ACCEL_NODE.fullmatch(path.name)),
        key=lambda name: int(name.removeprefix("accel")),
    )
    chips: list[Chip] = []
    for index, (address, (path, model)) in enumerate(functions.items()):
        node = _vfio_node(root, path) or (f"/dev/{accel_nodes[index]}" if index < len(accel_nodes) else None)
        usable = node is not None and os.access(root / node.lstrip("/"), os.R_OK | os.W_OK)
        chips.append(Chip(address, model, node, usable))
    return tuple(chips)


def find_owners(root: Path = Path("/"), limit_s: float = 0.3) -> tuple[Owner, ...]:
    """Processes with an open TPU device node, as far as this user may see them: those of other users and other
    containers are invisible. After limit_s the search ends with what was found."""
    deadline = time.monotonic() + limit_s
    owners: list[Owner] = []
    # Plain strings: building ten thousand Paths takes longer than reading what they name.
    proc = os.path.join(root, "proc")
    for name in _names(proc):
        if time.monotonic() > deadline:
            break
        if not name.isdecimal():
            continue
        process = os.path.join(proc, name)
        nodes = {node for node in _open_files(os.path.join(process, "fd")) if _TPU_NODE.fullmatch(node)}
        if nodes:
            pid = int(name)
            command = _read(Path(process, "cmdline")).replace("\0", " ").strip()
            kernel = _KERNEL_FILE.search(command)
            mine = root == Path("/") and pid == os.getpid()
            owners.append(Owner(pid, command, kernel[1] if kernel else None, tuple(sorted(nodes)), mine))
    return tuple(owners)


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


def _open_files(folder: str) -> Iterator[str]:
    for name in _names(folder):
        with contextlib.suppress(OSError):
            yield os.readlink(os.path.join(folder, name))


def _entries(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(_names(str(folder)))]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[:4096].decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _hexadecimal(path: Path) -> int | None:
    try:
        return int(_read(path), 16)
    except ValueError:
        return None
