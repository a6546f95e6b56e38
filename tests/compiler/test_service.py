"""The compiler of a kernel: what its answers are when all goes well, and when its process does not do what it should."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.compiler.compilers import STAND_IN, STAND_INS, V5E, V6E, folders, processes, program, until
from tpumagic.compiler import conditions, libraries, pairs
from tpumagic.compiler.targets import parse_target


def test_a_program_has_a_plan_and_its_cost_when_one_waits(stand_in):
    (answer,) = stand_in().ask([(program("plan sleep:0.2 cost"), V5E)], wait_for_cost=True)
    assert (answer.status, answer.plan.fits, answer.pending, answer.cached) == ("planned", True, False, False)
    assert answer.plan.needed_bytes > 0
    assert answer.plan.seconds < answer.cost.compile_s


def test_a_cost_that_nobody_waits_for_comes_later(stand_in):
    came = threading.Event()
    costs = []
    (answer,) = stand_in().ask(
        [(program("plan sleep:0.5 cost"), V5E)], on_cost=lambda *told: (costs.append(told), came.set())
    )
    assert answer.pending
    assert answer.cost is None
    assert came.wait(20)
    ((place, later),) = costs
    assert place == 0
    assert not later.pending
    assert later.cost is not None
    assert later.plan == answer.plan


def test_without_a_listener_no_cost_is_promised(stand_in):
    (answer,) = stand_in().ask([(program("plan sleep:30 cost"), V5E)])
    assert (answer.status, answer.pending, answer.cost) == ("planned", False, None)


def test_plans_of_all_programs_come_before_the_cost_of_any(stand_in):
    compiler = stand_in(grace_s=0.1)
    slow = [program(f"plan sleep:30 cost {name}", name) for name in ("a", "b", "c")]
    began_s = time.monotonic()
    answers = compiler.ask([(one, V5E) for one in slow])
    assert [answer.status for answer in answers] == ["planned"] * 3
    assert time.monotonic() - began_s < 25


def test_a_process_that_is_done_takes_the_next_program(stand_in):
    compiler = stand_in()
    compiler.ask([(program(f"plan cost {name}"), V5E) for name in "abc"])
    assert len({line.split()[0] for line in stand_in.log()}) == 1


def test_a_program_asked_for_twice_is_compiled_once(stand_in):
    came = []
    answers = stand_in().ask(
        [(program("plan"), V5E), (program("plan"), V6E), (program("plan"), V5E)], wait_for_cost=True
    )
    assert [answer.target.name for answer in answers] == ["v5e-1", "v6e-1", "v5e-1"]
    assert answers[0] is answers[2]
    assert len(stand_in.log()) == 2
    assert came == []


def test_the_second_time_the_answer_is_read_from_the_disk_without_a_process(stand_in):
    stand_in().ask([(program("plan"), V5E)], wait_for_cost=True)
    compiler = stand_in()
    waited_s = []
    for _ in range(3):  # on a machine that others use as well
        began_s = time.perf_counter()
        (answer,) = compiler.ask([(program("plan"), V5E)], wait_for_cost=True)
        waited_s.append(time.perf_counter() - began_s)
    assert min(waited_s) < 0.05
    assert answer.cached
    assert answer.cost is not None
    assert len(stand_in.log()) == 1


def test_a_plan_on_the_disk_gets_its_cost_from_whoever_waits(stand_in):
    compiler = stand_in()
    compiler.ask([(program("plan sleep:0.5"), V5E)])
    (answer,) = compiler.ask([(program("plan sleep:0.5"), V5E)], wait_for_cost=True)
    assert answer.cost is not None


def test_a_plan_that_is_written_slowly_is_read_when_it_is_whole(stand_in):
    (answer,) = stand_in().ask([(program("slowly sleep:0.3"), V5E)], wait_for_cost=True)
    assert answer.status == "planned"
    assert answer.cost is not None


def test_what_libraries_print_does_not_disturb(stand_in):
    (answer,) = stand_in().ask([(program('say:{"kind":"plan"} plan say:hello'), V5E)], wait_for_cost=True)
    assert answer.cost is not None


def test_a_refused_program_is_explained(stand_in):
    words = "refuse:UNIMPLEMENTED:_complex128_is_not_supported_on_TPU."
    (answer,) = stand_in().ask([(program(words), V5E)], wait_for_cost=True)
    assert (answer.status, answer.error.kind, answer.plan) == ("refused", "unsupported", None)
    assert answer.error.message == "UNIMPLEMENTED: complex128 is not supported on TPU."


def test_a_program_refused_after_its_plan_says_so_when_the_cost_was_due(stand_in):
    compiler = stand_in()
    words = "plan refuse:Ran_out_of_memory_in_memory_space_hbm._Used_15.76G_of_15.75G_hbm."
    (answer,) = compiler.ask([(program(words), V5E)], wait_for_cost=True)
    assert (answer.status, answer.plan.fits, answer.error.kind, answer.pending) == ("planned", False, "hbm", False)
    (vmem,) = compiler.ask(
        [(program("plan refuse:Ran_out_of_memory_in_memory_space_vmem._Used_33.56M_of_32.00M_vmem."), V5E)],
        wait_for_cost=True,
    )
    assert (vmem.status, vmem.error.kind) == ("refused", "vmem")


def test_options_that_the_compiler_refuses_are_one_sentence(stand_in):
    why = "The TPU compiler does not take the compiler option xla_foo=1."
    (answer,) = stand_in().ask([(program(f"unusable:{why.replace(' ', '_').replace('_foo', '-foo')}"), V5E)])
    assert (answer.status, answer.why) == ("unavailable", why.replace("xla_foo", "xla-foo"))


def test_a_fault_in_the_process_is_one_sentence(stand_in):
    (answer,) = stand_in().ask([(program("fail:shape"), V5E)])
    assert answer.why == "The compiler could not be asked: KeyError: 'shape'."


def test_a_process_killed_midway_is_one_sentence_and_the_next_program_is_compiled(stand_in):
    killed, fine = stand_in().ask([(program("kill"), V5E), (program("plan"), V5E)], wait_for_cost=True)
    assert killed.status == "unavailable"
    assert killed.why == "The TPU compiler gave no plan: its process ended with SIGKILL."
    assert fine.cost is not None


def test_a_process_killed_between_plan_and_cost_leaves_the_plan(stand_in):
    (answer,) = stand_in().ask([(program("plan sleep:1 kill"), V5E)], wait_for_cost=True)
    assert (answer.status, answer.pending, answer.cost) == ("planned", False, None)
    assert answer.why == "The TPU compiler crashed before the cost: its process ended with SIGKILL."


def test_a_program_that_crashes_the_compiler_is_not_held_against_the_compiler(stand_in):
    compiler = stand_in()
    crashed, fine = compiler.ask([(program("complain abort"), V5E), (program("plan"), V5E)])
    assert crashed.why == (
        "The TPU compiler gave no plan: its process ended with SIGABRT: F0000 Check failed: device_ is_ready."
    )
    assert fine.status == "planned"


@pytest.mark.parametrize("words", ["abort", "segfault"])
def test_a_compiler_that_crashes_on_everything_is_remembered(stand_in, monkeypatch, words):
    monkeypatch.setenv("STAND_IN_PROOF", words)
    answers = stand_in().ask([(program(words), V5E), (program("plan"), V5E)])
    (library,) = libraries.candidates()
    says = f"JAX {libraries.jax_version()} with {library.name} crashes when it compiles for a TPU that is not there: "
    says += "`tpumagic compiler install` fetches a libtpu that does not."
    assert {answer.why for answer in answers} == {says}
    assert pairs.state(libraries.jax_version(), library) == "crashes"


def test_a_compiler_known_to_crash_is_not_started_again(stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_PROOF", "abort")
    stand_in().ask([(program("abort"), V5E)])
    tries = len(stand_in.log())
    (answer,) = stand_in().ask([(program("plan"), V5E)])
    assert "crashes when it compiles" in answer.why
    assert len(stand_in.log()) == tries


def test_another_library_is_a_new_compiler(stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_PROOF", "abort")
    stand_in().ask([(program("abort"), V5E)])
    Path(os.environ["TPU_LIBRARY_PATH"]).write_bytes(b"a newer one")
    (answer,) = stand_in().ask([(program("plan"), V5E)])
    assert answer.status == "planned"


def test_where_the_kernels_own_library_crashes_the_installed_one_compiles(stand_in, own_cache):
    installed = own_cache / "libtpu" / "0.0.42.1" / "libtpu"
    installed.mkdir(parents=True)
    (installed / "libtpu.so").write_bytes(b"works")
    pairs.remember(libraries.jax_version(), libraries.candidates()[0], "crashes")
    (answer,) = stand_in().ask([(program("plan"), V5E)])
    assert (answer.status, answer.compiler) == ("planned", "0.0.42.1")


def test_a_compiler_that_hangs_is_given_up(stand_in):
    compiler = stand_in(plan_s=0.5)
    hanging, fine = compiler.ask([(program("sleep:60"), V5E), (program("plan"), V5E)])
    assert hanging.why == "The TPU compiler had no plan of this program after 500 ms."
    assert fine.status == "planned"


def test_a_cost_that_takes_too_long_is_given_up(stand_in):
    (answer,) = stand_in(cost_s=0.5).ask([(program("plan sleep:60"), V5E)], wait_for_cost=True)
    assert answer.status == "planned"
    assert answer.why == "The TPU compiler was not done with the cost after 500 ms."


def test_a_cost_in_the_background_is_given_up_and_not_tried_again_for_nobody(stand_in):
    compiler = stand_in(background_s=0.3)
    told = []
    for _ in range(2):
        (answer,) = compiler.ask([(program("plan sleep:60"), V5E)], on_cost=lambda *cost: told.append(cost))
        assert until(lambda: told)
    assert not answer.pending
    assert answer.why == told[0][1].why == "The TPU compiler was not done with the cost within 300 ms."
    assert len(told) == 1
    assert len(stand_in.log()) == 1


def test_a_new_request_comes_before_a_cost_in_the_background(stand_in):
    compiler = stand_in()
    told = []
    compiler.ask([(program("plan sleep:1 cost", "first"), V5E)], on_cost=lambda *cost: told.append(cost))
    began_s = time.monotonic()
    (answer,) = compiler.ask([(program("plan", "second"), V6E)])
    assert answer.status == "planned"
    assert time.monotonic() - began_s < 10
    assert until(lambda: told)
    assert told[0][1].cost is not None


def test_a_new_request_does_not_wait_for_the_plan_that_the_background_makes_again(stand_in):
    compiler = stand_in()
    told = []
    compiler.ask([(program("sleep:6 plan sleep:1 cost"), V5E)], on_cost=lambda *cost: told.append(cost))
    compiler.ask([(program("plan second"), V5E)], on_cost=lambda *cost: told.append(cost))
    assert until(lambda: len(stand_in.log()) == 3)
    began_s = time.monotonic()
    (answer,) = compiler.ask([(program("plan third"), V5E)])
    assert time.monotonic() - began_s < 5
    assert answer.status == "planned"
    assert until(lambda: len(told) == 2, 30)
    assert [later.why for _, later in told] == [None, None]


def test_what_stops_the_process_from_starting_is_one_sentence(stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_PREPARE", "exit")
    (answer,) = stand_in().ask([(program("plan"), V5E)])
    assert answer.why == "The TPU compiler gave no plan: its process ended with exit status 3."


def test_a_process_that_never_gets_ready_is_given_up(stand_in, monkeypatch):
    monkeypatch.setenv("STAND_IN_PREPARE_S", "60")
    (answer,) = stand_in(start_s=0.5).ask([(program("plan"), V5E)])
    assert answer.why == "The TPU compiler's process was not ready after 500 ms."


def test_without_libtpu_the_answer_says_how_to_get_it(own_cache, monkeypatch):
    from tpumagic.compiler.service import Compiler

    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(libraries, "_from_package", lambda: None)
    (answer,) = Compiler().ask([(program("plan"), V5E)])
    assert (answer.status, answer.why) == (
        "unavailable",
        "The TPU compiler, libtpu, is not installed: `tpumagic compiler install` fetches it, or pip install libtpu.",
    )


def test_a_program_for_more_devices_than_the_target_has_is_not_compiled(stand_in):
    few, enough = stand_in().ask(
        [(program("plan", devices=8), V5E), (program("plan", devices=8), parse_target("v5e-8"))]
    )
    assert few.why == "The program runs on 8 devices, and v5e-1 has 1."
    assert enough.status == "planned"


def test_a_program_that_carries_its_data_is_not_compiled(stand_in, monkeypatch):
    monkeypatch.setattr(conditions, "PROGRAM_LIMIT_BYTES", 10)
    (answer,) = stand_in().ask([(program("plan and more"), V5E)])
    assert answer.why == (
        "The program is 13 B of StableHLO, most of it data written into it as constants, "
        "and the TPU compiler is asked for at most 10 B."
    )


def test_little_memory_means_no_new_process_but_what_is_known_is_told(stand_in, monkeypatch):
    compiler = stand_in()
    compiler.ask([(program("plan known"), V5E)])
    monkeypatch.setattr(conditions, "free_bytes", lambda root=None: 10**9)
    known, new = compiler.ask([(program("plan known"), V5E), (program("plan new"), V5E)])
    assert known.status == "planned"
    assert new.why == "The TPU compiler was not started: 954 MiB of memory are free, and it needs 1.86 GiB."


def test_an_interrupt_ends_the_process_and_passes(stand_in):
    compiler = stand_in()
    timer = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compiler.ask([(program("sleep:60"), V5E)])
    timer.join()
    assert until(lambda: not processes())
    assert folders() == []
    (answer,) = compiler.ask([(program("plan"), V5E)])
    assert answer.status == "planned"


def test_closing_ends_everything_and_whoever_asks_is_answered(stand_in):
    compiler = stand_in()
    answers = []
    asking = threading.Thread(target=lambda: answers.extend(compiler.ask([(program("sleep:60"), V5E)])))
    asking.start()
    assert until(lambda: stand_in.log())
    compiler.close()
    asking.join(10)
    assert answers[0].status == "unavailable"
    assert until(lambda: not processes())
    assert folders() == []
    (after,) = compiler.ask([(program("plan"), V5E)])
    assert after.why == "The TPU compiler gave no plan: tpumagic was unloaded."


def test_a_process_stands_by_and_is_used(stand_in):
    compiler = stand_in()
    compiler.stand_by()
    assert until(processes)
    (pid,) = processes()
    assert compiler.ask([(program("plan"), V5E)])[0].status == "planned"
    assert stand_in.log()[0].startswith(f"{pid} ")


def test_a_standby_process_that_died_is_replaced(stand_in):
    compiler = stand_in()
    compiler.stand_by()
    assert until(processes)
    os.kill(processes()[0], signal.SIGKILL)
    time.sleep(0.2)
    assert compiler.ask([(program("plan"), V5E)])[0].status == "planned"


def test_two_threads_that_ask_at_once_are_both_answered(stand_in):
    compiler = stand_in()
    answers = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: compiler.ask([(program(f"plan {n}"), V5E)])}))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answers[n][0].status for n in range(3)] == ["planned"] * 3


KERNEL = """
import atexit, sys, time
from tpumagic.compiler.compiles import Limits
from tpumagic.compiler.service import Compiler
from tpumagic.compiler.targets import parse_target
from tpumagic.plans import Lowered
compiler = Compiler({module!r}, Limits())
atexit.register(compiler.close)
answers = compiler.ask([(Lowered("step", {words!r}.encode()), parse_target("v5e-1"))], on_cost=lambda *cost: None)
compiler.stand_by()
print(answers[0].status, answers[0].why, flush=True)
{then}
"""


def kernel(words: str, then: str = "", **settings) -> subprocess.Popen:
    code = f"import sys; sys.path.append({str(STAND_INS)!r})" + KERNEL.format(module=STAND_IN, words=words, then=then)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | settings,
        start_new_session=True,
    )


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_kernel_that_is_killed(stand_in, ending):
    with kernel("plan sleep:60", "time.sleep(60)") as one:
        assert one.stdout.readline() == "planned None\n"
        assert processes(one.pid)
        one.send_signal(ending)
        one.wait(10)
        assert until(lambda: not processes(one.pid))
        assert until(lambda: not folders(one.pid))


def test_a_fork_of_the_kernel_that_lives_on_does_not_keep_the_compiler(stand_in):
    with kernel("plan sleep:60", "import os; os.fork() or print('forked', flush=True); time.sleep(60)") as one:
        assert one.stdout.readline() == "planned None\n"
        assert one.stdout.readline() == "forked\n"
        one.send_signal(signal.SIGKILL)
        one.wait(10)
        assert until(lambda: not processes(one.pid))
        os.killpg(one.pid, signal.SIGKILL)


def test_two_kernels_ask_at_once(stand_in):
    with kernel("plan sleep:0.5 one") as one, kernel("plan sleep:0.5 two") as two:
        assert one.stdout.readline() == two.stdout.readline() == "planned None\n"
        one.wait(20), two.wait(20)
    for pid in (one.pid, two.pid):
        assert until(lambda: not processes(pid))
        assert until(lambda: not folders(pid))
