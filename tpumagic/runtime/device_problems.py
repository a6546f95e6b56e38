"""Chips that cannot be used: no node, no right to open it, held by another process; and the host's own settings."""

from __future__ import annotations

from collections.abc import Iterator

from tpumagic.runtime.devices import Chip
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.hosting import NAMES
from tpumagic.runtime.lock import PATH as LOCK_PATH
from tpumagic.runtime.owners import Owner
from tpumagic.runtime.problem import Problem

_SYSTEM_IMAGES = {
    "v2": "tpu-ubuntu2204-base", "v3": "tpu-ubuntu2204-base", "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e",
}  # fmt: skip
"""Chip -> the runtime version that cloud.google.com/tpu/docs/runtimes names for it. Newer chips have none: their machines
are made with images of Compute Engine."""

_WITHOUT_HUGEPAGES = ("v2", "v3", "v4", "v5p")
"""Chips whose start is not slower without transparent huge pages; JAX warns from v5e on."""

_HOSTED = ("colab", "colab_enterprise", "kaggle")
"""Hosts whose machine the user cannot change."""

_HUGEPAGES = "sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'"
_LOOK = "sudo lsof -w /dev/accel* /dev/vfio/*"


def find(environment: Environment) -> Iterator[Problem]:
    """All of it."""
    yield from _without_node(environment)
    yield from _unreadable(environment)
    yield from _held(environment)
    yield from _lock(environment)
    yield from _metadata(environment)
    yield from _hugepages(environment)
    yield from _no_tpu(environment)


def accelerator_type(chips: tuple[Chip, ...]) -> str | None:
    """What Google calls a slice of these chips on one host, None for chips it has no name for. The number counts
    TensorCores, two a chip, except for v5e and v6e."""
    names = {chip.model.name for chip in chips}
    if len(names) != 1 or not chips[0].model.hbm_bytes:
        return None
    (name,) = names
    if name in ("v5e", "v6e"):
        return f"{'v5litepod' if name == 'v5e' else name}-{len(chips)}"
    return f"{name}-{2 * len(chips)}"


def _without_node(environment: Environment) -> Iterator[Problem]:
    chips = [chip for chip in environment.chips if not chip.nodes]
    if not chips:
        return
    hosting, all_chips = environment.hosting, len(environment.chips)
    fix = f"Start the container with them: docker run --privileged … (it sees {all_chips} on the PCI bus)."
    detail = ""
    if hosting.kind in _HOSTED:
        fix = "Disconnect and delete the runtime, then connect again."
    elif hosting.kind in ("gke", "kubernetes"):
        fix = f"Ask for them in the pod's container: resources: {{limits: {{google.com/tpu: {all_chips}}}}}."
    elif not hosting.container:
        detail = "The system image is too old for this chip, or was made for another one: no driver has taken it."
        image = _SYSTEM_IMAGES.get(chips[0].model.name)
        kind = hosting.accelerator_type or accelerator_type(environment.chips)
        fix = f"Start the machine from an image that is made for {chips[0].model.name}."
        if image and kind:
            fix = (
                "Make the TPU VM anew with its image: gcloud compute tpus tpu-vm create NAME --zone=ZONE "
                f"--accelerator-type={kind} --version={image}"
            )
    verb = "has" if len(chips) == 1 else "have"
    yield Problem(
        f"{len(chips)} of {_chips(all_chips)} {verb} no device node here.", fix, "env.no_device_node", detail=detail
    )


def _unreadable(environment: Environment) -> Iterator[Problem]:
    chips = [chip for chip in environment.chips if chip.nodes and not chip.usable]
    if chips:
        nodes = [node for chip in chips for node in chip.nodes]
        command = f"sudo chmod a+rw {' '.join(nodes)}"
        if environment.hosting.container:
            command = f"docker run --privileged … for the container, or {command} on the machine itself"
        yield Problem(
            f"{len(chips)} of {_chips(len(environment.chips))} may not be opened by this user ({', '.join(nodes)}).",
            f"{command}, then restart the kernel.",
            "env.no_device_node",
        )


def _held(environment: Environment) -> Iterator[Problem]:
    for owner in environment.owners:
        if owner.mine:
            continue
        held = sum(any(node in owner.nodes for node in chip.nodes) for chip in environment.chips)
        part = 0 < held < len(environment.chips)
        what = f"{held} of {_chips(len(environment.chips))} {'is' if held == 1 else 'are'}" if part else "The TPU is"
        yield Problem(
            f"{what} held by {owner.name}.",
            _release(owner),
            "env.tpu_in_use",
            detail="Only one process can use a chip at a time.",
        )


def _release(owner: Owner) -> str:
    if owner.kernel:
        return f"Shut that kernel down in the list of running kernels, or: kill {owner.pid}"
    return f"End that process: kill {owner.pid}"


def _lock(environment: Environment) -> Iterator[Problem]:
    lock = environment.lock
    if lock is None or lock.mine or environment.owners:
        return
    chips = bool(environment.chips)
    kind = "env.tpu_in_use" if chips else "env.compile_only_lock"
    who = f"process {lock.pid}" if lock.pid else "a process of another user or another container"
    if lock.held and not chips:
        yield Problem(
            f"{who[0].upper()}{who[1:]} has libtpu loaded, which lets in one process at a time even without a TPU.",
            "Wait until it has ended; do not remove the lock file while it runs.",
            kind,
            "info",
        )
    elif lock.held:
        look = f"ps -fp {lock.pid}" if lock.pid else f"on the machine itself: {_LOOK}"
        yield Problem(
            f"The TPU is held by {who}: it has libtpu's lock.",
            f"Find it ({look}) and end it; do not remove the lock file while it is held.",
            kind,
        )
    elif not lock.usable:
        yield Problem(
            f"libtpu's lock file {LOCK_PATH} belongs to another user, so libtpu will not start here.",
            f"Remove it if nobody uses it, which this command makes sure of: sudo lsof {LOCK_PATH} || sudo rm {LOCK_PATH}",
            kind,
            "warning" if chips else "info",
        )
    elif lock.held is False and chips:
        yield Problem(
            f"libtpu's lock file {LOCK_PATH} was left by a process that ended abruptly; nobody holds it.",
            "Nothing need be done, since libtpu takes it over. If an old libtpu stumbles over it: "
            f"lsof {LOCK_PATH} || rm {LOCK_PATH}",
            kind,
            "info",
        )


def _metadata(environment: Environment) -> Iterator[Problem]:
    hosting = environment.hosting
    if hosting.metadata in ("not asked", "answered"):
        return
    kind = hosting.accelerator_type or accelerator_type(environment.chips) or "…"
    settings = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": kind,
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    line = ", ".join(f'{name}="{value}"' for name, value in settings.items())
    yield Problem(
        f"The metadata server says nothing ({hosting.metadata}).",
        f"If this host is a slice of its own, before the first import: import os; os.environ.update({line})",
        "env.metadata_unreachable",
        detail="libtpu asks it at its start, with many tries of half a minute each: the first use of a device may hang.",
    )


def _hugepages(environment: Environment) -> Iterator[Problem]:
    names = {chip.model.name for chip in environment.chips} - set(_WITHOUT_HUGEPAGES)
    hosting = environment.hosting
    if not names or environment.hugepages in ("always", None) or hosting.kind in _HOSTED:
        return
    where = " (on the machine itself, not in the container)" if hosting.container else ""
    yield Problem(
        f"Transparent huge pages are set to {environment.hugepages}: {min(names)} starts and ends slower than it could.",
        f"Before the start{where}: {_HUGEPAGES}",
        "env.hugepages",
        "info",
    )


def _no_tpu(environment: Environment) -> Iterator[Problem]:
    """A notebook host that could have a TPU, and whose runtime is one without."""
    hosting = environment.hosting
    ways = {
        "colab": "Runtime > Change runtime type > TPU, then connect again.",
        "colab_enterprise": "Connect to a runtime whose template has a TPU.",
        "kaggle": "Settings > Accelerator > TPU in the notebook's menu.",
    }
    if hosting.kind in ways and not environment.chips and not hosting.promises_tpu:
        yield Problem(f"This {NAMES[hosting.kind]} runtime has no TPU.", ways[hosting.kind], "env.no_tpu", "info")


def _chips(count: int) -> str:
    return f"{count} TPU chip{'' if count == 1 else 's'}"
