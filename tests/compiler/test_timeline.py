"""Bytes in use over a schedule, held against counting every byte at every step."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpumagic.compiler.timeline import Live, timeline
from tpumagic.hlo import Value


def live(offset: int, size: int, first: int, last: int, allocation: int = 0, name: str = "v") -> Live:
    return Live(Value(name, (), size, offset, "u8[1]{0}"), allocation, first, last)


def counted(values: list[Live], step: int) -> int:
    return len(
        {
            (one.allocation, byte)
            for one in values
            if one.first <= step <= one.last
            for byte in range(one.value.offset, one.value.offset + one.value.size)
        }
    )


VALUES = st.lists(
    st.builds(
        lambda offset, size, first, length, allocation: live(offset, size, first, first + length, allocation),
        st.integers(0, 20),
        st.integers(1, 8),
        st.integers(0, 20),
        st.integers(0, 10),
        st.integers(0, 1),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(0, 100))
def test_bytes_that_several_values_share_count_once_at_every_step(values, constant):
    result = timeline(constant, values, 40)
    for position, used in result.points:
        step = round(position * 40)
        assert used == constant + counted(values, step)
    assert result.peak_bytes == constant + max(counted(values, step) for step in range(41))
    assert result.peak_bytes == constant + counted(values, result.step)
    at_peak = [one for group in result.at_peak for one in group]
    assert sorted(map(id, at_peak)) == sorted(id(one) for one in values if one.first <= result.step <= one.last)


def test_values_that_share_no_bytes_are_apart_at_the_peak_largest_first():
    small, large = live(0, 4, 0, 3), live(8, 16, 1, 2)
    inside = live(10, 2, 1, 2)
    assert timeline(0, [small, large, inside], 4).at_peak == ((large, inside), (small,))


def test_a_long_schedule_keeps_its_peak_within_240_points():
    values = [live(0, 1 + (step == 777), step, step) for step in range(5000)]
    result = timeline(10, values, 5000)
    assert len(result.points) <= 240
    assert max(used for _, used in result.points) == 12 == result.peak_bytes
    assert result.step == 777
    assert [position for position, _ in result.points] == sorted(position for position, _ in result.points)


def test_a_program_without_temporaries_is_flat():
    result = timeline(512, [], 0)
    assert (result.points, result.peak_bytes, result.position) == (((0.0, 512),), 512, 0.0)


@pytest.mark.parametrize("kind", ["reused", "in place"])
def test_sixty_thousand_values_take_seconds_at_most(kind):
    chance = random.Random(1)
    n = 60_000
    if kind == "reused":
        values = [live((number % 400) << 20, 1 << 20, number, number + 399) for number in range(n)]
    else:  # one buffer that hundreds of values update in turn, each alive together with those before
        values = [live((number % 50) << 20, 1 << 20, number, number + chance.randrange(400)) for number in range(n)]
    start = time.process_time()
    result = timeline(0, values, n)
    assert time.process_time() - start < 10
    assert result.peak_bytes == (400 << 20 if kind == "reused" else 50 << 20)
