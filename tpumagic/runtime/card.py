"""The card of ``%tpu_env``: the machine, its chips and frameworks, and what is wrong, as text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from tpumagic.events import Backend
from tpumagic.numbers import UNKNOWN, bytes_text
from tpumagic.runtime.devices import Chip, ChipModel
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.hosting import NAMES
from tpumagic.runtime.library import Library
from tpumagic.runtime.lock import PATH as LOCK_PATH
from tpumagic.runtime.lock import Lock
from tpumagic.runtime.owners import Owner
from tpumagic.runtime.problem import Problem, in_order
from tpumagic.runtime.software_problems import NAMES as FRAMEWORK_NAMES
from tpumagic.runtime.versions import Pin

_VERDICTS = {
    "as pinned": "as {package} {version} asks",
    "shipped by this image": "{package} {version} asks for {wanted}; this image ships them together",
    "off pin": "{package} {version} asks for {wanted}",
}
_STATES = {"empty": "an empty file", "no library": "a file that is no library", "missing": "missing"}
_COMMANDS = ("sudo ", "gcloud ", "pip ", "import ", "lsof ", "docker ")
_LABEL_WIDTH = 11
_TEXT_WIDTH = 110


Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""Label and lines of each row of the card."""


def rows(environment: Environment, backends: Sequence[Backend] = (), target: str | None = None) -> Rows:
    """What the card says, without any form. target: the notebook's default target, in words."""
    found: list[tuple[str, tuple[str, ...]]] = [
        ("Host", _host(environment)),
        ("Chips", _chips(environment.chips)),
    ]
    if target is not None:
        found.append(("Target", (target,)))
    if environment.owners:
        found.append(("Held by", tuple(_owner(owner) for owner in environment.owners)))
    if environment.lock:
        found.append(("Lock", (_lock(environment.lock),)))
    found += [(FRAMEWORK_NAMES.get(backend.framework, backend.framework), _backend(backend)) for backend in backends]
    seen = {backend.framework for backend in backends}
    if environment.version("jax") and "jax" not in seen:
        found.append(("JAX", (f"{environment.version('jax')}, not imported yet",)))
    packages = ", ".join(f"{name} {version}" for name, version in environment.versions)
    found.append(("Packages", (f"Python {environment.python}{', ' if packages else ''}{packages}",)))
    if environment.libraries:
        found.append(("libtpu", tuple(_library(library) for library in environment.libraries)))
    if len(environment.process.imported) > 1:
        found.append(("Imported", (", then ".join(environment.process.imported),)))
    if environment.pins:
        found.append(("Pins", tuple(_pin_text(pin) for pin in environment.pins)))
    if environment.variables:
        found.append(("Variables", tuple(f"{name}={value}" for name, value in environment.variables)))
    return tuple(found)


def text(
    environment: Environment,
    backends: Sequence[Backend] = (),
    problems: Sequence[Problem] = (),
    target: str | None = None,
) -> str:
    """The card for a terminal."""
    lines: list[str] = []
    for label, values in rows(environment, backends, target):
        lines += _wrapped(label, values)
    lines.append("")
    if all(problem.severity == "info" for problem in problems):
        lines.append("No problem found.")
    for problem in in_order(problems):
        lines += _wrapped("Note" if problem.severity == "info" else "Problem", (problem.title,))
        lines += _wrapped("", (problem.detail,)) if problem.detail else []
        lines += _fix(problem.fix) if problem.fix else []
    return "\n".join(lines)


def html(
    environment: Environment,
    backends: Sequence[Backend] = (),
    problems: Sequence[Problem] = (),
    target: str | None = None,
) -> str:
    """The card as a table that needs neither styles nor scripts."""
    cells = "".join(
        f"<tr><th align='left' valign='top'>{escape(label)}</th><td align='left'>{'<br>'.join(map(escape, values))}</td></tr>"
        for label, values in rows(environment, backends, target)
    )
    items = "".join(f"<li>{_item(problem)}</li>" for problem in in_order(problems))
    calm = all(problem.severity == "info" for problem in problems)
    return f"<div><table>{cells}</table>{'<p>No problem found.</p>' if calm else ''}{f'<ul>{items}</ul>' if items else ''}</div>"


def _item(problem: Problem) -> str:
    title = escape(problem.title)
    lines = [title if problem.severity == "info" else f"<b>{title}</b>", escape(problem.detail), escape(problem.fix)]
    return "<br>".join(line for line in lines if line)


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
        lines.append(f"{len(alike)} × {model.name}: {_devices(model, len(alike))}")
        nodes = [node for chip in alike if chip.usable for node in chip.nodes]
        lines += [", ".join(nodes)] if nodes else []
        closed = [node for chip in alike if not chip.usable for node in chip.nodes]
        lines += [f"may not be opened by this user: {', '.join(closed)}"] if closed else []
        missing = [chip.address for chip in alike if not chip.nodes]
        lines += [f"without a device node: {', '.join(missing)}"] if missing else []
    return tuple(lines)


def _devices(model: ChipModel, count: int) -> str:
    if model.devices_per_chip is None:
        return f"devices and HBM {UNKNOWN}"
    devices = f"{(total := count * model.devices_per_chip)} device{'' if total == 1 else 's'}"
    each = f" ({model.devices_per_chip} a chip)" if model.devices_per_chip > 1 else ""
    return f"{devices}{each}, {bytes_text(model.hbm_bytes_per_device)} HBM per device"


def _owner(owner: Owner) -> str:
    return f"this process ({owner.pid})" if owner.mine else owner.name


def _lock(lock: Lock) -> str:
    if lock.mine:
        return f"{LOCK_PATH}, held by this process"
    if lock.held:
        return f"{LOCK_PATH}, held by {f'process {lock.pid}' if lock.pid else 'a process that is not visible here'}"
    return f"{LOCK_PATH}, {'held by nobody' if lock.held is False else 'which may be held'}"


def _library(library: Library) -> str:
    by = " (TPU_LIBRARY_PATH)" if library.origin == "TPU_LIBRARY_PATH" else ""
    size = f", {bytes_text(library.size_bytes)}" if library.state == "present" else f": {_STATES[library.state]}"
    return f"{library.path}{by}{size}"


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


def _fix(fix: str) -> list[str]:
    """A command stays on one line, so that it can be copied."""
    prose, colon, command = fix.rpartition(": ")
    if len(fix) <= _TEXT_WIDTH - _LABEL_WIDTH or not command.startswith(_COMMANDS):
        return _wrapped("  fix", (fix,))
    return [*_wrapped("  fix", (prose + colon.rstrip(),)), " " * _LABEL_WIDTH + command]


def _wrapped(label: str, values: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for value in values:
        lines += textwrap.wrap(value, _TEXT_WIDTH - _LABEL_WIDTH, break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
    margins = [label.ljust(_LABEL_WIDTH)] + [" " * _LABEL_WIDTH] * (len(lines) - 1)
    return [(margin + line).rstrip() for margin, line in zip(margins, lines, strict=True)]
