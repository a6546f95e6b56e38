"""Plans for machines with any variables, packages and imports."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tpumagic.events import Backend
from tpumagic.frameworks import FRAMEWORKS
from tpumagic.runtime import plan_text
from tpumagic.runtime.journal import Journal
from tpumagic.runtime.plan import plan

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))

VARIABLES = (
    "JAX_PLATFORMS", "PJRT_DEVICE", "TPU_LOAD_LIBRARY", "KERAS_BACKEND", "XRT_TPU_CONFIG", "TPU_PROCESS_ADDRESSES",
    "CLOUD_TPU_TASK_ID", "TPU_PROCESS_BOUNDS", "TPU_VISIBLE_CHIPS", "TPU_LIBRARY_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip
VALUES = (
    "",
    "cpu",
    "tpu",
    "TPU",
    "CPU",
    "0",
    "1",
    "local",
    "1,1,1",
    "jax",
    "torch",
    "tensorflow",
    "numpy",
    "ä b'\"<",
    ",",
)
PACKAGES = (
    "jax",
    "libtpu",
    "torch",
    "torch_xla",
    "torch_tpu",
    "keras",
    "tensorflow",
    "tensorflow-tpu",
    "tensorflow-cpu",
)
VERSIONS = (
    None,
    "",
    "0.4.30",
    "0.0.42.1",
    "0.0.17",
    "2.9.0+cpu",
    "2.13.0",
    "0.2.0",
    "3.15.1",
    "x",
    "1.2.dev3",
    "9" * 40,
)


@pytest.mark.parametrize("name", NAMES)
def test_no_variables_packages_and_imports_break_a_plan(machine, name):
    built = machine(name)
    seen = built.detect()
    chance = random.Random(name)
    start = time.monotonic()
    for _ in range(350):
        environ = {**built.description["environ"], **{v: chance.choice(VALUES) for v in chance.sample(VARIABLES, 4)}}
        versions = {**dict(seen.versions), **{p: chance.choice(VERSIONS) for p in chance.sample(PACKAGES, 4)}}
        environment = replace(
            seen,
            versions=tuple((package, version) for package, version in versions.items() if version is not None),
            owners=chance.choice((seen.owners, ())),
        )
        modules = set(chance.sample(("jax", "keras", "keras.src", "torch", "torch_xla", "torch_tpu", "tensorflow"), 2))
        backends = [
            Backend(one, "1", chance.choice((None, "cpu", "tpu")), settings=(("backend", chance.choice(VALUES)),))
            for one in modules & {"jax", "keras", "torch_xla"}
        ]
        framework = chance.choice(FRAMEWORKS)
        found = plan(framework, environment, environ, modules, backends)
        told = plan_text.preview(found, environ)
        assert told[-1].startswith("Nothing ")
        assert not (found.problems and found.steps)
        journal, before = Journal(environ), dict(environ)
        journal.apply(found.steps)
        journal.undo()
        assert environ == before
    assert time.monotonic() - start < 10, "a plan takes milliseconds at most"
