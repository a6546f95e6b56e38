"""Everything known of the machine, found without importing a framework, starting a backend or opening a chip."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tpumagic.events import Host
from tpumagic.runtime.devices import Chip, Owner, find_chips, find_owners
from tpumagic.runtime.hosting import Hosting, find_hosting
from tpumagic.runtime.metadata import Fetch, Metadata
from tpumagic.runtime.versions import Pin, installed, pins

_VARIABLES = re.compile(
    r"(?:JAX|TPU|XLA|LIBTPU|PJRT|MEGASCALE|XRT|TORCH_TPU|PT_XLA|CLOUD_TPU)_\w+"
    r"|ALLOW_MULTIPLE_LIBTPU_LOAD|COLAB_TPU_1VM|COLAB_TPU_ADDR|COLAB_RELEASE_TAG|KAGGLE_KERNEL_RUN_TYPE|ISTPUVM"
    r"|KERAS_BACKEND|KUBERNETES_SERVICE_HOST|VBAR_CONTROL_SERVICE_URL|VERTEX_PRODUCT"
)
_PRIVATE = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|AUTH")
_VALUE_LIMIT = 2000


@dataclass(frozen=True)
class Environment:
    """The machine. versions: package and version; variables: those that frameworks and TPU hosts read; system: the
    operating system and processor."""

    hosting: Hosting
    chips: tuple[Chip, ...]
    owners: tuple[Owner, ...]
    versions: tuple[tuple[str, str], ...]
    pins: tuple[Pin, ...]
    python: str
    system: str
    variables: tuple[tuple[str, str], ...]

    def version(self, package: str) -> str | None:
        """The installed version of a package, None if it is not installed."""
        return dict(self.versions).get(package)

    def to_dict(self) -> dict[str, object]:
        """The same as JSON; None becomes null."""
        return {
            "host": asdict(self.hosting),
            "chips": [asdict(chip) for chip in self.chips],
            "owners": [asdict(owner) for owner in self.owners],
            "packages": dict(self.versions),
            "pins": [asdict(pin) for pin in self.pins],
            "python": self.python,
            "system": self.system,
            "variables": dict(self.variables),
        }


def detect(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    fetch: Fetch | None = None,
    versions: Mapping[str, str] | None = None,
) -> Environment:
    """Looks at the machine below root; takes less than a second and never raises. fetch asks the metadata server,
    versions are the installed packages."""
    environ = os.environ if environ is None else environ
    versions = installed() if versions is None else versions
    chips = find_chips(root)
    hosting = find_hosting(root, environ, len(chips), fetch or Metadata(environ))
    return Environment(
        hosting=hosting,
        chips=chips,
        owners=find_owners(root) if chips else (),
        versions=tuple(versions.items()),
        pins=pins(versions, hosting.kind),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        variables=variables(environ),
    )


def variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those that frameworks and TPU hosts read, sorted by name; secrets are left out and long values cut."""
    return tuple(
        (name, value[:_VALUE_LIMIT])
        for name, value in sorted(environ.items())
        if _VARIABLES.fullmatch(name) and not _PRIVATE.search(name)
    )


def host(environment: Environment) -> Host:
    """What the passes need of it."""
    hosting = environment.hosting
    return Host(
        kind=hosting.kind,
        accelerator_type=hosting.accelerator_type,
        chip_count=len(environment.chips),
        usable_chip_count=sum(chip.usable for chip in environment.chips),
        worker_count=hosting.worker_count,
        worker=hosting.worker,
        libtpu_version=environment.version("libtpu"),
        variables=environment.variables,
    )
