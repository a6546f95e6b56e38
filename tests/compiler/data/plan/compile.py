"""Compiles one of the programs for a v5e and leaves the compiler's dump: ``compile.py NAME FOLDER``. Prints the figures
of ``memory_analysis()`` or the error as JSON. A process of its own, for the compiler's settings are a process's."""

import json
import os
import sys
from pathlib import Path

name, folder = sys.argv[1:3]
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
sys.path.insert(0, str(Path(__file__).parent))
import jax
import programs
from jax.experimental import topologies

if name in programs.X64:
    jax.config.update("jax_enable_x64", True)
shape = ("v5e:2x4", (2, 4, 1)) if name in programs.EIGHT_DEVICES else ("v5e:1x1", (1, 1, 1))
devices = topologies.get_topology_desc(platform="tpu", topology_name=shape[0], chips_per_host_bounds=shape[1]).devices
sharding = jax.sharding.SingleDeviceSharding(devices[0])


def array(*dimensions, dtype="float32"):
    return jax.ShapeDtypeStruct(dimensions, dtype, sharding=sharding)


function, arguments = getattr(programs, name)(array, devices)
jitted = function if hasattr(function, "lower") else jax.jit(function)
lowered = jitted.lower(*arguments)
try:
    compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
except Exception as error:
    print(json.dumps({"error": str(error)}))
else:
    (Path(folder) / "executable.txt").write_text(compiled.as_text())
    memory = compiled.memory_analysis()
    print(json.dumps({key: getattr(memory, key) for key in dir(memory) if key.endswith("_in_bytes")}))
