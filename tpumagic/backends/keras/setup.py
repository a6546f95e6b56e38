"""Keras as it stands in this process, and its set-up on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

from tpumagic.backends.jax import setup as jax_setup
from tpumagic.backends.set_up import PROOF, SetUp, wrong_product
from tpumagic.events import Backend

_LABELS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
_HELD_SHOWN = 5


def describe() -> Backend | None:
    """Version and backend (setting ``backend``) of the Keras that is imported; None if there is none."""
    keras = sys.modules.get("keras")
    version, backend = getattr(keras, "__version__", None), _backend_name()
    if version is None or backend is None:
        return None
    return Backend("keras", version, settings=(("backend", backend),))


def set_up(cache: str | None = None, names: MutableMapping[str, Any] | None = None) -> SetUp:
    """Imports Keras, starts its backend and proves that a layer computes.

    What a failed import left is taken away first, and a Keras on another backend than KERAS_BACKEND names is imported
    anew. names: the notebook's variables; Keras's modules among them are exchanged too, and where there are layers,
    models or functions of the old one, nothing is done, since they would mix with the new. cache: of JAX, if it is JAX.
    """
    names = {} if names is None else names
    wanted = os.environ.get("KERAS_BACKEND", "").lower() or "jax"
    repaired = None
    now = _backend_name() if "keras" in sys.modules else None
    if now is None and _purge():
        repaired = "An import of Keras had failed half-way; what it had left behind is gone."
    elif now is not None and now != wanted:
        held = tuple(_held(names))
        if held:
            return SetUp(problem=_cannot_change(now, wanted, held))
        _purge()
        repaired = f"Keras ran on {now} and has been imported anew on {wanted}."
    imported = "keras" in sys.modules
    start = time.perf_counter()
    keras: Any = importlib.import_module("keras")
    import_s = time.perf_counter() - start
    if repaired is not None:
        _exchange(names)
    engine, start_s, warning = _start(wanted, cache)
    start = time.perf_counter()
    total = _proof(keras)
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    _proof(keras)
    run_s = time.perf_counter() - start
    wrong = wrong_product("Keras", total)
    if wrong is not None:
        return SetUp(problem=wrong)
    return SetUp(
        warning=warning,
        backend=Backend(
            "keras",
            keras.__version__,
            engine.platform,
            engine.device_count,
            engine.device_kind,
            settings=(("backend", wanted),),
        ),
        import_s=None if imported else import_s,
        start_s=start_s,
        compile_s=compile_s,
        run_s=run_s,
        under=f"{_LABELS[wanted]} {engine.version}",
        cache=dict(engine.settings).get("jax_compilation_cache_dir"),
        repaired=repaired,
    )


def _start(backend: str, cache: str | None) -> tuple[Backend, float | None, str | None]:
    """What computes, how long its start took (None if it was running), and a warning."""
    start = time.perf_counter()
    if backend == "jax":
        import jax

        running = jax_setup.started()
        jax.devices()
        start_s = time.perf_counter() - start
        if cache is not None:
            jax_setup.turn_cache_on(jax, cache)
        found = jax_setup.describe()
        assert found is not None
        return found, None if running else start_s, jax_setup.not_on_tpu(found)
    if backend == "tensorflow":
        tensorflow: Any = importlib.import_module("tensorflow")
        tpus = tensorflow.config.list_logical_devices("TPU")
        devices = tpus or tensorflow.config.list_logical_devices("CPU")
        platform = "tpu" if tpus else "cpu"
        return Backend(backend, tensorflow.__version__, platform, len(devices)), time.perf_counter() - start, None
    torch: Any = importlib.import_module("torch")
    core: Any = importlib.import_module("keras.src.backend.torch.core")
    platform = str(core.get_device()).partition(":")[0]
    return Backend(backend, torch.__version__, platform, 1), time.perf_counter() - start, None


def _proof(keras: Any) -> float:
    # With names of their own: layers without one are numbered, and the user's would count on from ours.
    layer = keras.layers.Dense(PROOF, use_bias=False, kernel_initializer="ones", dtype="float32", name="tpumagic_proof")
    product = layer(keras.ops.ones((PROOF, PROOF), dtype="float32"))
    return float(keras.ops.convert_to_numpy(keras.ops.mean(product)))


def _backend_name() -> str | None:
    """What the imported Keras runs on. None if there is none, or if it does not say (Keras 2)."""
    function = getattr(getattr(sys.modules.get("keras"), "backend", None), "backend", None)
    try:
        name = function() if callable(function) else None
    except Exception:
        return None
    return name if isinstance(name, str) else None


def _purge() -> bool:
    """Forget every module of Keras; False if there was none."""
    mine = [name for name in sys.modules if name == "keras" or name.startswith("keras.")]
    for name in mine:
        del sys.modules[name]
    return bool(mine)


def _exchange(names: MutableMapping[str, Any]) -> None:
    """Variables that are modules of the old Keras become those of the new."""
    for name, value in list(names.items()):
        if isinstance(value, ModuleType) and _of_keras(value.__name__):
            names[name] = importlib.import_module(value.__name__)


def _held(names: Mapping[str, Any]) -> Iterator[str]:
    """Variables that hold something of Keras other than its modules, as far as can be seen from outside."""
    for name, value in list(names.items()):
        if name.startswith("_") or name in ("In", "Out"):
            continue
        inside: list[Any] = [value]
        if isinstance(value, dict):
            inside += list(value.values())  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, list | tuple | set):
            inside += list(value)  # pyright: ignore[reportUnknownArgumentType]
        if any(_made_of_keras(one) for one in inside):
            yield name


def _made_of_keras(value: object) -> bool:
    if isinstance(value, ModuleType):
        return False
    kind = value if isinstance(value, type) else type(value)
    return any(_of_keras(one.__module__) for one in kind.__mro__) or _of_keras(getattr(value, "__module__", None))


def _of_keras(module: object) -> bool:
    return isinstance(module, str) and (module == "keras" or module.startswith("keras."))


def _cannot_change(now: str, wanted: str, held: tuple[str, ...]) -> str:
    shown = ", ".join(held[:_HELD_SHOWN]) + (f" and {len(held) - _HELD_SHOWN} more" if len(held) > _HELD_SHOWN else "")
    return (
        f"Keras was imported on {now} and cannot be changed to {wanted}, since {shown} "
        f"{'belongs' if len(held) == 1 else 'belong'} to it. Restart the kernel and run %tpu_env keras before Keras is "
        "imported."
    )
