"""A runtime's metrics service: the real protocol over a real connection, with values that a test chooses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
from tpu_info.proto import tpu_metric_service_pb2 as messages
from tpu_info.proto import tpu_metric_service_pb2_grpc as service

TOTAL = "tpu.runtime.hbm.memory.total.bytes"
USAGE = "tpu.runtime.hbm.memory.usage.bytes"
DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"


class Runtime(service.RuntimeMetricServiceServicer):
    """values: metric -> device -> value; a device's number goes out as the type it has here. Another metric is
    refused. silent: answers nothing until it ends."""

    def __init__(self, values=None, *, silent=False, nested=False):
        self.values = values or {}
        self.asked = []
        self.nested = nested
        self.silent = silent
        self.ended = threading.Event()

    def GetRuntimeMetric(self, request, context):
        self.asked.append(request.metric_name)
        if self.silent:
            self.ended.wait(5)
        if request.metric_name not in self.values:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.metric_name} is not supported")
        metrics = [self._metric(device, value) for device, value in self.values[request.metric_name].items()]
        return messages.MetricResponse(metric=messages.TPUMetric(name=request.metric_name, metrics=metrics))

    def _metric(self, device, value):
        number = (
            messages.AttrValue(int_attr=device) if isinstance(device, int) else messages.AttrValue(string_attr=device)
        )
        if self.nested:
            core = messages.Attribute(key="core_type", value=messages.AttrValue(string_attr="TC"))
            entries = [core, messages.Attribute(key="device_ordinal", value=number)]
            number = messages.AttrValue(kvlist_attr=messages.KeyValueList(attributes=entries))
        gauge = messages.Gauge(as_int=value) if isinstance(value, int) else messages.Gauge(as_double=value)
        return messages.Metric(attribute=messages.Attribute(key="device-id", value=number), gauge=gauge)


@contextlib.contextmanager
def serving(runtime: Runtime, port: int = 0) -> Iterator[int]:
    """Serves as libtpu does, to local callers only; gives the port."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    service.add_RuntimeMetricServiceServicer_to_server(runtime, server)
    chosen = server.add_secure_port(f"localhost:{port}", grpc.local_server_credentials())
    server.start()
    try:
        yield chosen
    finally:
        runtime.ended.set()
        server.stop(None).wait(5)
