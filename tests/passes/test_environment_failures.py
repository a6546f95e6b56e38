"""Failures that come from the machine or its software, told by their texts."""

import pytest
from surroundings import at, failed, found, only, record

from tpumagic.events import Backend, Host


def test_a_plugin_and_a_framework_of_different_age_are_told_apart():
    text = "INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.47) and framework PJRT API version 0.40)."
    finding = only(failed(text, line=5, backends=(Backend("jax", "0.10.2"),)))
    assert (finding.kind, finding.severity, finding.site) == ("env.version_mismatch", "error", at(5))
    assert finding.title == "libtpu and the framework do not fit: libtpu speaks PJRT API 0.47, the framework 0.40."
    assert finding.detail == "libtpu is the newer of the two."
    assert finding.fix == (
        "Run pip install 'jax[tpu]==0.10.2', which brings the libtpu that it asks for, then restart the kernel."
    )
    assert finding.facts == {"plugin": "libtpu", "plugin_api": "0.47", "framework_api": "0.40"}


def test_two_frameworks_on_one_libtpu_come_first():
    text = "Mismatched PJRT plugin PJRT API version (0.47) and framework PJRT API version 0.54)."
    finding = only(failed(text, backends=(Backend("jax", "0.10.2"), Backend("torch_xla", "2.9.0"))))
    assert finding.detail == "libtpu is the older of the two."
    assert finding.fix == (
        "JAX and PyTorch/XLA are both loaded and share one libtpu: restart the kernel and import only one of them."
    )


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            "Unable to initialize backend 'cuda': INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.54) and framework PJRT API version 0.51). (set JAX_PLATFORMS='')",
            "cuda and the framework do not fit: cuda speaks PJRT API 0.54, the framework 0.51.",
        ),
        (
            "Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24. The plugin is likely built with a later version than the framework. This plugin is built with PJRT API version 0.75",
            "libtpu and the framework do not fit: libtpu (PJRT API 0.75) expects 32 bytes of PJRT_Plugin_Attributes_Args, the framework gives 24.",
        ),
        (
            "jaxlib version 0.7.2 is newer than and incompatible with jax version 0.7.0. Please update your jax and/or jaxlib packages.",
            "jaxlib 0.7.2 and jax 0.7.0 do not fit each other.",
        ),
        (
            "jaxlib is version 0.6.0, but this version of jax requires version >= 0.7.2. To update jaxlib, see x.",
            "jaxlib 0.6.0 and jax 0.7.2 do not fit each other.",
        ),
        (
            "/x/_XLAC.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c109TupleTypeC1E",
            "torch and torch_xla do not fit each other: torch_xla was built for another torch.",
        ),
    ],
)  # fmt: skip
def test_every_text_of_a_mismatch_is_read(text, title):
    finding = only(failed(text))
    assert (finding.kind, finding.title) == ("env.version_mismatch", title)


@pytest.mark.parametrize(
    ("text", "title", "look"),
    [
        (
            "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 1234. Not attempting to load libtpu.so in this process. (set JAX_PLATFORMS='')",
            "The TPU is held by process 1234: only one process can use it at a time.",
            "ps -fp 1234",
        ),
        (
            "UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/0",
            "The TPU is held by another process (/dev/vfio/0): only one process can use it at a time.",
            "sudo lsof -w /dev/vfio/0",
        ),
        (
            'ABORTED: The TPU is already in use by another process probably owned by another user. Run "$ sudo lsof -w /dev/accel0" to figure out which process is using the TPU.',
            "The TPU is held by another process: only one process can use it at a time.",
            "sudo lsof -w /dev/accel* /dev/vfio/*",
        ),
    ],
)  # fmt: skip
def test_a_tpu_in_use_names_who_holds_it_or_how_to_find_out(text, title, look):
    finding = only(failed(text, host=FOUR_CHIPS))
    assert (finding.kind, finding.severity, finding.title) == ("env.tpu_in_use", "error", title)
    assert finding.fix == f"Shut that kernel down (find the process with: {look}), then restart this one."


FOUR_CHIPS = Host(accelerator_type="v4-8", chip_count=4, usable_chip_count=4, libtpu_version="0.0.42.1")
LOCK = 'ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".'


def test_a_lock_without_a_tpu_is_another_compilation_and_nothing_to_delete():
    finding = only(failed(LOCK, host=Host(chip_count=0, libtpu_version="0.0.42.1")))
    assert finding.kind == "env.compile_only_lock"
    assert finding.title == (
        "Another process has libtpu loaded, and its lock lets in one process at a time, even without a TPU."
    )
    assert (
        finding.fix
        == "Wait until the other compilation has ended and try again; do not remove the lock file while it runs."
    )


def test_a_lock_on_a_tpu_machine_means_that_the_tpu_may_be_in_use():
    finding = only(failed(LOCK, host=FOUR_CHIPS))
    assert finding.kind == "env.tpu_in_use"
    assert finding.fix.endswith("remove the lock file only when no process is left.")


@pytest.mark.parametrize(
    ("text", "node", "why"),
    [
        ("TPU initialization failed: open(/dev/accel0): Permission denied: Permission denied", "/dev/accel0", "Permission denied"),
        ("Failed to open /dev/vfio/vfio: No such file or directory", "/dev/vfio/vfio", "No such file or directory"),
        ("open(/dev/vfio/0): Operation not permitted: Operation not permitted; Couldn't open iommu group /dev/vfio/0", "/dev/vfio/0", "Operation not permitted"),
        ("Do not have read permission on path /dev/accel0: x", "/dev/accel0", "Permission denied"),
    ],
)  # fmt: skip
def test_a_device_node_that_cannot_be_opened_is_named_with_the_reason(text, node, why):
    finding = only(failed(text, host=FOUR_CHIPS))
    assert (finding.kind, finding.severity) == ("env.no_device_node", "error")
    assert finding.title == f"The TPU's device node {node} cannot be opened: {why}."
    assert finding.facts == {"node": node, "why": why}


@pytest.mark.parametrize(
    "text",
    [
        "[Errno 2] No such file or directory: '/data/train'",
        "open(/dev/dri/card0): Permission denied",
        "Device or resource busy",
        "out of memory",
    ],
)
def test_other_files_and_devices_are_none_of_our_business(text):
    assert found(failed(text, "OSError", host=FOUR_CHIPS)) == []


def test_a_clean_cell_has_nothing_to_say():
    assert (
        found(
            record("import jax\nprint(jax.devices())", host=FOUR_CHIPS, backends=(Backend("jax", "0.10.2", "tpu", 4),))
        )
        == []
    )
    assert found(record()) == []
