"""Findings about the environment: each must fire, and each must stay silent."""

import json
import os
import subprocess
import sys

import pytest
from surroundings import CPU_BACKEND, NO_LIBTPU, NO_TPU, at, failed, found, only, record

from tpumagic.events import Backend, EnvironmentSet, Host, Program, SourceSite
from tpumagic.passes import environment

# no_tpu


def test_asking_for_a_tpu_where_there_is_none_says_that_nothing_is_broken():
    finding = only(
        failed(
            NO_TPU,
            line=3,
            host=Host(libtpu_version="0.0.42.1", chip_count=0, variables=(("JAX_PLATFORMS", "tpu"),)),
            backends=(Backend("jax", "0.10.2", settings=(("jax_platforms", "tpu"),)),),
        )
    )
    assert (finding.kind, finding.severity, finding.site) == ("env.no_tpu", "error", at(3))
    assert finding.title == "No TPU here: JAX_PLATFORMS=tpu asks for one, and libtpu finds no TPU device."
    assert finding.detail == "JAX says: TPU initialization failed: No jellyfish device found."
    assert finding.fix == (
        "This machine has no TPU, so nothing is broken. Leave JAX_PLATFORMS unset (or set it to cpu) and restart the kernel "
        "to run on the CPU; programs can still be compiled for a TPU here, though not run."
    )
    assert finding.facts["asked_by"] == "JAX_PLATFORMS=tpu"


def test_a_missing_libtpu_is_called_missing():
    finding = only(failed(NO_LIBTPU, host=Host(chip_count=0, variables=(("JAX_PLATFORMS", "tpu"),))))
    assert (
        finding.title == "No TPU here: JAX_PLATFORMS=tpu asks for one, and libtpu, the TPU's driver, is not installed."
    )
    assert "compiled for a TPU" not in finding.fix
    on_tpu = only(
        failed(NO_LIBTPU, host=Host(accelerator_type="v4-8", chip_count=4), backends=(Backend("jax", "0.10.2"),))
    )
    assert on_tpu.title == (
        "No TPU to use: this line asks for one and this machine says it has one (v4-8), and libtpu, the TPU's driver, is "
        "not installed."
    )
    assert on_tpu.fix == "Run pip install 'jax[tpu]==0.10.2', then restart the kernel."


def test_the_line_that_names_the_tpu_is_blamed_when_no_setting_does():
    message = "Backend 'tpu' failed to initialize: NOT_FOUND: TPU initialization failed: No jellyfish device found.. Available backends are ['cpu']"
    finding = only(failed(message, host=Host(libtpu_version="0.0.42.1")))
    assert finding.title == "No TPU here: this line asks for one, and libtpu finds no TPU device."
    assert finding.detail == "JAX says: TPU initialization failed: No jellyfish device found."


def test_a_platform_setting_that_leaves_the_tpu_out_is_named():
    message = "Unknown backend tpu. Available backends are ['cpu']"
    host = Host(libtpu_version="0.0.42.1", accelerator_type="v5e-1", variables=(("JAX_PLATFORMS", "cpu"),))
    finding = only(failed(message, host=host))
    assert finding.title == (
        "No TPU to use: this line asks for one and this machine says it has one (v5e-1), but JAX_PLATFORMS=cpu leaves the "
        "TPU out."
    )
    assert finding.fix == "Remove JAX_PLATFORMS=cpu and restart the kernel."


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Unable to initialize backend 'cuda': no GPU",
        "Unknown backend rocm. Available backends are ['cpu']",
        "division by zero",
    ],
)
def test_other_failures_are_not_about_a_missing_tpu(message):
    assert found(failed(message, host=Host(variables=(("JAX_PLATFORMS", "tpu"),)))) == []


def test_a_failure_in_a_real_process_is_explained():
    pytest.importorskip("jax")
    code = """
import json, os
from tpumagic.runtime import detect, host
from tpumagic.backends.jax.setup import describe
from tpumagic.events import CellRecord, Failure, SourceSite
from tpumagic.passes import environment
import jax
try:
    jax.devices()
except RuntimeError as error:
    failure = Failure(type(error).__name__, str(error), (SourceSite(1, cell=1),))
record = CellRecord(failure=failure, host=host(detect()), backends=(describe(),))
print(json.dumps([(f.kind, f.severity, f.title) for f in environment.find(record)]))
"""
    if any(name.startswith("accel") for name in os.listdir("/dev")):
        pytest.skip("this machine may have a TPU")
    environ = os.environ | {"JAX_PLATFORMS": "tpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    ((kind, severity, title),) = json.loads(done.stdout.splitlines()[-1])
    assert (kind, severity) == ("env.no_tpu", "error")
    assert title.startswith("No TPU here: JAX_PLATFORMS=tpu asks for one, and libtpu")


# cpu_fallback

SOURCE = "import numpy as np\nimport jax, jax.numpy as jnp\n\nx = jnp.ones((4, 4))\n"


def test_a_tpu_machine_on_which_jax_runs_on_cpu_is_told_with_jaxs_own_reason():
    host = Host(accelerator_type="v5litepod-8", chip_count=0, libtpu_version="0.0.42.1")
    finding = only(record(SOURCE, host=host, backends=(CPU_BACKEND,)))
    assert (finding.kind, finding.severity, finding.site, finding.related) == (
        "env.cpu_fallback",
        "warning",
        at(2),
        (at(4),),
    )
    assert finding.title == "JAX runs on cpu, although this machine says it has a TPU (v5litepod-8)."
    assert finding.detail == (
        "JAX's own reason: TPU initialization failed: No jellyfish device found. There is no TPU chip on the PCI bus."
    )
    assert finding.fix.startswith("The chip is not attached to this machine:")
    assert finding.facts["platform"] == "cpu"


def test_a_fallback_for_want_of_libtpu_says_what_to_install():
    backend = Backend("jax", "0.10.2", "cpu", 1, "cpu")
    host = Host(kind="colab", chip_count=1, usable_chip_count=1, variables=(("COLAB_TPU_1VM", "1"),))
    finding = only(record(SOURCE, host=host, backends=(backend,)))
    assert finding.title == "JAX runs on cpu, although this machine says it has a TPU (1 chip on the PCI bus)."
    assert finding.detail == "JAX has stored no reason. libtpu, the TPU's driver, is not installed."
    assert finding.fix == "Run pip install 'jax[tpu]==0.10.2', which brings libtpu, then restart the kernel."


def test_a_fallback_without_an_import_in_the_cell_stands_at_the_first_program():
    host = Host(accelerator_type="v5litepod-8", libtpu_version="0.0.42.1")
    program = Program("f", "jit", stack=(at(2),))
    finding = only(record("a = 1\ny = f(a)\n", host=host, backends=(CPU_BACKEND,), programs=(program,)))
    assert finding.site == at(2)


def test_a_fallback_because_another_process_holds_the_chip_is_called_so():
    backend = Backend(
        "jax",
        "0.10.2",
        "cpu",
        1,
        "cpu",
        fallback="ABORTED: The TPU is already in use by process with pid 4242. Not attempting to load libtpu.so in this process.",
    )
    finding = only(
        record(SOURCE, host=Host(chip_count=4, usable_chip_count=4, libtpu_version="1"), backends=(backend,))
    )
    assert (finding.kind, finding.severity, finding.site) == ("env.tpu_in_use", "warning", at(2))
    assert finding.title == "The TPU is held by process 4242: only one process can use it at a time."


def test_a_fallback_because_no_node_can_be_opened_is_called_so():
    finding = only(
        record(SOURCE, host=Host(chip_count=4, usable_chip_count=0, libtpu_version="1"), backends=(CPU_BACKEND,))
    )
    assert finding.kind == "env.no_device_node"
    assert finding.title == "JAX runs on cpu: none of the 4 TPU chips has a device node that this process may open."


TPU_HOST = Host(accelerator_type="v5litepod-8", libtpu_version="1")


@pytest.mark.parametrize(
    ("host", "backend"),
    [
        (Host(libtpu_version="1"), CPU_BACKEND),
        (Host(kind="colab", variables=(("COLAB_TPU_1VM", ""),)), CPU_BACKEND),
        (TPU_HOST, Backend("jax", "0.10.2", "cpu", 1, settings=(("jax_platforms", "cpu"),))),
        (TPU_HOST, Backend("jax", "0.10.2", "tpu", 8)),
        (TPU_HOST, Backend("jax", "0.10.2")),
        (TPU_HOST, Backend("torch_xla", "2.9", "cpu", 1)),
        (Host(accelerator_type="v4-8", variables=(("JAX_PLATFORMS", "cpu"),)), CPU_BACKEND),
    ],
    ids=["no TPU host", "Colab CPU", "CPU by config", "on TPU", "not started", "not JAX", "CPU by variable"],
)
def test_no_fallback_is_told_where_the_cpu_is_right(host, backend):
    assert found(record(SOURCE, host=host, backends=(backend,))) == []


# multihost_wait

FOUR = Host(
    kind="tpu_vm",
    accelerator_type="v4-32",
    chip_count=4,
    usable_chip_count=4,
    worker_count=4,
    worker=0,
    libtpu_version="1",
)


def test_one_worker_of_four_is_warned_at_the_line_that_will_wait():
    one = record("import jax\n\nimport jax.numpy as jnp\nprint(jax.devices())\nx = jnp.ones(3)\n", host=FOUR)
    finding = only(one)
    assert (finding.kind, finding.severity, finding.site) == ("env.multihost_wait", "warning", at(4))
    assert finding.title == (
        "This notebook is worker 0 of 4 (v4-32): this line waits until the other 3 hosts start the same program."
    )
    assert finding.fix == (
        "Run the same code on all 4 hosts at once; or, to use this host alone, set TPU_PROCESS_BOUNDS=1,1,1 and "
        "TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 before JAX is imported."
    )
    assert list(environment.find_before(one)) == [finding]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import jax; jax.devices()", 1),
        ("def f(x):\n    return jnp.sum(x)\n\nkey = jax.random.key(0)", 4),
        ("import jax\nfrom jax import numpy as np\ng = lambda x: np.sin(x)\na = np.arange(3)", 4),
        ("from jax import devices\nprint('x')\ndevices()", 3),
        ("from jax.sharding import Mesh\nimport jax\nmesh = jax.make_mesh((4,), ('d',))", 3),
    ],
)
def test_the_first_line_that_needs_a_device_is_found(source, line):
    assert found(record(source, host=FOUR)) == [("env.multihost_wait", "warning", line)]


def test_a_program_of_an_imported_function_shows_where_devices_are_first_used():
    program = Program("step", "jit", stack=(at(2), SourceSite(9, file="lib.py", function="train")))
    assert found(record("import lib\nlib.train()", host=FOUR, programs=(program,))) == [
        ("env.multihost_wait", "warning", 2)
    ]


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("import jax\nf = jax.jit(lambda x: x)\ndef g():\n    return jax.devices()", {}),
        ("import numpy as np\nnp.ones(3)", {}),
        ("jax.devices()", {"host": Host(worker_count=1, worker=0, accelerator_type="v4-8")}),
        ("jax.devices()", {"host": Host()}),
        ("jax.devices()", {"host": Host(worker_count=4, variables=(("TPU_PROCESS_BOUNDS", "1,1,1"),))}),
        ("jax.devices()", {"host": Host(worker_count=4, variables=(("JAX_PLATFORMS", "cpu"),))}),
        ("jax.devices()", {"backends": (Backend("jax", "0.10.2", "tpu", 16, started_here=False),)}),
    ],
    ids=["no device", "numpy", "one host", "no slice", "one host asked for", "CPU asked for", "running"],
)
def test_nothing_waits_where_nobody_else_is_needed(source, given):
    assert found(record(source, **{"host": FOUR, **given})) == []


def test_a_slice_that_did_start_together_is_no_warning():
    backend = Backend("jax", "0.10.2", "tpu", 16, started_here=True)
    assert found(record("jax.devices()", host=FOUR, backends=(backend,))) == [("env.multihost_wait", "info", 1)]


def test_a_card_tells_of_the_slice_without_any_cell():
    (finding,) = environment.find_standing(FOUR, ())
    assert finding.site is None
    assert "worker 0 of 4 (v4-32): the first use of a device waits until the other 3 hosts start" in finding.title


# flag_after_init


def setting(name, value, line, *, started=True, imported=("jax",)):
    return EnvironmentSet(name, value, (at(line),), started, imported)


LATE = 'import os, jax\nn = jax.device_count()\nos.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"\n'
RUNNING = Backend("jax", "0.10.2", "cpu", 1, "cpu")


def test_a_flag_set_after_the_start_is_ignored_and_says_what_is_still_so():
    flags = setting("XLA_FLAGS", "--xla_force_host_platform_device_count=4", 3)
    finding = only(record(LATE, environment_sets=(flags,), backends=(RUNNING,)))
    assert (finding.kind, finding.severity, finding.site) == ("env.flag_after_init", "warning", at(3))
    assert finding.title == "XLA_FLAGS was set after JAX had started, so it is ignored."
    assert finding.detail == "JAX still has 1 device, not 4."
    assert finding.fix == "Restart the kernel and set XLA_FLAGS in the first cell, before a device is used."
    assert finding.facts == {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=4"}


@pytest.mark.parametrize(
    "name", ["LIBTPU_INIT_ARGS", "TPU_VISIBLE_CHIPS", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE"]
)
def test_every_variable_that_is_read_once_counts(name):
    source = f'import os\nos.environ.update({name}="x")'
    assert found(record(source, environment_sets=(setting(name, "x", 2),))) == [("env.flag_after_init", "warning", 2)]


def test_a_jax_setting_made_after_the_import_gets_the_call_that_still_works():
    source = 'import os\nimport jax\nos.environ["JAX_ENABLE_X64"] = "1"\n'
    finding = only(record(source, environment_sets=(setting("JAX_ENABLE_X64", "1", 3, started=False, imported=()),)))
    assert finding.title == "JAX_ENABLE_X64 was set after JAX had been imported, so it is ignored."
    assert (
        finding.fix
        == 'Use jax.config.update("jax_enable_x64", …) instead, or set JAX_ENABLE_X64 before JAX is imported.'
    )


def test_forty_settings_of_one_variable_make_one_finding():
    sets = tuple(setting("XLA_FLAGS", f"--n={n}", 3) for n in range(40))
    finding = only(record(LATE, environment_sets=sets, backends=(RUNNING,)))
    assert (finding.count, finding.related) == (40, ())


X64_ON = Backend("jax", "0.10.2", "cpu", 1, settings=(("jax_enable_x64", "True"),))


@pytest.mark.parametrize(
    ("source", "one", "backends"),
    [
        ('import os\nos.environ["XLA_FLAGS"] = "-"\nimport jax', setting("XLA_FLAGS", "-", 2, started=False, imported=()), ()),
        ('import os, jax\nos.environ["XLA_FLAGS"] = "-"', setting("XLA_FLAGS", "-", 2, started=False), ()),
        ('import os\nos.environ["JAX_PLATFORMS"] = "cpu"\nimport jax', setting("JAX_PLATFORMS", "cpu", 2, started=False, imported=()), ()),
        ('os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"', setting("TF_CPP_MIN_LOG_LEVEL", "3", 1), ()),
        ("import torch_xla", setting("LIBTPU_INIT_ARGS", "--a", 1), ()),
        ('os.environ["JAX_ENABLE_X64"] = "1"', setting("JAX_ENABLE_X64", "1", 1), (X64_ON,)),
        ('os.environ["JAX_PLATFORMS"] = "cpu"', setting("JAX_PLATFORMS", "cpu", 1), (RUNNING,)),
        ('os.environ["JAX_NUM_PROCESSES"] = "2"', setting("JAX_NUM_PROCESSES", "2", 1, started=False), ()),
    ],
    ids=["before import", "before start", "platforms before import", "log level", "a library's own", "on already", "there already", "read later"],
)  # fmt: skip
def test_a_variable_set_in_time_or_without_effect_is_no_finding(source, one, backends):
    assert found(record(source, environment_sets=(one,), backends=backends)) == []


def test_a_variable_meant_for_a_child_process_is_no_warning():
    source = 'import os, subprocess\nos.environ["XLA_FLAGS"] = "-"\nsubprocess.run(["python", "train.py"])'
    assert found(record(source, environment_sets=(setting("XLA_FLAGS", "-", 2),))) == [
        ("env.flag_after_init", "info", 2)
    ]


def test_platforms_changed_by_config_after_the_start_are_ignored():
    source = 'import jax\njax.devices()\njax.config.update("jax_platforms", "tpu")\n'
    backend = Backend("jax", "0.10.2", "cpu", 1, settings=(("jax_platforms", "tpu"),))
    finding = only(record(source, backends=(backend,)))
    assert (finding.kind, finding.severity, finding.site) == ("env.flag_after_init", "warning", at(3))
    assert finding.title == "jax_platforms was set after JAX had started, so it is ignored."
    assert finding.detail == "JAX still runs on cpu."
    in_time = Backend("jax", "0.10.2", "cpu", 1, settings=(("jax_platforms", "cpu"),))
    assert found(record(source.replace('"tpu"', '"cpu"'), backends=(in_time,))) == []


def test_what_jax_refuses_after_its_start_is_explained():
    message = (
        "jax_num_cpu_devices config should be updated before backends are initialized i.e. before any JAX operation is "
        "executed. You should initialize this config immediately after `import jax`."
    )
    finding = only(failed(message, line=4))
    assert (finding.kind, finding.severity, finding.site) == ("env.flag_after_init", "error", at(4))
    assert finding.title == "jax_num_cpu_devices was changed after JAX had started, when it cannot be changed any more."
    message = "jax.distributed.initialize() must be called before any JAX calls that might initialise the XLA backend."
    assert only(failed(message)).title == (
        "jax.distributed.initialize() was called after JAX had started, when it can join no cluster any more."
    )


# old_snippet

COLAB = Host(kind="colab", variables=(("COLAB_RELEASE_TAG", "release-colab"),))


def test_the_old_colab_set_up_of_jax_is_told_what_replaces_it():
    source = "import jax.tools.colab_tpu\njax.tools.colab_tpu.setup_tpu()"
    finding = only(failed("No module named 'jax.tools.colab_tpu'", "ModuleNotFoundError", source=source, host=COLAB))
    assert (finding.kind, finding.severity, finding.site) == ("env.old_snippet", "error", at(1))
    assert finding.title == (
        "jax.tools.colab_tpu is from old notebooks: it belonged to Colab's TPU nodes, which are gone, and JAX has dropped it."
    )
    assert finding.fix == "Delete the import and the call of setup_tpu(): jax.devices() is enough on a TPU runtime."


@pytest.mark.parametrize(
    ("message", "type_name", "source", "name"),
    [
        ("'COLAB_TPU_ADDR'", "KeyError", "import os\ntpu = os.environ['COLAB_TPU_ADDR']", "COLAB_TPU_ADDR"),
        ("not a TPU", "AssertionError", "import os\nassert 'COLAB_TPU_ADDR' in os.environ, 'not a TPU'", "COLAB_TPU_ADDR"),
        ("Please provide a TPU Name to connect to.", "ValueError", "x = 1\nr = TPUClusterResolver()", "TPUClusterResolver()"),
        ("cannot import name 'xla_bridge' from 'jax.lib' (x)", "ImportError", "\nfrom jax.lib import xla_bridge", "jax.lib.xla_bridge"),
        ("jax.tools.colab_tpu.setup_tpu() was required for older JAX versions running on older generations of TPUs, and should no longer be used.", "RuntimeError", "from jax.tools import colab_tpu\ncolab_tpu.setup_tpu()", "jax.tools.colab_tpu"),
    ],
)  # fmt: skip
def test_every_old_way_that_fails_is_explained_where_it_failed(message, type_name, source, name):
    finding = only(failed(message, type_name, line=2, source=source, host=COLAB))
    assert (finding.kind, finding.severity, finding.site, finding.facts) == (
        "env.old_snippet",
        "error",
        at(2),
        {"name": name},
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import os\nif 'COLAB_TPU_ADDR' not in os.environ:\n    print('no TPU')", 2),
        ("import os\naddress = os.environ.get('COLAB_TPU_ADDR')", 2),
        ("import os\nos.environ['XRT_TPU_CONFIG'] = 'tpu_worker;0;10.0.0.2:8470'", 2),
        ("from jax.config import config\n\nconfig.FLAGS.jax_xla_backend = 'tpu_driver'", 3),
        ("x = 1\n!python pytorch-xla-env-setup.py --version nightly", 2),
    ],
)
def test_an_old_way_that_does_not_fail_is_a_warning_on_a_tpu_host_only(source, line):
    assert found(record(source, host=COLAB)) == [("env.old_snippet", "warning", line)]
    assert found(record(source)) == [("env.old_snippet", "info", line)]


@pytest.mark.parametrize(
    "source",
    [
        "import jax\nprint(jax.devices())",
        "# COLAB_TPU_ADDR was the old way\nprint('COLAB_TPU_ADDR')",
        "os.environ.pop('COLAB_TPU_ADDR', None)",
        "r = TPUClusterResolver(tpu='local')",
        "from jax.tools import jax_to_ir",
    ],
)
def test_code_of_today_is_not_called_old(source):
    assert found(record(source, host=COLAB)) == []


def test_code_that_also_knows_the_new_way_is_no_warning():
    source = "tpu = 'COLAB_TPU_ADDR' in os.environ or os.environ.get('COLAB_TPU_1VM') == '1'"
    assert found(record(source, host=COLAB)) == [("env.old_snippet", "info", 1)]
    guarded = "try:\n    import jax.tools.colab_tpu\nexcept ImportError:\n    pass"
    assert found(record(guarded, host=COLAB)) == [("env.old_snippet", "info", 2)]
