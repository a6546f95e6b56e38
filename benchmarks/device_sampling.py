"""What looking at the devices once a second costs, in percent of one core.

usage: device_sampling.py [SECONDS]

The sampler runs in a process that does nothing else, so the processor time of all its threads is the sampler's; the
metrics services (real gRPC, values made up) run in another. Nothing is asserted: it prints what it is.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tpumagic.device_sampling import DeviceSampler
from tpumagic.events import MemorySample

GIB = 2**30
DEVICES = 8


def serve(ports: int) -> None:
    """Serves eight devices on each of so many ports until the input ends."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "devices"))
    from metrics_service import DUTY_CYCLE, TOTAL, USAGE, Runtime, serving

    memory = dict.fromkeys(range(DEVICES), 16 * GIB)
    runtime = Runtime({TOTAL: memory, USAGE: memory, DUTY_CYCLE: dict.fromkeys(range(DEVICES), 50.0)})
    with ExitStack() as servers:
        print(*(servers.enter_context(serving(runtime)) for _ in range(ports)), flush=True)
        sys.stdin.read()


def measured(name: str, own: int, ports: tuple[int, ...], seconds: float) -> None:
    """One line: the cost without that of the first connecting, which is told apart."""
    memory = tuple(MemorySample(0.0, n, GIB, 16 * GIB) for n in range(own))
    sampler = DeviceSampler(lambda: memory, lambda: DEVICES if ports else 0, lambda _: ports)
    began_s = time.process_time()
    sampler.start()
    time.sleep(2.5)
    connecting_s = time.process_time() - began_s
    began_s, began = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - began_s) / (time.perf_counter() - began)
    samples = sampler.stop()
    looks = len({sample.at_s for sample in samples})
    print(f"{name:<48} {share:>8.3%} {connecting_s * 1e3:>9.0f} ms {looks:>4} looks, {len(samples)} samples")


def main() -> None:
    """Prints a table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print(f"{'':<48} {'one core':>8} {'first 2.5 s':>12}")
    measured("devices that tell nothing (CPU)", 0, (), seconds)
    measured("memory of 8 devices, in process", 8, (), seconds)
    for count in (1, 8):
        command = [sys.executable, __file__, "serve", str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            ports = tuple(map(int, server.stdout.readline().split()))
            measured(f"the same and duty cycles from {count} port(s)", 8, ports, seconds)
            measured(f"all from {count} port(s)", 0, ports, seconds)
            server.stdin.close()


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1:2] == ["serve"] else main()
