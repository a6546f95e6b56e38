"""64-bit values that became 32-bit: which are worth a word, and which word."""

import pytest

from tpumagic.events import CellRecord, Conversion, SourceSite
from tpumagic.passes import precision

LINE = (SourceSite(8, cell=3),)


def told(*conversions: Conversion):
    return list(precision.find(CellRecord(conversions=conversions)))


def test_an_integer_that_changed_is_told_with_both_values() -> None:
    lost = ("3000000000", "-1294967296")
    (finding,) = told(Conversion(LINE, "int64", "int32", (2,), requested=False, lost=lost, name="ids"))
    assert (finding.kind, finding.severity, finding.site) == ("precision.int64_truncated", "warning", LINE[0])
    assert finding.title == "`ids` (int64[2]) became int32: 3000000000 is now -1294967296."
    assert finding.detail == "64-bit types are off (`jax_enable_x64`), so int64 is shortened without an error."
    assert finding.fix == (
        "Make it `uint32`, if all values lie between 0 and 4,294,967,295, or keep these values in NumPy."
    )
    assert finding.facts == {
        "name": "ids", "old_dtype": "int64", "new_dtype": "int32", "old": "3000000000", "new": "-1294967296",
    }  # fmt: skip


def test_integers_beyond_32_bits_get_another_way_out() -> None:
    (finding,) = told(Conversion(LINE, "int64", "int32", (), False, ("1099511627776", "0")))
    assert finding.title == "int64 became int32: 1099511627776 is now 0."
    assert finding.fix == (
        "Keep these values in NumPy, or split them into two 32-bit halves; `jax_enable_x64` gives int64."
    )


def test_a_type_asked_for_by_name_is_told_even_if_no_value_changed() -> None:
    (finding,) = told(Conversion(LINE, "int64", "int32", (3,), requested=True))
    assert finding.title == "int64[3] was asked for and became int32."
    assert finding.fix == "Ask for int32 if its range is enough, or keep these values in NumPy."
    (finding,) = told(Conversion(LINE, "float64", "float32", (), True, ("1.0000000001", "1.0")))
    assert finding.kind == "precision.f64_truncated"
    assert finding.title == "float64 was asked for and became float32: 1.0000000001 is now 1.0."
    assert finding.fix == (
        "Ask for float32, or do this step in NumPy; `jax_enable_x64` gives float64, which a TPU only imitates."
    )


@pytest.mark.parametrize(
    "lost", [("1700000001", "1700000000"), ("16777217.0", "16777216.0"), ("1e300", "inf"), ("1e-60", "0.0")]
)
def test_floats_that_lose_what_they_mean_are_told(lost) -> None:
    (finding,) = told(Conversion(LINE, "float64", "float32", (4,), False, lost, "times"))
    assert finding.title == f"`times` (float64[4]) became float32: {lost[0]} is now {lost[1]}."
    assert finding.fix == "Subtract a common offset in NumPy before the conversion, or keep these values in NumPy."


@pytest.mark.parametrize(
    "lost", [None, ("0.1", "0.10000000149011612"), ("123456.789", "123456.7890625"), ("nan", "nan"), ("a", "b")]
)
def test_an_ordinary_numpy_array_of_floats_is_not_told(lost) -> None:
    assert told(Conversion(LINE, "float64", "float32", (4,), False, lost)) == []


def test_integers_that_fit_are_not_told() -> None:
    assert told(Conversion(LINE, "int64", "int32", (4,), requested=False)) == []


def test_one_line_makes_one_finding_with_its_count_and_its_worst_value() -> None:
    same = Conversion(LINE, "int64", "int32", (4,), True)
    worse = Conversion(LINE, "int64", "int32", (4,), False, ("5000000000", "705032704"), "ids")
    other = Conversion((SourceSite(9, cell=3),), "int64", "int32", (4,), False, ("5000000000", "705032704"), "more")
    found = told(same, worse, worse, other)
    assert [(one.site.line, one.count, one.facts["name"]) for one in found] == [(8, 2, "ids"), (9, 1, "more")]
