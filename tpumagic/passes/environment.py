"""Why the TPU is not there, or not used: findings about the machine and the frameworks' start, not about programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpumagic.events import Backend, CellRecord, EnvironmentSet, Host, SourceSite
from tpumagic.findings import Finding
from tpumagic.passes import environment_failures as failures
from tpumagic.passes import environment_snippets as snippets
from tpumagic.sources import Source, parse

_READ_AT_START = re.compile(r"(?:XLA|LIBTPU|TPU)_\w+|ALLOW_MULTIPLE_LIBTPU_LOAD")
_READ_AT_IMPORT = re.compile(r"JAX_\w+")
_READ_LATER = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
"""JAX reads these when it joins a cluster, after its import."""

_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_STARTS_PROCESSES = re.compile(
    r"^(?:subprocess|multiprocessing|os\.(?:system|popen|exec\w*|spawn\w*)|asyncio\.create_subprocess)\b"
)
_ASKS_DEVICES = frozenset({
    "jax.devices", "jax.local_devices", "jax.device_count", "jax.local_device_count", "jax.process_index",
    "jax.process_count", "jax.default_backend", "jax.device_put", "jax.make_mesh", "jax.distributed.initialize",
    "jax.live_arrays", "jax.block_until_ready", "jax.experimental.mesh_utils.create_device_mesh",
})  # fmt: skip
_COMPUTES = ("jax.numpy.", "jax.random.", "jax.lax.", "jax.nn.", "jax.scipy.")
_USUAL_NAMES = {"jnp": "jax.numpy", "mesh_utils": "jax.experimental.mesh_utils"}
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


def find(record: CellRecord) -> Iterator[Finding]:
    """All findings about the environment."""
    explained = list(failures.find(record))
    explained += _too_late(record)
    yield from explained
    yield from snippets.find(record)
    if not explained:
        yield from _fallback(record)
    yield from _waiting(record)
    yield from _ignored_variables(record)
    yield from _ignored_platforms(record)


def find_before(record: CellRecord) -> Iterator[Finding]:
    """What has to be said before the cell runs, since it may never come back: only source, host and backends of the
    record are looked at."""
    yield from _waiting(record)


def find_standing(host: Host, backends: tuple[Backend, ...]) -> Iterator[Finding]:
    """What is so whatever a cell does, for a card: findings without a site."""
    record = CellRecord(host=host, backends=backends)
    yield from _fallback(record)
    yield from _waiting(record, standing=True)


def _fallback(record: CellRecord) -> Iterator[Finding]:
    """The machine says it is a TPU, JAX runs on the CPU, and nobody asked for that."""
    backend = _jax(record)
    promise = failures.promised(record.host)
    asked = failures.platforms_asked(record)
    if backend is None or backend.platform != "cpu" or promise is None:
        return
    if asked is not None and asked[1].split(",")[0] == "cpu":
        return
    host = record.host
    told = failures.reason(backend.fallback) if backend.fallback else None
    site, related = _first_use(record)
    cause = failures.cause(backend.fallback or "", host, record.backends)
    if cause is None and host.chip_count and host.usable_chip_count == 0:
        cause = failures.Cause(
            "no_device_node",
            f"JAX runs on cpu: none of the {host.chip_count} TPU chips has a device node that this process may open.",
            f"JAX's own reason: {told}." if told else "",
            "In a container, pass the nodes (docker run --privileged, or --device for each of them); else give this user "
            "the right to read and write them, then restart the kernel.",
            {"chips": host.chip_count, "usable": 0, "platform": "cpu", "reason": told},
        )
    if cause is not None:
        yield cause.finding("warning", site, related)
        return
    if host.libtpu_version is None:
        fix = f"{failures.install(record.backends)}, which brings libtpu, then restart the kernel."
    elif host.chip_count:
        fix = "Restart the kernel; set JAX_PLATFORMS=tpu before the import of JAX to make this an error with its cause."
    else:
        fix = failures.NOT_ATTACHED
    reason = f"JAX's own reason: {told}." if told else "JAX has stored no reason."
    if host.libtpu_version is None:
        reason += " libtpu, the TPU's driver, is not installed."
    if host.chip_count == 0:
        reason += " There is no TPU chip on the PCI bus."
    yield Finding(
        kind="env.cpu_fallback",
        severity="warning",
        title=f"JAX runs on cpu, although this machine says it has a TPU ({promise}).",
        detail=reason,
        fix=fix,
        site=site,
        related=related,
        facts={
            "accelerator": promise,
            "platform": "cpu",
            "reason": told,
            "chips": host.chip_count,
            "libtpu": host.libtpu_version,
        },
    )


def _waiting(record: CellRecord, *, standing: bool = False) -> Iterator[Finding]:
    """One worker of several: the first line that asks for a device waits for all the others. standing: said of the
    machine, whether or not there is such a line."""
    host, backend = record.host, _jax(record)
    count = host.worker_count
    if count is None or count < 2 or (backend is not None and backend.started_here is False):
        return
    told = failures.variables(record)
    alone = "1,1,1" in (told.get("TPU_PROCESS_BOUNDS"), told.get("TPU_HOST_BOUNDS"))
    asked = failures.platforms_asked(record)
    if alone or (asked is not None and "tpu" not in asked[1].split(",")):
        return
    line = _first_device_line(record)
    if line is None and not standing:
        return
    joined = backend is not None and backend.platform == "tpu"
    worker = "one worker" if host.worker is None else f"worker {host.worker}"
    kind = f" ({host.accelerator_type})" if host.accelerator_type else ""
    others = f"the other {count - 1} hosts start" if count > 2 else "the other host starts"
    what = "this line" if line is not None else "the first use of a device"
    bounds = failures.CHIPS_PER_PROCESS.get(host.chip_count or 0)
    per_process = f"TPU_CHIPS_PER_PROCESS_BOUNDS={bounds}" if bounds else "TPU_CHIPS_PER_PROCESS_BOUNDS to its chips"
    yield Finding(
        kind="env.multihost_wait",
        severity="info" if joined else "warning",
        title=f"This notebook is {worker} of {count}{kind}: {what} waits until {others} the same program.",
        detail="A slice starts as a whole; until then the first use of a device hangs without a message.",
        fix=f"Run the same code on all {count} hosts at once; or, to use this host alone, set TPU_PROCESS_BOUNDS=1,1,1 "
        f"and {per_process} before JAX is imported.",
        site=SourceSite(line=line, cell=record.cell, file=record.file) if line is not None else None,
        facts={"workers": count, "worker": host.worker, "accelerator": host.accelerator_type},
    )


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
    imported = "jax" in one.imported or (in_cell and any(first < line for first in _jax_imports(source)))
    if not (one.started or (imported and one.name not in _READ_LATER)):
        return False
    return not _holds_anyway(one, record)


def _holds_anyway(one: EnvironmentSet, record: CellRecord) -> bool:
    """JAX's setting has that value already."""
    backend = _jax(record)
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
    backend = _jax(record)
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
    backend = _jax(record)
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


def _too_late(record: CellRecord) -> list[Finding]:
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


def _jax(record: CellRecord) -> Backend | None:
    return next((backend for backend in record.backends if backend.framework == "jax"), None)


def _says(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _jax_imports(source: Source) -> tuple[int, ...]:
    """Lines at which the cell imports JAX."""
    lines: list[int] = []
    for node in source.statements:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.partition(".")[0] == "jax" for name in names):
            lines.append(node.lineno)
    return tuple(lines)


def _first_use(record: CellRecord) -> tuple[SourceSite | None, tuple[SourceSite, ...]]:
    """The line that first used JAX: its import in this cell, else the first program; and the other one."""
    source = parse(record.source, record.source_lines_start)
    lines = [*_jax_imports(source)[:1]]
    sites = [SourceSite(line=line, cell=record.cell, file=record.file) for line in lines]
    first = next(
        (program.site for program in record.programs if program.site is not None and not program.outside), None
    )
    if first is not None:
        sites.append(first)
    elif (line := _first_device_line(record)) is not None:
        sites.append(SourceSite(line=line, cell=record.cell, file=record.file))
    return (sites[0] if sites else None), tuple(sites[1:])


def _first_device_line(record: CellRecord) -> int | None:
    """The first line of the cell that needs a device: by its text, or because a program came from it."""
    source = parse(record.source, record.source_lines_start)
    lines = [
        site.line
        for program in record.programs
        if not program.outside
        for site in program.stack
        if (site.cell, site.file, site.function) == (record.cell, record.file, None)
    ]
    lambdas = [node for node in ast.walk(source.tree) if isinstance(node, ast.Lambda)]
    for call in source.all_calls:
        inside = any(node.lineno <= call.line <= (node.end_lineno or node.lineno) for node in lambdas)
        if source.function(call.line) is None and not inside and _needs_device(source, call.callee):
            lines.append(call.line)
    return min(lines, default=None)


def _needs_device(source: Source, callee: str) -> bool:
    head, dot, rest = callee.partition(".")
    name = f"{_USUAL_NAMES.get(head, head)}{dot}{rest}" if head not in source.imports else source.resolve(callee)
    return name in _ASKS_DEVICES or name.startswith(_COMPUTES)
