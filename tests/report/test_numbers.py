import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpumagic.numbers import (
    bandwidth_text,
    bar_text,
    bytes_text,
    capacity_text,
    count_text,
    factor_text,
    flops_text,
    needed_text,
    percent_text,
    seconds_text,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (512, "512 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB"),
        (64 * 2**20, "64 MiB"), (15.748 * GIB, "15.7 GiB"), (16 * GIB, "16 GiB"), (2**62, "4096 PiB"),
    ],
)  # fmt: skip
def test_bytes_are_written_in_binary_units(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (2e-9, "<1 µs"), (350e-6, "350 µs"), (0.0009999, "1 ms"), (0.01234, "12.3 ms"), (0.9996, "1 s"),
        (1.84, "1.84 s"), (59.94, "59.9 s"), (59.99, "1 min"), (125, "2 min 5 s"), (3599.7, "1 h"), (3780, "1 h 3 min"),
    ],
)  # fmt: skip
def test_durations_are_written_with_three_digits_and_then_in_minutes(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0004, "<0.1 %"), (0.054, "5.4 %"), (0.42, "42 %"), (1, "100 %"), (20, "2,000 %")]
)
def test_shares_are_written_in_percent(share, text):
    assert percent_text(share) == text


def test_counts_have_thousands_separators():
    assert count_text(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (64 * 2**20, "64 MiB"), (15.75 * GIB, "15.75 GiB"), (16 * GIB, "16 GiB"), (95.74 * GIB, "95.74 GiB"),
        (1.2 * GIB, "1.2 GiB"), (0.9999 * GIB, "1 GiB"), (2000 * GIB, "1.95 TiB"),
    ],
)  # fmt: skip
def test_the_memory_of_chips_is_written_with_two_decimals(size, text):
    assert capacity_text(size) == text


@pytest.mark.parametrize(
    ("needed", "available", "text"),
    [
        (9.4 * GIB, 15.75 * GIB, "9.4 of 15.75 GiB"), (24 * GIB, 15.75 * GIB, "24 of 15.75 GiB"),
        (1.25 * 2**20, 15.75 * GIB, "1.25 MiB of 15.75 GiB"), (20 * 2**20, 16 * 2**20, "20 of 16 MiB"),
        (int(15.7512 * GIB), int(15.75 * GIB), "15.751 of 15.75 GiB"), (15.75 * GIB, 15.75 * GIB, "15.75 of 15.75 GiB"),
        (16 * GIB + 1, 16 * GIB, "16.000000001 of 16 GiB"), (None, 15.75 * GIB, "— of 15.75 GiB"), (2**20, None, "1 MiB of —"),
    ],
)  # fmt: skip
def test_needed_and_available_share_their_unit_and_never_look_the_same_when_they_are_not(needed, available, text):
    assert needed_text(needed, available) == text


@pytest.mark.parametrize(("factor", "text"), [(1, "1×"), (4 / 3, "1.33×"), (48, "48×"), (1234.5, "1,234×")])
def test_factors_are_written_with_three_digits(factor, text):
    assert factor_text(factor) == text


@pytest.mark.parametrize("write", [bytes_text, capacity_text, seconds_text, count_text, percent_text, factor_text])
@pytest.mark.parametrize("number", [None, -1, math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_a_dash_and_never_a_number(write, number):
    assert write(number) == "—"


def test_a_bar_shows_a_small_share_and_never_overflows():
    assert bar_text(0, 4) == "░░░░"
    assert bar_text(0.001, 4) == "█░░░"
    assert bar_text(0.5, 4) == "██░░"
    assert bar_text(7.0, 4) == "████"
    assert bar_text(None) == ""


@given(st.floats(min_value=0, max_value=1e18))
def test_no_quantity_is_written_with_more_than_four_digits_a_unit(number):
    assert re.fullmatch(r"(<1|\d{1,4}(\.\d{1,2})?) ([KMGTP]i)?B", bytes_text(number))
    assert re.fullmatch(
        r"<1 µs|\d{1,3}(\.\d{1,2})? (µs|ms|s)|\d+ min( \d+ s)?|[\d,]+ h( \d+ min)?", seconds_text(number)
    )


@pytest.mark.parametrize(
    ("flops", "text"), [(61.5e12, "61.5 TFLOP/s"), (197e12, "197 TFLOP/s"), (1154e12, "1,154 TFLOP/s"), (None, "—")]
)
def test_peaks_are_told_as_chips_peaks_are_published(flops, text):
    assert flops_text(flops) == text


@pytest.mark.parametrize(("bandwidth", "text"), [(819e9, "819 GB/s"), (3686e9, "3,686 GB/s"), (None, "—")])
def test_bandwidths_are_decimal_as_they_are_published(bandwidth, text):
    assert bandwidth_text(bandwidth) == text
