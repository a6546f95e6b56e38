"""Lines of old notebooks that no TPU runtime of today understands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpumagic.events import CellRecord, SourceSite
from tpumagic.findings import Finding, Severity
from tpumagic.passes import dead_apis
from tpumagic.passes.dead_apis import OldWay
from tpumagic.passes.environment_failures import promised
from tpumagic.passes.source_lookup import source_of
from tpumagic.sources import Source, dotted, parse

COLAB_TPU = OldWay(
    "jax.tools.colab_tpu",
    "it belonged to Colab's TPU nodes, which are gone, and JAX has dropped it",
    "Delete the import and the call of setup_tpu(): jax.devices() is enough on a TPU runtime.",
)
COLAB_ADDRESS = OldWay(
    "COLAB_TPU_ADDR",
    "Colab sets it no more since its TPUs sit in the machine itself",
    "To ask whether there is a TPU, use jax.default_backend() == 'tpu'; in TensorFlow connect with "
    "TPUClusterResolver(tpu='local').",
)
RESOLVER = OldWay(
    "TPUClusterResolver()",
    "without an argument it looks for a TPU in the network, and TPUs now sit in the machine itself",
    "Write TPUClusterResolver(tpu='local').",
)
XRT = OldWay(
    "XRT_TPU_CONFIG",
    "PyTorch/XLA has left XRT, and the variable gets in the way of PJRT",
    "Delete it; on a TPU machine torch_xla finds the chips by itself (PJRT_DEVICE=TPU).",
)
TPU_DRIVER = OldWay(
    "tpu_driver",
    "it reached TPU nodes over the network, which are gone, and JAX has dropped it",
    "Delete the lines: jax.devices() is enough on a TPU machine.",
)
ENV_SETUP = OldWay(
    "pytorch-xla-env-setup.py",
    "it installs PyTorch/XLA for TPU nodes, which are gone",
    "Delete the line and run pip install 'torch_xla[tpu]', or use what the TPU image ships.",
)
XLA_BRIDGE = OldWay(
    "jax.lib.xla_bridge",
    "JAX has made it private",
    "Use jax.default_backend() for the platform and jax.devices() for the devices.",
)
JAX_CONFIG = OldWay(
    "jax.config as a module",
    "JAX has dropped the module",
    "Write `import jax` and `jax.config.update(name, value)`.",
)

_OLD_WHEEL = re.compile(r"^\s*!.*(?:pytorch-xla-env-setup\.py|cloud-tpu-client\b.*torch_xla-[01]\.)")


@dataclass(frozen=True)
class _Use:
    old: OldWay
    line: int
    guarded: bool = False


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each old way: an error where it ended the cell, else a warning on a TPU host and an info where
    it does no harm."""
    source = parse(record.source, record.source_lines_start)
    uses = list(_uses(source, record))
    failed = _failed(record, source)
    if failed is not None:
        old, site = failed
        related = tuple(_site(record, use.line) for use in uses if use.old is old)
        yield _finding(old, "error", site, tuple(one for one in related if one != site)[:5], _message(record))
    for old in dict.fromkeys(use.old for use in uses):
        if failed is not None and failed[0] is old:
            continue
        mine = [use for use in uses if use.old is old]
        loud = any(not use.guarded for use in mine) and _on_tpu_host(record)
        sites = tuple(dict.fromkeys(_site(record, use.line) for use in mine))
        yield _finding(old, "warning" if loud else "info", sites[0], sites[1:6])


def _message(record: CellRecord) -> str:
    return record.failure.message.splitlines()[0] if record.failure is not None and record.failure.message else ""


def _finding(
    old: OldWay, severity: Severity, site: SourceSite | None, related: tuple[SourceSite, ...], message: str = ""
) -> Finding:
    return Finding(
        kind="env.old_snippet",
        severity=severity,
        title=f"{old.name} is from old notebooks: {old.gone}.",
        detail=f"The cell failed with: {message}" if message else "",
        fix=old.instead,
        site=site,
        related=related,
        facts={"name": old.name},
    )


def _failed(record: CellRecord, source: Source) -> tuple[OldWay, SourceSite | None] | None:
    failure = record.failure
    if failure is None:
        return None
    site = failure.stack[-1] if failure.stack else None
    message = failure.message
    old: OldWay | None = None
    if "jax.tools.colab_tpu" in message or ("colab_tpu" in message and "jax.tools" in message):
        old = COLAB_TPU
    elif "COLAB_TPU_ADDR" in message or (failure.type_name == "AssertionError" and _mentions(source, site)):
        old = COLAB_ADDRESS
    elif "Please provide a TPU Name to connect to" in message:
        old = RESOLVER
    elif "xla_bridge" in message and failure.type_name in ("ImportError", "AttributeError", "ModuleNotFoundError"):
        old = XLA_BRIDGE if "jax.lib" in message else None
    elif "XRT_TPU_CONFIG" in message:
        old = XRT
    elif "jax_xla_backend" in message:
        old = TPU_DRIVER
    elif "'jax.config'" in message and failure.type_name == "ModuleNotFoundError":
        old = TPU_DRIVER if any(use.old is TPU_DRIVER for use in _uses(source, record)) else JAX_CONFIG
    else:
        old = _dropped(record, site, source)
    return (old, site) if old is not None else None


def _dropped(record: CellRecord, site: SourceSite | None, own: Source) -> OldWay | None:
    """A name that its framework has dropped, if it is the user's line that uses it and not a library's. own: the cell."""
    assert record.failure is not None
    old = dead_apis.find(record.failure.type_name, record.failure.message)
    if old is None or site is None:
        return None
    # Cells that a program runs may have no number.
    source = own if (site.cell, site.file) == (record.cell, record.file) else source_of(site, record)
    statement = source.statement(site.line) if source is not None else None
    word = old.name.rsplit(".", 1)[-1]
    named = statement is not None and re.search(rf"\b{word}\b", ast.unparse(statement))
    return old if named else None


def _mentions(source: Source, site: SourceSite | None) -> bool:
    """The statement at the site reads COLAB_TPU_ADDR."""
    statement = source.statement(site.line) if site is not None else None
    return statement is not None and any(
        isinstance(node, ast.Constant) and node.value == COLAB_ADDRESS.name for node in ast.walk(statement)
    )


def _uses(source: Source, record: CellRecord) -> Iterator[_Use]:
    guarded = _guarded_lines(source)
    knows_the_new = any(
        isinstance(node, ast.Constant) and node.value in ("COLAB_TPU_1VM", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID")
        for node in ast.walk(source.tree)
    )
    for statement in source.statements:
        line = statement.lineno
        if isinstance(statement, ast.Import) and any(alias.name == COLAB_TPU.name for alias in statement.names):
            yield _Use(COLAB_TPU, line, line in guarded)
        if isinstance(statement, ast.ImportFrom) and (
            statement.module == COLAB_TPU.name
            or (statement.module == "jax.tools" and any(alias.name == "colab_tpu" for alias in statement.names))
        ):
            yield _Use(COLAB_TPU, line, line in guarded)
    address_there = bool(dict(record.host.variables).get(COLAB_ADDRESS.name))
    for node in ast.walk(source.tree):
        if _reads(node, COLAB_ADDRESS.name) and not address_there:
            yield _Use(COLAB_ADDRESS, _line(node), knows_the_new or _line(node) in guarded)
        elif _writes(node, XRT.name):
            yield _Use(XRT, _line(node))
        elif "jax_xla_backend" in (getattr(node, "value", None), getattr(node, "attr", None)):
            yield _Use(TPU_DRIVER, _line(node))
    for number, text in enumerate(record.source.splitlines(), record.source_lines_start):
        if _OLD_WHEEL.match(text):
            yield _Use(ENV_SETUP, number)


def _reads(node: ast.AST, name: str) -> bool:
    """``os.environ[name]``, ``os.environ.get(name)``, ``os.getenv(name)``, ``name in os.environ``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and _is(node.slice, name)
    if isinstance(node, ast.Compare):
        return _is(node.left, name) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
    if isinstance(node, ast.Call) and node.args and _is(node.args[0], name):
        callee = (dotted(node.func) or "").rsplit(".", 1)[-1]
        return callee in ("get", "getenv")
    return False


def _writes(node: ast.AST, name: str) -> bool:
    """``os.environ[name] = …`` and its like."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and _is(node.slice, name)
    if isinstance(node, ast.Call) and node.args and _is(node.args[0], name):
        return (dotted(node.func) or "").rsplit(".", 1)[-1] in ("setdefault", "putenv")
    return False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name


def _guarded_lines(source: Source) -> frozenset[int]:
    """Lines inside the body of a ``try`` that has handlers: what fails there was expected."""
    lines: set[int] = set()
    for statement in source.statements:
        if isinstance(statement, ast.Try) and statement.handlers:
            for inner in statement.body:
                lines.update(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return frozenset(lines)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


def _on_tpu_host(record: CellRecord) -> bool:
    return promised(record.host) is not None or record.host.kind in ("colab", "colab_enterprise", "kaggle")


def _site(record: CellRecord, line: int) -> SourceSite:
    return SourceSite(line=line, cell=record.cell, file=record.file)
