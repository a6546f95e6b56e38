"""What the devices were seen to do while a cell ran. Devices of TPU are stand-ins: no machine here has any."""

from __future__ import annotations

import sys
import threading
import time
from itertools import pairwise

import pytest

from tpumagic.device_sampling import DeviceSampler, Series, merged, together
from tpumagic.events import MemorySample
from tpumagic.runtime.metrics import DeviceMetrics

GIB = 2**30


def sample(at_s, device=0, used=GIB, duty_cycle=None):
    return MemorySample(at_s, device, used, 16 * GIB, duty_cycle)


def sampled(in_process, host_devices=lambda: 0, *, seconds=0.3, interval_s=0.02, ports=lambda own: ()):
    sampler = DeviceSampler(in_process, host_devices, ports)
    sampler.start(interval_s)
    time.sleep(seconds)
    return sampler.stop()


def test_the_memory_of_each_device_over_time():
    found = sampled(lambda: (MemorySample(0.0, 0, 1, 10), MemorySample(0.0, 1, 2, 10)))
    assert len(found) >= 4
    assert [one.device for one in found[:4]] == [0, 1, 0, 1]
    assert found[0].at_s == found[1].at_s < found[2].at_s
    assert {(one.device, one.bytes_in_use, one.limit_bytes) for one in found} == {(0, 1, 10), (1, 2, 10)}


def test_a_cell_below_a_second_is_not_looked_at():
    looks = []
    sampler = DeviceSampler(lambda: looks.append(1) or (), lambda: looks.append(2) or 0)
    sampler.start()
    time.sleep(0.2)
    assert sampler.stop() == ()
    assert looks == []


def test_devices_that_tell_nothing_leave_no_samples():
    assert sampled(tuple) == ()


def test_a_look_that_fails_costs_only_itself():
    answers = iter([ZeroDivisionError(), (sample(0.0),), RuntimeError()])

    def look():
        answer = next(answers, ())
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert len(sampled(look)) == 1


def test_the_end_does_not_wait_for_a_look_and_takes_nothing_afterwards():
    release, looking = threading.Event(), threading.Event()

    def slow():
        looking.set()
        release.wait(5)
        return (sample(0.0),)

    sampler = DeviceSampler(slow, lambda: 0)
    sampler.start(0.01)
    assert looking.wait(5)
    began = time.monotonic()
    assert sampler.stop() == ()
    assert time.monotonic() - began < 0.2
    release.set()
    time.sleep(0.05)
    assert sampler.stop() == ()


def test_an_hour_of_eight_devices_is_at_most_300_samples_that_keep_the_peak_and_the_mean():
    series = Series()
    for second in range(3600):
        used = 15 * GIB if second == 1234 else GIB
        series.add(tuple(sample(float(second), n, used + n, float(second % 2) * 100) for n in range(8)))
    found = series.samples()
    assert 100 <= len(found) <= 300
    assert found[-1].at_s == 3599
    for device in range(8):
        mine = [one for one in found if one.device == device]
        assert max(one.bytes_in_use for one in mine) == 15 * GIB + device
        assert sum(one.duty_cycle_percent for one in mine) / len(mine) == pytest.approx(50)
        assert [one.at_s for one in mine] == sorted(one.at_s for one in mine)


def test_what_is_unknown_stays_unknown_in_a_merged_sample():
    looks = [(MemorySample(1.0, 0),), (MemorySample(2.0, 0, 5, None, 50.0),)]
    assert merged(looks) == (MemorySample(2.0, 0, 5, None, 50.0, None),)
    assert merged([]) == ()


def test_own_numbers_of_memory_go_before_those_of_the_service():
    told = (DeviceMetrics(8431, 0, 999, 888, 42.0),)
    assert together(3.0, (MemorySample(0.0, 4, 1, 10),), told) == (MemorySample(3.0, 4, 1, 10, 42.0),)
    assert together(3.0, (MemorySample(0.0, 4, 1, None),), told) == (MemorySample(3.0, 4, 1, 888, 42.0),)
    assert together(3.0, (), told) == (MemorySample(3.0, 0, 999, 888, 42.0),)


def test_on_cpu_jax_tells_no_memory_and_a_look_starts_nothing():
    jax = pytest.importorskip("jax", reason="this is about JAX")
    from tpumagic.backends.jax.arrays import memory_in_use

    jax.numpy.ones(3).block_until_ready()
    assert memory_in_use() == ()


def test_devices_of_jax_in_their_order(monkeypatch):
    jax = pytest.importorskip("jax", reason="this is about JAX")
    from tpumagic.backends.jax.arrays import memory_in_use

    jax.numpy.ones(3).block_until_ready()

    class Device:
        def __init__(self, number, stats):
            self.id, self.stats = number, stats

        def memory_stats(self):
            return self.stats

    told = {"bytes_in_use": 3 * GIB, "peak_bytes_in_use": 4 * GIB, "bytes_limit": 16 * GIB}
    monkeypatch.setattr(
        jax, "local_devices", lambda: [Device(8, told), Device(9, {"bytes_in_use": 5}), Device(10, None)]
    )
    assert memory_in_use() == (MemorySample(0.0, 8, 3 * GIB, 16 * GIB), MemorySample(0.0, 9, 5, None))


class TestWithTheMetricsService:
    @pytest.fixture(autouse=True)
    def service(self):
        pytest.importorskip("tpu_info", reason="the extra tpumagic[tpu] is not installed")
        from metrics_service import DUTY_CYCLE, TOTAL, USAGE, Runtime, serving

        memory = {0: 16 * GIB, 1: 16 * GIB}
        self.runtime = Runtime({TOTAL: memory, USAGE: {0: 7, 1: 8}, DUTY_CYCLE: {0: 25.0, 1: 75.0}})
        with serving(self.runtime) as self.port:
            yield

    def test_duty_cycles_are_added_to_the_memory_that_the_framework_tells(self):
        own = lambda: (MemorySample(0.0, 4, 1, 10), MemorySample(0.0, 5, 2, 10))
        found = sampled(own, lambda: 2, seconds=1.0, ports=lambda own: (self.port,))
        assert {(one.device, one.bytes_in_use, one.duty_cycle_percent) for one in found} == {(4, 1, 25.0), (5, 2, 75.0)}

    def test_without_a_framework_of_this_process_the_service_tells_all(self):
        found = sampled(tuple, lambda: 2, seconds=1.0, ports=lambda own: (self.port,))
        assert {(one.device, one.bytes_in_use, one.limit_bytes, one.duty_cycle_percent) for one in found} == {
            (0, 7, 16 * GIB, 25.0),
            (1, 8, 16 * GIB, 75.0),
        }

    def test_devices_of_others_are_not_taken_for_this_process_own(self):
        found = sampled(lambda: (MemorySample(0.0, 0, 1, 10),), lambda: 2, seconds=1.0, ports=lambda own: (self.port,))
        assert {(one.bytes_in_use, one.duty_cycle_percent) for one in found} == {(1, None)}

    def test_without_chips_the_service_is_not_asked(self):
        assert sampled(tuple, lambda: 0, ports=lambda own: (self.port,)) == ()
        assert self.runtime.asked == []

    def test_without_the_package_there_is_memory_all_the_same(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tpu_info.proto.tpu_metric_service_pb2", None)
        found = sampled(lambda: (MemorySample(0.0, 0, 1, 10),), lambda: 1, ports=lambda own: (self.port,))
        assert {(one.bytes_in_use, one.duty_cycle_percent) for one in found} == {(1, None)}


@pytest.fixture
def tpu_host(monkeypatch):
    """Two stand-ins of JAX's devices on a host that its variables say is a TPU's."""
    jax = pytest.importorskip("jax", reason="this is about JAX")
    jax.numpy.ones(3).block_until_ready()

    class Device:
        def __init__(self, number):
            self.id = number

        def memory_stats(self):
            return {"bytes_in_use": (self.id + 1) * GIB, "bytes_limit": 16 * GIB}

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device(0), Device(1)])


def profiled(source):
    from tpumagic.session import Cell, Session
    from tpumagic.user_code import UserCode

    namespace = {"__name__": "__main__"}
    session = Session(UserCode(), lambda: namespace)
    session.start(Cell(source, 1))
    exec(source, namespace)
    report = session.finish()
    session.close()
    return report


def test_the_report_of_a_long_cell_has_the_memory_of_each_device(tpu_host):
    report = profiled("import time\ntime.sleep(2.3)")
    found = report.memory.samples
    assert [(one.device, one.highest_bytes, one.limit_bytes) for one in found] == [
        (0, GIB, 16 * GIB),
        (1, 2 * GIB, 16 * GIB),
    ]
    # The first look after a second, then one a second: on a busy machine the cell takes longer than it sleeps.
    assert found[0].at_s[0] >= 1
    assert all(later - earlier > 0.5 for earlier, later in pairwise(found[0].at_s))
    assert "devices  0: at most 1 GiB of 16 GiB in use; 1: at most 2 GiB of 16 GiB in use" in report.to_text()


def test_the_report_of_a_short_cell_has_none(tpu_host):
    assert profiled("1 + 1").memory.samples == ()


def test_a_long_cell_on_cpu_shows_nothing_of_devices():
    pytest.importorskip("jax", reason="this is about JAX")
    report = profiled("import jax, time\njax.numpy.ones(3)\ntime.sleep(1.2)")
    assert report.memory.samples == ()
    assert "devices" not in report.to_text()


def test_the_users_threads_are_theirs_alone(tpu_host):
    assert (
        profiled("import threading\nassert len(threading.enumerate()) == " + str(threading.active_count())).cell.failure
        is None
    )
