"""JAX as it stands in this process, and its set-up: imported, started, proven by a small program, with its cache on."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpumagic.backends.set_up import PROOF, SetUp, wrong_product
from tpumagic.events import Backend

SETTINGS: tuple[str, ...] = (
    "jax_platforms", "jax_enable_x64", "jax_default_matmul_precision", "jax_default_device", "jax_numpy_dtype_promotion",
    "jax_disable_jit", "jax_debug_nans", "jax_transfer_guard", "jax_enable_compilation_cache",
    "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)  # fmt: skip
"""Settings that Backend carries, as ``str`` writes their values; those that are None are left out."""


def describe() -> Backend | None:
    """What JAX says of itself, without importing or starting it; None if it is not imported."""
    jax = sys.modules.get("jax")
    version = getattr(jax, "__version__", None)
    if jax is None or version is None:
        return None
    settings = _settings(jax)
    if not started():
        return Backend("jax", version, fallback=None, settings=settings)
    try:
        device = jax.devices()[0]
        count, kind, platform = jax.device_count(), str(device.device_kind), str(jax.default_backend())
    except Exception:  # a backend that was started and then lost (its host is gone) raises whatever it likes
        return Backend("jax", version, settings=settings)
    fallback = None if platform == "tpu" else tpu_error()
    return Backend("jax", version, platform, count, kind, fallback, settings)


def started() -> bool:
    """JAX's backends are running. False as well where this version of JAX does not say."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    try:
        return bool(bridge.backends_are_initialized()) if bridge is not None else False
    except Exception:  # private, and may go with any version
        return False


def tpu_error() -> str | None:
    """Why the TPU backend did not start, as JAX stored it; None if it was not tried or this version does not say."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    errors = getattr(bridge, "_backend_errors", None)
    error = errors.get("tpu") if isinstance(errors, dict) else None
    return " ".join(str(error).split()) if error else None


def cpu_asked_for(settings: Mapping[str, str]) -> bool:
    """The user named the CPU first among JAX's platforms."""
    return settings.get("jax_platforms", "").lower().split(",")[0] == "cpu"


def set_up(cache: str | Path | None = None) -> SetUp:
    """Imports and starts JAX, proves that it computes, and turns the compilation cache on in the given directory,
    small programs included. Never raises; KeyboardInterrupt passes."""
    directory = str(cache) if cache is not None else None
    problem = unusable(directory) if directory is not None else None
    if problem:
        return SetUp(problem=problem)
    try:
        return _set_up(directory)
    except Exception as error:  # whatever JAX, its plugins or the hardware raise is the answer, not a fault of ours
        return SetUp(problem=_failure(error), backend=describe())


def _set_up(directory: str | None) -> SetUp:
    imported = "jax" in sys.modules
    start = time.perf_counter()
    import jax
    import numpy as np

    import_s = time.perf_counter() - start
    running = started()
    start = time.perf_counter()
    jax.devices()
    start_s = time.perf_counter() - start
    if directory is not None:
        turn_cache_on(jax, directory)
    ones = np.ones((PROOF, PROOF), np.float32)
    start = time.perf_counter()
    proof = jax.jit(_mean_of_product).lower(ones, ones).compile()
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    total = float(proof(ones, ones))
    run_s = time.perf_counter() - start
    wrong = wrong_product("JAX", total)
    if wrong is not None:
        return SetUp(problem=wrong)
    backend = describe()
    assert backend is not None
    return SetUp(
        warning=not_on_tpu(backend),
        backend=backend,
        import_s=None if imported else import_s,
        start_s=None if running else start_s,
        compile_s=compile_s,
        run_s=run_s,
        cache=directory or dict(backend.settings).get("jax_compilation_cache_dir"),
        cache_stored=stored(directory),
    )


def _mean_of_product(a: Any, b: Any) -> Any:
    import jax.numpy as jnp

    product = jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return product.mean()


def turn_cache_on(jax: Any, directory: str) -> None:
    """JAX's compilation cache in a directory, for small programs too; turn_cache_back undoes it."""
    # By default only programs that took a second to compile are kept, and on some file systems only large ones.
    wanted = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in wanted.items():
        now = getattr(jax.config, name)
        if now != value:
            before, ours = _cache_before.get(name, (now, now))
            _cache_before[name] = (before if ours == now else now, value)
            jax.config.update(name, value)
    _look_again_for_cache()


def turn_cache_back() -> str | None:
    """JAX's compilation cache as it was before turn_cache_on; returns a sentence, None if nothing had been changed.
    What something else has changed since stays."""
    jax: Any = sys.modules.get("jax")
    if not _cache_before or jax is None:
        return None
    for name, (before, ours) in _cache_before.items():
        if getattr(jax.config, name) == ours:
            jax.config.update(name, before)
    _cache_before.clear()
    _look_again_for_cache()
    directory = jax.config.jax_compilation_cache_dir
    return f"JAX's compilation cache is {f'in {directory}' if directory else 'off'} again."


_cache_before: dict[str, tuple[Any, Any]] = {}
"""Setting -> its value before we changed it, and ours."""


def _look_again_for_cache() -> None:
    # JAX decides at its first compilation whether there is a cache and where; only this makes it look again.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def stored(directory: str | None) -> bool | None:
    """The proof is in the cache, whether written now or before; None where that cannot be seen (``gs://…``)."""
    if directory is None or "://" in directory:
        return None
    try:
        return any(name.startswith(f"jit_{_mean_of_product.__name__}-") for name in os.listdir(directory))
    except OSError:
        return None


def _settings(jax: Any) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for name in SETTINGS:
        try:
            value = getattr(jax.config, name)
        except AttributeError:  # not in this version
            continue
        if value is not None and value != "":
            found.append((name, str(value)))
    return tuple(found)


def unusable(directory: str) -> str | None:
    """Why a directory cannot be the cache; makes it if it is not there. Addresses like ``gs://…`` are JAX's business."""
    if "://" in directory:
        return None
    path = Path(directory)
    nothing = "Nothing was changed."
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.listdir(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError):
        return f"The cache directory {directory} is no directory but a file, or lies below one; give another. {nothing}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"The cache directory {directory} cannot be read and written ({reason}); give another. {nothing}"
    return None


def not_on_tpu(backend: Backend) -> str | None:
    """A sentence if JAX is not on a TPU and nobody asked for that."""
    if backend.platform == "tpu" or cpu_asked_for(dict(backend.settings)):
        return None
    reason = backend.fallback or "JAX does not say why"
    return f"Not on a TPU, but on {backend.platform}: {reason.rstrip('.')}."


def _failure(error: Exception) -> str:
    said = " ".join(str(error).split()).partition(" (set JAX_PLATFORMS=")[0].rstrip(".") or type(error).__name__
    asked = str(getattr(getattr(sys.modules.get("jax"), "config", None), "jax_platforms", None) or "")
    if "jax" not in sys.modules or not hasattr(sys.modules["jax"], "devices"):
        return f"JAX could not be imported ({type(error).__name__}: {said})."
    if "tpu" in asked and "Unable to initialize backend 'tpu'" in said:
        reason = said.removeprefix("Unable to initialize backend 'tpu': ")
        return (
            f"JAX did not start: JAX_PLATFORMS={asked} asks for a TPU, and there is none that it can use "
            f"({reason}). Restart the kernel without JAX_PLATFORMS to "
            "run on this machine's CPU."
        )
    return f"JAX did not start ({type(error).__name__}: {said})."
