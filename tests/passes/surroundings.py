"""Cells and what surrounds them, made by hand, for tests of findings about the environment."""

from tpumagic.events import Backend, CellRecord, Failure, SourceSite
from tpumagic.passes import environment

CELL = 7
CPU_BACKEND = Backend(
    "jax", "0.10.2", "cpu", 1, "cpu", fallback="NOT_FOUND: TPU initialization failed: No jellyfish device found."
)
NO_TPU = (
    "Unable to initialize backend 'tpu': NOT_FOUND: TPU initialization failed: No jellyfish device found. "
    "(set JAX_PLATFORMS='' to automatically choose an available backend)"
)
NO_LIBTPU = (
    "Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: "
    "No such file or directory (set JAX_PLATFORMS='' to automatically choose an available backend)"
)


def at(line):
    return SourceSite(line=line, cell=CELL)


def record(source="", **given):
    return CellRecord(source=source, cell=CELL, **given)


def failed(message, type_name="RuntimeError", line=1, source="", **given):
    return record(source, failure=Failure(type_name, message, (at(line),)), **given)


def found(one):
    return [(f.kind, f.severity, f.site.line if f.site else None) for f in environment.find(one)]


def only(one):
    (finding,) = environment.find(one)
    return finding
