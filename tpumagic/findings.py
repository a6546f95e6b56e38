"""A finding: one thing worth telling, in the user's own names; and the thresholds that make one loud."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tpumagic.events import SourceSite

Severity = Literal["error", "warning", "info"]

KINDS: dict[str, tuple[str, ...]] = {
    "recompile": (
        "shape", "dtype", "weak_type", "static", "static_identity", "static_field", "pytree", "call_style", "context",
        "sharding", "committed", "new_function", "redefined", "options", "evicted", "transform", "python_value",
        "unknown",
    ),
    "compile": ("captured_constant", "unrolled_loop", "cache_not_written", "slow", "cpu_branch"),
    "memory": ("held_by_out", "held_by_traceback", "donation_unused", "donation_missed", "padding", "growth"),
    "oom": ("hbm", "vmem", "runtime"),
    "precision": (
        "default_matmul", "matmul_cancellation", "bf16_accumulate", "bf16_update_lost", "int64_truncated",
        "f64_truncated", "f64_emulated", "fp16_overflow", "fp16_use", "promotion",
    ),
    "host": (
        "callback", "sync", "implicit_transfer", "input_transfer", "op_by_op", "input_bound", "timing_no_block",
        "op_fallback", "missing_sync", "spawn_after_init",
    ),
    "unsupported": (
        "op", "x64", "c128", "dynamic_shape", "traced_control_flow", "slow_op", "cpu_only", "large_embedding_gradient",
    ),
    "error": ("static_unhashable", "donated_reuse"),
    "sharding": (
        "not_divisible", "incompatible_devices", "idle_devices", "replicated_work", "full_remat", "device_count",
        "collectives",
    ),
    "env": (
        "no_tpu", "cpu_fallback", "tpu_in_use", "compile_only_lock", "old_snippet", "multihost_wait",
        "version_mismatch", "no_device_node", "flag_after_init", "keras_backend_late", "libtpu_replaced",
        "framework_conflict", "metadata_unreachable", "compiler_missing", "hugepages", "no_cache",
    ),
}  # fmt: skip
"""Every kind that a finding may have, by family. Nothing tells ``host.missing_sync``, ``host.op_fallback``,
``host.spawn_after_init`` and ``recompile.python_value`` yet: their names are kept free."""

MIB = 2**20

# When a finding is a warning and not an info. One place, with reasons.
COST_SHARE = 0.05
COST_SECONDS = 0.5
"""A cost is worth a warning from 5 % of the cell *and* half a second: below either nobody would act on it."""
TRANSFER_BYTES = MIB
HELD_BYTES = MIB
CONSTANT_BYTES = MIB
"""From 1 MiB: smaller constants, transfers and forgotten arrays cost less than reading about them."""
MEMORY_SHARE = 0.05
"""Other memory findings: from 5 % of the device's memory."""
PADDING_FACTOR = 4.0
PADDING_BYTES = 64 * MIB
"""Padding is worth another layout from four times the elements and 64 MiB."""
PADDING_FACTOR_OF_MUCH = 1.5
"""Where padding takes MEMORY_SHARE, it is loud from half as much again: below that no other layout does better."""
PADDING_FACTOR_TOLD = 1.25
"""Every array is padded a little."""
DONATION_BYTES = MIB
"""Smaller arguments are not worth a changed signature."""
INPUT_BYTES = 4096
"""The same host array uploaded again: below a page the copy costs no more than the call itself."""
REPETITIONS = 3
"""The third time at one line is a loop, not a look."""
UNROLLED_COPIES = 16
UNROLLED_COPIES_HEAVY = 40
"""Fewer than 16 copies of a loop's body are a common and often better choice (``scan`` can need more memory); from 40
on compile time grows without return, whatever it is on this machine; between, the cost decides."""
SLOW_COMPILE_S = 60.0
"""A program that compiles for a minute by itself is worth a cache; large models take seconds, on a busy machine half a
minute, and that is no fault."""


@dataclass(frozen=True)
class Finding:
    """What was found.

    kind: ``family.name`` of KINDS. title: one plain sentence with the user's names. detail: what else is known. fix:
    one change that is right for this code. site: the line to edit; related: other lines that belong to it. count: how
    often; seconds, bytes: what it costs, None if not known. facts: flat values of what the title says in words.
    """

    kind: str
    severity: Severity
    title: str
    detail: str = ""
    fix: str = ""
    site: SourceSite | None = None
    related: tuple[SourceSite, ...] = ()
    program: str | None = None
    count: int | None = None
    seconds: float | None = None
    bytes: int | None = None
    facts: dict[str, object] = field(default_factory=dict[str, object])


SEVERITY_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def by_cost(seconds: float | None, cell_s: float) -> Severity:
    """``warning`` when the cost reaches COST_SHARE of the cell and COST_SECONDS, else ``info``."""
    if seconds is not None and seconds >= COST_SECONDS and seconds >= COST_SHARE * cell_s:
        return "warning"
    return "info"


def quantity(count: int, noun: str) -> str:
    """``1 compile``, ``3 compiles``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
