"""What the estimate of a program's time counts, how often, and what it refuses to guess."""

import gzip
import random
import re
from pathlib import Path

import pytest

from tpumagic.compiler.cost import estimate
from tpumagic.compiler.targets import known_targets
from tpumagic.plans import Cost

DATA = Path(__file__).parent / "data" / "cost"
NAMES = sorted(path.name.removesuffix(".txt.gz") for path in DATA.glob("*.txt.gz"))
TARGETS = {target.chip: target for target in known_targets()}


def text_of(name):
    return gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode()


def cost_of(name):
    return estimate(text_of(name), TARGETS[name.split("_", 1)[0]])


def left_out(cost):
    return {(one.operation, one.count, one.trips) for one in cost.not_counted}


# Loops


def test_a_scan_costs_its_trips_times_a_layer():
    layer, scan = cost_of("v5e_one_layer"), cost_of("v5e_scan")
    assert scan.loops_known
    assert scan.mxu_seconds == pytest.approx(24 * layer.mxu_seconds)
    assert 24 * layer.seconds <= scan.seconds <= 1.3 * 24 * layer.seconds


def test_trips_of_nested_loops_multiply():
    layer, nested = cost_of("v5e_one_layer"), cost_of("v5e_scan_in_loop")
    assert nested.mxu_seconds == pytest.approx(5 * 8 * layer.mxu_seconds)
    assert 40 * layer.seconds <= nested.seconds <= 1.3 * 40 * layer.seconds


def test_a_loop_that_nobody_knows_the_length_of_leaves_the_time_open():
    cost = cost_of("v5e_unknown_loop")
    assert not cost.loops_known
    assert cost.seconds is None
    assert ("loop of unknown length", 1, None) in left_out(cost)
    assert all(line.operation != "dot_general" for line in cost.lines)


def test_the_length_a_loop_states_itself_is_taken():
    text = text_of("v5e_unknown_loop")
    stated = re.sub(r"( while\(.*)", r'\1, backend_config={"known_trip_count":{"n":"7"}}', text)
    cost = estimate(stated, TARGETS["v5e"])
    assert cost.loops_known
    assert left_out(cost) == set()
    assert any(line.operation == "dot_general" for line in cost.lines)
    assert estimate(stated.replace('"7"', '"70"'), TARGETS["v5e"]).seconds > 9 * cost.seconds


def test_a_loop_that_never_runs_costs_nothing():
    text = re.sub(r"( while\(.*)", r'\1, backend_config={"known_trip_count":{"n":"0"}}', text_of("v5e_unknown_loop"))
    cost = estimate(text, TARGETS["v5e"])
    assert cost.mxu_seconds == 0
    assert cost.seconds is not None


def test_of_a_conditional_the_most_expensive_branch_counts():
    cost = cost_of("v5e_conditional")
    assert [line.operation for line in cost.lines][:1] == ["dot_general"]
    assert "add" not in {line.operation for line in cost.lines}
    assert cost.seconds == pytest.approx(183_264 / 1.5e9, rel=0.05)


# What is named and not guessed


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("v5e_sort", {("sort", 1, 1)}),
        ("v5e_top_k", {("top_k", 1, 1)}),
        ("v5e_gather", {("gather", 1, 1)}),
        ("v6e_gather_scalars", {("gather", 1, 1)}),
        ("v5e_scatter", {("sort", 1, 1), ("scatter", 1, 1)}),
        ("v6e_embedding_gradient", {("sort", 1, 1), ("gather", 1, 1), ("scatter", 1, 1)}),
        ("v5e_max_pool_gradient", {("select-and-scatter", 1, 1)}),
        ("v5e_pallas", {("Pallas kernel pallas", 1, 1)}),
        ("v5e_cholesky", {("cholesky", 3, 1)}),
        ("v5e_collectives", {("all-reduce", 1, 1)}),
        ("v4_updates_in_a_loop", {("loop of short operations", 1, 100)}),
    ],
)
def test_what_cannot_be_predicted_is_named_and_leaves_the_time_open_where_it_may_be_most_of_it(name, operations):
    cost = cost_of(name)
    assert left_out(cost) == operations
    assert cost.seconds is None
    assert all(one.stack for one in cost.not_counted)


def test_what_is_counted_beside_it_keeps_its_lines():
    cost = cost_of("v5e_pallas")
    (line,) = cost.lines
    assert (line.operation, line.bound) == ("dot_general", "mxu")
    assert line.seconds == pytest.approx(cost_of("v5e_one_layer").seconds, rel=0.02)


@pytest.mark.parametrize(
    ("name", "operation"), [("v4_cross_entropy", "gather"), ("v5e_small_collective", "all-reduce")]
)
def test_what_cannot_be_predicted_but_is_small_is_named_beside_the_time(name, operation):
    cost = cost_of(name)
    assert {one.operation for one in cost.not_counted} == {operation}
    assert cost.seconds == pytest.approx(sum(line.seconds for line in cost.lines))


def test_a_product_without_a_cycle_count_is_named_and_not_guessed():
    text = re.sub(r', backend_config=\{"estimated_cycles":"\d+"\}', "", text_of("v5e_one_layer"))
    cost = estimate(text, TARGETS["v5e"])
    assert left_out(cost) == {("dot_general", 1, 1)}
    assert cost.seconds is None
    assert cost.mxu_seconds == cost_of("v5e_one_layer").mxu_seconds


def test_a_windowed_collective_product_is_named_as_one():
    body = """
%body (s: (s32[], bf16[4096,4096])) -> (s32[], bf16[4096,4096]) {
  %s = (s32[], bf16[4096,4096]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = bf16[4096,4096]{1,0:T(8,128)(2,1)} get-tuple-element(%s), index=1
  %p = bf16[4096,4096]{1,0:T(8,128)(2,1)} collective-permute(%x), metadata={op_name="jit(f)/OP"}
  %y = bf16[4096,4096]{1,0:T(8,128)(2,1)} convolution(%x, %p), dim_labels=bf_io->bf, metadata={op_name="jit(f)/dot_general"}, backend_config={"estimated_cycles":"1000000"}
  ROOT %t = (s32[], bf16[4096,4096]{1,0:T(8,128)(2,1)}) tuple(%next, %y)
}

%condition (s: (s32[], bf16[4096,4096])) -> pred[] {
  %s.1 = (s32[], bf16[4096,4096]{1,0:T(8,128)(2,1)}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}

ENTRY %main (x.1: bf16[4096,4096]) -> bf16[4096,4096] {
  %x.1 = bf16[4096,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], bf16[4096,4096]{1,0:T(8,128)(2,1)}) tuple(%zero, %x.1)
  %loop = (s32[], bf16[4096,4096]{1,0:T(8,128)(2,1)}) while(%start), condition=%condition, body=%body
  ROOT %r = bf16[4096,4096]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
}
"""
    header = "HloModule jit_f, is_scheduled=true\n"
    made_by_sharding = estimate(header + body.replace("OP", "dot_general"), TARGETS["v5e"])
    assert left_out(made_by_sharding) == {("collective matrix product", 1, 4)}
    assert made_by_sharding.lines == ()
    written = estimate(header + body.replace("OP", "ppermute"), TARGETS["v5e"])
    assert left_out(written) == {("collective-permute", 1, 4)}
    assert written.lines[0].seconds == pytest.approx(4 * 1e6 / 1.5e9)


# Bounds and bands


@pytest.mark.parametrize(
    ("name", "band", "bound"),
    [
        ("v5e_matmul_bf16_8192", 1.3, "mxu"),
        ("v6e_matmul_bf16_256x8192x8192", 1.3, "hbm"),
        ("v5e_convolution", 1.3, "mxu"),
        ("v5e_transpose", 1.5, "hbm"),
        ("v6e_softmax_f32", 1.5, "hbm"),
        ("v5e_random_normal", 1.5, "vpu"),
        ("v5e_cumulative_sum", 1.5, "hbm"),
        ("v6e_batched_matrix_vector", 1.5, "hbm"),
        ("v4_cross_entropy", 1.3, "mxu"),
    ],
)
def test_products_have_the_narrow_band_and_everything_says_what_holds_it_up(name, band, bound):
    cost = cost_of(name)
    assert (cost.band, cost.bound) == (band, bound)
    assert (cost.lines[0].band, cost.lines[0].bound) == (band, bound)


@pytest.mark.parametrize(
    ("name", "operations", "peak"),
    [
        ("v5e_matmul_bf16_8192", 2 * 8192**3, 197e12),
        ("v5e_precision_high", 3 * 2 * 2048**3, 197e12),
        ("v5e_precision_highest", 6 * 2 * 2048**3, 197e12),
        ("v5e_matmul_f32_8192", 2 * 8192**3, 197e12),
        ("v6e_matmul_int8_8192x8192x8192", 2 * 8192**3, 1836e12),
        ("tpu7x_matmul_fp8", 2 * 4096**3, 2307e12),
        ("v2_attention_scores", 2 * 64 * 1024 * 1024 * 256, 23e12),
        ("v6e_batched_small_matmuls", 2 * 4096 * 64**3, 918e12),
        # The compiler makes the scores twice, once for the maximum.
        ("v6e_attention", 3 * 2 * 8 * 16 * 1024 * 1024 * 64, 918e12),
        # Every output position meets a 3 x 3 window, but for the borders.
        ("v5e_convolution", 2 * 32 * 64 * 64 * (3 * 56 - 2) ** 2, 197e12),
        ("v5e_convolution_depthwise", 2 * 32 * 256 * (3 * 56 - 2) ** 2, 197e12),
        # Forward, of the input and of the weights: the same pairs of elements in each.
        ("v5e_convolution_gradient", 3 * 2 * 32 * 64 * 128 * (3 * 28 - 1) ** 2, 197e12),
    ],
)
def test_the_peak_counts_the_multiplications_that_the_program_asks_for(name, operations, peak):
    assert cost_of(name).mxu_seconds == pytest.approx(operations / peak)


@pytest.mark.parametrize(
    ("name", "bytes", "bandwidth"),
    [
        ("v5e_matmul_bf16_8192", 3 * 2 * 8192**2, 819e9),
        ("v5e_transpose", 2 * 4 * 4096 * 8192, 819e9),
        ("v2_softmax", 4 * 2 * 64 * 1024**2, 350e9),
        # One of 18 layers is read, not all.
        ("v5e_matmul_of_a_layer", 2 * (10 * 1024 * 2048 + 2048 * 8192 + 10 * 1024 * 8192), 819e9),
        # Each trip reads its layer's weights alone.
        ("v5e_scan", 2 * 26 * 2048**2, 819e9),
    ],
)
def test_bytes_are_those_that_move_slices_as_slices(name, bytes, bandwidth):
    assert cost_of(name).hbm_seconds == pytest.approx(bytes / bandwidth, rel=0.02)


# Lines


@pytest.mark.parametrize("name", NAMES)
def test_lines_add_up_to_no_more_than_the_program(name):
    cost = cost_of(name)
    assert sum(line.share for line in cost.lines) <= 1 + 1e-9
    assert all(line.seconds > 0 for line in cost.lines)
    assert [line.seconds for line in cost.lines] == sorted((line.seconds for line in cost.lines), reverse=True)
    if cost.seconds is not None:
        assert sum(line.seconds for line in cost.lines) <= cost.seconds * (1 + 1e-9)


def test_a_line_has_every_frame_outermost_first():
    line = cost_of("v5e_scan").lines[0]
    assert line.operation == "dot_general"
    assert {site.file for site in line.stack} == {"/example/make.py"}
    assert line.stack[-1].function == "<lambda>"
    assert line.stack[-2].function == "layers"


def test_a_product_counts_for_its_own_line_though_its_fusion_ends_elsewhere():
    operations = {line.operation for line in cost_of("v4_cross_entropy_streaming").lines}
    assert "dot_general" in operations
    streaming = max(cost_of("v4_cross_entropy_streaming").lines, key=lambda line: line.seconds)
    assert streaming.operation == "dot_general"
    assert streaming.band == 1.3


OWN_KERNEL = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[16,128]{1,0:T(8,128)})->f32[16,128]{1,0:T(8,128)}}

ENTRY %main (x: f32[16,128]) -> f32[16,128] {
  %x = f32[16,128]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  ROOT %name.4 = f32[16,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call"
}
"""
"""What the compiler makes of attention by itself: a kernel that comes from no line."""


def test_a_kernel_that_the_compiler_makes_itself_is_not_called_the_users():
    cost = estimate(OWN_KERNEL, TARGETS["v5e"])
    assert cost.seconds is None
    assert [one.operation for one in cost.not_counted] == ["kernel of the compiler's own"]


# Text of any kind


@pytest.mark.parametrize(
    "text", ["", "no HLO at all", "HloModule m", "ENTRY %e {\n", "HloModule m\n\nENTRY %e () -> () {\n}\n"]
)
def test_of_a_text_without_operations_nothing_is_known(text):
    cost = estimate(text, TARGETS["v5e"])
    assert cost == Cost(seconds=None, band=1.5)


def test_a_program_that_only_returns_its_argument_takes_no_time():
    text = "HloModule m\n\nENTRY %e (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0:T(128)} parameter(0)\n}\n"
    cost = estimate(text, TARGETS["v5e"])
    assert (cost.seconds, cost.lines, cost.not_counted) == (0.0, (), ())


def test_an_operation_that_cannot_be_read_is_named_and_leaves_the_time_open():
    text = text_of("v5e_one_layer")
    entry = text.index("\nENTRY")
    damaged = text[:entry] + re.sub(r"\n  ", "\n  %new = ?? [[ something(\n  ", text[entry:], count=1)
    cost = estimate(damaged, TARGETS["v5e"])
    assert left_out(cost) == {("unreadable operation", 1, None)}
    assert cost.seconds is None
    assert cost.lines


@pytest.mark.parametrize("name", ["v5e_scan", "v5e_conditional", "v5e_scatter", "v4_cross_entropy", "v5e_collectives"])
def test_damaged_text_never_raises(name):
    text = text_of(name)
    chance = random.Random(name)
    for _ in range(60):
        damaged = list(text)
        for _ in range(chance.randrange(1, 30)):
            position = chance.randrange(len(damaged))
            damaged[position] = chance.choice(["", "(", ")", "{", "}", "%", "9" * 20, ",", "=", '"', "\n", "x", "-"])
        cost = estimate("".join(damaged)[: chance.randrange(len(text) // 2, len(text) + 1)], TARGETS["v5e"])
        assert sum(line.share for line in cost.lines) <= 1 + 1e-9


def test_sizes_that_no_machine_has_are_not_counted():
    shape = "f32[" + ",".join(["9" * 17] * 30) + "]"
    text = f"HloModule m\n\nENTRY %e (a: {shape}) -> {shape} {{\n  %a = {shape} parameter(0)\n  ROOT %n = {shape} negate(%a)\n}}\n"
    assert estimate(text, TARGETS["v5e"]).seconds is None


def test_computations_that_call_each_other_end():
    text = """HloModule m

%a (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %c = f32[8]{0} call(%x), to_apply=%b
}

%b (y: f32[8]) -> f32[8] {
  %y = f32[8]{0} parameter(0)
  ROOT %d = f32[8]{0} call(%y), to_apply=%a
}

ENTRY %e (z: f32[8]) -> f32[8] {
  %z = f32[8]{0} parameter(0)
  ROOT %f = f32[8]{0} call(%z), to_apply=%a
}
"""
    cost = estimate(text, TARGETS["v5e"])
    assert cost.seconds is None
    assert left_out(cost) == {("call", 1, 1)}
