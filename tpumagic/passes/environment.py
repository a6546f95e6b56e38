"""Why the TPU is not there, or not used: findings about the machine and the frameworks' start, not about programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpumagic.events import Backend, CellRecord, Host, SourceSite
from tpumagic.findings import Finding
from tpumagic.passes import environment_causes as causes
from tpumagic.passes import environment_failures as failures
from tpumagic.passes import environment_settings as settings
from tpumagic.passes import environment_snippets as snippets
from tpumagic.passes.environment_settings import framework_imports, jax_backend
from tpumagic.sources import Source, parse

_ASKS_DEVICES = frozenset({
    "jax.devices", "jax.local_devices", "jax.device_count", "jax.local_device_count", "jax.process_index",
    "jax.process_count", "jax.default_backend", "jax.device_put", "jax.make_mesh", "jax.distributed.initialize",
    "jax.live_arrays", "jax.block_until_ready", "jax.experimental.mesh_utils.create_device_mesh",
})  # fmt: skip
_COMPUTES = ("jax.numpy.", "jax.random.", "jax.lax.", "jax.nn.", "jax.scipy.")
_USUAL_NAMES = {"jnp": "jax.numpy", "mesh_utils": "jax.experimental.mesh_utils"}


def find(record: CellRecord) -> Iterator[Finding]:
    """All findings about the environment."""
    explained = list(failures.find(record))
    explained += settings.too_late(record)
    yield from explained
    yield from snippets.find(record)
    if not explained:
        yield from _fallback(record)
    yield from _waiting(record)
    yield from settings.find(record)


def find_before(record: CellRecord) -> Iterator[Finding]:
    """What has to be said before the cell runs, since it may never come back: only source, host and backends of the
    record are looked at."""
    yield from _waiting(record)


def find_standing(host: Host, backends: tuple[Backend, ...]) -> Iterator[Finding]:
    """What is so whatever a cell does, for a card: findings without a site."""
    record = CellRecord(host=host, backends=backends)
    yield from _fallback(record)
    yield from _waiting(record, standing=True)
    yield from settings.find_standing(record)


def _fallback(record: CellRecord) -> Iterator[Finding]:
    """The machine says it is a TPU, JAX runs on the CPU, and nobody asked for that."""
    backend = jax_backend(record)
    promise = causes.promised(record.host)
    asked = failures.platforms_asked(record)
    if backend is None or backend.platform != "cpu" or promise is None:
        return
    if asked is not None and asked[1].split(",")[0] == "cpu":
        return
    host = record.host
    told = causes.reason(backend.fallback) if backend.fallback else None
    site, related = _first_use(record)
    cause = causes.cause(backend.fallback or "", host, record.backends)
    if cause is None and host.chip_count and host.usable_chip_count == 0:
        cause = causes.Cause(
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
        fix = f"{causes.install(record.backends)}, which brings libtpu, then restart the kernel."
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
    host, backend = record.host, jax_backend(record)
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


def _first_use(record: CellRecord) -> tuple[SourceSite | None, tuple[SourceSite, ...]]:
    """The line that first used JAX: its import in this cell, else the first program; and the other one."""
    source = parse(record.source, record.source_lines_start)
    lines = [*framework_imports(source)[:1]]
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
