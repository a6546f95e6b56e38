"""Settings that came too late, software that changed under a running process, and frameworks that fight in one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpumagic.events import Backend, CellRecord, EnvironmentSet, SourceSite
from tpumagic.findings import Finding
from tpumagic.passes import environment_causes as causes
from tpumagic.passes import environment_failures as failures
from tpumagic.sources import Source, parse

_READ_AT_START = re.compile(r"(?:XLA|LIBTPU|TPU)_\w+|ALLOW_MULTIPLE_LIBTPU_LOAD")
_READ_AT_IMPORT = re.compile(r"JAX_\w+")
_READ_LATER = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
"""JAX reads these when it joins a cluster, after its import."""

_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_STARTS_PROCESSES = re.compile(
    r"^(?:subprocess|multiprocessing|os\.(?:system|popen|exec\w*|spawn\w*)|asyncio\.create_subprocess)\b"
)
_TOO_LATE = (
    (
        re.compile(r"(jax_\w+) config should be updated before backends are\s+initialized"),
        "{0} was changed after JAX had started, when it cannot be changed any more.",
    ),
    (
        re.compile(r"(jax\.distributed\.initialize)\(\) must be called before any JAX calls"),
        "{0}() was called after JAX had started, when it can join no cluster any more.",
    ),
)

_INSTALLS = re.compile(r"^\s*[!%].*\bpip3?\s+(?:install|uninstall)\b|^\s*[!%].*\buv pip\b")

_NAMES = {"jax": "JAX", "torch_xla": "PyTorch/XLA", "torch_tpu": "TorchTPU"}


def find(record: CellRecord) -> Iterator[Finding]:
    """All of it that a cell did."""
    yield from _ignored_variables(record)
    yield from _ignored_platforms(record)
    yield from _late_keras_backend(record)
    yield from _replaced_libtpu(record)
    yield from _conflict(record)


def find_standing(record: CellRecord) -> Iterator[Finding]:
    """What is so whatever a cell does: only host and backends of the record are looked at."""
    yield from _absent(record)
    yield from _late_keras_backend(record)
    yield from _late_device_count(record)
    yield from _no_cache(record)


def jax_backend(record: CellRecord) -> Backend | None:
    """What JAX says of itself, None if it is not imported."""
    return next((backend for backend in record.backends if backend.framework == "jax"), None)


def _ignored_variables(record: CellRecord) -> Iterator[Finding]:
    """Variables set when nobody reads them any more."""
    source = parse(record.source, record.source_lines_start)
    late = [one for one in record.environment_sets if one.stack and _too_late_to_set(one, record, source)]
    for name in dict.fromkeys(one.name for one in late):
        sets = [one for one in late if one.name == name]
        first = sets[0]
        sites = tuple(dict.fromkeys(one.stack[-1] for one in sets))
        setting = name.lower()
        by_import = bool(_READ_AT_IMPORT.fullmatch(name)) and not first.started
        when = "JAX had been imported" if by_import else "JAX had started"
        restart = f"Restart the kernel and set {name} in the first cell, before "
        fix = restart + ("JAX is imported." if _READ_AT_IMPORT.fullmatch(name) else "a device is used.")
        if by_import:
            fix = f'Use jax.config.update("{setting}", …) instead, or set {name} before JAX is imported.'
        yield Finding(
            kind="env.flag_after_init",
            severity="info" if _for_children(source, first) else "warning",
            title=f"{name} was set after {when}, so it is ignored.",
            detail=_still(record, first),
            fix=fix,
            site=sites[0],
            related=sites[1:6],
            count=len(sets),
            facts={"name": name, "value": first.value},
        )


def _too_late_to_set(one: EnvironmentSet, record: CellRecord, source: Source) -> bool:
    line = one.stack[-1].line
    in_cell = (one.stack[-1].cell, one.stack[-1].file) == (record.cell, record.file)
    statement = source.statement(line) if in_cell else None
    # What libraries set while they are imported is their own affair.
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    if _READ_AT_START.fullmatch(one.name):
        return one.started
    if not _READ_AT_IMPORT.fullmatch(one.name):
        return False
    imported = "jax" in one.imported or (in_cell and any(first < line for first in framework_imports(source)))
    if not (one.started or (imported and one.name not in _READ_LATER)):
        return False
    return not _holds_anyway(one, record)


def _holds_anyway(one: EnvironmentSet, record: CellRecord) -> bool:
    """JAX's setting has that value already."""
    backend = jax_backend(record)
    if backend is None:
        return False
    if one.name == "JAX_PLATFORMS":
        return backend.platform is not None and one.value.lower().split(",")[0] == backend.platform
    now = dict(backend.settings).get(one.name.lower())
    return now is not None and _plain(now) == _plain(one.value)


def _plain(value: str) -> str:
    value = value.strip().lower()
    return {"1": "true", "t": "true", "on": "true", "yes": "true", "0": "false", "off": "false", "no": "false"}.get(
        value, value
    )


def _still(record: CellRecord, one: EnvironmentSet) -> str:
    """What is still so, where that is known."""
    backend = jax_backend(record)
    wanted = _DEVICE_COUNT.search(one.value)
    if wanted and backend is not None and backend.device_count is not None and int(wanted[1]) != backend.device_count:
        have = backend.device_count
        return f"JAX still has {have} device{'' if have == 1 else 's'}, not {wanted[1]}."
    if one.name == "JAX_PLATFORMS" and backend is not None and backend.platform is not None:
        return f"JAX still runs on {backend.platform}."
    return ""


def _for_children(source: Source, one: EnvironmentSet) -> bool:
    """The cell starts other processes afterwards, which may be what the variable is for."""
    line = one.stack[-1].line
    return any(call.line >= line and _STARTS_PROCESSES.match(source.resolve(call.callee)) for call in source.all_calls)


def _ignored_platforms(record: CellRecord) -> Iterator[Finding]:
    """``jax.config.update("jax_platforms", …)`` after the start: the setting and the running platform differ."""
    backend = jax_backend(record)
    if backend is None or backend.platform is None:
        return
    asked = dict(backend.settings).get("jax_platforms", "").lower().split(",")[0]
    if asked not in ("cpu", "tpu") or backend.platform not in ("cpu", "tpu") or asked == backend.platform:
        return
    source = parse(record.source, record.source_lines_start)
    for call in source.all_calls:
        if call.callee.endswith("config.update") and call.node.args and _says(call.node.args[0], "jax_platforms"):
            yield Finding(
                kind="env.flag_after_init",
                severity="warning",
                title="jax_platforms was set after JAX had started, so it is ignored.",
                detail=f"JAX still runs on {backend.platform}.",
                fix="Restart the kernel and set it right after the import of JAX, before a device is used.",
                site=SourceSite(line=call.line, cell=record.cell, file=record.file),
                facts={"name": "jax_platforms", "value": asked, "platform": backend.platform},
            )
            return


def too_late(record: CellRecord) -> list[Finding]:
    """Failures of what has to be done before the start."""
    failure = record.failure
    for pattern, title in _TOO_LATE if failure is not None else ():
        assert failure is not None
        match = pattern.search(failure.message)
        if match is not None:
            finding = Finding(
                kind="env.flag_after_init",
                severity="error",
                title=title.format(match[1]),
                fix="Restart the kernel and do it right after the import of JAX, before a device is used.",
                site=failure.stack[-1] if failure.stack else None,
                facts={"name": match[1]},
            )
            return [finding]
    return []


def _late_keras_backend(record: CellRecord) -> Iterator[Finding]:
    """KERAS_BACKEND says one thing and Keras, which read it at its import, runs on another."""
    running = record.host.keras_backend
    sets = [one for one in record.environment_sets if one.name == "KERAS_BACKEND" and one.stack]
    value = failures.variables(record).get("KERAS_BACKEND")
    # In a cell, only what the cell itself did is told.
    if not running or not value or value == running or (record.source and not sets):
        return
    yield Finding(
        kind="env.keras_backend_late",
        severity="warning",
        title=f"KERAS_BACKEND={value} was set after Keras had been imported, so it is ignored: Keras runs on {running}.",
        fix=f'Restart the kernel and put os.environ["KERAS_BACKEND"] = "{value}" before the first import of keras, or of '
        "anything that imports it.",
        site=sets[-1].stack[-1] if sets else None,
        facts={"name": "KERAS_BACKEND", "value": value, "running": running},
    )


def _replaced_libtpu(record: CellRecord) -> Iterator[Finding]:
    """The cell installed packages, and the libtpu that this process has loaded is gone from the disk."""
    if not record.host.libtpu_replaced:
        return
    for number, line in enumerate(record.source.splitlines(), record.source_lines_start):
        if _INSTALLS.match(line):
            yield Finding(
                kind="env.libtpu_replaced",
                severity="warning",
                title="This installation replaced libtpu, and the kernel still runs the old one.",
                detail="What is loaded and what is on the disk do not belong together any more.",
                fix="Restart the kernel, and install packages before the first import of a framework.",
                site=SourceSite(line=number, cell=record.cell, file=record.file),
                facts={"package": "libtpu"},
            )
            return


def _conflict(record: CellRecord) -> Iterator[Finding]:
    """The cell imports a second framework that takes the chips of this machine for itself."""
    host = record.host
    asked = failures.platforms_asked(record)
    takers = [
        name
        for name in host.imported
        if name in ("torch_xla", "torch_tpu") or (name == "jax" and (asked is None or "tpu" in asked[1].split(",")))
    ]
    if len(takers) < 2 or not host.chip_count:
        return
    lines = framework_imports(parse(record.source, record.source_lines_start), *takers[1:])
    if not lines:
        return
    names = [_NAMES[name] for name in takers]
    yield Finding(
        kind="env.framework_conflict",
        severity="warning",
        title=f"{', then '.join(names)} were imported in this process, and only one of them can have the TPU.",
        detail="Each of them loads libtpu, and the first to use a device takes the chips.",
        fix="Restart the kernel and import only one"
        + (
            '; os.environ["JAX_PLATFORMS"] = "cpu" before JAX is imported keeps it off the TPU.'
            if "jax" in takers
            else "."
        ),
        site=SourceSite(line=lines[0], cell=record.cell, file=record.file),
        facts={"frameworks": ", ".join(takers)},
    )


def _absent(record: CellRecord) -> Iterator[Finding]:
    """The machine says it has a TPU, nothing has been started yet, and there is no chip to start."""
    backend, host = jax_backend(record), record.host
    promise = causes.promised(host)
    if promise is None or host.chip_count != 0 or (backend is not None and backend.platform is not None):
        return
    yield Finding(
        kind="env.no_tpu",
        severity="warning",
        title=f"This machine says it has a TPU ({promise}), and there is no TPU chip on its PCI bus.",
        fix=failures.NOT_ATTACHED,
        facts={"accelerator": promise, "chips": 0},
    )


def _late_device_count(record: CellRecord) -> Iterator[Finding]:
    """XLA_FLAGS asks for several CPU devices and JAX, running on the CPU, has one."""
    backend = jax_backend(record)
    wanted = _DEVICE_COUNT.search(failures.variables(record).get("XLA_FLAGS", ""))
    if wanted is None or backend is None or backend.platform != "cpu" or backend.device_count is None:
        return
    if int(wanted[1]) > 1 and backend.device_count == 1:
        yield Finding(
            kind="env.flag_after_init",
            severity="warning",
            title=f"XLA_FLAGS asks for {wanted[1]} CPU devices and was set after JAX had started, which has 1.",
            fix="Restart the kernel and set XLA_FLAGS in the first cell, before a device is used.",
            facts={"name": "XLA_FLAGS", "value": wanted[0], "devices": backend.device_count},
        )


def _no_cache(record: CellRecord) -> Iterator[Finding]:
    backend = jax_backend(record)
    if backend is None or backend.platform != "tpu":
        return
    now = dict(backend.settings)
    if now.get("jax_compilation_cache_dir") and now.get("jax_enable_compilation_cache", "True") == "True":
        return
    yield Finding(
        kind="env.no_cache",
        severity="info",
        title="JAX keeps no compilation cache: after a restart of the kernel it compiles everything again.",
        fix='jax.config.update("jax_compilation_cache_dir", DIR), or %tpu_env jax --cache DIR, with a folder that stays.',
        facts={"setting": "jax_compilation_cache_dir"},
    )


def framework_imports(source: Source, *frameworks: str) -> tuple[int, ...]:
    """Lines at which the cell imports one of the frameworks, JAX if none is named."""
    lines: list[int] = []
    for node in source.statements:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.partition(".")[0] in (frameworks or ("jax",)) for name in names):
            lines.append(node.lineno)
    return tuple(lines)


def _says(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
