import dataclasses
import re

import examples
import pytest

from tpumagic.events import CellRecord
from tpumagic.findings import Finding
from tpumagic.report import build
from tpumagic.report.columns import DURATION

RICH = """\
TPU profile of In [5], first epoch: 1 error, 2 warnings; compiled 9 programs in 5.33 s, ran
    1.57 s, wall 6.9 s (dispatch 6.21 s)

ERROR    The update of `params['dense']['kernel']` is lost: 1.0 - 0.0009 is 1.0 in bfloat16.
         In [5] line 14, in update · precision.bf16_update_lost
         61 % of its elements did not change in this step.
    fix: Keep a float32 copy of the parameters and cast to bfloat16 inside the step.

WARNING  `train_step` was compiled 3 times because the first axis of `xb` and `yb` changed:
         32, then 7, then 5.
         In [5] line 19, in run_epoch, also line 3, line 17 · 2 times, 2.7 s ·
         recompile.shape
         Each new shape is a new program. Against the closest earlier call only `xb`
         (float32[32,1024] -> float32[7,1024]) and `yb` (int32[32] -> int32[7]) differ; the
         last batch of each file is smaller than the others.
    fix: Drop the smaller batch or pad it to 32 rows and mask the loss:
         xb, n = pad_to(xb, 32), len(xb)
         loss = (per_row * (jnp.arange(32) < n)).sum() / n

WARNING  `Out[3]` still holds 512 MiB on the device: the value of a cell that ended with an
         expression.
         In [3] line 1 · 512 MiB · memory.held_by_out
    fix: End that cell with `;` or run `%reset -f out`.

programs                           where                 compiles  arguments  temporary  time
train_step ×3                      In [5] line 19               3   16.1 MiB     96 MiB  4.6 s
evaluate                           In [5] line 24               1   16.1 MiB     96 MiB  410 ms
init_params                        In [5] line 9                0     16 MiB     96 MiB  —
on_slider_change                   outside any cell             1     16 MiB     96 MiB  200 ms
4 eager operations: convert_eleme… In [5] line 12               4          —          —  120 ms

memory   peak 12.1 GiB in this cell, of 15.8 GiB; alive afterwards 5.4 GiB:
         params['embed']['table'] 2 GiB, opt_state[0].mu['embed']['table'] 2 GiB, Out[3]
         512 MiB, activations (last traceback) 128 MiB and 2 more
notes    2: precision.default_matmul, compile.cache_not_written
not seen transfers of arrays made in C: jax 0.12 does not report them"""


def test_the_text_of_a_rich_report():
    assert examples.rich().to_text() == RICH


def test_a_clean_cell_says_so_in_one_line():
    assert examples.clean().to_text() == (
        "Nothing to report: compiled 1 program in 800 ms, ran 30 ms, wall 830 ms (dispatch 820 ms)"
    )


def test_a_clean_cell_that_nobody_waited_for_says_that_its_time_is_dispatch():
    record = CellRecord(wall_s=0.82, programs=(examples.program("step", 1, seconds=0.8),))
    assert build(record, (), environment={}).to_text() == (
        "Nothing to report: compiled 1 program in 800 ms, dispatch 820 ms (the device was not waited for)"
    )


def test_a_cell_without_programs_says_so():
    assert build(CellRecord(wall_s=0.002), (), environment={}).to_text() == "Nothing to report: no programs, wall 2 ms"


def test_a_cell_that_only_ran_known_programs_compiled_nothing():
    record = CellRecord(wall_s=0.01, ready_s=0.02, programs=(examples.program(compiles=()),))
    assert build(record, (), environment={}).to_text() == (
        "Nothing to report: nothing compiled, ran 20 ms, wall 20 ms (dispatch 10 ms)"
    )


def test_a_failed_cell_is_never_clean():
    assert (
        examples.failed().to_text() == "TPU profile of In [5]: failed with ZeroDivisionError; no programs, wall 20 ms"
    )


def test_a_program_from_the_cache_is_counted_apart():
    one = examples.program("step", 1, seconds=0.4)
    hit = dataclasses.replace(one, compiles=(dataclasses.replace(one.compiles[0], cache="hit"),))
    text = build(CellRecord(wall_s=0.5, programs=(one, hit)), (), environment={}).to_text()
    assert "compiled 2 programs (1 cached) in 800 ms" in " ".join(text.split())


def test_one_note_is_told_in_full_and_several_are_folded_into_one_line():
    note = Finding("precision.default_matmul", "info", "A product of float32 runs in bfloat16.", site=examples.site(3))
    one = build(CellRecord(wall_s=0.1), (note,), environment={}).to_text()
    assert one.splitlines() == [
        "Nothing to report: no programs, wall 100 ms",
        "note     A product of float32 runs in bfloat16. (In [5] line 3)",
    ]
    many = build(CellRecord(wall_s=0.1), (note, note, dataclasses.replace(note, kind="compile.slow")), environment={})
    assert many.to_text().splitlines()[1:] == ["notes    3: precision.default_matmul ×2, compile.slow"]


def test_nothing_but_times_differs_between_a_fast_and_a_slow_run():
    texts = [DURATION.sub("TIME", examples.rich(slow=slow).to_text()) for slow in (0.001, 0.07, 1.0, 10.0, 1000.0)]
    assert len(set(texts)) == 1


def test_no_execution_counts_where_cells_are_not_counted():
    text = examples.rich(cell=None).to_text()
    assert "In [" not in text
    assert text.startswith("TPU profile of first epoch: 1 error")
    assert "line 19, in run_epoch" in text


def test_a_size_is_never_torn_from_its_unit():
    for width in range(60, 90):
        finding = Finding("memory.growth", "warning", "x" * width + " 512 MiB more and 12 % of it")
        text = build(CellRecord(), (finding,), environment={}).to_text()
        assert "512 MiB" in text
        assert "12 %" in text


def test_no_line_is_longer_than_100_characters():
    for report in (
        examples.rich(slow=700),
        examples.clean(),
        build(examples.huge_record(), examples.huge_findings(), environment={}),
        build(
            CellRecord(), (Finding("a.b", "error", "1 min 59 s " * 50, fix="    " * 30 + "y" * 400),), environment={}
        ),
    ):
        assert max(map(len, report.to_text().splitlines())) <= 100


def test_a_report_of_a_huge_cell_stays_short_and_says_how_much_is_missing():
    text = build(
        examples.huge_record(name="layer_{}"), examples.huge_findings(text="Too slow. "), environment={}
    ).to_text()
    assert len(text) < 20_000
    assert re.search(r"^ +and \d+ more of them$", text, re.MULTILINE)
    assert re.search(r"^ +and \d+ more findings: \d+ errors, 167 warnings, 166 notes$", text, re.MULTILINE)
    assert "\nand 994 more\n" in text
    assert "and 97 more not seen" in text


@pytest.mark.parametrize("line", ["for i in range(3):", "    total += i"])
def test_the_indentation_of_code_in_a_fix_is_kept(line):
    finding = Finding("a.b", "warning", "A title.", fix="Write\nfor i in range(3):\n    total += i")
    text = build(CellRecord(), (finding,), environment={}).to_text()
    assert f"\n         {line}" in text


def test_memory_of_a_device_that_tells_nothing_is_not_made_up():
    assert "memory" not in examples.failed().to_text()


def test_a_peak_from_before_the_cell_is_not_called_the_cells():
    record = examples.rich_record()
    record = dataclasses.replace(record, memory=dataclasses.replace(record.memory, cell_peak_bytes=None))
    text = build(record, examples.rich_findings(), environment={}).to_text()
    assert "memory   peak 12.1 GiB before this cell, of 15.8 GiB; alive afterwards" in text
