"""Code that asks which platform runs it, a compiler that gives no answer, and what a target's devices are used for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import MIB, V5E_8, line, plan, planned, program, record, refused

from tpumagic.events import Backend, Collective, Failure
from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import errors, sharding, targets
from tpumagic.plans import Answer, Communication, Cost, Target

CPU = (Backend("jax", "0.10", "cpu", 1),)


def graph(*lines: int) -> Graph:
    """A program of one operation at each line, called on line 9."""
    operations = tuple(Operation("add", (0, 0), (0,), (line(9), line(n))) for n in lines)
    return Graph((Value((8,), "float32"),), (0,), (0,), operations)


def branches(source: str, *lines: int, backends=CPU, answers=(planned(plan(1)),), **more):
    made = program(*answers, graph=graph(*lines), **{"definition": None, **more})
    return list(targets.find(record(made, source=source, backends=backends)))


BRANCH = """
def step(x):
    if jax.default_backend() == "tpu":
        return fast(x)
    return x + x



step(x)
"""


def test_a_branch_for_the_cpu_is_a_warning():
    (finding,) = branches(BRANCH, 5)
    assert (finding.kind, finding.severity) == ("compile.cpu_branch", "warning")
    assert finding.title == (
        "`step` decides by `jax.default_backend()` while it is traced, and got this machine's answer: what was compiled for v5e-1 is "
        "the branch for CPU"
    )
    assert finding.detail == "The program that a TPU would run may differ in memory, time and precision."
    assert finding.fix == (
        "Let the choice be made at compile time: `jax.lax.platform_dependent(…, tpu=…, default=…)`, or pass it as a static "
        "argument."
    )
    assert finding.site == line(3, "step")
    assert finding.related == (line(9),)


@pytest.mark.parametrize(
    ("source", "at"),
    [
        ("\ndef f(x):\n    y = x + x\n    return g(y) if jax.devices()[0].platform == 'tpu' else y\n", 4),
        ("\non_tpu = jax.default_backend() == 'tpu'\ndef f(x):\n    if on_tpu: return g(x)\n    return x + x\n", 4),
        ("\ndef f(x):\n    y = x + x\n    return pl.pallas_call(k, interpret=jax.default_backend() != 'tpu')(y)\n", 4),
        ("\ndef f(x):\n    match jax.default_backend():\n        case 'tpu': return g(x)\n    return x + x\n", 3),
    ],
    ids=["an expression", "a variable", "interpret", "match"],
)
def test_other_ways_to_ask_are_found(source, at):
    first = next(n for n, text in enumerate(source.splitlines(), 1) if "x + x" in text)
    (finding,) = branches(source, first)
    assert finding.site.line == at


QUIET = {
    "not traced": "\nif jax.default_backend() == 'cpu':\n    print('slow')\ndef step(x):\n    return x + x\n",
    "the caller asks": "\ndef step(x):\n    return x + x\n\n\n\n\ndef main():\n    return step(x) if jax.default_backend() else 0\n",
    "another function": "\ndef other():\n    if jax.default_backend() == 'tpu': return 1\ndef step(x):\n    return x + x\n",
    "it only tells": "\ndef step(x):\n    name = jax.default_backend()\n    print(name)\n    return x + x\n",
    "platform of the host": "\ndef step(x):\n    if sys.platform == 'linux': x = x + 1\n    return x + x\n",
}


@pytest.mark.parametrize("source", QUIET.values(), ids=QUIET)
def test_code_whose_program_is_the_same_on_a_tpu_is_not_told(source):
    first = next(n for n, text in enumerate(source.splitlines(), 1) if "x + x" in text)
    assert branches(source, first) == []


def test_without_a_target_or_on_a_tpu_nothing_is_told():
    assert branches(BRANCH, 5, answers=()) == []
    assert branches(BRANCH, 5, backends=(Backend("jax", "0.10", "tpu", 1),)) == []
    assert branches(BRANCH, 5, compile_only=True) == []


def silent(why: str, name: str = "step", cause="compiler", **more):
    return program(Answer(V5E_8, "unavailable", why=why, cause=cause), name=name, **more)


def test_a_compiler_that_gives_no_answer_is_told_once():
    why = "there is no libtpu on this machine."
    (finding,) = targets.find(record(silent(why), silent(why, "loss"), silent(why, "other")))
    assert (finding.kind, finding.severity) == ("env.compiler_missing", "warning")
    assert finding.title == "The TPU compiler gave no answer for v5e-8: there is no libtpu on this machine"
    assert finding.detail == "So it is not known whether `step` and 2 more would fit or what it would cost."
    assert finding.fix == (
        "`tpumagic compiler status` shows which compiler is used; `tpumagic compiler install` gets one that works beside the "
        "installed packages."
    )
    assert finding.facts == {"target": "v5e-8", "why": why, "programs": 3}


def test_where_the_devices_do_not_match_nobody_is_sent_to_install_a_compiler():
    (finding,) = targets.find(record(silent("it runs on 4 devices, and v5e-8 has 8", cause="devices")))
    assert finding.severity == "warning"
    assert finding.fix == "Name a target with as many devices as the program runs on; `tpumagic targets` lists them."


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ("memory", "Free some memory (delete large arrays, end other kernels) and run it again."),
        ("size", "Give the large arrays to the function as arguments: as constants they are part of the program."),
    ],
)
def test_what_is_short_of_room_gets_its_own_advice(cause, fix):
    (finding,) = targets.find(record(silent("there is no room", cause=cause)))
    assert finding.fix == fix


def test_where_jax_could_not_lower_nobody_is_sent_to_install_a_compiler():
    (finding,) = targets.find(record(silent("JAX did not lower it for a TPU (E)", cause="lowering")))
    assert finding.fix == "`jax.jit(f).trace(*args).lower(lowering_platforms=('tpu',))` shows where JAX fails."


def test_what_the_user_interrupted_is_no_warning():
    (finding,) = targets.find(record(silent("it was interrupted", cause="interrupted")))
    assert (finding.severity, finding.fix) == ("info", "Run it again, and let it finish.")


def test_for_what_the_cell_compiled_itself_it_is_an_info():
    (finding,) = targets.find(record(silent("busy", compile_only=True)))
    assert finding.severity == "info"


def test_an_answer_is_no_missing_one():
    assert list(targets.find(record(program(planned(plan(1)))))) == []


GATHER = Communication("all-gather", "float32", (4096, 4096), 64 * MIB, 1, 8, (line(4),), whole=True, resliced=True)
REDUCE = Communication("all-reduce", "float32", (128,), 512, 1, 8, (line(5),))


def test_communication_of_a_planned_program_is_told():
    found = list(sharding.find(record(program(planned(plan(1, communications=(GATHER, REDUCE)), V5E_8), devices=()))))
    assert [(one.kind, one.severity) for one in found] == [
        ("sharding.full_remat", "warning"),
        ("sharding.collectives", "info"),
    ]
    assert found[0].title == "Resharding float32[4096,4096] copies the whole array to every device"
    assert found[0].site == line(4)
    assert found[1].title == "`step` communicates between 8 devices: 1 all-gather, 1 all-reduce"


def test_what_the_executable_tells_is_not_told_again():
    own = Collective("all-reduce", (128,), "float32", 512, line(5))
    made = program(
        planned(plan(1, communications=(GATHER, REDUCE)), V5E_8), devices=tuple(range(8)), collectives=(own,)
    )
    assert [one.kind for one in sharding.find(record(made))] == ["sharding.collectives"]


def test_a_program_for_one_of_a_targets_devices_leaves_the_others_idle():
    (finding,) = sharding.find(record(program(planned(plan(1), V5E_8)), backends=CPU))
    assert (finding.kind, finding.severity) == ("sharding.idle_devices", "info")
    assert finding.title == "v5e-8 has 8 devices, and `step` uses one of them: 7 idle"
    assert finding.detail == "This process has one device, so the program could not be split here."
    assert finding.fix == (
        "`%tpu_env jax --target v5e-8`, before JAX starts, gives this process 8 CPU devices; then split the batch over all of "
        "them with a mesh and `NamedSharding`."
    )


def test_a_dry_run_leaves_devices_idle_where_this_process_has_as_many():
    many = (Backend("jax", "0.10", "cpu", 8),)
    dry = program(planned(plan(1), V5E_8), compile_only=True)
    (finding,) = sharding.find(record(dry, backends=many))
    assert finding.title == "v5e-8 has 8 devices, and `step` uses one of them: 7 idle"
    assert finding.detail == ""
    assert finding.fix.startswith("Split the batch over all of them: ")


def test_no_device_of_a_target_with_one_is_idle():
    one = Target("v5e-1", "v5e", 1, 1, V5E_8.hbm_bytes)
    assert list(sharding.find(record(program(planned(plan(1), one)), backends=CPU))) == []
    many = (Backend("jax", "0.10", "cpu", 8),)
    assert list(sharding.find(record(program(planned(plan(1), one), compile_only=True), backends=many))) == []


ONLY_TPU = Failure(
    "ValueError",
    "Only interpret mode is supported on CPU backend.",
    (line(9),),
    (("expression", "step(x)"),),
)


def test_a_kernel_that_only_this_machine_cannot_run_has_the_tpus_verdict():
    (finding,) = errors.find(record(program(planned(plan(1.5), cost=Cost(1.0, 1.3))), failure=ONLY_TPU))
    assert (finding.kind, finding.severity) == ("unsupported.cpu_only", "error")
    assert finding.title == "`step(x)` runs a Pallas kernel, which fails only on this machine: it has no TPU"
    assert finding.detail == (
        "Only interpret mode is supported on CPU backend. For v5e-1 `step` compiles and fits: 1.5 of 15.75 GiB of HBM."
    )


def test_before_the_compile_is_done_the_verdict_leaves_the_kernels_blocks_open():
    (finding,) = errors.find(record(program(planned(plan(1.5))), failure=ONLY_TPU))
    assert finding.detail == (
        "Only interpret mode is supported on CPU backend. For v5e-1 `step` fits: 1.5 of 15.75 GiB of HBM. Whether the "
        "kernel's blocks fit into VMEM shows at the end of the compile (`--cost` waits)."
    )


def test_a_kernel_that_a_tpu_could_not_run_either_is_not_said_to_compile():
    answer = refused("vmem", "", needed_bytes=64 * MIB, available_bytes=16 * MIB)
    (finding,) = errors.find(record(program(replace(answer, plan=plan(1.5))), failure=ONLY_TPU))
    assert finding.title == "`step(x)` runs a Pallas kernel, which JAX compiles for an accelerator and not for CPU"
    assert finding.detail == (
        "Only interpret mode is supported on CPU backend. For v5e-1 `step` does not compile either: its kernel needs 64 of "
        "16 MiB of VMEM."
    )


def test_without_an_answer_it_is_told_as_before():
    (finding,) = errors.find(record(program(), failure=ONLY_TPU))
    assert finding.title == "`step(x)` runs a Pallas kernel, which JAX compiles for an accelerator and not for CPU"
    assert finding.detail == "Only interpret mode is supported on CPU backend."
