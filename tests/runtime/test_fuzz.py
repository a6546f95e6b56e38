"""Whatever the machine looks like, looking at it raises nothing and takes less than a second."""

import tempfile
import time
from pathlib import Path

import pytest

from tpumagic.events import CellRecord
from tpumagic.passes import environment as environment_pass
from tpumagic.runtime import card, detect, host, problems

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from([
    "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY", "TPU_SKIP_MDS_QUERY", "TPU_NAME",
    "COLAB_RELEASE_TAG", "COLAB_TPU_1VM", "KAGGLE_KERNEL_RUN_TYPE", "ISTPUVM", "VERTEX_PRODUCT", "JAX_PLATFORMS",
    "KUBERNETES_SERVICE_HOST", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "TPU_PROCESS_BOUNDS", "CLOUD_ML_PROJECT_ID",
])  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["", "1", "true", "v4-8", "v5litepod-8", "tpu7x-8", "a,b", ",", "a:b:10.0.0.1,c", "-1", "9" * 30, "²"]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)
CONTENT = st.one_of(st.sampled_from([b"0x1ae0\n", b"0x0063\n", b"0x0076", b"", b"\xff\xfe"]), st.binary(max_size=20))
PLACES = st.sampled_from([
    f"sys/bus/pci/devices/{address}/{name}"
    for address in ("0000:00:04.0", "0000:00:04.1", "0000:00:05.0", "junk")
    for name in ("vendor", "device", "subsystem_device", "iommu_group")
] + ["dev/accel0", "dev/accel", "dev/vfio/0", "dev/vfio/vfio", "proc/7/cmdline", "proc/7/fd", "proc/x", "sys/class/dmi/id/product_name"])  # fmt: skip


def answers(values):
    def fetch(key):
        value = values.get(key[-1:])
        if value == "fail":
            raise OSError("gone")
        return value

    return fetch


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    environ=st.dictionaries(NAMES, VALUES, max_size=8),
    files=st.dictionaries(PLACES, CONTENT, max_size=10),
    metadata=st.dictionaries(st.sampled_from("evrs"), st.one_of(st.just("fail"), VALUES)),
    versions=st.dictionaries(st.sampled_from(["jax", "libtpu", "torch", "torch_xla", "torch_tpu"]), VALUES),
)
def test_no_machine_breaks_the_card(environ, files, metadata, versions):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in files.items():
            path = root / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError:
                continue
        start = time.perf_counter()
        environment = detect(root, environ, answers(metadata), versions)
        text, page = card.text(environment, (), problems.find(environment)), card.html(environment)
        list(environment_pass.find_standing(host(environment), ()))
        list(environment_pass.find(CellRecord(source="import jax; jax.devices()", host=host(environment))))
        assert time.perf_counter() - start < 1
        assert text
        assert page
        assert environment.to_dict()
