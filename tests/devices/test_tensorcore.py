"""The use of TensorCores, told by a real child process. Only its libtpu is a stand-in: no machine here has a TPU."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpumagic.device_sampling import DeviceSampler, with_tensorcores
from tpumagic.events import MemorySample
from tpumagic.runtime import tensorcore
from tpumagic.runtime.tensorcore import Reader, percent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TPUs are Linux machines")

SDK = """
import os, time
from pathlib import Path

class Metric:
    def data(self):
        {data}

class tpumonitoring:
    @staticmethod
    def get_metric(name):
        assert name == "tensorcore_util"
        return Metric()
"""
TWO = 'return ["12.5", "80.00"]'


@pytest.fixture
def libtpu(tmp_path, monkeypatch):
    """Puts a libtpu on the import path whose answer is the given body of a function; each import writes a mark."""

    def install(data=TWO, first=""):
        package = tmp_path / "libtpu"
        package.mkdir()
        mark = f"import os; open({str(tmp_path)!r} + f'/started.{{os.getpid()}}', 'w').close()\n"
        (package / "__init__.py").write_text(mark + first)
        (package / "sdk.py").write_text(SDK.format(data=data))
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    return install


def started(folder: Path) -> list[int]:
    return [int(mark.suffix[1:]) for mark in folder.glob("started.*")]


def alive(pid: int) -> bool:
    """Whether there is such a process, a zombie too."""
    return Path(f"/proc/{pid}").exists()


def wait_for(condition, limit_s=20.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def first_told(reader, limit_s=20.0):
    """The first reading that is not empty."""
    told = []
    wait_for(lambda: told.append(reader.read()) or told[-1], limit_s)
    return told[-1]


@pytest.fixture
def reader():
    one = Reader()
    yield one
    one.close()


def failed(reader, folder):
    """The reader after its child did something wrong; the readings until then told nothing."""
    assert reader.read() == ()
    wait_for(lambda: reader.read() == () and str(folder) in tensorcore._given_up)
    assert reader.read() == ()
    children = started(folder)
    assert len(children) <= 1
    assert not any(map(alive, children))
    assert Reader().read() == ()
    assert started(folder) == children


def test_one_value_for_each_device(reader, libtpu):
    libtpu()
    assert first_told(reader) == (12.5, 80.0)
    assert reader.read() == (12.5, 80.0)


def test_the_kernel_itself_does_not_import_libtpu(reader, libtpu):
    before = {name for name in sys.modules if name.startswith("libtpu")}
    libtpu()
    first_told(reader)
    assert {name for name in sys.modules if name.startswith("libtpu")} == before


def test_the_child_does_not_ask_for_metadata(reader, libtpu, monkeypatch):
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    libtpu('return [os.environ["TPU_SKIP_MDS_QUERY"]]')
    assert first_told(reader) == (1.0,)


def test_what_libtpu_prints_is_no_answer_and_is_not_shown(reader, libtpu, capfd):
    libtpu('print("[99]", flush=True); os.write(2, b"WARNING"); return ["3"]')
    assert first_told(reader) == (3.0,)
    assert capfd.readouterr() == ("", "")


def test_no_values_are_no_failure(reader, libtpu):
    folder = libtpu("return []")
    reader.read()
    wait_for(lambda: started(folder))
    for _ in range(20):
        assert reader.read() == ()
        time.sleep(0.02)
    assert len(started(folder)) == 1
    assert alive(started(folder)[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.00", 0.0), (" 12.5 ", 12.5), ("12.5%", 12.5), ("12.5 %", 12.5), ("100", 100.0)]
    + [(text, None) for text in ("", "%", "N/A", "nan", "inf", "-1", "100.5", "[1.0]", "1,5", None, 7, True, ["1"])],
)
def test_a_value_is_a_percentage_or_unknown(text, value):
    assert percent(text) == value


def test_a_device_that_is_not_known_is_not_taken_for_idle(reader, libtpu):
    libtpu('return ["", "n/a", "0.00"]')
    assert first_told(reader) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        pytest.param("os.abort()", "", id="crashes"),
        pytest.param("raise RuntimeError", "", id="raises"),
        pytest.param(TWO, "os._exit(1)", id="dies at import"),
        pytest.param(TWO, "raise ImportError", id="cannot be imported"),
        pytest.param('os.write(0, b"{]\\n"); time.sleep(60)', "", id="rubbish"),
        pytest.param('os.write(0, b"\\xff\\xfe\\n"); time.sleep(60)', "", id="bytes that are no text"),
        pytest.param("os.write(0, b'{\"a\": 1}\\n'); time.sleep(60)", "", id="no list"),
        pytest.param('os.write(0, b"[" * 9000 + b"\\n"); time.sleep(60)', "", id="nested deeply"),
        pytest.param("while True: os.write(0, b'1' * 999)", "", id="endless"),
        pytest.param("return None", "", id="nothing"),
    ],
)
def test_a_child_that_fails_is_the_last_one_of_the_process(reader, libtpu, data, first):
    failed(reader, libtpu(data, first))


def test_a_libtpu_without_the_sdk(reader, libtpu):
    folder = libtpu()
    (folder / "libtpu" / "sdk.py").unlink()
    failed(reader, folder)


def test_a_child_that_does_not_start_in_time(reader, libtpu, monkeypatch):
    monkeypatch.setattr(tensorcore, "START_S", 1.0)
    began = time.monotonic()
    failed(reader, libtpu("time.sleep(60)"))
    assert time.monotonic() - began < 5


def test_a_child_that_hangs_later_costs_half_a_second_once(reader, libtpu):
    folder = libtpu('time.sleep(60 * Path(__file__).with_name("hang").exists()); return ["5"]')
    assert first_told(reader) == (5.0,)
    (folder / "libtpu" / "hang").touch()
    began = time.monotonic()
    assert reader.read() == ()
    assert 0.4 < time.monotonic() - began < 2
    failed(reader, folder)


def test_a_killed_child_does_no_harm_where_broken_pipes_kill(reader, libtpu):
    folder = libtpu()
    first_told(reader)
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        subprocess.run(["kill", "-9", str(started(folder)[0])], check=True)
        failed(reader, folder)
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_default_timeout_of_sockets_is_not_the_childs(reader, libtpu):
    libtpu()
    socket.setdefaulttimeout(0.01)
    try:
        first_told(reader)
        time.sleep(0.1)
        assert reader.read() == (12.5, 80.0)
    finally:
        socket.setdefaulttimeout(None)


def test_without_libtpu_nothing_starts(reader, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert reader.read() == ()
    assert reader._child is None


def test_a_python_that_cannot_be_started(reader, libtpu, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    folder = libtpu()
    assert reader.read() == ()
    assert str(folder) in tensorcore._given_up


def test_the_child_ends_with_a_kernel_that_is_killed(libtpu):
    folder = libtpu()
    code = (
        f"import sys, time; sys.path.insert(0, {str(folder)!r})\n"
        "from tpumagic.runtime.tensorcore import Reader\nreader = Reader()\n"
        "while not reader.read(): time.sleep(0.02)\n"
        "print('told', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"told\n"
        (child,) = started(folder)
        assert alive(child)
        kernel.kill()
    wait_for(lambda: not running(child))


def running(pid: int) -> bool:
    """Whether it runs: an orphan may stay a zombie where nobody collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_whose_sdk_hangs_ends_by_itself(libtpu):
    folder = libtpu("time.sleep(60)")
    script = f"import tpumagic.runtime.tensorcore as t; t.ALONE_S = 1; t._serve({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", script], input=b"\n", timeout=20, check=False)
    assert done.returncode == -signal.SIGALRM


class TestWhileACellRuns:
    def sampler(self, device_count, own=2):
        samples = tuple(MemorySample(0.0, number, 1, 10) for number in range(own))
        return DeviceSampler(lambda: samples, lambda: device_count, lambda own: ())

    def test_samples_tell_it_and_no_child_is_left(self, libtpu):
        folder = libtpu()
        sampler = self.sampler(2)
        sampler.start(0.02)
        wait_for(lambda: any(one.tensorcore_percent is not None for one in sampler._series.samples()))
        found = sampler.stop()
        assert {(one.device, one.tensorcore_percent) for one in found[-2:]} == {(0, 12.5), (1, 80.0)}
        assert found[0].tensorcore_percent is None
        assert len(started(folder)) == 1
        wait_for(lambda: not any(map(alive, started(folder))), 3)

    def test_no_child_is_left_if_the_cell_ends_while_it_starts(self, libtpu):
        folder = libtpu(first="import time; time.sleep(60)")
        sampler = self.sampler(2)
        sampler.start(0.02)
        wait_for(lambda: started(folder))
        sampler.stop()
        wait_for(lambda: not any(map(alive, started(folder))), 3)

    def looked_at(self, sampler, folder, seconds=0.8, interval_s=0.02):
        sampler.start(interval_s)
        time.sleep(seconds)
        found = sampler.stop()
        assert sampler._tensorcores._child is None
        assert started(folder) == []
        return found

    def test_without_chips_nothing_starts(self, libtpu):
        assert len(self.looked_at(self.sampler(0), libtpu())) > 6

    def test_while_no_device_tells_anything_nothing_starts(self, libtpu):
        assert self.looked_at(self.sampler(2, own=0), libtpu()) == ()

    def test_for_a_part_of_the_machines_devices_nothing_starts(self, libtpu):
        assert len(self.looked_at(self.sampler(4), libtpu())) > 6

    def test_a_cell_of_few_looks_starts_nothing(self, libtpu):
        assert 0 < len(self.looked_at(self.sampler(2), libtpu(), 0.7, 0.2)) <= 6

    def test_memory_is_sampled_all_the_same_if_the_child_dies(self, libtpu):
        folder = libtpu("os.abort()")
        sampler = self.sampler(2)
        sampler.start(0.02)
        wait_for(lambda: str(folder) in tensorcore._given_up)
        time.sleep(0.1)
        found = sampler.stop()
        assert len(found) > 6
        assert {(one.bytes_in_use, one.tensorcore_percent) for one in found} == {(1, None)}


def test_values_of_another_number_of_devices_are_nobodys():
    samples = (MemorySample(1.0, 0), MemorySample(1.0, 1))
    assert with_tensorcores(samples, (5.0,)) == samples
    assert with_tensorcores(samples, ()) == samples
    assert with_tensorcores(samples, (5.0, None))[0].tensorcore_percent == 5.0


def test_the_real_sdk_without_a_tpu_tells_nothing(reader):
    pytest.importorskip("libtpu", reason="libtpu is not installed")
    reader.read()
    wait_for(lambda: reader.read() == () and (reader._child is None or reader._child._ready))
    assert reader._child is not None
    assert reader.read() == ()
