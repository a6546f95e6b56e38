"""Which target the TPU of a host is itself, before and after JAX has started."""

import pytest

from tpumagic.events import Backend
from tpumagic.magics.targets import of_host


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("laptop", None),
        ("colab_cpu", None),
        ("colab_gpu", None),
        ("colab_v5e_1", "v5e-1"),
        ("colab_v6e_1", "v6e-1"),
        ("kaggle_v3_8", "v3-8"),
        ("kaggle_v5e_8", "v5e-8"),
        ("tpu_vm_v4_8", "v4-8"),
        ("gke_v6e_16", "v6e-16"),
        ("container_without_nodes", None),
    ],
)
def test_the_bus_and_the_number_of_workers_tell_the_target(machine, name, target):
    found = of_host((), machine(name).detect)
    assert (found.name if found else None) == target


@pytest.mark.parametrize(
    ("backend", "target"),
    [
        (Backend("jax", "0.10.2", "tpu", 4, "TPU v5 lite"), "v5e-4"),
        (Backend("jax", "0.10.2", "tpu", 8, "TPU v3"), "v3-8"),
        (Backend("jax", "0.10.2", "tpu", 4, "TPU v9"), None),
        (Backend("jax", "0.10.2", "cpu", 8, "cpu"), None),
        (Backend("jax", "0.10.2"), "v5e-8"),
    ],
)
def test_a_jax_that_runs_knows_better_than_the_bus(machine, backend, target):
    found = of_host((backend,), machine("kaggle_v5e_8").detect)
    assert (found.name if found else None) == target
