"""The client of the runtime metrics service, against a server of the real protocol."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from tpumagic.runtime import metrics
from tpumagic.runtime.metrics import DeviceMetrics

pytest.importorskip("tpu_info", reason="the extra tpumagic[tpu] is not installed")

from metrics_service import DUTY_CYCLE, TOTAL, USAGE, Runtime, serving

GIB = 2**30


def values(total, usage, duty_cycle):
    return {TOTAL: total, USAGE: usage, DUTY_CYCLE: duty_cycle}


@contextlib.contextmanager
def connected(*ports):
    client = metrics.connect(ports)
    assert client is not None
    try:
        yield client
    finally:
        client.close()


def test_memory_and_duty_cycle_of_each_device():
    runtime = Runtime(values({0: 16 * GIB, 1: 16 * GIB}, {1: 5 * GIB, 0: 3 * GIB}, {0: 81.5, 1: 0.0}))
    with serving(runtime) as port:
        assert metrics.read([port]) == (
            DeviceMetrics(port, 0, 3 * GIB, 16 * GIB, 81.5),
            DeviceMetrics(port, 1, 5 * GIB, 16 * GIB, 0.0),
        )


def test_numbers_of_new_runtimes_are_text():
    runtime = Runtime(values({"0": 16 * GIB, "1": 16 * GIB}, {"0": GIB, "1": GIB}, {0: 10.0, 1: 20.0}))
    with serving(runtime) as port:
        assert [(one.device, one.duty_cycle_percent) for one in metrics.read([port])] == [(0, 10.0), (1, 20.0)]


@pytest.mark.parametrize("number", [3, "3"])
def test_a_number_may_stand_among_other_attributes(number):
    runtime = Runtime(values({number: GIB}, {number: 7}, {number: 10.0}), nested=True)
    with serving(runtime) as port:
        assert metrics.read([port]) == (DeviceMetrics(port, 3, 7, GIB, 10.0),)


def test_the_duty_cycle_of_a_chip_of_v2_or_v3_is_that_of_both_its_devices():
    memory = dict.fromkeys(range(8), 16 * GIB)
    with serving(Runtime(values(memory, memory, {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}))) as port:
        told = [one.duty_cycle_percent for one in metrics.read([port])]
    assert told == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0]


def test_duty_cycles_that_cannot_be_told_apart_are_unknown():
    memory = dict.fromkeys(range(8), 16 * GIB)
    with serving(Runtime(values(memory, memory, {0: 10.0, 1: 20.0, 2: 30.0}))) as port:
        assert {one.duty_cycle_percent for one in metrics.read([port])} == {None}


def test_an_idle_runtime_with_empty_lists_tells_no_device():
    with serving(Runtime(values({}, {}, {}))) as port:
        assert metrics.read([port]) == ()


def test_a_metric_that_this_runtime_does_not_have_is_unknown():
    with serving(Runtime({TOTAL: {0: 16 * GIB}, USAGE: {0: GIB}})) as port:
        assert metrics.read([port]) == (DeviceMetrics(port, 0, GIB, 16 * GIB, None),)


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0, -1])
def test_what_no_quantity_can_be_is_unknown(nonsense):
    with serving(Runtime(values({0: GIB}, {0: nonsense}, {0: nonsense}))) as port:
        assert metrics.read([port]) == (DeviceMetrics(port, 0, None, GIB, None),)


def test_every_port_is_asked_and_one_where_nobody_is_costs_nothing_but_itself():
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        dead = unused.getsockname()[1]
        first, second = (Runtime(values({0: GIB}, {0: used}, {0: 50.0})) for used in (1, 2))
        with serving(first) as one, serving(second) as other:
            assert [(m.port, m.bytes_in_use) for m in metrics.read([one, dead, other])] == [(one, 1), (other, 2)]


def test_a_service_that_never_answers_ends_a_reading_in_half_a_second_and_is_then_left_alone():
    with serving(Runtime(silent=True)) as silent, serving(Runtime(values({0: GIB}, {0: 1}, {0: 5.0}))) as good:
        with connected(silent, good) as client:
            began = time.monotonic()
            client.read()
            assert time.monotonic() - began < 0.9
            began = time.monotonic()
            assert [one.port for one in client.read()] == [good]
            assert time.monotonic() - began < 0.4


def test_a_listener_that_speaks_no_grpc_ends_a_reading_in_half_a_second():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        began = time.monotonic()
        assert metrics.read([listener.getsockname()[1]]) == ()
        assert time.monotonic() - began < 0.9


def test_a_service_that_starts_later_is_found():
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    with connected(port) as client:
        assert client.read() == ()
        with serving(Runtime(values({0: GIB}, {0: 1}, {0: 5.0})), port):
            found = [client.read() for _ in range(metrics.RESTS + 1)]
            assert found[-1] == (DeviceMetrics(port, 0, 1, GIB, 5.0),)
        assert client.read() == ()


def test_what_a_device_has_is_asked_once_and_its_use_only_on_demand():
    runtime = Runtime(values({0: GIB}, {0: 1}, {0: 5.0}))
    with serving(runtime) as port, connected(port) as client:
        client.read()
        client.read()
        assert client.read(memory=False) == (DeviceMetrics(port, 0, None, GIB, 5.0),)
    assert runtime.asked == [TOTAL, USAGE, DUTY_CYCLE, USAGE, DUTY_CYCLE, DUTY_CYCLE]


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(Runtime(values({0: GIB}, {0: 1}, {0: 5.0}))) as port:
        assert len(metrics.read([port])) == 1


def test_readings_leave_no_thread_and_no_open_file():
    files = lambda: len(list(__import__("os").scandir("/proc/self/fd")))
    with serving(Runtime(values({0: GIB}, {0: 1}, {0: 5.0}))) as port:
        metrics.read([port])
        threads, before = threading.active_count(), files()
        for _ in range(5):
            metrics.read([port])
        time.sleep(0.3)
        assert threading.active_count() <= threads
        assert files() <= before + 4


@pytest.mark.parametrize(
    ("text", "own", "found"),
    [
        ("8431,8432, 8433", True, (8431, 8432, 8433)),
        ("8431,8431", False, (8431,)),
        ("x,,0,70000,-1,8440", False, (8440,)),
        ("", False, ()),
        ("", True, (8431,)),
        ("none", True, (8431,)),
    ],
)
def test_the_ports_of_a_machine(text, own, found):
    assert metrics.ports({"TPU_RUNTIME_METRICS_PORTS": text}, own=own) == found


def device(number, port=8431):
    return DeviceMetrics(port, number)


@pytest.mark.parametrize(
    ("readings", "count", "found"),
    [
        # One port with all; one a port, each from 0; one a port with numbers of the machine; all on each.
        ([device(1), device(0)], 2, [device(0), device(1)]),
        ([device(0, 1), device(0, 2)], 2, [device(0, 1), device(0, 2)]),
        ([device(1, 1), device(0, 2)], 2, [device(0, 2), device(1, 1)]),
        ([device(0, 1), device(1, 1), device(0, 2), device(1, 2)], 2, [device(0, 1), device(1, 1)]),
        ([device(0), device(1)], 1, []),
        ([], 8, []),
    ],
)
def test_which_reading_is_whose(readings, count, found):
    assert list(metrics.in_order(readings, count)) == found


def test_without_ports_grpc_is_not_even_imported():
    program = "import sys; from tpumagic.runtime import metrics; assert metrics.connect(()) is None; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_without_the_package_there_is_no_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "tpu_info.proto.tpu_metric_service_pb2", None)
    assert metrics.connect([8431]) is None
    assert metrics.read([8431]) == ()
