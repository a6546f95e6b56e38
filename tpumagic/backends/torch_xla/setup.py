"""PyTorch/XLA as it stands in this process, and its set-up. Proven on its CPU backend, not on a TPU."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from tpumagic.backends.set_up import PROOF, SetUp, wrong_product
from tpumagic.events import Backend


def describe() -> Backend | None:
    """What PyTorch/XLA says of itself without being started; None if it is not imported."""
    torch_xla: Any = sys.modules.get("torch_xla")
    version = getattr(torch_xla, "__version__", None)
    if version is None:
        return None
    if not _started(torch_xla):
        return Backend("torch_xla", version)
    try:
        return _running(torch_xla)
    except Exception:  # a runtime that was started and then lost raises whatever it likes
        return Backend("torch_xla", version)


def set_up() -> SetUp:
    """Imports PyTorch/XLA, starts its runtime on what PJRT_DEVICE names, and multiplies two matrices."""
    imported = "torch_xla" in sys.modules
    start = time.perf_counter()
    torch: Any = importlib.import_module("torch")
    torch_xla: Any = importlib.import_module("torch_xla")
    import_s = time.perf_counter() - start
    running = _started(torch_xla)
    start = time.perf_counter()
    device = torch_xla.device()
    start_s = time.perf_counter() - start
    start = time.perf_counter()
    total = _proof(torch, torch_xla, device)
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    _proof(torch, torch_xla, device)
    run_s = time.perf_counter() - start
    wrong = wrong_product("PyTorch/XLA", total)
    if wrong is not None:
        return SetUp(problem=wrong)
    return SetUp(
        backend=_running(torch_xla),
        import_s=None if imported else import_s,
        start_s=None if running else start_s,
        compile_s=compile_s,
        run_s=run_s,
    )


def _proof(torch: Any, torch_xla: Any, device: Any) -> float:
    ones = torch.ones((PROOF, PROOF), dtype=torch.bfloat16, device=device)
    mean = (ones @ ones).float().mean()
    torch_xla.sync()
    return float(mean.item())


def _started(torch_xla: Any) -> bool:
    """Its runtime is initialized. False as well where this version does not say."""
    try:
        return bool(torch_xla._XLAC._xla_runtime_is_initialized())
    except Exception:  # private, and may go with any version
        return False


def _running(torch_xla: Any) -> Backend:
    runtime: Any = importlib.import_module("torch_xla.runtime")
    platform = str(runtime.device_type()).lower()
    return Backend("torch_xla", torch_xla.__version__, platform, int(runtime.global_runtime_device_count()))
