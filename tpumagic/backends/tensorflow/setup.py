"""Set-up of TensorFlow. Proven on the CPU; the way to the TPU is the documented one and has not been run on one.

Whether importing it would end the process has to be known before (runtime.requirements): it cannot be caught here.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from tpumagic.backends.set_up import PROOF, SetUp, wrong_product
from tpumagic.events import Backend


def set_up(*, tpu: bool = True) -> SetUp:
    """Imports TensorFlow and multiplies two matrices. tpu: on the TPU of this machine, whose system is initialized; it
    is an error if that fails. Else on the CPU."""
    imported = "tensorflow" in sys.modules
    start = time.perf_counter()
    tf: Any = importlib.import_module("tensorflow")
    import_s = time.perf_counter() - start
    start = time.perf_counter()
    running = bool(tpu and tf.config.list_logical_devices("TPU"))
    if tpu and not running:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    platform = "TPU" if tpu else "CPU"
    devices = tf.config.list_logical_devices(platform)
    start_s = time.perf_counter() - start
    if not devices:
        return SetUp(problem=f"TensorFlow did not start: it shows no {platform}.")
    start = time.perf_counter()
    total = _proof(tf, f"/{platform}:0")
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    _proof(tf, f"/{platform}:0")
    run_s = time.perf_counter() - start
    wrong = wrong_product("TensorFlow", total)
    if wrong is not None:
        return SetUp(problem=wrong)
    return SetUp(
        backend=Backend("tensorflow", tf.__version__, platform.lower(), len(devices)),
        import_s=None if imported else import_s,
        start_s=None if running else start_s,
        compile_s=compile_s,
        run_s=run_s,
    )


def _proof(tf: Any, device: str) -> float:
    with tf.device(device):
        ones = tf.ones((PROOF, PROOF))
        return float(tf.reduce_mean(tf.matmul(ones, ones)).numpy())
