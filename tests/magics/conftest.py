"""Real kernels, driven as a notebook drives them."""

from __future__ import annotations

import ast
import os
import queue
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

ANSI = re.compile(r"\x1b\[[0-9;]*m")
REPORT_MIME = "application/vnd.tpumagic.report.v1+json"
LIMIT_S = 60

# Kernels that these tests start compute on the CPU and ask no metadata server.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


@dataclass
class Output:
    """One message under a cell. text: what it prints; data: its MIME bundle, if it has one."""

    kind: str
    text: str
    data: dict

    @property
    def is_report(self) -> bool:
        return self.kind == "display_data" and REPORT_MIME in self.data

    @property
    def report(self) -> dict:
        return self.data[REPORT_MIME]


@dataclass
class Ran:
    """What came of one cell: status of the reply and all outputs in order."""

    status: str
    outputs: list[Output]
    count: int | None
    msg_id: str

    @property
    def reports(self) -> list[dict]:
        return [output.report for output in self.outputs if output.is_report]

    @property
    def report(self) -> dict:
        (report,) = self.reports
        return report

    @property
    def user_outputs(self) -> list[Output]:
        return [output for output in self.outputs if not output.is_report]

    def text(self, kind: str) -> str:
        return "".join(output.text for output in self.outputs if output.kind == kind)


class Kernel:
    """A kernel and its client."""

    def __init__(self) -> None:
        self.manager: KernelManager
        self.manager, self.client = start_new_kernel(kernel_name="python3", startup_timeout=LIMIT_S)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def send(self, code: str, **options: object) -> str:
        return self.client.execute(code, **options)

    def run(self, code: str, **options: object) -> Ran:
        return self.outcome(self.send(code, **options))

    def outcome(
        self, msg_id: str, on_output: Callable[[Output], None] | None = None, answers: list[str] | None = None
    ) -> Ran:
        """Wait until the cell is done. answers: what the user types when the cell asks."""
        outputs: list[Output] = []
        ends = time.monotonic() + LIMIT_S
        while True:
            assert time.monotonic() < ends, f"the cell did not end; so far {outputs}"
            try:
                if answers:
                    self.client.get_stdin_msg(timeout=0.05)
                    self.client.input(answers.pop(0))
            except queue.Empty:
                pass
            try:
                message = self.client.get_iopub_msg(timeout=0.05 if answers else 1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != msg_id:
                self.strays.append(message)
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            output = _output(kind, content)
            if output is None:
                continue
            if on_output is not None:
                on_output(output)
            if outputs and not output.data and output.kind == outputs[-1].kind:
                outputs[-1].text += output.text  # frontends join the pieces of a stream, too
            else:
                outputs.append(output)
        reply = self._reply(self.client.get_shell_msg, msg_id)
        return Ran(reply["status"], outputs, reply.get("execution_count"), msg_id)

    @property
    def strays(self) -> list[dict]:
        """Messages that belong to other cells than the one waited for."""
        return self.__dict__.setdefault("_strays", [])

    def value(self, expression: str) -> object:
        """A Python literal from the kernel, without touching the history."""
        msg_id = self.client.execute("", user_expressions={"value": f"repr({expression})"}, store_history=False)
        reply = self._reply(self.client.get_shell_msg, msg_id)
        self._drain(msg_id)
        answer = reply["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(ast.literal_eval(answer["data"]["text/plain"]))

    def complete(self, code: str) -> list[str]:
        msg_id = self.client.complete(code, len(code))
        reply = self._reply(self.client.get_shell_msg, msg_id)
        self._drain(msg_id)
        return reply["matches"]

    def is_complete(self, code: str) -> str:
        msg_id = self.client.is_complete(code)
        reply = self._reply(self.client.get_shell_msg, msg_id)
        self._drain(msg_id)
        return reply["status"]

    def _drain(self, msg_id: str) -> None:
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != msg_id:
                self.strays.append(message)
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return

    def _reply(self, channel: Callable[..., dict], msg_id: str) -> dict:
        while True:
            message = channel(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") == msg_id:
                return message["content"]


def _output(kind: str, content: dict) -> Output | None:
    if kind == "stream":
        return Output(content["name"], content["text"], {})
    if kind in ("display_data", "execute_result"):
        return Output(kind, content["data"].get("text/plain", ""), content["data"])
    if kind == "error":
        return Output("error", ANSI.sub("", "\n".join(content["traceback"])), {"ename": content["ename"]})
    return None


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """A kernel with the extension loaded, shared by the tests of a module."""
    kernel = Kernel()
    try:
        assert kernel.run("%load_ext tpumagic").status == "ok"
        yield kernel
    finally:
        kernel.close()


@pytest.fixture(scope="module")
def bare_kernel() -> Iterator[Kernel]:
    """A kernel without the extension."""
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def fresh_kernel() -> Iterator[Kernel]:
    """A kernel of the test's own, without the extension."""
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()
