"""Failures that are about the TPU or its software, and what was asked of JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpumagic.events import CellRecord
from tpumagic.findings import Finding
from tpumagic.passes.environment_causes import Cause, cause, install, promised, reason

_NO_LIBTPU = re.compile(r"Failed to open libtpu\.so|libtpu\.so: cannot open shared object")
_LIBTPU_SPEAKS = re.compile(r"TPU initialization failed|No \w+ device found")
_NO_TPU = re.compile(
    r"Unable to initialize backend 'tpu'|Backend 'tpu' failed to initialize|Unknown backend:? '?tpu\b"
    r"|Backend 'tpu' is not in the list of known backends|No (?:jellyfish|ba16c7433) device found"
    r"|Failed to get global TPU topology|TPU initialization failed"
)
CHIPS_PER_PROCESS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""Chips of a host -> the bounds that describe them to libtpu."""


def find(record: CellRecord) -> Iterator[Finding]:
    """The finding that explains the exception which ended the cell, if it is about the TPU or its software."""
    failure = record.failure
    if failure is None:
        return
    found = cause(failure.message, record.host, record.backends) or no_tpu(failure.message, record)
    if found is not None:
        yield found.finding("error", failure.stack[-1] if failure.stack else None)


def variables(record: CellRecord) -> dict[str, str]:
    """Environment variables as the cell left them, as far as frameworks and TPU hosts read them."""
    return dict(record.host.variables) | {one.name: one.value for one in record.environment_sets}


def platforms_asked(record: CellRecord) -> tuple[str, str] | None:
    """How JAX was told which platforms to use: the way it was said, and their names in lower case; None if it was left
    to JAX."""
    for backend in record.backends:
        setting = dict(backend.settings).get("jax_platforms")
        if backend.framework == "jax" and setting:
            variable = variables(record).get("JAX_PLATFORMS")
            if variable is None and setting == "tpu,cpu":
                return "JAX", setting  # its own choice where it sees chips
            said = f"JAX_PLATFORMS={setting}" if variable == setting else f'jax_platforms="{setting}"'
            return said, setting.lower()
    variable = variables(record).get("JAX_PLATFORMS")
    return (f"JAX_PLATFORMS={variable}", variable.lower()) if variable else None


def no_tpu(text: str, record: CellRecord) -> Cause | None:
    """A TPU was asked for and there is none."""
    if not (_NO_TPU.search(text) or _NO_LIBTPU.search(text)):
        return None
    host = record.host
    asked = platforms_asked(record)
    asks = asked is not None and "tpu" in asked[1].split(",")
    asked_by = asked[0] if asked is not None and asks else "this line"
    excluded = asked[0] if asked is not None and not asks and "Unknown backend" in text else None
    missing = bool(_NO_LIBTPU.search(text)) or (host.libtpu_version is None and not _LIBTPU_SPEAKS.search(text))
    libtpu = "and libtpu, the TPU's driver, is not installed" if missing else "and libtpu finds no TPU device"
    why = f"but {excluded} leaves the TPU out" if excluded else libtpu
    promise = promised(host)
    facts: dict[str, object] = {
        "asked_by": excluded or asked_by,
        "libtpu": None if missing else host.libtpu_version,
        "accelerator": promise,
        "chips": host.chip_count,
        "reason": reason(text),
    }
    detail = f"JAX says: {reason(text)}." if reason(text) else ""
    if promise is None:
        title = f"No TPU here: {asked_by} asks for one, {why}."
        undo = "Leave JAX_PLATFORMS unset (or set it to cpu)" if asks else "Leave the platform to JAX (jax.devices())"
        compiling = "" if missing or excluded else "; programs can still be compiled for a TPU here, though not run"
        fix = f"This machine has no TPU, so nothing is broken. {undo} and restart the kernel to run on the CPU{compiling}."
        return Cause("no_tpu", title, detail, fix, facts)
    title = f"No TPU to use: {asked_by} asks for one and this machine says it has one ({promise}), {why}."
    if excluded:
        fix = f"Remove {excluded} and restart the kernel."
    elif missing:
        fix = f"{install(record.backends)}, then restart the kernel."
    else:
        fix = NOT_ATTACHED
    return Cause("no_tpu", title, detail, fix, facts)


NOT_ATTACHED = (
    "The chip is not attached to this machine: on Colab choose Runtime > Change runtime type > TPU and reconnect; in a "
    "container pass the TPU's device nodes (docker run --privileged); else start the TPU VM anew."
)
