"""What the devices do while a long cell runs: memory in use and how busy they are, once a second.

The looking is done from a thread of its own. Nothing happens in a cell's first second, and where no device tells
anything (CPU) a look costs microseconds. A longer cell on chips has a child process that tells how its TensorCores are
used.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter, thread_time

from tpumagic.events import MemorySample
from tpumagic.runtime import metrics, tensorcore

INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 10.0
COST_SHARE = 0.004
"""Looks become rarer until they cost less than this share of a core: on a machine with many ports to ask."""
THREADS_FACTOR = 3.0
"""Processor time of a look in all threads against that in its own: gRPC has some. Measured: 2.3 to 3.2."""
MOST_SAMPLES = 300
LOOKS_BEFORE_CHILD = 3
"""Looks before TensorCores are asked for: starting that child takes about 0.3 s of processor time, a reading 1 ms."""


class DeviceSampler:
    """Samples the devices from the first second on until ``stop``.

    in_process: each device's memory as the framework tells it, ``at_s`` ignored; empty where none does. host_devices:
    how many devices the machine's chips are, 0 without chips; asked once, in the sampler's thread. ports: of the
    runtime metrics services, given whether this process has devices. What any of them raises loses one look.
    """

    def __init__(
        self,
        in_process: Callable[[], tuple[MemorySample, ...]],
        host_devices: Callable[[], int],
        ports: Callable[[bool], tuple[int, ...]] = lambda own: metrics.ports(os.environ, own=own),
    ) -> None:
        self._in_process = in_process
        self._host_devices = host_devices
        self._ports = ports
        self._device_count: int | None = None
        self._client: metrics.Client | None = None
        self._asked_ports: tuple[int, ...] = ()
        self._tensorcores = tensorcore.Reader()
        self._looks = 0
        self._series = Series()
        self._began_s = perf_counter()
        self._running = False
        self._adding = _thread.allocate_lock()
        self._end = _thread.allocate_lock()

    def start(self, interval_s: float = INTERVAL_S) -> None:
        """Begins to sample; where the process may have no further thread, nothing is sampled."""
        self._began_s = perf_counter()
        self._end.acquire()
        self._running = True
        try:
            # Not threading.Thread: the user's threading.enumerate() would list it.
            _thread.start_new_thread(self._run, (interval_s,))
        except RuntimeError:
            self._running = False

    def stop(self) -> tuple[MemorySample, ...]:
        """Ends the sampling; at most 300 samples by time and device. Does not wait for a look that is going on."""
        if self._running:
            # In a forked child nobody gives the lock back: hence the limit.
            held = self._adding.acquire(timeout=0.5)
            self._running = False
            if held:
                self._adding.release()
            self._end.release()
        return self._series.samples()

    def _run(self, shortest_s: float) -> None:
        interval_s = shortest_s
        while not self._end.acquire(timeout=interval_s):
            cost_s = 0.0
            # A look is worth less than the cell that an exception here would disturb.
            with suppress(Exception):
                cost_s = self._look()
            interval_s = min(max(shortest_s, cost_s * THREADS_FACTOR / COST_SHARE), LONGEST_INTERVAL_S)
        self._end.release()
        if self._client is not None:
            self._client.close()
        self._tensorcores.close()

    def _look(self) -> float:
        """Takes one sample of every device; its processor time in this thread, without that of the first connecting
        and of asking the child."""
        if self._device_count is None:
            self._device_count = self._host_devices()
        began_s = thread_time()
        own = self._in_process()
        spent_s = thread_time() - began_s
        client = self._connected(bool(own)) if self._device_count else None
        began_s = thread_time()
        told = client.read(memory=not own) if client is not None else ()
        at_s = perf_counter() - self._began_s
        found = together(at_s, own, metrics.in_order(told, len(own) or self._device_count))
        spent_s += thread_time() - began_s
        self._looks += 1
        # What is told of the machine is told of this process only if it has all of the machine's devices.
        if self._looks > LOOKS_BEFORE_CHILD and found and len(found) == self._device_count:
            found = with_tensorcores(found, self._tensorcores.read())
        with self._adding:
            if found and self._running:
                self._series.add(found)
        return spent_s

    def _connected(self, own: bool) -> metrics.Client | None:
        ports = self._ports(own)
        if ports != self._asked_ports:
            if self._client is not None:
                self._client.close()
            self._client, self._asked_ports = metrics.connect(ports), ports
        return self._client


class Series:
    """Samples over time, at most 300: when there are more, each stands for twice as long a time, with the highest
    memory and the mean of the rest."""

    def __init__(self) -> None:
        self._looks: list[tuple[MemorySample, ...]] = []
        self._latest: list[tuple[MemorySample, ...]] = []
        self._stride = 1

    def add(self, look: tuple[MemorySample, ...]) -> None:
        """One sample of each device."""
        self._latest.append(look)
        if len(self._latest) < self._stride:
            return
        self._looks.append(merged(self._latest))
        self._latest = []
        if len(self._looks) > 1 and sum(map(len, self._looks)) > MOST_SAMPLES:
            self._looks = [merged(self._looks[n : n + 2]) for n in range(0, len(self._looks), 2)]
            self._stride *= 2

    def samples(self) -> tuple[MemorySample, ...]:
        """All of them, by time and then device."""
        looks = [*self._looks, merged(self._latest)]
        return tuple(sample for look in looks for sample in look)[-MOST_SAMPLES:]


def together(
    at_s: float, own: Sequence[MemorySample], told: Sequence[metrics.DeviceMetrics]
) -> tuple[MemorySample, ...]:
    """What the framework and the metrics service tell of the same devices; its own numbers of memory go first."""
    if not own:
        return tuple(
            MemorySample(at_s, number, one.bytes_in_use, one.limit_bytes, one.duty_cycle_percent)
            for number, one in enumerate(told)
        )
    if not told:
        return tuple(replace(sample, at_s=at_s) for sample in own)
    return tuple(
        replace(
            sample,
            at_s=at_s,
            limit_bytes=one.limit_bytes if sample.limit_bytes is None else sample.limit_bytes,
            duty_cycle_percent=one.duty_cycle_percent,
        )
        for sample, one in zip(own, told, strict=True)
    )


def with_tensorcores(samples: tuple[MemorySample, ...], percents: Sequence[float | None]) -> tuple[MemorySample, ...]:
    """The samples with the use of their TensorCores; as they are where there is not one value for each."""
    if len(percents) != len(samples):
        return samples
    return tuple(replace(one, tensorcore_percent=percent) for one, percent in zip(samples, percents, strict=True))


def merged(looks: Sequence[tuple[MemorySample, ...]]) -> tuple[MemorySample, ...]:
    """Several looks as one: of each device the latest time, the most memory and the means of the percentages."""
    by_device: dict[int, list[MemorySample]] = {}
    for look in looks:
        for sample in look:
            by_device.setdefault(sample.device, []).append(sample)
    return tuple(
        MemorySample(
            samples[-1].at_s,
            device,
            max((one.bytes_in_use for one in samples if one.bytes_in_use is not None), default=None),
            max((one.limit_bytes for one in samples if one.limit_bytes is not None), default=None),
            _mean([one.duty_cycle_percent for one in samples]),
            _mean([one.tensorcore_percent for one in samples]),
        )
        for device, samples in sorted(by_device.items())
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
