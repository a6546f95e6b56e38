"""Rule R against published measurements: device times that others measured, and what the estimate comes to for the same
program, compiled for the chip with libtpu 0.0.42.1 (``data/cost/make.py``)."""

import gzip
from pathlib import Path

import pytest

from tpumagic.compiler.cost import estimate
from tpumagic.compiler.targets import known_targets

DATA = Path(__file__).parent / "data" / "cost"
TARGETS = {target.chip: target for target in known_targets()}

# Program, measured microseconds, and measured / estimate as it was found when the rule was made.
MEASURED = [
    ("v5e_matmul_bf16_1024", 19.4, 0.97),
    ("v5e_matmul_bf16_4096", 727.3, 1.01),
    ("v5e_matmul_bf16_8192", 5_947, 0.93),
    ("v5e_matmul_bf16_16384", 46_853, 0.97),
    ("v5e_matmul_bf16_32768", 438_170, 1.16),
    ("v5e_matmul_int8_32768", 186_436, 0.98),
    ("v5e_matmul_f32_8192", 6_980, 0.71),
    ("v5e_matmul_int32", 222.8, 0.97),
    ("v5e_matmul_of_a_layer", 1_830, 1.03),
    ("v5e_matmul_transposed", 1_457, 1.00),
    ("v5e_two_matrix_vector_products", 201.3, 0.96),
    ("v2_feed_forward_up", 96_994, 0.99),
    ("v2_query_projection", 13_883, 1.11),
    ("v2_attention_scores", 1_560, 1.00),
    ("v2_softmax", 1_560, 0.89),
    ("v2_attention_values", 1_600, 1.04),
    ("v2_matrix_vector_product", 209.2, 0.96),
    ("v2_column_sum", 10_238, 0.98),
    ("v6e_matmul_bf16_256x8192x8192", 76.8, 0.71),
    ("v6e_matmul_bf16_512x8192x8192", 93.4, 0.76),
    ("v6e_matmul_bf16_1024x8192x8192", 162.9, 0.91),
    ("v6e_matmul_bf16_2048x8192x8192", 325.9, 0.94),
    ("v6e_matmul_bf16_4096x8192x8192", 663.0, 0.97),
    ("v6e_matmul_bf16_8192x8192x8192", 1_510, 0.89),
    ("v6e_matmul_bf16_2048x4096x4096", 69.3, 0.78),
    ("v6e_matmul_f32_256x8192x8192", 172.7, 0.88),
    ("v6e_matmul_f32_2048x8192x8192", 336.5, 0.94),
    ("v6e_matmul_int8_1024x8192x8192", 104.4, 0.79),
    ("v6e_matmul_int8_8192x8192x8192", 838.9, 0.84),
    ("v4_cross_entropy", 34_900, 0.94),
]

# The author's program is not known line by line: this one is like it and comes to 8 % less than his.
LIKE_THE_MEASURED = [("v4_cross_entropy_streaming", 41_700, 0.91)]

# Not here: the training step of ResNet-50 (v3) takes minutes to compile.


def cost_of(name):
    text = gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode()
    return estimate(text, TARGETS[name.split("_", 1)[0]])


@pytest.mark.parametrize(("name", "measured_us", "ratio"), MEASURED)
def test_the_estimate_lies_where_it_lay_when_the_rule_was_compared_with_measurements(name, measured_us, ratio):
    cost = cost_of(name)
    assert cost.seconds is not None
    assert measured_us / (cost.seconds * 1e6) == pytest.approx(ratio, abs=0.02)


@pytest.mark.parametrize(("name", "measured_us", "ratio"), LIKE_THE_MEASURED)
def test_a_program_like_the_measured_one_lies_within_a_tenth(name, measured_us, ratio):
    assert measured_us / (cost_of(name).seconds * 1e6) == pytest.approx(ratio, abs=0.1)


def test_measurements_lie_within_the_printed_band_as_often_as_is_said():
    inside = 0
    for name, measured_us, _ in MEASURED + LIKE_THE_MEASURED:
        cost = cost_of(name)
        ratio = measured_us / (cost.seconds * 1e6)
        inside += 1 / cost.band <= ratio <= cost.band
    assert inside >= 0.85 * len(MEASURED + LIKE_THE_MEASURED)


def test_operations_that_were_measured_far_above_every_figure_get_none():
    # 520 us measured, 115 us by the rule; 367 us measured, 1.3 us by the compiler's cycles.
    for name, left_out in (
        ("v4_updates_in_a_loop", "loop of short operations"),
        ("v6e_gather_scalars", "gather"),
    ):
        cost = cost_of(name)
        assert cost.seconds is None
        assert left_out in {one.operation for one in cost.not_counted}


@pytest.mark.parametrize("name", [name for name, *_ in MEASURED])
def test_no_estimate_lies_far_below_the_roofline(name):
    cost = cost_of(name)
    # The compiler's cycle counts take clocks and bandwidths that are up to a tenth above the published ones.
    assert cost.seconds >= 0.9 * max(cost.mxu_seconds, cost.hbm_seconds)
