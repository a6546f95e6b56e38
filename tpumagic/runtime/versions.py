"""Installed packages and whether they fit together, read from their metadata: nothing is imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

PACKAGES: tuple[str, ...] = (
    "jax", "jaxlib", "libtpu", "libtpu-nightly", "flax", "optax", "equinox", "torch", "torch_xla", "torch_tpu", "tensorflow",
    "tensorflow-tpu", "tensorflow-cpu", "keras", "mxnet", "numpy", "tpu-info", "ipython", "ipykernel", "ipywidgets",
)  # fmt: skip
"""What a card tells about, in its order."""

_METADATA = re.compile(r"(?P<name>[\w.]+)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_SEPARATORS = re.compile(r"[-_.]+")

Verdict = Literal["as pinned", "shipped by this image", "off pin"]

PINS: dict[str, dict[str, dict[str, str]]] = {
    "jax": {
        version: {"libtpu": libtpu}
        for version, libtpu in {
            "0.7.0": "0.0.19.*", "0.7.1": "0.0.20.*", "0.7.2": "0.0.23", "0.8.0": "0.0.24.*", "0.8.1": "0.0.30.*",
            "0.8.2": "0.0.32.*", "0.8.3": "0.0.32.*", "0.9.0": "0.0.34.*", "0.9.1": "0.0.35.*", "0.9.2": "0.0.37.*",
            "0.10.0": "0.0.40.*", "0.10.1": "0.0.41.*", "0.10.2": "0.0.42.*", "0.11.0": "0.0.44.*",
            "0.12.0": "0.0.50.*", "0.12.0.1": "0.0.50.*",
        }.items()
    },
    "torch_xla": {
        "2.7": {"torch": "2.7.*", "libtpu": "0.0.11.1"},
        "2.8": {"torch": "2.8.*", "libtpu": "0.0.17"},
        "2.9": {"torch": "2.9.*", "libtpu": "0.0.21.*"},
    },
    "torch_tpu": {"0.2": {"torch": ">=2.11", "libtpu": ">=0.0.50"}},
}  # fmt: skip
"""Package -> its version (or the start of it) -> what it declares to need.

From the ``tpu`` extras in the setup.py of JAX and PyTorch/XLA releases and the metadata of their wheels. PyTorch/XLA
2.9 declares libtpu 0.0.21, and its fixes 0.0.21.1 and so on serve it as well.
"""

IMAGES: dict[str, tuple[dict[str, str], ...]] = {
    "colab": ({"jax": "0.7.2", "libtpu": "0.0.21.1", "torch_xla": "2.9"},),
    "kaggle": ({"jax": "0.7.2", "libtpu": "0.0.17", "torch_xla": "2.8"},),
}
"""Kind of host -> sets of versions that its TPU image ships together, whatever their pins say.

Colab: googlecolab/backend-info, pip-freeze.tpu.txt of 19 August 2026. Kaggle: Kaggle/docker-python, tpu/Dockerfile of
12 August 2026.
"""


@dataclass(frozen=True)
class Pin:
    """What one installed package wants of another, and what is there."""

    package: str
    version: str
    needs: str
    wanted: str
    found: str
    verdict: Verdict


def installed(path: Sequence[str] | None = None) -> dict[str, str]:
    """Name -> version of what is installed of PACKAGES on the import path, by the names of the metadata folders:
    reading them through importlib would take longer than all other looks at the machine together."""
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        try:
            names = os.listdir(folder or ".")
        except (OSError, ValueError):
            continue
        for name in names:
            match = _METADATA.fullmatch(name)
            if match:
                found.setdefault(_SEPARATORS.sub("-", match["name"]).lower(), match["version"])
    keys = {name: _SEPARATORS.sub("-", name) for name in PACKAGES}
    return {name: found[key] for name, key in keys.items() if key in found}


def pins(versions: Mapping[str, str], host_kind: str = "machine") -> tuple[Pin, ...]:
    """Verdicts over the installed packages. A version that PINS does not know has none; a missing libtpu has none
    either, since a machine without a TPU needs none."""
    return tuple(_pins(versions, host_kind))


def wanted(package: str, version: str, needs: str) -> str | None:
    """What a version of a package needs of another, None if that is not known."""
    table = PINS.get(package, {})
    line = ".".join(version.split(".")[:2])
    row = table.get(version) or table.get(line)
    if row is None and (package, needs) == ("torch_xla", "torch"):
        return f"{line}.*"  # it is compiled against one line of torch
    return row.get(needs) if row else None


def fits(version: str, specification: str) -> bool:
    """``0.0.42.1`` fits ``0.0.42.*``; ``2.12.0`` fits ``>=2.11``; without either sign the versions must be equal,
    apart from a local part (``2.9.0+cpu``)."""
    version = version.partition("+")[0]
    if specification.startswith(">="):
        return numbers(version) >= numbers(specification[2:])
    if specification.endswith(".*"):
        return f"{version}.".startswith(specification[:-1])
    return version == specification


def _pins(versions: Mapping[str, str], host_kind: str) -> Iterator[Pin]:
    for package in PINS:
        version = versions.get(package)
        if version is None:
            continue
        for needs in ("torch", "libtpu"):
            specification = wanted(package, version, needs)
            found = versions.get(needs)
            if specification is None or found is None:
                continue
            verdict: Verdict = "off pin"
            if fits(found, specification):
                verdict = "as pinned"
            elif _shipped(versions, host_kind, package, needs):
                verdict = "shipped by this image"
            yield Pin(package, version, needs, specification, found, verdict)


def _shipped(versions: Mapping[str, str], host_kind: str, *names: str) -> bool:
    """The image ships exactly these versions of the two packages."""
    return any(
        all(name in image and f"{versions.get(name, '')}.".startswith(f"{image[name]}.") for name in names)
        for image in IMAGES.get(host_kind, ())
    )


def numbers(version: str) -> tuple[int, ...]:
    """``0.0.42.1`` as numbers that compare; at most four of them."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:4])
