"""Reads the text of optimised HLO and what the TPU compiler writes beside it. Tolerant: what it does not understand
costs that instruction, never the module. Linear in the length of the text. Knows nothing of the rest of tpumagic."""

from tpumagic.hlo.liveness import live_ranges, live_values
from tpumagic.hlo.loops import multiplicities, trip_count
from tpumagic.hlo.memory import parse_buffer_assignment, parse_live_ranges
from tpumagic.hlo.model import (
    Allocation,
    Array,
    BufferAssignment,
    Frame,
    Instruction,
    LiveRanges,
    LiveValue,
    Module,
    Value,
)
from tpumagic.hlo.parse import parse
from tpumagic.hlo.types import arrays, elements

__all__ = [
    "Allocation",
    "Array",
    "BufferAssignment",
    "Frame",
    "Instruction",
    "LiveRanges",
    "LiveValue",
    "Module",
    "Value",
    "arrays",
    "elements",
    "live_ranges",
    "live_values",
    "multiplicities",
    "parse",
    "parse_buffer_assignment",
    "parse_live_ranges",
    "trip_count",
]
