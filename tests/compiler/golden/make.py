"""Compiles every program of ``programs.py`` as a whole for every chip, by JAX itself and without tpumagic, and keeps
what JAX's ``memory_analysis()`` says of it in ``golden.json``, with the compiler's version.

Run with libtpu on a machine without a TPU: ``python make.py [CHIP …]``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(
    JAX_PLATFORMS="cpu",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
)

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from programs import GROWING, PROGRAMS

TOPOLOGIES = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v4": "v4:2x2x1", "v5p": "v5p:2x2x1", "tpu7x": "tpu7x:2x2x1"}
FIGURES = {
    "argument_bytes": "argument_size_in_bytes",
    "output_bytes": "output_size_in_bytes",
    "alias_bytes": "alias_size_in_bytes",
}
"""Of ``memory_analysis()``. Its temporaries are 0 and its peak has the chip's own memories in it: what a program takes
of HBM is read from the compiler's report of its memory."""
REPORT = re.compile(r"\(color=0\)\s+Total bytes: (\d+)")


def mesh_of(chip: str) -> Mesh:
    options = {"chip_config_name": "megacore"} if chip == "v4" else {}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip], **options)
    return Mesh(np.array(topology.devices), ("x",))


def figures(program, mesh: Mesh, **sizes: int) -> dict[str, int] | None:
    """What the compiled program takes; None if it does not fit."""
    function, arguments = program(mesh, **sizes)
    with tempfile.TemporaryDirectory() as dump:
        options = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
        try:
            compiled = function.lower(*arguments).compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return None
        (report,) = Path(dump).glob("*memory-usage-report.txt")
        hbm_bytes = int(REPORT.search(report.read_text())[1])
    analysis = compiled.memory_analysis()
    return {name: getattr(analysis, figure) for name, figure in FIGURES.items()} | {"hbm_bytes": hbm_bytes}


def largest_batch(name: str, mesh: Mesh) -> int:
    """The largest batch size at which a program still fits."""
    program, step, low, high = GROWING[name]
    fits, too_large = low // step, high // step
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if figures(program, mesh, batch=middle * step) is None:
            too_large = middle
        else:
            fits = middle
    return fits * step


def main(chips: list[str]) -> None:
    path = HERE / "golden.json"
    golden = json.loads(path.read_text()) if path.exists() else {}
    golden["compiler"] = f"libtpu {importlib.metadata.version('libtpu')}"
    golden["jax"] = jax.__version__
    for chip in chips or TOPOLOGIES:
        mesh = mesh_of(chip)
        known = golden.setdefault("programs", {}).setdefault(chip, {})
        for name, program in PROGRAMS.items():
            if name in known:
                continue
            begin = time.monotonic()
            known[name] = figures(program, mesh)
            print(f"{chip} {name}: {time.monotonic() - begin:.1f} s, {known[name]}", flush=True)
            path.write_text(json.dumps(golden, indent=1) + "\n")
    if "v5e" in (chips or TOPOLOGIES):
        mesh = mesh_of("v5e")
        for name in GROWING:
            golden.setdefault("largest_batch_on_v5e", {})[name] = largest_batch(name, mesh)
            print(name, golden["largest_batch_on_v5e"][name], flush=True)
            path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
