"""Whatever the machine looks like, looking at it raises nothing and takes less than a second."""

import contextlib
import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from tpumagic import passes
from tpumagic.events import Backend, CellRecord, EnvironmentSet, Failure, SourceSite
from tpumagic.passes import environment as environment_pass
from tpumagic.runtime import card, detect, host, problems
from tpumagic.runtime.library import Loaded
from tpumagic.runtime.problem import Problem
from tpumagic.runtime.process import FRAMEWORKS, Process

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))
ROUNDS = 10_000

VARIABLES = (
    "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_TOPOLOGY", "TPU_SKIP_MDS_QUERY", "TPU_NAME",
    "COLAB_RELEASE_TAG", "COLAB_TPU_1VM", "COLAB_TPU_ADDR", "KAGGLE_KERNEL_RUN_TYPE", "ISTPUVM", "VERTEX_PRODUCT",
    "JAX_PLATFORMS", "KUBERNETES_SERVICE_HOST", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "TPU_PROCESS_BOUNDS",
    "CLOUD_ML_PROJECT_ID", "XRT_TPU_CONFIG", "TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID", "TPU_LIBRARY_PATH",
    "KERAS_BACKEND", "XLA_FLAGS",
)  # fmt: skip
VALUES = (
    "", "1", "true", "v4-8", "v5litepod-8", "tpu7x-8", "a,b", ",", "a:b:10.0.0.1,c", "-1", "9" * 30, "²", "local", "\x00",
    "/", "/dev/null", "..", "x" * 5000, "\udcff", "--xla_force_host_platform_device_count=8", "tpu", "cpu,tpu", "jax",
    "KEY: 'value'\nMEGASCALE_NUM_SLICES: '3'",
)  # fmt: skip
CONTENTS = (
    b"0x1ae0\n", b"0x0063\n", b"0x0076", b"0x0083", b"", b"\xff\xfe", b"0x", b"[always]", b"always [never]", b"\x7fELF",
    b"1: POSIX ADVISORY WRITE 5 a:b:7 0 EOF\n", b"7 (a) b) S 7 1", b"python\0-f\0kernel-a-1.json\0",
    b"JPY_SESSION_NAME=a/b.ipynb\0", b"x" * 9000,
)  # fmt: skip
FUNCTIONS = ("0000:00:04.0", "0000:00:04.1", "0000:00:05.0", "10000:e1:00.0", "junk")
ATTRIBUTES = ("vendor", "device", "subsystem_device", "iommu_group")
PLACES = (
    *(f"sys/bus/pci/devices/{function}/{name}" for function in FUNCTIONS for name in ATTRIBUTES),
    "dev/accel0", "dev/accel1", "dev/accel", "dev/accel²", "dev/vfio/0", "dev/vfio/vfio", "dev/vfio", "proc/7/cmdline",
    "proc/7/fd/3", "proc/7/fd", "proc/7/stat", "proc/7/environ", "proc/²/fd", "proc/locks", "proc", "tmp/libtpu_lockfile",
    "sys/class/dmi/id/product_name", "sys/kernel/mm/transparent_hugepage/enabled", "sys", ".dockerenv",
    "usr/lib/python3/dist-packages/libtpu/libtpu.so", "usr/lib/python3/dist-packages/libtpu",
)  # fmt: skip
TARGETS = ("/dev/accel0", "/dev/vfio/0", "/dev/null", "../../../../kernel/iommu_groups/0", "groups/²", "loop", "")
PACKAGES = ("jax", "jaxlib", "libtpu", "libtpu-nightly", "torch", "torch_xla", "torch_tpu", "tensorflow-tpu", "keras")
VERSIONS = ("", "0.7.2", "0.10.2", "0.0.17", "2.9.0+cpu", "1.dev", "²", "nightly", "9" * 40)
TEXTS = (
    "The TPU is already in use by process with pid 7.", "open(/dev/vfio/0): Device or resource busy", "",
    "/x/libtpu.so: file too short", "Expected 4 worker addresses, got 1", "libtpu multi-process lockfile",
    "plugin PJRT API version (0.47) and framework PJRT API version 0.40", "/dev/accel0: Permission denied",
    "module 'libtpu' has no attribute 'get_library_path'", "Unknown backend tpu",
)  # fmt: skip


class Fuzzed:
    """A machine that changes a little from round to round."""

    def __init__(self, name: str, root: Path, chance: random.Random) -> None:
        description = json.loads((HOSTS / f"{name}.json").read_text())
        self.root, self.chance = root, chance
        self.environ, self.versions = dict(description["environ"]), dict(description["versions"])
        self.metadata = dict(description["metadata"] or {})
        for place, text in description["files"].items():
            self.put(place, text.encode())
        for place, target in description["links"].items():
            self.link(place, target)

    def put(self, place: str, content: bytes) -> None:
        with contextlib.suppress(OSError):
            path = self.root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def link(self, place: str, target: str) -> None:
        with contextlib.suppress(OSError):
            path = self.root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)

    def remove(self, place: str) -> None:
        path = self.root / place
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def change(self) -> None:
        choice = self.chance.choice
        for _ in range(self.chance.randint(1, 3)):
            place = choice(PLACES)
            match self.chance.randrange(9):
                case 0 | 1:
                    self.environ[choice(VARIABLES)] = choice(VALUES)
                case 2:
                    self.environ.pop(choice(VARIABLES), None)
                case 3 | 4:
                    self.remove(place)
                    self.put(place, choice(CONTENTS))
                case 5:
                    self.remove(place)
                    self.link(place, choice(TARGETS))
                case 6:
                    if self.chance.random() < 0.2:
                        self.remove(place)
                        with contextlib.suppress(OSError):
                            os.mkfifo(self.root / place)
                case 7:
                    self.metadata[choice(("accelerator-type", "tpu-env", "agent-worker-number"))] = choice(VALUES)
                case _:
                    self.versions[choice(PACKAGES)] = choice(VERSIONS)

    def fetch(self, key: str) -> str | None:
        if self.chance.random() < 0.1:
            raise OSError("gone")
        return self.metadata.get(key) or self.metadata.get(key.rsplit("/", 1)[-1])

    def backends(self) -> tuple[Backend, ...]:
        platform = self.chance.choice(("cpu", "tpu", None))
        return (Backend("jax", "0.10.2", platform, 1, fallback=self.chance.choice(TEXTS)),)

    def look(self) -> None:
        """All that %tpu_env and a cell do with a machine."""
        chance = self.chance
        imported = tuple(chance.sample(FRAMEWORKS, chance.randint(0, 3)))
        library = chance.choice((None, Loaded("/libtpu.so", replaced=True)))
        process = Process(imported, chance.choice((None, "jax", "")), library)
        path = ["", str(self.root / "usr/lib/python3/dist-packages")]
        environment = detect(self.root, self.environ, self.fetch, self.versions, path, process)
        seen, backends = host(environment, process), self.backends()
        standing = [Problem(f.title, f.fix, f.kind, f.severity) for f in passes.standing(seen, backends)]
        found = problems.merged(problems.find(environment), standing)
        assert all(problem.title and problem.fix and problem.kind for problem in found)
        assert card.text(environment, backends, found)
        assert card.html(environment, backends, found)
        json.dumps(environment.to_dict())
        site = SourceSite(line=1, cell=1)
        record = CellRecord(
            source="import jax, torch_xla; jax.devices()",
            cell=1,
            host=seen,
            backends=backends,
            failure=chance.choice((None, Failure("RuntimeError", chance.choice(TEXTS), (site,)))),
            environment_sets=(EnvironmentSet(chance.choice(VARIABLES), chance.choice(VALUES), (site,), started=True),),
        )
        assert all(finding.title for finding in environment_pass.find(record))


@pytest.mark.parametrize("part", range(4))
def test_no_machine_breaks_the_card_or_holds_it_up(part, tmp_path):
    chance = random.Random(part)
    slowest = 0.0
    for first in range(0, ROUNDS // 4, 50):
        root = tmp_path / str(first)
        machine = Fuzzed(NAMES[(first // 50 + part) % len(NAMES)], root, chance)
        for _ in range(50):
            machine.change()
            start = time.perf_counter()
            machine.look()
            slowest = max(slowest, time.perf_counter() - start)
        shutil.rmtree(root)
    assert slowest < 1
