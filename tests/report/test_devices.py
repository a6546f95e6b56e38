"""What a report says of the devices while the cell ran."""

from __future__ import annotations

import re

import examples
import pytest

from tpumagic.events import CellRecord, DeviceMemory, MemorySample
from tpumagic.numbers import trend_text
from tpumagic.report import build
from tpumagic.report.limits import LEVELS, shortened

GIB = 2**30


def text_of(report):
    return " ".join(report.to_text().split("\n", 1)[1].split())


def shown(html):
    return re.sub(r"<style>.*?</style>|<[^>]+>", " ", html).replace("&nbsp;", " ")


def test_the_text_tells_of_each_device_the_most_memory_and_the_mean_duty_cycle():
    assert text_of(examples.sampled()) == (
        "devices 0: at most 12 GiB of 15.8 GiB in use, duty cycle 58 %; "
        "1: at most 12.1 GiB of 15.8 GiB in use, duty cycle 57 %"
    )


def test_of_many_devices_the_text_tells_the_range():
    assert text_of(examples.sampled(devices=8)) == (
        "devices 8 devices, at most 12 GiB to 12.7 GiB of 15.8 GiB in use, duty cycle 51 % to 58 %"
    )


def test_what_nobody_told_is_not_in_the_text():
    assert text_of(examples.sampled(devices=1, duty_cycle=False)) == "devices 0: at most 12 GiB of 15.8 GiB in use"


def test_the_use_of_the_tensorcores_is_shown_where_it_is_told():
    samples = (MemorySample(1.0, 0, None, None, None, 40.0), MemorySample(2.0, 0, None, None, None, 20.0))
    report = build(CellRecord(wall_s=2.5, memory=DeviceMemory(samples=samples)), (), environment={})
    assert text_of(report) == "devices 0: TensorCore 30 %"
    assert "TensorCore" in shown(report.to_html())
    assert "duty cycle</th>" not in report.to_html()


def test_without_samples_nothing_is_shown():
    report = build(CellRecord(wall_s=2.5), (), environment={})
    assert report.to_text() == "Nothing to report: no programs, wall 2.5 s"
    assert "while the cell ran" not in report.to_html()


def test_the_html_is_a_table_with_bars_of_text():
    words = shown(examples.sampled().to_html())
    assert "devices while the cell ran" in words
    assert "█████████░░░" in words
    assert "76.2 % of 15.8 GiB" in words
    assert "▂▃▄▅▆▇" in words  # memory over time
    assert "█ ▆▅▄▃" in words  # duty cycle; the second look did not tell
    assert "6 samples of each" in words
    assert "pip install" not in words


def test_where_nobody_tells_the_duty_cycle_the_html_says_what_would():
    words = shown(examples.sampled(duty_cycle=False).to_html())
    assert "Nobody told the duty cycle: the runtime's metrics service did not answer, or" in words.replace(
        "&#x27;", "'"
    )
    assert "pip install 'tpumagic[tpu]'" in words.replace("&#x27;", "'")


@pytest.mark.parametrize("limits", LEVELS)
def test_a_shortened_report_keeps_the_peak_of_every_device_and_its_mean(limits):
    report = shortened(examples.sampled(devices=3, looks=96), limits)
    for before, after in zip(examples.sampled(devices=3, looks=96).memory.samples, report.memory.samples, strict=True):
        assert after.highest_bytes == before.highest_bytes
        assert after.mean_duty_cycle == pytest.approx(before.mean_duty_cycle, abs=0.05)
        assert after.at_s[-1] == before.at_s[-1]
    assert sum(len(one.at_s) for one in report.memory.samples) <= limits.items * 12


def test_what_no_quantity_can_be_is_unknown_in_a_report():
    samples = (MemorySample(1.0, 0, -1, 10, 250.0), MemorySample(2.0, 0, 2**70, 10, float("nan")))
    device = build(CellRecord(memory=DeviceMemory(samples=samples)), (), environment={}).memory.samples[0]
    assert (device.at_s, device.bytes_in_use, device.duty_cycle_percent) == ((1.0, 2.0), (), ())


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([0.0, None, 1.0], "▁ █"),
        ([None, None], ""),
        ([], ""),
        ([0.1] * 48, "▁" * 24),
        ([0.0, 1.0] * 24, "█" * 24),
    ],
)
def test_a_trend_in_blocks(shares, text):
    assert trend_text(shares) == text
