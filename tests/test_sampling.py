"""The time of a cell's lines, measured on real threads."""

from __future__ import annotations

import sys
import threading
import time
import weakref

import pytest

from tpumagic import sampling
from tpumagic.events import LineTime, SourceSite
from tpumagic.sampling import Doing, Sampler
from tpumagic.stack_dump import CodeLine, StackDump, parse


def stack_of(lines: tuple[CodeLine, ...]) -> tuple[SourceSite, ...]:
    found = [SourceSite(line.line, function=line.function) for line in lines if line.filename == __file__]
    return tuple(reversed(found))


def sampler(doing: Doing | None = "host", idle: bool | None = None, interval_s: float = 0.005) -> Sampler:
    return Sampler(stack_of, lambda frame: doing, lambda: idle, threading.get_ident(), interval_s)


def seconds_by_function(lines: tuple[LineTime, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in lines:
        name = line.stack[-1].function or ""
        found[name] = found.get(name, 0.0) + line.seconds
    return found


def slow() -> None:
    time.sleep(1.2)


def busy() -> None:
    end = time.perf_counter() + 0.8
    while time.perf_counter() < end:
        pass


def test_the_seconds_of_each_function_are_told():
    one = sampler()
    one.start()
    slow()
    busy()
    lines = one.stop()
    seconds = seconds_by_function(lines)
    assert 0.8 < seconds["slow"] < 1.8
    assert 0.4 < seconds["busy"] < 1.4
    assert lines[0].stack[-1].function == "slow"
    assert lines[0].stack[-2].function == "test_the_seconds_of_each_function_are_told"
    assert lines[0].doing == "host"


@pytest.mark.parametrize(("idle", "expected"), [(True, 1.0), (False, 0.0), (None, None)])
def test_the_device_is_said_idle_only_where_it_was_seen_idle(idle: bool | None, expected: float | None):
    one = sampler(idle=idle)
    one.start()
    slow()
    line = one.stop()[0]
    assert line.idle_s == (None if expected is None else expected * line.seconds)


def test_the_device_is_not_asked_while_the_cell_waits_for_it():
    asked: list[bool] = []
    one = Sampler(stack_of, lambda frame: "wait", lambda: asked.append(True), threading.get_ident(), 0.005)
    one.start()
    slow()
    assert one.stop()[0].doing == "wait"
    assert asked == []


def test_what_is_not_the_users_is_not_counted():
    for one in (sampler(doing=None), Sampler(lambda frame: (), lambda frame: "host", lambda: None, 1, 0.005)):
        one.start()
        slow()
        assert one.stop() == ()


def test_a_cell_shorter_than_an_interval_has_no_samples():
    one = sampler(interval_s=0.02)
    one.start()
    assert one.stop() == ()


def test_stop_does_not_wait_for_the_next_sample():
    one = sampler(interval_s=5.0)
    one.start()
    began = time.perf_counter()
    one.stop()
    assert time.perf_counter() - began < 0.2


def test_nothing_is_counted_after_stop():
    one = sampler()
    one.start()
    slow()
    before = one.stop()
    time.sleep(0.05)
    assert one.stop() == before


def test_the_users_list_of_threads_stays_the_same():
    before = threading.enumerate()
    one = sampler()
    one.start()
    slow()
    assert threading.enumerate() == before
    one.stop()
    assert threading.enumerate() == before


def test_a_fault_in_a_sample_disturbs_nobody(capfd: pytest.CaptureFixture[str]):
    def fails(lines: tuple[CodeLine, ...]) -> tuple[SourceSite, ...]:
        raise ValueError("no")

    one = Sampler(fails, lambda frame: "host", lambda: None, threading.get_ident(), 0.005)
    one.start()
    slow()
    assert one.stop() == ()
    assert capfd.readouterr() == ("", "")


def test_the_users_objects_die_when_they_would_have_died():
    class Mine:
        died_in: int | None = None

        def __del__(self) -> None:
            Mine.died_in = threading.get_ident()

    def work() -> weakref.ref[Mine]:
        mine = Mine()
        time.sleep(0.1)
        return weakref.ref(mine)

    one = sampler(interval_s=0.001)
    one.start()
    reference = work()
    assert reference() is None
    assert Mine.died_in == threading.get_ident()
    one.stop()


def test_a_deep_recursion_is_counted_under_its_first_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "MOST_STACKS", 3)
    sites = (SourceSite(n) for n in range(1, 1000))
    one = Sampler(
        lambda frame: (SourceSite(7), next(sites)), lambda frame: "host", lambda: None, threading.get_ident(), 0.002
    )
    one.start()
    slow()
    lines = one.stop()
    assert len(lines) == 4
    assert lines[0].stack == (SourceSite(7),)


def test_a_costly_look_makes_it_look_less_often():
    looks: list[float] = []

    def costly(lines: tuple[CodeLine, ...]) -> tuple[SourceSite, ...]:
        looks.append(time.perf_counter())
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return (SourceSite(1),)

    one = Sampler(costly, lambda frame: "host", lambda: None, threading.get_ident(), 0.005)
    one.start()
    time.sleep(1.2)
    lines = one.stop()
    assert len(looks) <= 6
    assert sum(line.seconds for line in lines) > 0.4


def test_a_process_that_may_have_no_further_thread_runs_on(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    one = sampler()
    one.start()
    assert one.stop() == ()


def test_start_and_stop_cost_little_beside_a_cell():
    costs: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        one = sampler(interval_s=sampling.INTERVAL_S)
        one.start()
        one.stop()
        costs.append(time.perf_counter() - began)
    assert sorted(costs)[25] < 0.001, sys.version


def test_a_thread_that_calls_and_returns_can_be_looked_at_all_the_time():
    """Frames that are made and torn down meanwhile crashed the interpreter when their objects were followed."""

    def deep(n: int) -> int:
        return deep(n - 1) + 1 if n else 0

    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            deep(30)

    thread = threading.Thread(target=work)
    thread.start()
    dump = StackDump()
    try:
        names = {line.function for _ in range(3000) for line in dump.lines(thread.ident or 0)}
    finally:
        ended.set()
        thread.join()
        dump.close()
    assert "work" in names


def test_file_names_outside_ascii_are_read_back():
    text = 'Thread 0x00007f00 (most recent call first):\n  File "/tmp/z\\xe4hler \\u20ac.py", line 3 in g\\xfc\n\nCurrent thread 0x01'
    assert parse(text, 0x7F00) == (CodeLine("/tmp/zähler €.py", 3, "gü"),)
    assert parse(text, 0x7F) == ()


def test_a_thread_that_is_gone_has_no_lines():
    dump = StackDump()
    assert dump.lines(1) == ()
    dump.close()
