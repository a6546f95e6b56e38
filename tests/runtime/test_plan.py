"""What setting up a framework would change on machines people use."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tpumagic.events import Backend
from tpumagic.frameworks import FRAMEWORKS
from tpumagic.runtime import plan_text
from tpumagic.runtime.journal import Journal
from tpumagic.runtime.owners import Owner
from tpumagic.runtime.plan import cpu_device_steps, plan

HOSTS = Path(__file__).parent.parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))
LATEST = {
    "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1", "torch": "2.9.0", "torch_xla": "2.9.0",
    "keras": "3.15.1", "tensorflow-cpu": "2.20.0",
}  # fmt: skip
KERAS = "Keras reads it when it is imported, and JAX is the one of its backends that runs on a TPU by itself"
JAX = "a TPU that does not start is then an error, and not a silent run on the CPU"


@pytest.fixture
def look(machine):
    """The plan for a framework on a machine of tests/hosts; versions replace those of the machine."""

    built = {}

    def look(framework, name, versions=LATEST, modules=(), backends=(), owners=None, **variables):
        one = built[name] = built.get(name) or machine(name)
        one.description["versions"] = dict(versions)
        environ = {**one.description["environ"], **variables}
        environment = one.detect(**variables)
        if owners is not None:
            environment = replace(environment, owners=owners)
        return plan(framework, environment, environ, modules, backends)

    return look


def changes(found):
    return [(step.name, step.value) for step in found.steps]


def titles(found):
    return [problem.title for problem in found.problems]


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_holds_together(machine, name):
    built = machine(name)
    as_it_is = built.detect()
    complete = replace(as_it_is, versions=tuple({**dict(as_it_is.versions), **LATEST}.items()), owners=())
    for environment, framework in itertools.product((as_it_is, complete), FRAMEWORKS):
        environ = dict(built.description["environ"])
        found = plan(framework, environment, environ, ())
        if found.problems:
            assert not found.steps
            assert not found.restart_needed
            assert all(problem.title.endswith(".") and problem.fix for problem in found.problems)
        if not any(chip.usable for chip in environment.chips):
            assert found.cpu is not None, "on a machine without a TPU the CPU is told"
            assert not any(step.name in ("JAX_PLATFORMS", "PJRT_DEVICE") for step in found.steps)
        before = dict(environ)
        journal = Journal(environ)
        journal.apply(found.steps)
        again = plan(framework, environment, environ, ())
        assert not again.steps, "what was done once is not done again"
        journal.undo()
        assert environ == before
        assert all(line.strip() for line in plan_text.preview(found, environ))


@pytest.mark.parametrize(
    ("framework", "name", "steps"),
    [
        ("jax", "colab_v5e_1", [("JAX_PLATFORMS", "tpu,cpu")]),
        ("jax", "colab_cpu", []),
        ("jax", "laptop", []),
        ("jax", "kaggle_v5e_8", [("JAX_PLATFORMS", "tpu,cpu")]),
        ("jax", "tpu_vm_v4_8", [("JAX_PLATFORMS", "tpu,cpu")]),
        ("keras", "colab_v5e_1", [("KERAS_BACKEND", "jax"), ("JAX_PLATFORMS", "tpu,cpu")]),
        ("keras", "laptop", [("KERAS_BACKEND", "jax")]),
        ("torch_xla", "colab_v5e_1", [("PJRT_DEVICE", "TPU")]),
        ("torch_xla", "colab_cpu", []),
        ("torch_xla", "kaggle_v5e_8", [("PJRT_DEVICE", "TPU"), ("TPU_PROCESS_ADDRESSES", None)]),
        ("tensorflow", "kaggle_v5e_8", []),
        ("tensorflow", "laptop", []),
    ],
)
def test_only_what_is_right_for_the_host_is_changed(look, framework, name, steps):
    found = look(framework, name)
    assert titles(found) == []
    assert changes(found) == steps


def test_jax_gets_a_loud_error_where_there_is_a_tpu(look):
    assert plan_text.preview(look("jax", "colab_v5e_1"), {}) == (
        f"Would set JAX_PLATFORMS=tpu,cpu: {JAX}.",
        "Would import JAX and multiply two matrices as a proof.",
        "Nothing was changed or started.",
    )


COUNT = "--xla_force_host_platform_device_count"


@pytest.mark.parametrize(
    ("environ", "count", "steps"),
    [
        ({}, 8, [("XLA_FLAGS", f"{COUNT}=8")]),
        ({}, 1, []),
        ({"XLA_FLAGS": f"{COUNT}=8"}, 8, []),
        ({"XLA_FLAGS": f"{COUNT}=8"}, 1, [("XLA_FLAGS", f"{COUNT}=1")]),
        ({"XLA_FLAGS": f"--a=1 {COUNT}=4 --b"}, 8, [("XLA_FLAGS", f"--a=1 --b {COUNT}=8")]),
        ({"XLA_FLAGS": f"{COUNT}=8 {COUNT}=2"}, 8, [("XLA_FLAGS", f"{COUNT}=8")]),
        ({"XLA_FLAGS": "/etc/flags"}, 8, [("JAX_NUM_CPU_DEVICES", "8")]),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 8, [("JAX_NUM_CPU_DEVICES", "8"), ("XLA_FLAGS", f"{COUNT}=8")]),
    ],
)
def test_a_number_of_cpu_devices_is_asked_for_beside_what_is_set_already(environ, count, steps):
    found = cpu_device_steps(count, environ)
    assert [(step.name, step.value) for step in found] == steps


def test_cpu_devices_are_wanted_only_where_jax_computes_without_a_tpu(machine):
    def steps(framework, name, backends=(), modules=()):
        one = machine(name)
        one.description["versions"] = dict(LATEST)
        environ = dict(one.description["environ"])
        found = plan(framework, one.detect(), environ, modules, backends, cpu_devices=8)
        assert not found.problems
        return [name for name, _ in changes(found)], found

    assert steps("jax", "laptop")[0] == ["XLA_FLAGS"]
    assert steps("keras", "laptop")[0] == ["KERAS_BACKEND", "XLA_FLAGS"]
    assert steps("jax", "colab_v5e_1")[0] == ["JAX_PLATFORMS"]
    assert steps("torch_xla", "laptop")[0] == []
    running = Backend("jax", "0.10.2", "cpu", 1)
    names, found = steps("jax", "laptop", (running,), ("jax",))
    assert names == []
    assert found.notes == (
        "JAX runs with 1 device already, and the target has 8: restart the kernel and ask for the target first.",
    )
    assert steps("jax", "laptop", (replace(running, device_count=8),), ("jax",))[1].notes == ()


def test_a_choice_made_before_stays_and_is_told(look):
    jax = look("jax", "kaggle_v5e_8", JAX_PLATFORMS="cpu")
    assert (changes(jax), jax.cpu) == (
        [],
        "JAX_PLATFORMS=cpu, which was set before, asks for it, although this host has 8 TPU chips",
    )
    torch_xla = look("torch_xla", "colab_v5e_1", PJRT_DEVICE="CPU")
    assert (changes(torch_xla), torch_xla.cpu) == (
        [],
        "PJRT_DEVICE=CPU, which was set before, asks for it, although this host has 1 TPU chip",
    )
    keras = look("keras", "laptop", KERAS_BACKEND="tensorflow")
    assert (changes(keras), keras.engine) == ([], "tensorflow")


def test_leftovers_of_xrt_and_of_kaggle_are_cleared_for_pytorch(look):
    environ = {
        "TPU_PROCESS_ADDRESSES": "local",
        "CLOUD_TPU_TASK_ID": "0",
        "XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470",
    }
    found = look("torch_xla", "kaggle_v5e_8", CLOUD_TPU_TASK_ID="0", XRT_TPU_CONFIG=environ["XRT_TPU_CONFIG"])
    assert plan_text.preview(found, environ)[1:4] == (
        (
            "Would clear XRT_TPU_CONFIG (now tpu_worker;0;10.0.0.2:8470): it belongs to XRT, which PyTorch/XLA has left, and "
            "gets in the way of PJRT."
        ),
        (
            "Would clear TPU_PROCESS_ADDRESSES (now local): the image sets it to spare a question to the metadata server; "
            "PyTorch/XLA takes it for a list of workers."
        ),
        "Would clear CLOUD_TPU_TASK_ID (now 0): it numbers one process of several, and this host stands alone.",
    )


def test_addresses_and_numbers_of_real_workers_are_kept(look):
    found = look(
        "torch_xla",
        "tpu_vm_v4_8",
        TPU_PROCESS_ADDRESSES="a:8476,b:8476",
        CLOUD_TPU_TASK_ID="1",
        TPU_PROCESS_BOUNDS="1,2,1",
    )
    assert changes(found) == [("PJRT_DEVICE", "TPU")]
    assert changes(look("jax", "kaggle_v5e_8")) == [("JAX_PLATFORMS", "tpu,cpu")], "JAX does not mind `local`"


@pytest.mark.parametrize("framework", ["jax", "torch_xla", "keras"])
def test_one_worker_of_several_is_not_started(look, framework):
    found = look(framework, "gke_v6e_16")
    label = {"jax": "JAX", "torch_xla": "PyTorch/XLA", "keras": "JAX"}[framework]
    assert [(problem.title, problem.fix) for problem in found.problems] == [
        (
            f"{label} was not started: this is worker 2 of 4, and it would wait here until the other 3 start it too.",
            (
                "Run the same on all 4; or, for this host alone, set TPU_PROCESS_BOUNDS=1,1,1 and "
                "TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1, and restart the kernel."
            ),
        )
    ]
    assert look(framework, "gke_v6e_16", TPU_PROCESS_BOUNDS="1,1,1").problems == ()
    running = (Backend(framework if framework != "keras" else "jax", "1", "tpu", 16),)
    assert look(framework, "gke_v6e_16", backends=running).problems == (), "the others have come"


def test_a_worker_that_computes_on_the_cpu_waits_for_nobody(look):
    assert look("jax", "gke_v6e_16", JAX_PLATFORMS="cpu").problems == ()


def test_a_variable_that_was_read_already_needs_a_restart(look):
    found = look("jax", "colab_v5e_1", modules={"jax"}, backends=[Backend("jax", "0.10.2")])
    assert changes(found) == []
    assert plan_text.late(found) == (
        (
            f"Needs a restart: set JAX_PLATFORMS=tpu,cpu before the import, since {JAX}; it has been read already, so it was "
            "left as it is."
        ),
    )
    running = look("jax", "colab_v5e_1", modules={"jax"}, backends=[Backend("jax", "0.10.2", "tpu", 1)])
    assert (running.steps, running.restart_needed) == ((), ()), "it runs on the TPU: nothing is missing"


def test_pytorch_reads_its_variables_when_it_starts_and_not_when_it_is_imported(look):
    imported = look("torch_xla", "kaggle_v5e_8", modules={"torch_xla"}, backends=[Backend("torch_xla", "2.9.0")])
    assert changes(imported) == [("PJRT_DEVICE", "TPU"), ("TPU_PROCESS_ADDRESSES", None)]
    started = look(
        "torch_xla", "kaggle_v5e_8", modules={"torch_xla"}, backends=[Backend("torch_xla", "2.9.0", "cpu", 1)]
    )
    assert changes(started) == []
    assert [step.name for step in started.restart_needed] == ["PJRT_DEVICE", "TPU_PROCESS_ADDRESSES"]


def keras_on(backend):
    return {
        "modules": {"keras", "keras.src"},
        "backends": [Backend("keras", "3.15.1", settings=(("backend", backend),))],
    }


def test_a_keras_on_another_backend_is_to_be_imported_anew(look):
    found = look("keras", "laptop", **keras_on("tensorflow"))
    assert changes(found) == [("KERAS_BACKEND", "jax")]
    assert found.repair == (
        "Keras was imported with the backend tensorflow: it is changed to jax, unless the notebook holds layers, models "
        "or functions of the old one."
    )
    wanted = look("keras", "laptop", KERAS_BACKEND="tensorflow", **keras_on("tensorflow"))
    assert (wanted.repair, wanted.steps) == (None, ()), "the user said tensorflow, and has it"
    ready = look("keras", "laptop", **keras_on("jax"))
    assert (ready.repair, ready.steps) == (None, ())


def test_what_a_failed_import_of_keras_left_is_seen(look):
    found = look("keras", "laptop", modules={"keras.src", "keras.src.backend"})
    assert found.repair == (
        "An import of Keras failed half-way: what it left behind is taken away, so that it can be imported anew."
    )
    assert look("keras", "laptop", modules={"keras_hub"}).repair is None


def test_keras_on_pytorch_is_never_silently_on_the_cpu(look):
    found = look("keras", "colab_v5e_1", KERAS_BACKEND="torch")
    assert found.cpu == "Keras on PyTorch knows no TPU; KERAS_BACKEND=jax does"
    assert titles(look("keras", "laptop", KERAS_BACKEND="theano")) == [
        "KERAS_BACKEND=theano, which was set before, is not a backend that tpumagic can set up."
    ]


@pytest.mark.parametrize(
    ("framework", "versions", "tpu_host", "problem", "fix"),
    [
        ("jax", {}, True, "JAX is not installed.", "pip install -U 'jax[tpu]>=0.7.2', then restart the kernel."),
        ("jax", {}, False, "JAX is not installed.", "pip install -U 'jax>=0.7.2', then restart the kernel."),
        (
            "jax",
            {"jax": "0.4.30", "libtpu": "0.0.2"},
            True,
            "JAX 0.4.30 is too old for tpumagic, which needs 0.7.2.",
            "pip install -U 'jax[tpu]>=0.7.2', then restart the kernel.",
        ),
        (
            "keras",
            {},
            True,
            "Keras and JAX are not installed.",
            "pip install -U keras 'jax[tpu]>=0.7.2', then restart the kernel.",
        ),
        (
            "keras",
            {"keras": "3.15.1"},
            False,
            "JAX is not installed.",
            "pip install -U 'jax>=0.7.2', then restart the kernel.",
        ),
        (
            "torch_xla",
            {"torch": "2.9.0"},
            True,
            "PyTorch/XLA is not installed.",
            "pip install 'torch~=2.9.0' 'torch_xla[tpu]~=2.9.0', then restart the kernel.",
        ),
        (
            "torch_xla",
            {"torch": "2.13.0", "torch_xla": "2.9.0"},
            True,
            "torch_xla 2.9.0 and torch 2.13.0 do not fit together: the import would end at an undefined symbol.",
            "pip install 'torch~=2.9.0', then restart the kernel.",
        ),
        (
            "torch_tpu",
            {"torch": "2.9.0+cpu", "torch_tpu": "0.2.0", "libtpu": "0.0.52"},
            True,
            "TorchTPU works with torch 2.11 to 2.15, and 2.9.0+cpu is installed.",
            "pip install torch_tpu 'torch>=2.11,<=2.15', in an environment of its own, then restart the kernel there.",
        ),
        (
            "torch_tpu",
            {"torch": "2.13.0", "torch_tpu": "0.2.0", "libtpu": "0.0.42.1"},
            True,
            "TorchTPU needs libtpu 0.0.50 or newer, and 0.0.42.1 is installed.",
            "pip install torch_tpu 'libtpu>=0.0.50', in an environment of its own, then restart the kernel there.",
        ),
        (
            "torch_tpu",
            {"torch": "2.13.0", "torch_tpu": "0.2.0", "libtpu": "0.0.52"},
            False,
            "TorchTPU cannot start: this machine has no TPU chip, and it has no CPU mode.",
            "Use it on a machine with v5e chips or newer; PyTorch/XLA (%tpu_env torch_xla) runs on a CPU as well.",
        ),
        (
            "tensorflow",
            {},
            True,
            "TensorFlow is not installed.",
            "pip install tensorflow-tpu==2.20.0 'libtpu<0.0.32', then restart the kernel.",
        ),
        (
            "tensorflow",
            {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.42.1"},
            False,
            (
                "TensorFlow was not imported: with libtpu 0.0.42.1, tensorflow-tpu 2.20.0 ends the whole process (libtpu must "
                "be older than 0.0.32)."
            ),
            (
                "pip install 'libtpu<0.0.32' in an environment of its own, then restart the kernel there; JAX goes along up to "
                "jax[tpu]==0.8.1."
            ),
        ),
        (
            "tensorflow",
            {"tensorflow-tpu": "2.20.0"},
            True,
            "tensorflow-tpu 2.20.0 needs libtpu, which is not installed.",
            "pip install 'libtpu<0.0.32', then restart the kernel.",
        ),
    ],
)
def test_what_is_missing_or_would_fail_is_known_before_the_import(look, framework, versions, tpu_host, problem, fix):
    found = look(framework, "colab_v5e_1" if tpu_host else "laptop", versions)
    assert (found.problems[0].title, found.problems[0].fix) == (problem, fix)


def test_keras_on_tensorflow_is_not_imported_where_that_would_end_the_process(look):
    versions = {"keras": "3.15.1", "tensorflow-tpu": "2.20.0", "libtpu": "0.0.42.1"}
    assert len(look("keras", "laptop", versions, KERAS_BACKEND="tensorflow").problems) == 1
    assert look("tensorflow", "laptop", {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.30"}).problems == ()
    assert look("tensorflow", "laptop", versions, modules={"tensorflow"}).problems == (), "it has survived the import"


def test_torch_tpu_does_not_know_chips_below_dev_accel(look):
    versions = {"torch": "2.13.0", "torch_tpu": "0.2.0", "libtpu": "0.0.52"}
    found = look("torch_tpu", "tpu_vm_v4_8", versions)
    assert titles(found) == ["TorchTPU does not find v4 chips: it looks for those below /dev/vfio."]
    ready = look("torch_tpu", "colab_v5e_1", versions, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ready.notes == (
        "tpumagic has not been tried with TorchTPU on a TPU: where the two disagree, trust TorchTPU.",
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0, which was set before, keeps `import torch` from loading TorchTPU by itself.",
    )


def test_why_it_is_the_cpu(look):
    assert look("jax", "laptop").cpu == "this machine has no TPU chip"
    assert look("jax", "colab_v5e_1", {"jax": "0.10.2"}).cpu == "libtpu, the TPU's driver, is not installed"
    assert look("torch_xla", "colab_v5e_1", {"torch": "2.9.0", "torch_xla": "2.9.0"}).cpu is None, (
        "it may bring its own"
    )
    assert look("tensorflow", "kaggle_v5e_8").cpu == "the package tensorflow-cpu knows no TPU; tensorflow-tpu does"
    assert look("jax", "container_without_nodes").cpu == "of 4 TPU chips of this machine none can be opened"


def test_a_chip_that_another_kernel_holds_is_not_asked_for(look):
    owner = Owner(42, "python -m ipykernel_launcher -f kernel-ab.json", "ab", ("/dev/vfio/0",), mine=False)
    found = look("jax", "colab_v5e_1", owners=(owner,))
    assert [(problem.title, problem.fix) for problem in found.problems] == [
        (
            "JAX was not started: the TPU is held by the Jupyter kernel ab (process 42).",
            "Shut that kernel down and try again: only one process can use a chip.",
        )
    ]
    assert look("jax", "kaggle_v5e_8", owners=(owner,), TPU_VISIBLE_CHIPS="1,2").problems == ()
    assert look("jax", "colab_v5e_1", owners=(owner,), JAX_PLATFORMS="cpu").problems == ()


def test_two_frameworks_do_not_share_the_tpu_of_one_process(look):
    mine = Owner(7, "python", None, ("/dev/vfio/0",), mine=True)
    jax_runs = {"modules": {"jax"}, "backends": [Backend("jax", "0.10.2", "tpu", 1)], "owners": (mine,)}
    assert titles(look("torch_xla", "colab_v5e_1", **jax_runs)) == [
        "This process holds the TPU already, through JAX: PyTorch/XLA would not get it."
    ]
    assert look("jax", "colab_v5e_1", **jax_runs).problems == ()
    assert look("keras", "colab_v5e_1", **jax_runs).problems == ()


def test_mxnet_is_told_honestly(look):
    found = look("mxnet", "laptop")
    assert plan_text.problems(found) == (
        "There is nothing to start: MXNet was retired in 2023 and never had a TPU backend.",
        (
            "fix: A trained model's -symbol.json and .params files can be turned into a JAX function; tpumagic has no reader "
            "for them."
        ),
    )


def test_an_unusual_libtpu_is_the_first_suspect(look):
    found = look("jax", "colab_v5e_1", {"jax": "0.10.2", "libtpu": "0.0.40"})
    assert found.notes == (
        "jax 0.10.2 asks for libtpu 0.0.42.*, and 0.0.40 is installed: if it fails to start, that is the first suspect.",
    )
    shipped = json.loads((HOSTS / "colab_v5e_1.json").read_text())["versions"]
    assert look("jax", "colab_v5e_1", shipped).notes == (), "Colab ships them together"
