"""Settings that came too late, software that changed under a running process, frameworks that fight, and their texts."""

import pytest

from tpumagic.events import Backend, CellRecord, EnvironmentSet, Failure, Host, SourceSite
from tpumagic.passes import environment

CELL = 7
TPU = Backend("jax", "0.10.2", "tpu", 4, "TPU v4", settings=(("jax_compilation_cache_dir", "/cache"),))
FOUR_CHIPS = Host(accelerator_type="v4-8", chip_count=4, usable_chip_count=4, libtpu_version="0.0.42.1")


def at(line):
    return SourceSite(line=line, cell=CELL)


def record(source="", **given):
    return CellRecord(source=source, cell=CELL, **given)


def found(one):
    return [(f.kind, f.severity, f.site.line if f.site else None) for f in environment.find(one)]


def only(one):
    (finding,) = environment.find(one)
    return finding


def standing(host, *backends):
    return [(f.kind, f.severity, f.title) for f in environment.find_standing(host, backends)]


def failed(message, host=FOUR_CHIPS, **given):
    return record(failure=Failure("RuntimeError", message, (at(1),)), host=host, **given)


# keras_backend_late

LATE = 'import keras, os\nos.environ["KERAS_BACKEND"] = "jax"'


def keras(running, *sets):
    return record(LATE, environment_sets=sets, host=Host(keras_backend=running))


def test_a_keras_backend_set_after_the_import_is_ignored():
    finding = only(keras("tensorflow", EnvironmentSet("KERAS_BACKEND", "jax", (at(2),), started=False)))
    assert (finding.kind, finding.severity, finding.site) == ("env.keras_backend_late", "warning", at(2))
    assert finding.title == (
        "KERAS_BACKEND=jax was set after Keras had been imported, so it is ignored: Keras runs on tensorflow."
    )
    assert finding.fix == (
        'Restart the kernel and put os.environ["KERAS_BACKEND"] = "jax" before the first import of keras, or of anything '
        "that imports it."
    )
    assert finding.facts == {"name": "KERAS_BACKEND", "value": "jax", "running": "tensorflow"}


@pytest.mark.parametrize("running", ["jax", None], ids=["in time", "not imported"])
def test_a_keras_backend_that_holds_or_can_still_hold_is_no_finding(running):
    assert found(keras(running, EnvironmentSet("KERAS_BACKEND", "jax", (at(2),), started=False))) == []


def test_what_another_cell_did_to_keras_is_told_by_the_card_only():
    host = Host(keras_backend="tensorflow", variables=(("KERAS_BACKEND", "jax"),))
    assert found(record("x = 1", host=host)) == []
    assert [kind for kind, _, _ in standing(host)] == ["env.keras_backend_late"]
    assert standing(Host(keras_backend="jax", variables=(("KERAS_BACKEND", "jax"),))) == []


# libtpu_replaced


@pytest.mark.parametrize(
    "line", ["!pip install torch_xla", "%pip install -U 'jax[tpu]'", "!python -m pip install libtpu"]
)
def test_an_installation_that_replaced_a_loaded_libtpu_is_told_at_its_line(line):
    finding = only(record(f"x = 1\n{line}", host=Host(libtpu_replaced=True)))
    assert (finding.kind, finding.severity, finding.site) == ("env.libtpu_replaced", "warning", at(2))
    assert finding.title == "This installation replaced libtpu, and the kernel still runs the old one."
    assert finding.fix == "Restart the kernel, and install packages before the first import of a framework."


@pytest.mark.parametrize(("line", "replaced"), [("!pip install rich", False), ("!pip install rich", None), ("!pip list", True), ("y = 2", True)])  # fmt: skip
def test_other_installations_and_other_cells_are_silent(line, replaced):
    assert found(record(line, host=Host(libtpu_replaced=replaced))) == []


# framework_conflict


def test_importing_a_second_framework_for_the_same_chips_is_told_at_its_import():
    host = Host(chip_count=1, imported=("jax", "torch", "torch_xla"))
    finding = only(record("import torch\nimport torch_xla.core.xla_model as xm", host=host))
    assert (finding.kind, finding.severity, finding.site) == ("env.framework_conflict", "warning", at(2))
    assert finding.title == (
        "JAX, then PyTorch/XLA were imported in this process, and only one of them can have the TPU."
    )
    assert finding.fix == (
        'Restart the kernel and import only one; os.environ["JAX_PLATFORMS"] = "cpu" before JAX is imported keeps it off '
        "the TPU."
    )


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("import torch_xla", Host(chip_count=0, imported=("jax", "torch_xla"))),
        ("import torch_xla", Host(chip_count=1, imported=("torch", "torch_xla"))),
        ("x = 1", Host(chip_count=1, imported=("jax", "torch_xla"))),
        ("import jax", Host(chip_count=1, imported=("jax", "torch_xla"))),
        ("import torch_xla", Host(chip_count=1, imported=("jax", "torch_xla"), variables=(("JAX_PLATFORMS", "cpu"),))),
    ],
    ids=["no chip", "one framework", "no import", "the first of them", "kept off"],
)
def test_frameworks_that_do_not_fight_are_silent(source, host):
    assert found(record(source, host=host)) == []


# what stands, whatever a cell does


def test_a_machine_that_promises_a_tpu_without_a_chip_is_told_before_anything_starts():
    host = Host(kind="colab", accelerator_type="v5e-1", chip_count=0)
    title = "This machine says it has a TPU (v5e-1), and there is no TPU chip on its PCI bus."
    assert standing(host) == [("env.no_tpu", "warning", title)]
    assert standing(host, Backend("jax", "0.7.2")) == [("env.no_tpu", "warning", title)]
    assert [kind for kind, _, _ in standing(host, Backend("jax", "0.7.2", "cpu", 1))] == ["env.cpu_fallback"]
    assert standing(Host(chip_count=0)) == []


def test_device_count_flags_that_came_too_late_are_told():
    host = Host(chip_count=0, variables=(("XLA_FLAGS", "--xla_force_host_platform_device_count=8"),))
    assert standing(host, Backend("jax", "0.10.2", "cpu", 1)) == [
        (
            "env.flag_after_init",
            "warning",
            "XLA_FLAGS asks for 8 CPU devices and was set after JAX had started, which has 1.",
        )
    ]
    assert standing(host, Backend("jax", "0.10.2", "cpu", 8)) == []
    assert standing(host, Backend("jax", "0.10.2")) == []


def test_a_tpu_without_a_compilation_cache_is_a_note():
    bare = Backend("jax", "0.10.2", "tpu", 4)
    assert standing(FOUR_CHIPS, bare) == [
        ("env.no_cache", "info", "JAX keeps no compilation cache: after a restart of the kernel it compiles everything again.")
    ]  # fmt: skip
    assert standing(FOUR_CHIPS, TPU) == []
    assert standing(Host(chip_count=0), Backend("jax", "0.10.2", "cpu", 1)) == []


# texts of failures

HELD = "ABORTED: The TPU is already in use by process with pid 42. Not attempting to load libtpu.so in this process."


def test_the_holder_of_the_chip_is_named_with_its_notebook():
    host = Host(chip_count=4, holders=((42, "the kernel of train.ipynb (process 42)"),))
    finding = only(failed(HELD, host))
    assert finding.title == (
        "The TPU is held by the kernel of train.ipynb (process 42): only one process can use it at a time."
    )
    assert finding.fix == "Shut it down (kill 42), then restart this kernel."
    busy = only(failed("open(/dev/vfio/0): Device or resource busy", host))
    assert busy.title == (
        "The TPU is held by the kernel of train.ipynb (process 42) (/dev/vfio/0): only one process can use it at a time."
    )


def test_a_busy_chip_in_a_container_that_nobody_here_holds_is_held_by_another_container():
    finding = only(failed("open(/dev/vfio/0): Device or resource busy", Host(chip_count=1, container=True)))
    assert finding.title == (
        "The TPU is held by another container or a process outside this one (/dev/vfio/0): only one process can use it at "
        "a time."
    )
    assert finding.detail == "No process that can be seen from here has it open."
    assert finding.fix == (
        "On the machine itself, find it with: sudo lsof -w /dev/vfio/0; stop it, then restart this kernel."
    )


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            "module 'libtpu' has no attribute 'get_library_path'",
            "The installed libtpu is not libtpu any more: it has no get_library_path.",
        ),
        (
            "Failed to open /usr/lib/libtpu/libtpu.so: /usr/lib/libtpu/libtpu.so: file too short",
            "/usr/lib/libtpu/libtpu.so is no whole library: file too short.",
        ),
        ("/x/libtpu.so: invalid ELF header", "/x/libtpu.so is no whole library: invalid ELF header."),
    ],
)
def test_a_libtpu_that_is_none_is_told_with_the_command_that_brings_it_back(text, title):
    finding = only(failed(text))
    assert (finding.kind, finding.severity, finding.title) == ("env.libtpu_replaced", "error", title)
    assert finding.fix == "Run pip install --force-reinstall --no-deps 'libtpu==0.0.42.1', then restart the kernel."


def test_addresses_that_the_image_has_set_are_to_be_dropped():
    host = Host(kind="kaggle", chip_count=4, variables=(("TPU_PROCESS_ADDRESSES", "local"),))
    finding = only(failed("Check failed: Expected 4 worker addresses, got 1", host))
    assert finding.kind == "env.old_snippet"
    assert finding.title == "TPU_PROCESS_ADDRESSES=local gives 1 address where PyTorch/XLA wants 4."
    assert finding.fix == (
        'Restart the kernel and run this first: import os; os.environ.pop("TPU_PROCESS_ADDRESSES", None)'
    )
    assert found(failed("Expected 4 worker addresses, got 1")) == []


@pytest.mark.parametrize(
    ("host", "fix"),
    [
        (Host(kind="gke", chip_count=4, container=True), "Ask for the chips in the pod's container: resources: {limits: {google.com/tpu: 4}}."),
        (Host(kind="tpu_vm", chip_count=4, container=True), "In a container, pass it: docker run --privileged …, or --device /dev/accel0 for each of them; then restart the kernel."),
        (Host(kind="tpu_vm", chip_count=4), "Run sudo chmod a+rw /dev/accel0 (in a container: docker run --privileged …), then restart the kernel."),
    ],
    ids=["pod", "container", "machine"],
)  # fmt: skip
def test_a_closed_node_is_opened_in_the_way_of_its_host(host, fix):
    assert only(failed("open(/dev/accel0): Permission denied", host)).fix == fix


@pytest.mark.parametrize("ticks", ["`", '"'])
def test_a_compilation_in_another_process_is_waited_for(ticks):
    text = f"ABORTED: Internal error when accessing libtpu multi-process lockfile. Run {ticks}$ sudo rm /tmp/libtpu_lockfile{ticks}."
    finding = only(failed(text, Host(chip_count=0, libtpu_version="0.0.42.1")))
    assert finding.kind == "env.compile_only_lock"
    assert "sudo" not in finding.fix
    assert finding.fix.endswith("do not remove the lock file while it runs.")


@pytest.mark.parametrize(
    "text",
    [
        "Failed to get TPU metadata (tpu-env) from instance metadata for variable CHIPS_PER_HOST_BOUNDS: INTERNAL: Couldn't connect to server",
        "HTTPConnectionPool(host='metadata.google.internal', port=80): Max retries exceeded with url: /computeMetadata/v1/instance/attributes/accelerator-type",
    ],
)
def test_a_metadata_server_that_is_not_there_is_told(text):
    finding = only(failed(text))
    assert (finding.kind, finding.severity) == ("env.metadata_unreachable", "error")
    assert finding.title == "The metadata server did not tell what TPU this is."
    assert "import os; os.environ.update(TPU_SKIP_MDS_QUERY=" in finding.fix


SLICE = Host(accelerator_type="v4-32", chip_count=4, worker_count=4, worker=0)


def test_hosts_that_did_not_join_in_time_are_told():
    finding = only(
        failed("DEADLINE_EXCEEDED: Deadline Exceeded; RPC: /tensorflow.CoordinationService/RegisterTask", SLICE)
    )
    assert (finding.kind, finding.severity) == ("env.multihost_wait", "error")
    assert finding.title == "This is worker 0 of 4, and the others did not start in time."


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("metadata.google.internal: /computeMetadata/v1/instance/service-accounts/default/token: 404", FOUR_CHIPS),
        ("DEADLINE_EXCEEDED: RegisterTask", FOUR_CHIPS),
        ("DEADLINE_EXCEEDED: request to the storage bucket", SLICE),
        ("module 'jax' has no attribute 'tree_map'", FOUR_CHIPS),
        ("libfoo.so: file too short", FOUR_CHIPS),
    ],
)
def test_failures_of_other_things_are_silent(text, host):
    assert found(failed(text, host)) == []


def test_a_torch_xla_that_brings_its_own_libtpu_is_not_told_to_install_one():
    text = "Bad StatusOr access: UNKNOWN: TPU initialization failed: No ba16c7433 device found."
    finding = only(failed(text, Host(chip_count=0)))
    assert finding.title == "No TPU here: this line asks for one, and libtpu finds no TPU device."
    missing = only(failed("Failed to open libtpu.so: libtpu.so: cannot open shared object file", Host(chip_count=0)))
    assert missing.title == "No TPU here: this line asks for one, and libtpu, the TPU's driver, is not installed."
