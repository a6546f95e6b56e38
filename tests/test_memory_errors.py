"""Texts of memory that ran out, as compilers and runtimes of 2019 to 2026 wrote them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpumagic import memory_errors
from tpumagic.memory_errors import parse

DATA = Path(__file__).parent / "data" / "oom"
GIB, MIB = 2**30, 2**20

TEXTS = {
    "compiler, 2019": (
        (
            "Compilation failure: Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm. Exceeded hbm capacity "
            "by 25.74G."
        ),
        ("hbm", "compile", 41.74 * GIB, 16 * GIB),
    ),
    "compiler with a code": (
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 20.10G of 15.75G hbm."
        ),
        ("hbm", "compile", 20.10 * GIB, 15.75 * GIB),
    ),
    "compiler, 2026": (
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (16.73G) exceeds "
            "available HBM (15.75G). HLO module: jit_step."
        ),
        ("hbm", "compile", 16.73 * GIB, 15.75 * GIB),
    ),
    "compiler gives up early": (
        "Aborting compilation early because it's unlikely to have enough memory. Requires 31.00G, has 14.49G available.",
        ("hbm", "compile", 31 * GIB, 14.49 * GIB),
    ),
    "a program is loaded": (
        (
            "Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G free, 0B reserved, "
            "and 3.33G reservable."
        ),
        ("hbm", "runtime", 6.48 * GIB, 3.33 * GIB),
    ),
    "an array is allocated": (
        (
            "Error allocating device buffer: Attempting to allocate 15.65G. That was not possible. There are 11.08G free.; "
            "(0x0x0_HBM0)"
        ),
        ("hbm", "runtime", 15.65 * GIB, 11.08 * GIB),
    ),
    "fragments": (
        (
            "Attempting to allocate 31.06M. That was not possible. There are 58.64M free. Due to fragmentation, the largest "
            "contiguous region of free memory is 30.56M.; (0x0x0_HBM0)"
        ),
        ("hbm", "runtime", 31.06 * MIB, 30.56 * MIB),
    ),
    "vmem": (
        "E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space vmem. Used 33.56M of 32.00M vmem.",
        ("vmem", "compile", 33.56 * MIB, 32 * MIB),
    ),
    "smem": (
        "Ran out of memory in memory space smem. Used 1.00M of 1.00M smem. Exceeded smem capacity by 1.7K.",
        ("smem", "compile", MIB, MIB),
    ),
    "scoped vmem": (
        (
            "Ran out of memory in memory space vmem. Scoped allocation with size 20.00M and limit 16.00M exceeded scoped vmem "
            "limit by 4.00M."
        ),
        ("vmem", "compile", 20 * MIB, 16 * MIB),
    ),
    "one allocation": (
        (
            "RESOURCE_EXHAUSTED: Allocation (size=67108864) would exceed memory (size=16777216) :: #allocation2 [shape = "
            "'u8[67108864]{0}', space=vmem, size = 0x4000000, tag = 'scratch operand']"
        ),
        ("vmem", "compile", 64 * MIB, 16 * MIB),
    ),
    "a host": ("RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes.", (None, "runtime", 64 * GIB, None)),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_every_known_text_gives_the_space_what_was_needed_and_what_there_is(text, expected):
    found = parse(text)
    space, when, needed, available = expected
    assert (found.space, found.when, found.needed_bytes) == (space, when, round(needed))
    assert found.available_bytes == (None if available is None else round(available))


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x"])
def test_the_texts_of_every_chips_compiler_are_read(chip):
    found = parse((DATA / f"{chip}_temp.txt").read_text())
    assert (found.space, found.when) == ("hbm", "compile")
    assert found.needed_bytes > found.available_bytes > 7 * GIB


def test_the_block_of_the_only_allocation_that_a_text_names_is_read():
    (row,) = parse(
        "RESOURCE_EXHAUSTED: Allocation (size=67108864) would exceed memory (size=16777216) :: #allocation2 [shape = "
        "'u8[67108864]{0}', space=vmem, size = 0x4000000, scoped, tag = 'input window allocation for operator input 0. The "
        "window shape is f32[1,2048,4096], while the full shape is f32[4,2048,4096]. The u8 shape/size shown above "
        "represents the raw byte size of this window in VMEM. This allocation has 2 buffering levels.'] :: vmap__.1"
    ).allocations
    assert (row.window, row.whole, row.buffering) == ("f32[1,2048,4096]", "f32[4,2048,4096]", 2)


def test_what_is_free_reserved_and_in_one_piece_is_read():
    fragments = parse(TEXTS["fragments"][0])
    assert (fragments.free_bytes, fragments.largest_free_bytes) == (round(58.64 * MIB), round(30.56 * MIB))
    reserving = parse(TEXTS["a program is loaded"][0])
    assert (reserving.free_bytes, reserving.reserved_bytes, reserving.largest_free_bytes) == (
        round(6.78 * GIB),
        0,
        None,
    )


def test_code_and_module_are_read():
    assert parse(TEXTS["compiler with a code"][0]).code == "E1000"
    assert parse(TEXTS["vmem"][0]).code == "E1001"
    assert parse(TEXTS["compiler, 2026"][0]).module == "jit_step"
    assert parse(TEXTS["compiler, 2019"][0]).module is None


@pytest.fixture(scope="module")
def samples() -> list[str]:
    return (DATA / "public_multiline_samples.txt").read_text().split("### ")[1:]


def test_the_parts_of_a_long_text_are_read(samples):
    found = parse(samples[0])
    assert found.reserved_bytes == round(1.25 * GIB)
    assert found.program_bytes == round(63.8 * GIB)
    assert (found.argument_bytes, found.output_bytes) == (0, 0)
    assert found.utilization == 1.0


def test_what_a_long_text_calls_unknown_is_none(samples):
    found = parse(samples[1])
    assert (found.argument_bytes, found.output_bytes) == (None, None)
    assert (found.program_bytes, found.utilization) == (round(41.22 * GIB), 0.242)


def test_the_table_of_largest_allocations_is_read(samples):
    (row,) = parse(samples[0]).allocations
    assert (row.bytes, row.logical_bytes, row.expansion) == (2 * GIB, 2 * GIB, None)
    assert row.shape == "f32[32,4096,4096]{1,2,0:T(8,128)}"
    assert row.op_name.startswith("jit(casual_language_model_train_step)/jit(main)/")
    assert (row.source_file, row.source_line) == ("/home/user/attention_module.py", 1059)
    assert row.label.startswith("fusion.1265.remat3 = fusion(")
    assert row.kind == "HLO temp"


def test_padding_in_the_table_is_read(samples):
    (row,) = parse(samples[1]).allocations
    assert (row.bytes, row.logical_bytes, row.expansion) == (32 * GIB, GIB, 32.0)
    assert (row.op_name, row.source_file, row.source_line) == ("slicewise_79/cic_update/FloorMod", None, None)


def test_the_blocks_of_a_kernel_are_read():
    found = parse((DATA / "vmem_table.txt").read_text())
    assert (found.space, found.needed_bytes, found.available_bytes) == ("vmem", 256 * MIB, 128 * MIB)
    first, second = found.allocations
    assert (first.window, first.whole, first.buffering) == ("f32[4096,4096]", "f32[16384,4096]", 2)
    assert first.tag.startswith("input window allocation")
    assert second.tag.startswith("output window allocation")


def test_the_only_allocation_of_a_text_is_read():
    (row,) = parse(TEXTS["one allocation"][0]).allocations
    assert (row.bytes, row.shape, row.tag) == (64 * MIB, "u8[67108864]{0}", "scratch operand")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: Incompatible shapes",
        "RESOURCE_EXHAUSTED: quota exceeded",
        "I ran out of memory of that evening. Used 3 of 4 cups.",
        "Used 20.10G of 15.75G hbm",
        "Requires 3, has 2 available",
    ],
)
def test_other_texts_are_none(text):
    assert parse(text) is None


PIECES = st.sampled_from(
    [
        *(part for text, _ in TEXTS.values() for part in text.split(" ")),
        "\n  1. Size: 2.00G\n",
        '     Operator: op_name="a" source_file="',
        "==========",
        "(0x0x0_HBM",
        "Used 1G of ",
    ]
)


@given(st.lists(PIECES | st.text(max_size=12), max_size=60).map(" ".join))
def test_no_text_makes_it_fail(text):
    found = parse(text)
    assert found is None or found.when in ("compile", "runtime")


@pytest.mark.parametrize(
    "repeated",
    ["Ran out of memory in memory space ", "Used 1", "9", 'op_name="', "  1. Size: 2.00G\n", "HLO temp (", "Tag: x\n"],
)
def test_a_text_of_a_megabyte_is_read_at_once(repeated):
    text = "Ran out of memory in memory space hbm. Used 3G of 2G hbm." + repeated * (2**20 // len(repeated))
    began = time.process_time()
    assert parse(text).needed_bytes == 3 * GIB
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("text", "size"), [("0B", 0), ("7", 7), ("1.5K", 1536), ("2T", 2 * 2**40), ("1P", 2**50)])
def test_sizes_are_binary(text, size):
    assert memory_errors.size_bytes(text.removesuffix("B")) == size
