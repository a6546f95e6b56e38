"""Speed and memory of the HLO reader: seconds per MB must not grow with the module, nor memory per byte of text.

    python benchmarks/scanner.py [DUMP.txt] [--sizes 1,2,4,8,16,32]

Modules of the wanted sizes are a real one, repeated under new names. Each size is read in a process of its own, whose
peak memory is set against that of a process that only has the text.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

STORED = Path(__file__).parent.parent / "tests" / "hlo" / "data" / "transformer_scan.tar.gz"


def stored_module() -> str:
    """HLO of a scanned transformer's training step."""
    with tarfile.open(STORED) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if member.name.endswith("after_buffer_assignment.txt") and file is not None:
                return file.read().decode()
    raise FileNotFoundError(STORED)


def enlarged(module: str, size: int) -> str:
    """A module of at least so many bytes: the computations of one again and again."""
    start = module.index("\n%")
    head, body = module[:start], module[start:].rstrip("\n") + "\n"
    copies = max(1, size // len(body))
    plain = body.replace("\nENTRY %", "\n%")
    return head + "".join(plain.replace("%", f"%copy{number}.") for number in range(1, copies)) + body


def measure(path: Path, *, read: bool) -> dict[str, float]:
    """Processor seconds and peak memory in MB of one reading, in this process."""
    from tpumagic import hlo

    text = path.read_text()
    seconds, instructions = 0.0, 0
    if read:
        start = time.process_time()
        module = hlo.parse(text)
        seconds = time.process_time() - start
        instructions = sum(map(len, module.computations.values()))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return {"mb": len(text) / 1e6, "seconds": seconds, "peak_mb": peak, "instructions": instructions}


def in_process(path: Path, *, read: bool) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, str(path), "--measure", "read" if read else "text"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Prints one line a size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="?", type=Path)
    parser.add_argument("--sizes", default="1,2,4,8,16,32", help="in MB")
    parser.add_argument("--measure", choices=["read", "text"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.module, read=options.measure == "read")))
        return
    module = options.module.read_text() if options.module else stored_module()
    print("      MB  instructions  seconds   s/MB  process MB  reader's memory / text")
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "module.txt"
            path.write_text(enlarged(module, int(float(size) * 1e6)))
            alone, reading = in_process(path, read=False), in_process(path, read=True)
        ratio = (reading["peak_mb"] - alone["peak_mb"]) / reading["mb"]
        print(
            f"{reading['mb']:8.1f}  {reading['instructions']:12,}  {reading['seconds']:7.2f}"
            f"  {reading['seconds'] / reading['mb']:5.3f}  {reading['peak_mb']:10.0f}  {ratio:22.2f}"
        )


if __name__ == "__main__":
    main()
