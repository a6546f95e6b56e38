"""The card of ``%tpu_env``: the machine, its chips and frameworks, and what is wrong, as text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tpumagic.events import Backend
from tpumagic.numbers import UNKNOWN, bytes_text
from tpumagic.runtime.devices import Chip, Owner
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.hosting import NAMES
from tpumagic.runtime.versions import Pin

_FRAMEWORK_NAMES = {"jax": "JAX", "torch_xla": "PyTorch/XLA", "torch_tpu": "TorchTPU", "tensorflow": "TensorFlow"}
_VERDICTS = {
    "as pinned": "as {package} {version} asks",
    "shipped by this image": "{package} {version} asks for {wanted}; this image ships them together",
    "off pin": "{package} {version} asks for {wanted}",
}
_LABEL_WIDTH = 11
_TEXT_WIDTH = 110


@dataclass(frozen=True)
class Problem:
    """Something wrong with the machine: one sentence, and what to do about it."""

    title: str
    fix: str


Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""Label and lines of each row of the card."""


def rows(environment: Environment, backends: Sequence[Backend] = ()) -> Rows:
    """What the card says, without any form."""
    found: list[tuple[str, tuple[str, ...]]] = [
        ("Host", _host(environment)),
        ("Chips", _chips(environment.chips)),
    ]
    if environment.owners:
        found.append(("Held by", tuple(_owner(owner) for owner in environment.owners)))
    found += [(_FRAMEWORK_NAMES.get(backend.framework, backend.framework), _backend(backend)) for backend in backends]
    seen = {backend.framework for backend in backends}
    if environment.version("jax") and "jax" not in seen:
        found.append(("JAX", (f"{environment.version('jax')}, not imported yet",)))
    packages = ", ".join(f"{name} {version}" for name, version in environment.versions)
    found.append(("Packages", (f"Python {environment.python}{', ' if packages else ''}{packages}",)))
    if environment.pins:
        found.append(("Pins", tuple(_pin_text(pin) for pin in environment.pins)))
    if environment.variables:
        found.append(("Variables", tuple(f"{name}={value}" for name, value in environment.variables)))
    return tuple(found)


def text(environment: Environment, backends: Sequence[Backend] = (), problems: Sequence[Problem] = ()) -> str:
    """The card for a terminal."""
    lines: list[str] = []
    for label, values in rows(environment, backends):
        lines += _wrapped(label, values)
    lines.append("")
    if not problems:
        lines.append("No problem found.")
    for problem in problems:
        lines += _wrapped("Problem", (problem.title,))
        lines += _wrapped("  fix", (problem.fix,)) if problem.fix else []
    return "\n".join(lines)


def html(environment: Environment, backends: Sequence[Backend] = (), problems: Sequence[Problem] = ()) -> str:
    """The card as a table that needs neither styles nor scripts."""
    cells = "".join(
        f"<tr><th align='left' valign='top'>{escape(label)}</th><td align='left'>{'<br>'.join(map(escape, values))}</td></tr>"
        for label, values in rows(environment, backends)
    )
    items = "".join(
        f"<li><b>{escape(problem.title)}</b>{'<br>' + escape(problem.fix) if problem.fix else ''}</li>"
        for problem in problems
    )
    below = f"<ul>{items}</ul>" if items else "<p>No problem found.</p>"
    return f"<div><table>{cells}</table>{below}</div>"


def _host(environment: Environment) -> tuple[str, ...]:
    hosting = environment.hosting
    parts = [NAMES.get(hosting.kind, hosting.kind)]
    if hosting.accelerator_type:
        parts.append(hosting.accelerator_type)
    if hosting.topology:
        parts.append(f"topology {hosting.topology}")
    if hosting.worker_count and hosting.worker_count > 1:
        worker = UNKNOWN if hosting.worker is None else str(hosting.worker)
        slices = f" in {hosting.slice_count} slices" if hosting.slice_count and hosting.slice_count > 1 else ""
        parts.append(f"worker {worker} of {hosting.worker_count}{slices}")
    parts.append(environment.system)
    lines = [", ".join(parts)]
    if hosting.metadata not in ("not asked", "answered"):
        lines.append(f"the metadata server said nothing: {hosting.metadata}")
    return tuple(lines)


def _chips(chips: tuple[Chip, ...]) -> tuple[str, ...]:
    if not chips:
        return ("no TPU chip on the PCI bus",)
    lines: list[str] = []
    for model in dict.fromkeys(chip.model for chip in chips):
        alike = [chip for chip in chips if chip.model == model]
        devices = model.devices_per_chip
        each = f"{bytes_text(model.hbm_bytes)} HBM and {devices} device{'' if devices == 1 else 's'} each"
        lines.append(f"{len(alike)} × {model.name}, {each}")
        nodes = [chip.node for chip in alike if chip.node and chip.usable]
        lines += [", ".join(nodes)] if nodes else []
        closed = [chip.node for chip in alike if chip.node and not chip.usable]
        lines += [f"may not be opened by this user: {', '.join(closed)}"] if closed else []
        missing = [chip.address for chip in alike if chip.node is None]
        lines += [f"without a device node: {', '.join(missing)}"] if missing else []
    return tuple(lines)


def _owner(owner: Owner) -> str:
    if owner.mine:
        return f"this process ({owner.pid})"
    what = f"Jupyter kernel {owner.kernel}" if owner.kernel else owner.command[:80] or "unknown command"
    return f"process {owner.pid}, {what}"


def _backend(backend: Backend) -> tuple[str, ...]:
    settings = dict(backend.settings)
    if backend.platform is None:
        first = f"{backend.version}, imported, not started"
    else:
        count = backend.device_count
        devices = f"{UNKNOWN if count is None else count} device{'' if count == 1 else 's'}"
        kind = f" ({backend.device_kind})" if backend.device_kind and backend.device_kind != backend.platform else ""
        first = f"{backend.version} on {backend.platform}, {devices}{kind}"
    lines = [first]
    asked = settings.get("jax_platforms")
    if asked:
        lines.append(f"platforms asked for: {asked}")
    if backend.fallback and backend.platform not in ("tpu", None):
        lines.append(f"not on TPU: {backend.fallback}")
    if backend.framework == "jax":
        cache = settings.get("jax_compilation_cache_dir")
        lines.append(f"compilation cache: {cache}" if cache else "compilation cache: off")
    return tuple(lines)


def _pin_text(pin: Pin) -> str:
    said = _VERDICTS[pin.verdict].format(package=pin.package, version=pin.version, wanted=pin.wanted)
    return f"{pin.needs} {pin.found}: {said}"


def _wrapped(label: str, values: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for value in values:
        lines += textwrap.wrap(value, _TEXT_WIDTH - _LABEL_WIDTH, break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
    margins = [label.ljust(_LABEL_WIDTH)] + [" " * _LABEL_WIDTH] * (len(lines) - 1)
    return [(margin + line).rstrip() for margin, line in zip(margins, lines, strict=True)]
