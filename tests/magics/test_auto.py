"""When automatic profiles speak."""

import pytest

from tpumagic.findings import Finding
from tpumagic.magics.auto import CauseHistory
from tpumagic.report.model import Memory as DeviceMemory
from tpumagic.report.model import Report, Timing


def report(*findings, wall_s=4.0, limit_bytes=None):
    return Report(findings=findings, timing=Timing(wall_s=wall_s), memory=DeviceMemory(limit_bytes=limit_bytes))


@pytest.mark.parametrize(
    "finding",
    [
        Finding("error.donated_reuse", "error", "x was used after it was donated."),
        Finding("precision.int64_truncated", "warning", "5000000000 became 705032704."),
        Finding("recompile.shape", "warning", "step was compiled 9 times.", seconds=0.6),
    ],
)
def test_it_speaks_of_errors_wrong_values_and_real_cost(finding):
    assert CauseHistory().speaks(report(finding))


@pytest.mark.parametrize(
    "finding",
    [
        Finding("recompile.shape", "warning", "step was compiled twice.", seconds=0.4),
        Finding("precision.default_matmul", "info", "The TPU multiplies in bfloat16."),
        Finding("precision.int64_truncated", "info", "An index fits."),
        Finding("host.sync", "warning", "loss is read in each step."),
    ],
)
def test_it_is_silent_over_anything_less(finding):
    assert not CauseHistory().speaks(report(finding))


def test_half_a_second_of_a_long_cell_is_no_cost():
    finding = Finding("recompile.shape", "warning", "step was compiled 9 times.", seconds=0.6)
    assert not CauseHistory().speaks(report(finding, wall_s=60.0))


def test_memory_counts_from_a_twentieth_of_the_device():
    finding = Finding("memory.held_by_out", "warning", "Out[3] keeps 1 GiB.", bytes=2**30)
    assert CauseHistory().speaks(report(finding, limit_bytes=16 * 2**30))
    assert not CauseHistory().speaks(report(finding, limit_bytes=32 * 2**30))
    assert not CauseHistory().speaks(report(finding))


def test_a_cause_is_told_when_it_comes_for_the_third_time_and_then_no_more():
    history = CauseHistory()
    again = report(Finding("recompile.redefined", "warning", "step was defined again.", program="step"))
    other = report(Finding("recompile.redefined", "warning", "loss was defined again.", program="loss"))
    assert [history.speaks(one) for one in (again, other, again, again, again)] == [False, False, False, True, False]
