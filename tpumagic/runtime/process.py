"""What this process has imported that would use a TPU, read from its modules: nothing is imported or started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tpumagic.runtime.library import Loaded, find_loaded

FRAMEWORKS = ("jax", "torch_xla", "torch_tpu", "tensorflow", "keras", "torch")


@dataclass(frozen=True)
class Process:
    """imported: frameworks in the order of their import. keras_backend: what Keras runs on, None if it is not imported
    or does not say. library: the libtpu.so that is loaded, None if none is."""

    imported: tuple[str, ...] = ()
    keras_backend: str | None = None
    library: Loaded | None = None


def find_process(modules: Mapping[str, object] | None = None, maps: str | None = None) -> Process:
    """This process as it is now. modules: name -> module in the order of import, those of this process if None; maps
    as in find_loaded."""
    modules = sys.modules if modules is None else modules
    # A copy: another thread may import meanwhile.
    imported = tuple(name for name in tuple(modules) if name in FRAMEWORKS and modules.get(name) is not None)
    return Process(imported, _keras_backend(modules), find_loaded(maps))


def _keras_backend(modules: Mapping[str, object]) -> str | None:
    """Keras keeps the name in a module of its own since version 3."""
    backend = getattr(modules.get("keras.src.backend.config"), "backend", None)
    try:
        name = backend() if callable(backend) else None
    except Exception:  # private, and may go with any version
        return None
    return name if isinstance(name, str) else None
