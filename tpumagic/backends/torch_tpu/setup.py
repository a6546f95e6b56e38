"""Set-up of TorchTPU. It has no CPU mode, so this has never been run: written after its 0.2 wheel, and guarded."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from tpumagic.backends.set_up import PROOF, SetUp, wrong_product
from tpumagic.events import Backend


def set_up() -> SetUp:
    """Imports PyTorch, which loads TorchTPU where there are chips, and multiplies two matrices on the first one."""
    imported = "torch_tpu" in sys.modules
    start = time.perf_counter()
    torch: Any = importlib.import_module("torch")
    torch_tpu: Any = importlib.import_module("torch_tpu")
    import_s = time.perf_counter() - start
    start = time.perf_counter()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != "tpu":
        found = "no accelerator" if accelerator is None else f"the accelerator {accelerator.type}"
        return SetUp(problem=f"TorchTPU did not start: PyTorch sees {found}, and no TPU.")
    count = int(torch.accelerator.device_count())
    start_s = time.perf_counter() - start
    start = time.perf_counter()
    total = _proof(torch)
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    _proof(torch)
    run_s = time.perf_counter() - start
    wrong = wrong_product("TorchTPU", total)
    if wrong is not None:
        return SetUp(problem=wrong)
    version = str(getattr(torch_tpu, "__version__", None) or "—")
    return SetUp(
        backend=Backend("torch_tpu", version, "tpu", count),
        import_s=None if imported else import_s,
        start_s=start_s,
        compile_s=compile_s,
        run_s=run_s,
        under=f"PyTorch {torch.__version__}",
    )


def _proof(torch: Any) -> float:
    ones = torch.ones((PROOF, PROOF), dtype=torch.bfloat16, device="tpu")
    return float((ones @ ones).float().mean().item())
