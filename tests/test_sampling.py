"""The time of a cell's lines, measured on real threads."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from types import FrameType

import pytest

from tpumagic import sampling
from tpumagic.events import LineTime, SourceSite
from tpumagic.sampling import Doing, Sampler


def stack_of(frame: FrameType | None) -> tuple[SourceSite, ...]:
    found: list[SourceSite] = []
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            found.append(SourceSite(frame.f_lineno, function=frame.f_code.co_name))
        frame = frame.f_back
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
    time.sleep(0.3)


def busy() -> None:
    end = time.perf_counter() + 0.15
    while time.perf_counter() < end:
        pass


def test_the_seconds_of_each_function_are_told():
    one = sampler()
    one.start()
    slow()
    busy()
    lines = one.stop()
    seconds = seconds_by_function(lines)
    assert 0.2 < seconds["slow"] < 0.6
    assert 0.08 < seconds["busy"] < 0.4
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
    def fails(frame: FrameType) -> tuple[SourceSite, ...]:
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

    def costly(frame: FrameType) -> tuple[SourceSite, ...]:
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
