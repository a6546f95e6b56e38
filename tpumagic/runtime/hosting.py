"""Which kind of machine this is, and which part of a TPU slice: from variables and files, the metadata server last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpumagic.runtime.files import exists, text
from tpumagic.runtime.metadata import Fetch

NAMES: dict[str, str] = {
    "colab": "Google Colab",
    "colab_enterprise": "Colab Enterprise",
    "kaggle": "Kaggle",
    "vertex": "Vertex AI",
    "gke": "Google Kubernetes Engine",
    "kubernetes": "Kubernetes",
    "tpu_vm": "Cloud TPU VM",
    "compute_engine": "Compute Engine",
    "container": "container",
    "machine": "own machine",
}
"""Kind of host -> its name."""

_TPU_TYPE = re.compile(r"(?:v\d+[a-z]*|tpu\d+[a-z]*)-\d+", re.IGNORECASE)
_TPU_ENV_LINE = re.compile(r"^(\w+):\s*'(.*)'\s*$", re.MULTILINE)
_TPU_SIGNS = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY", "TPU_NAME")


@dataclass(frozen=True)
class Hosting:
    """The machine and its place in a slice; None is not known.

    kind: a key of NAMES. accelerator_type: as Google writes it, ``v5litepod-8``. promises_tpu: the host itself says
    that it is a TPU machine, whatever is found on it. worker counts from 0 over worker_count hosts that must start
    together, those of other slices included. metadata: ``not asked``, ``answered`` or why it did not answer.
    """

    kind: str
    accelerator_type: str | None = None
    promises_tpu: bool = False
    worker: int | None = None
    worker_count: int | None = None
    slice_count: int | None = None
    topology: str | None = None
    metadata: str = "not asked"
    container: bool = False


def find_hosting(root: Path, environ: Mapping[str, str], chip_count: int, fetch: Fetch) -> Hosting:
    """What the host says of itself. fetch is called only on a TPU machine that left something open."""
    kind = _kind(root, environ, chip_count)
    accelerator_type = _accelerator_type(environ.get("TPU_ACCELERATOR_TYPE"))
    workers = _hostnames(environ.get("TPU_WORKER_HOSTNAMES"))
    worker = _number(environ.get("TPU_WORKER_ID"))
    topology = environ.get("TPU_TOPOLOGY") or None
    promises = _promises_tpu(kind, environ, accelerator_type)
    settings: dict[str, str] = {}
    metadata = "not asked"
    skip = bool(environ.get("TPU_SKIP_MDS_QUERY")) or kind in ("colab", "kaggle", "gke")
    if not skip and (chip_count or promises) and (accelerator_type is None or workers is None):
        try:
            accelerator_type = accelerator_type or _accelerator_type(fetch("instance/attributes/accelerator-type"))
            settings |= dict[str, str](_TPU_ENV_LINE.findall(fetch("instance/attributes/tpu-env") or ""))
            accelerator_type = accelerator_type or _accelerator_type(settings.get("ACCELERATOR_TYPE"))
            topology = topology or settings.get("TPU_TOPOLOGY") or settings.get("TOPOLOGY")
            if worker is None:
                worker = _number(fetch("instance/attributes/agent-worker-number") or settings.get("WORKER_ID"))
            workers = workers or _hostnames(fetch("instance/attributes/worker-network-endpoints"))
            metadata = "answered"
        except OSError as error:
            metadata = str(error)
    slices = _number(environ.get("MEGASCALE_NUM_SLICES") or settings.get("MEGASCALE_NUM_SLICES"))
    count = workers * (slices or 1) if workers else slices if slices and slices > 1 else None
    if worker is not None and workers and slices:
        worker += workers * (_number(environ.get("MEGASCALE_SLICE_ID") or settings.get("MEGASCALE_SLICE_ID")) or 0)
    if count == 1 and worker is None:
        worker = 0
    if kind == "compute_engine" and accelerator_type:
        kind = "tpu_vm"
    return Hosting(
        kind=kind,
        accelerator_type=accelerator_type,
        promises_tpu=promises or accelerator_type is not None,
        worker=worker,
        worker_count=count,
        slice_count=slices,
        topology=topology,
        metadata=metadata,
        container=_in_container(root, environ),
    )


def _kind(root: Path, environ: Mapping[str, str], chip_count: int) -> str:
    # Colab Enterprise carries Colab's modules and variables too, so Vertex comes first.
    product = environ.get("VERTEX_PRODUCT", "")
    if product:
        return "colab_enterprise" if product == "COLAB_ENTERPRISE" else "vertex"
    if environ.get("KAGGLE_KERNEL_RUN_TYPE") or environ.get("KAGGLE_URL_BASE"):
        return "kaggle"
    if environ.get("COLAB_RELEASE_TAG") or environ.get("COLAB_BACKEND_VERSION"):
        return "colab"
    if environ.get("CLOUD_ML_PROJECT_ID"):
        return "vertex"
    signs = chip_count > 0 or any(environ.get(name) for name in _TPU_SIGNS)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "gke" if signs else "kubernetes"
    google = "Google Compute Engine" in text(root / "sys/class/dmi/id/product_name")
    if signs and (google or chip_count):
        return "tpu_vm"
    if _in_container(root, environ):
        return "container"
    return "compute_engine" if google else "machine"


def _in_container(root: Path, environ: Mapping[str, str]) -> bool:
    return (
        bool(environ.get("KUBERNETES_SERVICE_HOST"))
        or exists(root / ".dockerenv")
        or exists(root / "run/.containerenv")
    )


def _promises_tpu(kind: str, environ: Mapping[str, str], accelerator_type: str | None) -> bool:
    """Colab sets COLAB_TPU_1VM on every runtime: only its value ``1`` means a TPU."""
    if accelerator_type is not None:
        return True
    if kind == "kaggle":
        return environ.get("ISTPUVM") == "1"
    return environ.get("COLAB_TPU_1VM") == "1"


def _accelerator_type(said: str | None) -> str | None:
    name = (said or "").strip().rsplit("/", 1)[-1]
    return name if _TPU_TYPE.fullmatch(name) else None


def _hostnames(said: str | None) -> int | None:
    """How many hosts a list names: ``a,b``, or ``name:uid:ip,…`` as the metadata server writes it."""
    names = [name for name in (said or "").split(",") if name.strip()]
    return len(names) or None


def _number(said: str | None) -> int | None:
    digits = (said or "").strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,6}", digits) else None
