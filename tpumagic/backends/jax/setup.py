"""JAX as it stands in this process, and its set-up: imported, started, proven by a small program, with its cache on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from tpumagic.events import Backend, Host
from tpumagic.numbers import seconds_text

OLDEST = (0, 7, 2)
INSTALL = "pip install -U 'jax[tpu]>=0.7.2' on a TPU machine, pip install -U 'jax>=0.7.2' on any other"

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


@dataclass(frozen=True)
class SetUp:
    """How setting up JAX went. problem: why it did not, None if it did; then nothing was changed.

    warning: it runs, but not as one would expect (on the CPU, without its cache). import_s is None where JAX had been
    imported before, start_s where it was running already; compile_s and run_s are those of the proof, a jitted matrix
    multiplication. cache: the directory of the compilation cache, None if it is off; cache_stored: the proof is in it.
    """

    problem: str | None = None
    warning: str | None = None
    backend: Backend | None = None
    import_s: float | None = None
    start_s: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    cache: str | None = None
    cache_stored: bool | None = None

    @property
    def ok(self) -> bool:
        """JAX runs."""
        return self.problem is None

    def to_dict(self) -> dict[str, object]:
        """The same as JSON; None becomes null."""
        return {**asdict(self), "ok": self.ok}


def set_up(
    cache: str | Path | None = None, environ: Mapping[str, str] | None = None, host: Host | None = None
) -> SetUp:
    """Imports and starts JAX, proves that it computes, and turns the compilation cache on in the given directory,
    small programs included. host: where it is one worker of several, JAX is not started, since that would wait for the
    others. Never raises; KeyboardInterrupt passes."""
    environ = os.environ if environ is None else environ
    directory = str(cache) if cache is not None else None
    problem = _missing() or _waits(host, environ) or (_unusable(directory) if directory is not None else None)
    if problem:
        return SetUp(problem=problem)
    try:
        return _set_up(directory)
    except Exception as error:  # whatever JAX, its plugins or the hardware raise is the answer, not a fault of ours
        return SetUp(problem=_failure(error), backend=describe())


def lines(result: SetUp) -> tuple[str, ...]:
    """The result in sentences."""
    if result.problem is not None:
        return (result.problem,)
    assert result.backend is not None
    backend = result.backend
    count = "—" if backend.device_count is None else f"{backend.device_count}"
    devices = f"{count} device{'' if backend.device_count == 1 else 's'}"
    kind = f" ({backend.device_kind})" if backend.device_kind not in (None, backend.platform) else ""
    imported = "was imported already" if result.import_s is None else f"imported in {seconds_text(result.import_s)}"
    start = "was running already" if result.start_s is None else f"started in {seconds_text(result.start_s)}"
    times = f"compiled in {seconds_text(result.compile_s)} and ran in {seconds_text(result.run_s)}"
    found = [
        f"JAX {backend.version} runs on {backend.platform}: {devices}{kind}.",
        f"It {imported} and {start}; a matrix multiplication {times}.",
    ]
    if result.cache is not None:
        kept = {
            True: ": small programs are kept too",
            False: ", which did not keep the program just compiled",
            None: "",
        }
        found.append(f"Compilation cache in {result.cache}{kept[result.cache_stored]}.")
    if result.warning is not None:
        found.append(result.warning)
    return tuple(found)


def text(result: SetUp) -> str:
    """The result for a terminal."""
    return "\n".join(lines(result))


def html(result: SetUp) -> str:
    """The result for a notebook."""
    return f"<div>{''.join(f'<p>{escape(line)}</p>' for line in lines(result))}</div>"


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
        _turn_cache_on(jax, directory)
    ones = np.ones((256, 256), np.float32)
    start = time.perf_counter()
    proof = jax.jit(_mean_of_product).lower(ones, ones).compile()
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    total = float(proof(ones, ones))
    run_s = time.perf_counter() - start
    if total != 256.0:
        return SetUp(problem=f"JAX runs but computes wrongly: a mean that must be 256 came out as {total}.")
    backend = describe()
    assert backend is not None
    return SetUp(
        warning=_not_on_tpu(backend),
        backend=backend,
        import_s=None if imported else import_s,
        start_s=None if running else start_s,
        compile_s=compile_s,
        run_s=run_s,
        cache=directory or dict(backend.settings).get("jax_compilation_cache_dir"),
        cache_stored=_stored(directory),
    )


def _mean_of_product(a: Any, b: Any) -> Any:
    import jax.numpy as jnp

    product = jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return product.mean()


def _turn_cache_on(jax: Any, directory: str) -> None:
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", directory)
    # By default only programs that took a second to compile are kept, and on some file systems only large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides at its first compilation whether there is a cache and where; only this makes it look again.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def _stored(directory: str | None) -> bool | None:
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


def _missing() -> str | None:
    if "jax" not in sys.modules and importlib.util.find_spec("jax") is None:
        return f"JAX is not installed: {INSTALL}."
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(sys.modules.get("jax"), "__version__", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if numbers and numbers < OLDEST:
        return f"JAX {version} is too old for tpumagic, which needs 0.7.2: {INSTALL}."
    return None


def _waits(host: Host | None, environ: Mapping[str, str]) -> str | None:
    if host is None or host.worker_count is None or host.worker_count < 2 or started():
        return None
    if environ.get("TPU_PROCESS_BOUNDS") == "1,1,1" or _asked(environ) == "cpu":
        return None
    worker = "one worker" if host.worker is None else f"worker {host.worker}"
    return (
        f"JAX was not started: this is {worker} of {host.worker_count}, and JAX would wait here until the other "
        f"{host.worker_count - 1} start it too. Run the same on all of them; or, for this host alone, set "
        "TPU_PROCESS_BOUNDS=1,1,1 and TPU_CHIPS_PER_PROCESS_BOUNDS to this host's chips, and restart the kernel."
    )


def _asked(environ: Mapping[str, str]) -> str:
    return environ.get("JAX_PLATFORMS", "").lower().split(",")[0]


def _unusable(directory: str) -> str | None:
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


def _not_on_tpu(backend: Backend) -> str | None:
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
