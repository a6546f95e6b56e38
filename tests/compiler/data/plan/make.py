"""Makes the stored plans anew: ``make.py [NAME …]``. What the compiler wrote of each program, as far as plans are read
from it, goes into ``NAME.zip``; where the programs lie becomes ``/home/user``."""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
KEPT = (
    ".after_optimizations_after_buffer_assignment.txt",
    ".oom_intermediate_module.txt",
    ".after_optimizations-buffer-assignment.txt",
    ".after_optimizations-live-range.txt",
    ".before_optimizations.txt",
    "module.mlir",
)
NAMES = (
    "scanned", "adam", "adam_donated", "logits", "regroup", "points", "lstm", "network", "widened", "zeros",
    "callbacks", "kernels", "decompositions", "precisions", "sixty_four", "sharded_weights", "accumulated",
    "scanned_remat",
)  # fmt: skip
BACKEND = re.compile(r', backend_config=\{(?!"known_trip_count").*$', re.MULTILINE)

for name in sys.argv[1:] or NAMES:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "compile.py"), name, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted(Path(folder).rglob("*")):
                if path.name.endswith(KEPT):
                    text = path.read_text().replace(str(HERE), "/home/user")
                    text = BACKEND.sub("", text)
                    if path.name == "module.mlir":
                        text = re.sub(r"(?:[A-Za-z0-9+/]{200,}=*)", "", text)
                    archive.writestr(str(path.relative_to(folder)), text)
            archive.writestr("memory.json", json.dumps(figures))
        print(name, (HERE / f"{name}.zip").stat().st_size, flush=True)
