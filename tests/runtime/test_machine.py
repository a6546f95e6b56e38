"""What is found on machines people use."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tpumagic.events import Backend
from tpumagic.runtime import card, detect, host, problems
from tpumagic.runtime.problem import Problem

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))
GIB = 2**30


def seen(environment):
    hosting, chips = environment.hosting, environment.chips
    return (
        hosting.kind,
        hosting.accelerator_type,
        [chip.model.name for chip in chips],
        [node for chip in chips for node in chip.nodes],
        (hosting.worker, hosting.worker_count),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("colab_v5e_1", ("colab", "v5e-1", ["v5e"], ["/dev/vfio/0"], (0, 1))),
        ("colab_cpu", ("colab", None, [], [], (None, None))),
        ("kaggle_v5e_8", ("kaggle", "v5litepod-8", ["v5e"] * 8, [f"/dev/vfio/{n}" for n in range(3, 11)], (0, 1))),
        ("kaggle_v3_8", ("kaggle", "v3-8", ["v3"] * 4, [f"/dev/accel{n}" for n in range(4)], (0, 1))),
        ("tpu_vm_v4_8", ("tpu_vm", "v4-8", ["v4"] * 4, [f"/dev/accel{n}" for n in range(4)], (0, 1))),
        ("gke_v6e_16", ("gke", "v6e-16", ["v6e"] * 4, [f"/dev/vfio/{n}" for n in range(4)], (2, 4))),
        ("laptop", ("machine", None, [], [], (None, None))),
        ("tpu7x_container", ("tpu_vm", "tpu7x-4", ["tpu7x"] * 2, ["/dev/vfio/0", "/dev/vfio/1"], (0, 1))),
        ("multislice_v5p", ("tpu_vm", "v5p-16", ["v5p"] * 4, [f"/dev/vfio/{n}" for n in range(4)], (3, 4))),
        ("multislice_v6e_metadata", ("tpu_vm", "v6e-8", ["v6e"] * 4, [f"/dev/vfio/{n}" for n in range(4)], (0, 4))),
    ],
)
def test_a_machine_is_known_for_what_it_is(machine, name, expected):
    assert seen(machine(name).detect()) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_card_and_its_problems_are_those_written_beside_the_machine(machine, name):
    one = machine(name)
    environment = replace(one.detect(), python="3.12.3", system="Linux x86_64")
    found = one.problems()
    kinds = "".join(f"{problem.severity} {problem.kind}\n" for problem in found)
    expected = (HOSTS / f"{name}.txt").read_text()
    assert f"{card.text(environment, one.backends, found)}\n{chr(10) if kinds else ''}{kinds}" == expected


def test_bounds_never_make_chips(machine):
    environment = machine("colab_v5e_1").detect(TPU_CHIPS_PER_HOST_BOUNDS="2,4,1")
    assert len(environment.chips) == 1


def test_two_functions_of_one_chip_are_one_chip(machine):
    chips = machine("tpu7x_container").detect().chips
    assert [(chip.address, chip.nodes, chip.usable) for chip in chips] == [
        ("0000:00:04", ("/dev/vfio/0", "/dev/vfio/1"), True),
        ("0000:00:05", (), False),
    ]
    assert chips[0].model.devices_per_chip == 2
    assert chips[0].model.hbm_bytes == 192 * GIB


def test_v2_and_v3_are_told_apart_by_their_subsystem(tmp_path):
    device = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    for name, text in {"vendor": "0x1ae0", "device": "0x0027", "subsystem_device": "0x004e"}.items():
        (device / name).write_text(text)
    assert [chip.model.name for chip in detect(tmp_path, {}, versions={}).chips] == ["v2"]
    (device / "subsystem_device").write_text("0x004f")
    assert [chip.model.name for chip in detect(tmp_path, {}, versions={}).chips] == ["v3"]


def test_the_metadata_server_is_asked_only_on_a_tpu_machine_that_left_something_open(machine):
    asked = {}
    for name in NAMES:
        one = machine(name)
        one.detect()
        asked[name] = one.asked > 0
    assert [name for name, was in asked.items() if was] == [
        "compute_engine_tpu7x", "held_by_kernel", "metadata_hangs", "multislice_v6e_metadata", "nodes_of_root",
        "system_image_too_old", "tpu_vm_silent_cpu", "tpu_vm_v2_8", "tpu_vm_v4_8", "tpu_vm_v5e_4", "tpu_vm_v5p_32",
    ]  # fmt: skip


def test_a_machine_told_to_skip_the_metadata_server_is_not_asked(machine):
    vm = machine("tpu_vm_v4_8")
    assert vm.detect(TPU_SKIP_MDS_QUERY="1").hosting.metadata == "not asked"


def test_topology_and_worker_come_from_the_metadata_server(machine):
    hosting = machine("tpu_vm_v4_8").detect().hosting
    assert (hosting.topology, hosting.worker, hosting.metadata) == ("2x2x1", 0, "answered")


def test_colab_promises_a_tpu_only_by_the_value_1(machine):
    assert machine("colab_v5e_1").detect().hosting.promises_tpu
    cpu = machine("colab_cpu")
    assert not cpu.detect().hosting.promises_tpu
    assert cpu.detect(COLAB_TPU_1VM="1").hosting.promises_tpu


def test_colab_enterprise_is_not_taken_for_colab(machine):
    assert machine("colab_cpu").detect(VERTEX_PRODUCT="COLAB_ENTERPRISE").hosting.kind == "colab_enterprise"
    assert machine("laptop").detect(VERTEX_PRODUCT="WORKBENCH_INSTANCE").hosting.kind == "vertex"


def test_kubernetes_without_a_tpu_is_not_gke(machine):
    assert machine("laptop").detect(KUBERNETES_SERVICE_HOST="10.0.0.1").hosting.kind == "kubernetes"


@pytest.mark.parametrize("text", ["", "garbage", "v5e", "v5e-", "8", "projects/x/zones/y"])
def test_an_accelerator_type_that_is_none_is_not_believed(machine, text):
    hosting = machine("laptop").detect(TPU_ACCELERATOR_TYPE=text).hosting
    assert (hosting.accelerator_type, hosting.promises_tpu) == (None, False)


@pytest.mark.parametrize("text", ["v2-8", "v5litepod-8", "v5p-16", "v6e-1", "tpu7x-8", "v5e-1"])
def test_every_spelling_of_an_accelerator_type_is_read(machine, text):
    assert machine("laptop").detect(TPU_ACCELERATOR_TYPE=text).hosting.accelerator_type == text


def test_the_process_that_holds_a_chip_is_named_with_its_kernel(machine):
    owners = machine("tpu7x_container").detect().owners
    assert [(owner.pid, owner.kernel, owner.nodes, owner.mine) for owner in owners] == [
        (4242, "8e21-aa", ("/dev/vfio/0",), False)
    ]


def test_secrets_do_not_reach_the_card(machine):
    environment = machine("kaggle_v5e_8").detect(TPU_API_KEY="do-not-show", JAX_TOKEN="do-not-show")
    assert "do-not-show" not in json.dumps(environment.to_dict())
    assert ("TPU_PROCESS_ADDRESSES", "local") in environment.variables


def test_a_stock_image_is_not_called_off_pin(machine):
    verdicts = {name: {(pin.package, pin.needs): pin.verdict for pin in machine(name).detect().pins} for name in NAMES}
    assert verdicts["colab_v5e_1"] == {
        ("jax", "libtpu"): "shipped by this image",
        ("torch_xla", "torch"): "as pinned",
        ("torch_xla", "libtpu"): "as pinned",
    }
    assert verdicts["kaggle_v5e_8"] == {
        ("jax", "libtpu"): "shipped by this image",
        ("torch_xla", "torch"): "as pinned",
        ("torch_xla", "libtpu"): "as pinned",
    }
    assert verdicts["tpu_vm_v4_8"] == {("jax", "libtpu"): "as pinned"}
    assert verdicts["gke_v6e_16"] == {("jax", "libtpu"): "off pin"}


def test_the_passes_get_what_they_need(machine):
    one = host(machine("gke_v6e_16").detect())
    assert (one.kind, one.accelerator_type, one.chip_count, one.usable_chip_count) == ("gke", "v6e-16", 4, 4)
    assert (one.worker, one.worker_count, one.libtpu_version) == (2, 4, "0.0.40")
    assert dict(one.variables)["TPU_TOPOLOGY"] == "4x4"


def test_the_card_says_why_jax_is_on_cpu(machine):
    backend = Backend("jax", "0.10.2", "cpu", 1, "cpu", fallback="NOT_FOUND: No jellyfish device found.")
    text = card.text(machine("laptop").detect(), [backend], [Problem("It is broken.", "Mend it.")])
    assert "JAX        0.10.2 on cpu, 1 device\n           not on TPU: NOT_FOUND: No jellyfish device found." in text
    assert text.endswith("Problem    It is broken.\n  fix      Mend it.")
    assert "no TPU chip on the PCI bus" in text


def test_the_card_as_html_escapes_everything(machine):
    environment = machine("laptop").detect(XLA_FLAGS="<script>alert(1)</script>")
    page = card.html(environment, [Backend("jax", "<b>")], [Problem("<i>", "<u>")])
    assert "<script>" not in page
    assert "<b>," not in page
    assert "&lt;i&gt;" in page
    assert "&lt;u&gt;" in page


@pytest.mark.parametrize(
    "name", ["colab_v5e_1", "colab_v6e_1", "colab_cpu", "kaggle_v5e_8", "tpu_vm_v2_8", "tpu_vm_v4_8", "laptop"]
)
def test_a_machine_in_order_has_notes_at_most(machine, name):
    assert {problem.severity for problem in machine(name).problems()} <= {"info"}


def test_a_finding_of_the_same_kind_is_told_once():
    machine, framework = Problem("a", "", "env.no_device_node"), Problem("b", "", "env.no_device_node")
    assert problems.merged([machine], [framework]) == (machine,)
    note = Problem("c", "", "env.no_device_node", "info")
    assert problems.merged([note], [framework]) == (framework,)
    assert problems.merged([], [framework, framework]) == (framework,)
    other = Problem("d", "", "env.no_tpu", "error")
    assert problems.merged([machine, note], [other]) == (other, machine, note)


def test_this_machine_is_looked_at_in_less_than_a_second_without_any_framework():
    code = (
        "import sys, time; start = time.process_time();"
        "from tpumagic.runtime import card, detect; text = card.text(detect());"
        "print(time.process_time() - start);"
        "print(sorted({'jax', 'jaxlib', 'torch', 'libtpu', 'numpy', 'IPython'} & set(sys.modules)));"
        "print(text)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    seconds, modules, *text = done.stdout.splitlines()
    assert float(seconds) < 1
    assert modules == "[]"
    assert text[0].startswith("Host ")


@pytest.fixture
def silent():
    """A metadata server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield f"127.0.0.1:{one.getsockname()[1]}"


def test_a_silent_metadata_server_and_a_crowded_proc_do_not_hold_the_card_up(machine, silent):
    one = machine("metadata_hangs")
    for pid in range(10_000):
        folder = one.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        os.symlink("/dev/null", folder / "0")
    start = time.perf_counter()
    environment = detect(one.root, {"GCE_METADATA_IP": silent}, versions=one.description["versions"], path=[])
    text = card.text(environment, (), problems.find(environment))
    assert time.perf_counter() - start < 1
    assert "Problem    The metadata server says nothing (the metadata server did not answer in time)." in text


@pytest.mark.skipif(sys.platform != "linux", reason="changes the user of a process")
def test_a_machine_that_may_not_be_read_is_a_machine_without_chips(machine):
    one = machine("tpu_vm_v4_8")
    code = """
import os, sys, time
from pathlib import Path
from tpumagic.runtime import card, detect, problems
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
start = time.perf_counter()
environment = detect(Path(sys.argv[1]), {}, versions={}, path=[])
print(card.text(environment, (), problems.find(environment)), time.perf_counter() - start < 1)
"""
    one.root.chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(one.root)], capture_output=True, text=True, check=True, timeout=60
        )
    finally:
        one.root.chmod(0o700)
    assert "Chips      no TPU chip on the PCI bus" in done.stdout
    assert done.stdout.endswith("No problem found. True\n")


def test_pipes_in_place_of_files_are_not_waited_for(tmp_path):
    for name in ("sys/bus/pci/devices/0000:00:04.0/vendor", "sys/class/dmi/id/product_name", "proc/1/cmdline"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    assert detect(tmp_path, {}, versions={}, path=[]).chips == ()
