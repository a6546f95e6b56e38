"""Cumulative sums in 16-bit floats: every partial sum is a result, and each is rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from tpumagic.events import CellRecord, Program, SourceSite
from tpumagic.findings import Finding
from tpumagic.graph import Value
from tpumagic.passes.precision_flow import FlowOf, array_text, flows, site_of, types_of
from tpumagic.passes.precision_state import LOW_PRECISION

LONG_CUMULATIVE = 256
"""Values of a ``cumsum`` from which ones would run together."""


def find(record: CellRecord, flow_of: FlowOf) -> Iterator[Finding]:
    """Long ``cumsum`` in 16 bits, one finding for each line; those of a backward pass are left out."""
    programs = [program for program in record.programs if program.graph is not None and not program.outside]
    yield from {finding.site: finding for program in programs for finding in _cumulative(program, flow_of)}.values()


def _cumulative(program: Program, flow_of: FlowOf) -> Iterator[Finding]:
    assert program.graph is not None
    if not types_of(program.graph) & LOW_PRECISION.keys():
        return
    for flow in flows(flow_of(program.graph)):
        for node in flow.nodes:
            axes = node.operation.attributes.get("axes")
            if node.operation.name != "cumsum" or node.operation.attributes.get("gradient"):
                continue
            value = flow.values[node.inputs[0]]
            if value.dtype in LOW_PRECISION and isinstance(axes, tuple):
                length = math.prod(value.shape[axis] for axis in cast("tuple[int, ...]", axes))
                if length >= LONG_CUMULATIVE:
                    yield _cumulative_finding(program, site_of(program, node), value, length)


def _cumulative_finding(program: Program, site: SourceSite | None, value: Value, length: int) -> Finding:
    limit = round(1 / LOW_PRECISION[value.dtype])
    return Finding(
        "precision.bf16_accumulate",
        "warning",
        f"`cumsum` over {length:,} values runs in {value.dtype}: partial sums have {limit.bit_length() - 1} significant "
        f"bits, so whole numbers above {limit:,} run together.",
        f"{array_text(value)} in `{program.name}`.",
        "Let it sum in float32: `jnp.cumsum(x, dtype=jnp.float32)`.",
        site=site,
        related=(program.site,) if program.site is not None and program.site != site else (),
        program=program.name,
        facts={"dtype": value.dtype, "values": length, "exact_up_to": limit},
    )
