"""What a TPU runtime tells of its devices while they work: memory in use and duty cycle, over gRPC on this machine.

The process that has the chips open serves it (``RuntimeMetricService``, protocol of the ``tpu-info`` package); where
several processes share a machine, each has a port. Nobody serves while no chip is open. ``grpc`` and ``tpu_info`` are
imported when a client is made; without them there is none.
"""

from __future__ import annotations

import importlib
import math
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_PORT = 8431
TIMEOUT_S = 0.5
MOST_PORTS = 64
PROBE_S = 0.1
RESTS = 5
"""Readings for which a port without an answer is left alone: Kaggle names eight where one may serve."""

TOTAL = "tpu.runtime.hbm.memory.total.bytes"
USAGE = "tpu.runtime.hbm.memory.usage.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
"""Names as libtpu serves them; duty cycle is per chip on v2 and v3, else per device."""

_NOBODY = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNIMPLEMENTED"})
_DEVICE_KEYS = frozenset({"device-id", "device_id", "device_ordinal"})


@dataclass(frozen=True)
class DeviceMetrics:
    """One device as the service on one port tells it. device: its number there. bytes_in_use, limit_bytes: of its
    memory. duty_cycle_percent: share of the last seconds in which its TensorCores were busy. None where not told."""

    port: int
    device: int
    bytes_in_use: int | None = None
    limit_bytes: int | None = None
    duty_cycle_percent: float | None = None


def ports(environ: Mapping[str, str], *, own: bool) -> tuple[int, ...]:
    """The ports of ``TPU_RUNTIME_METRICS_PORTS`` in their order, each once. Where it names none, libtpu's default port
    if this process has devices of its own: what serves there otherwise would be another process."""
    found: dict[int, None] = {}
    for text in environ.get("TPU_RUNTIME_METRICS_PORTS", "")[:1000].split(","):
        number = text.strip()
        if number.isascii() and number.isdecimal() and 0 < int(number) < 2**16:
            found[int(number)] = None
    return tuple(found)[:MOST_PORTS] or ((DEFAULT_PORT,) if own else ())


def connect(ports: Sequence[int]) -> Client | None:
    """A client for the services on these ports, whether they are there yet or not; None without the tpu-info
    package. The first one of a process takes about 0.2 s of processor time: that of importing grpc."""
    if not ports:
        return None
    try:
        grpc: Any = importlib.import_module("grpc")
        messages: Any = importlib.import_module("tpu_info.proto.tpu_metric_service_pb2")
        service: Any = importlib.import_module("tpu_info.proto.tpu_metric_service_pb2_grpc")
        return Client(ports, grpc, messages, service)
    except Exception:  # not installed, or a grpc or protobuf that its generated code does not go with
        return None


def read(ports: Sequence[int], timeout_s: float = TIMEOUT_S) -> tuple[DeviceMetrics, ...]:
    """One reading of all devices on these ports; empty where nobody answers."""
    client = connect(ports)
    if client is None:
        return ()
    try:
        return client.read(timeout_s)
    finally:
        client.close()


class Client:
    """Connections to the services on some ports: made by ``connect``, good for many readings by one thread."""

    def __init__(self, ports: Sequence[int], grpc: Any, messages: Any, service: Any) -> None:
        self._grpc = grpc
        self._request = messages.MetricRequest
        self._stub = service.RuntimeMetricServiceStub
        self._ports = tuple(ports)
        self._rests: dict[int, int] = {}
        self._open: dict[int, tuple[Any, Any]] = {}
        self._totals: dict[int, dict[int, float]] = {}

    def read(self, timeout_s: float = TIMEOUT_S, *, memory: bool = True) -> tuple[DeviceMetrics, ...]:
        """Every device that answers within timeout_s, by port and number. A port that does not answer is left alone
        for the next readings. memory: bytes_in_use is asked as well. Never raises for what a service does."""
        deadline = time.monotonic() + timeout_s
        found: list[DeviceMetrics] = []
        for port in self._ports:
            if self._rests.get(port, 0) > 0:
                self._rests[port] -= 1
            elif time.monotonic() < deadline:
                devices = self._devices(port, deadline, memory)
                if not devices:
                    self._rests[port] = RESTS
                    self._close(port)
                found += devices
        return tuple(found)

    def close(self) -> None:
        """Ends the connections; the next reading opens them again."""
        for port in tuple(self._open):
            self._close(port)

    def _close(self, port: int) -> None:
        if port in self._open:
            self._open.pop(port)[0].close()

    def _devices(self, port: int, deadline: float, memory: bool) -> list[DeviceMetrics]:
        told: dict[str, dict[int, float]] = {}
        # What a device has does not change: it is asked until it is known.
        for name in (*(() if self._totals.get(port) else (TOTAL,)), *((USAGE,) if memory else ()), DUTY_CYCLE):
            answer = self._ask(port, name, deadline)
            if answer is None:
                return []
            told[name] = answer
        if TOTAL in told:
            self._totals[port] = told[TOTAL]
        return _devices(port, self._totals[port], told.get(USAGE, {}), told[DUTY_CYCLE])

    def _ask(self, port: int, name: str, deadline: float) -> dict[int, float] | None:
        """Values by device, empty where the runtime does not know the metric; None where nobody answers in time."""
        try:
            stub = self._connected(port, deadline)
            timeout_s = deadline - time.monotonic()
            if timeout_s <= 0:
                return None
            response = stub.GetRuntimeMetric(self._request(metric_name=name), timeout=timeout_s)
            values = ((_number(one.attribute.value), _value(one)) for one in response.metric.metrics)
            return {number: value for number, value in values if number is not None and value is not None}
        except self._grpc.RpcError as error:
            return None if getattr(error.code(), "name", "") in _NOBODY else {}
        except OSError:
            return None

    def _connected(self, port: int, deadline: float) -> Any:
        """Raises OSError where nobody listens: a plain attempt costs a hundredth of gRPC's."""
        if port not in self._open:
            limit_s = max(0.01, deadline - time.monotonic())
            socket.create_connection(("localhost", port), timeout=min(limit_s, PROBE_S)).close()
            # Not an insecure channel: the service takes only callers that prove to be local.
            credentials = self._grpc.local_channel_credentials()
            # A proxy is not asked for this machine.
            options = (("grpc.enable_http_proxy", 0),)
            channel = self._grpc.secure_channel(f"localhost:{port}", credentials, options)
            self._open[port] = channel, self._stub(channel)
        return self._open[port][1]


def in_order(readings: Iterable[DeviceMetrics], count: int) -> tuple[DeviceMetrics, ...]:
    """The readings of exactly ``count`` devices, the first device's first; empty where it cannot be told which is
    which.

    Ports may share the devices among them, each counting its own from 0 or not, or each may tell of all.
    """
    told = list(readings)
    if len(told) == count:
        distinct = len({one.device for one in told}) == count
        return tuple(sorted(told, key=lambda one: one.device) if distinct else told)
    by_number: dict[int, DeviceMetrics] = {}
    for one in told:
        by_number.setdefault(one.device, one)
    return tuple(by_number[number] for number in sorted(by_number)) if len(by_number) == count else ()


def _number(attribute: Any) -> int | None:
    """A device's number: a whole number in old runtimes, text in new ones, or one entry among others."""
    kind = attribute.WhichOneof("attr")
    if kind == "int_attr":
        return int(attribute.int_attr)
    if kind == "string_attr":
        text = str(attribute.string_attr)
        return int(text) if text.isascii() and text.isdecimal() else None
    if kind == "kvlist_attr":
        entries = attribute.kvlist_attr.attributes
        return next((_number(entry.value) for entry in entries if entry.key in _DEVICE_KEYS), None)
    return None


def _value(metric: Any) -> float | None:
    kind = metric.gauge.WhichOneof("value")
    if kind not in ("as_int", "as_double"):
        return None
    value = getattr(metric.gauge, kind)
    return value if math.isfinite(value) and value >= 0 else None


def _devices(
    port: int, totals: Mapping[int, float], usages: Mapping[int, float], duty_cycles: Mapping[int, float]
) -> list[DeviceMetrics]:
    numbers = sorted({*totals, *usages} or duty_cycles)
    by_device = _per_device(numbers, duty_cycles)
    return [
        DeviceMetrics(port, number, _whole(usages.get(number)), _whole(totals.get(number)), by_device.get(number))
        for number in numbers
    ]


def _per_device(numbers: Sequence[int], values: Mapping[int, float]) -> Mapping[int, float]:
    """Values of chips given to each of their two devices; as they are where there is one a device. With another
    number of them nobody knows whose they are."""
    if set(values) == set(numbers):
        return values
    in_sequence = [values[chip] for chip in sorted(values)]
    if len(numbers) == 2 * len(in_sequence):
        return {number: in_sequence[n // 2] for n, number in enumerate(numbers)}
    if len(numbers) == len(in_sequence):
        return dict(zip(numbers, in_sequence, strict=True))
    return {}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
