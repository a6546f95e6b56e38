"""Everything known of the machine, found without importing a framework, starting a backend or opening a chip."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tpumagic.events import Host
from tpumagic.runtime.devices import Chip, find_chips
from tpumagic.runtime.files import text
from tpumagic.runtime.hosting import Hosting, find_hosting
from tpumagic.runtime.library import Library, find_libraries
from tpumagic.runtime.lock import Lock, find_lock
from tpumagic.runtime.metadata import Fetch, Metadata
from tpumagic.runtime.owners import Owner, find_owners
from tpumagic.runtime.process import Process, find_process
from tpumagic.runtime.versions import Pin, installed, pins

_VARIABLES = re.compile(
    r"(?:JAX|TPU|XLA|LIBTPU|PJRT|MEGASCALE|XRT|TORCH_TPU|PT_XLA|CLOUD_TPU)_\w+"
    r"|ALLOW_MULTIPLE_LIBTPU_LOAD|COLAB_TPU_1VM|COLAB_TPU_ADDR|COLAB_RELEASE_TAG|KAGGLE_KERNEL_RUN_TYPE|ISTPUVM"
    r"|KERAS_BACKEND|KUBERNETES_SERVICE_HOST|VBAR_CONTROL_SERVICE_URL|VERTEX_PRODUCT"
)
_PRIVATE = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|AUTH")
_CHOSEN = re.compile(r"\[(\w+)\]")
_VALUE_LIMIT = 2000


@dataclass(frozen=True)
class Environment:
    """The machine, and this process on it.

    libraries: every libtpu.so that a framework would look for. lock: libtpu's lock file, None if there is none.
    versions: package and version; variables: those that frameworks and TPU hosts read; system: the operating system and
    processor. hugepages: how Linux uses transparent huge pages (``always``, ``madvise``, ``never``), None if it does
    not say.
    """

    hosting: Hosting
    chips: tuple[Chip, ...]
    owners: tuple[Owner, ...]
    versions: tuple[tuple[str, str], ...]
    pins: tuple[Pin, ...]
    python: str
    system: str
    variables: tuple[tuple[str, str], ...]
    libraries: tuple[Library, ...] = ()
    lock: Lock | None = None
    hugepages: str | None = None
    process: Process = field(default_factory=Process)

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
            "libraries": [asdict(library) for library in self.libraries],
            "lock": None if self.lock is None else asdict(self.lock),
            "hugepages": self.hugepages,
            "process": asdict(self.process),
        }


def detect(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    fetch: Fetch | None = None,
    versions: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
    process: Process | None = None,
) -> Environment:
    """Looks at the machine below root; takes less than a second and never raises. fetch asks the metadata server,
    versions are the installed packages, path is the import path."""
    environ = os.environ if environ is None else environ
    versions = installed() if versions is None else versions
    path = sys.path if path is None else path
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
        libraries=find_libraries(root, environ, versions, path),
        lock=find_lock(root),
        hugepages=_hugepages(root),
        process=find_process() if process is None else process,
    )


def variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those that frameworks and TPU hosts read, sorted by name; secrets are left out and long values cut."""
    return tuple(
        (name, value[:_VALUE_LIMIT])
        for name, value in sorted(environ.items())
        if _VARIABLES.fullmatch(name) and not _PRIVATE.search(name)
    )


def host(environment: Environment, process: Process | None = None) -> Host:
    """What the passes need of it, and of this process as it is now."""
    hosting = environment.hosting
    # The list of loaded libraries takes milliseconds, and is of interest only after an installation.
    now = process or find_process(maps=None if _libtpu_changed(environment.libraries) else "")
    return Host(
        kind=hosting.kind,
        accelerator_type=hosting.accelerator_type,
        chip_count=len(environment.chips),
        usable_chip_count=sum(chip.usable for chip in environment.chips),
        worker_count=hosting.worker_count,
        worker=hosting.worker,
        libtpu_version=environment.version("libtpu"),
        variables=environment.variables,
        holders=tuple((owner.pid, owner.name) for owner in environment.owners if not owner.mine),
        container=hosting.container,
        imported=now.imported,
        keras_backend=now.keras_backend,
        libtpu_replaced=None if now.library is None else now.library.replaced,
    )


def may_be_tpu_host() -> bool:
    """Whether a longer look at this machine is worth its time: something here speaks of TPUs."""
    return (
        any(name.startswith(("TPU_", "MEGASCALE_")) for name in os.environ)
        or Path("/dev/vfio").exists()
        or Path("/dev/accel0").exists()
    )


def _libtpu_changed(libraries: tuple[Library, ...]) -> bool:
    """A libtpu.so has another size than when the machine was looked at, or is gone."""
    for library in libraries:
        try:
            size = os.path.getsize(library.path)
        except (OSError, ValueError):
            size = None
        if size != library.size_bytes:
            return True
    return False


def _hugepages(root: Path) -> str | None:
    """The word in brackets: ``always [madvise] never``."""
    match = _CHOSEN.search(text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return match[1] if match else None
