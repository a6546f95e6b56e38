"""What a report says of the TPU compiler's answers, word for word, and that it stays small and harmless."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET

import examples
import pytest
import target_examples
from target_examples import GIB, MIB, REPORTS, V5E_1, V5E_8
from test_html import ALLOWED, ATTRIBUTES, DRAWN, DRAWN_ATTRIBUTES, Page

from tpumagic.events import CellRecord
from tpumagic.plans import Answer, Buffer, Communication, Cost, LineCost, NotCounted, Plan, Product, Remedy
from tpumagic.report import build, html, verdicts
from tpumagic.report.bundle import mimebundle
from tpumagic.report.limits import LEVELS, shortened

TOO_LARGE = """\
TPU profile of In [5]: does not fit on v5e-1, 1 error; compiled 1 program in 800 ms, ran
    30 ms, wall 830 ms (dispatch 820 ms)

step on v5e-1 (1 chip, 1 device): does not fit — needs 24.04 of 15.75 GiB per device

ERROR    `step` does not fit on v5e-1: it needs 24.04 of 15.75 GiB.
         In [5] line 7, in block · 24 GiB · oom.hbm
         Most of it: 6 GiB are kept for the backward pass, one slice for each of 24 layers;
         6 GiB are results that could take over the memory of `params` and `opt_state`.
    fix: Put `jax.checkpoint` on the body of the loop and donate `params` and `opt_state`:
         step = jax.jit(step, donate_argnums=(0, 1))

  at the peak, 24.04 GiB per device, of which 20.2 GiB are traced to arrays:
  ██░░░░░░░░      6 GiB  In [5] line 7, dot_general         bfloat16[24,8,2048,8192], residual
                                                            of 24 trips
  █░░░░░░░░░      3 GiB  params['embed']['table']           float32[262144,3072]
  █░░░░░░░░░      3 GiB  opt_state[0].mu['embed']['table']  float32[262144,3072]
  █░░░░░░░░░      3 GiB  result[0]['embed']['table']        float32[262144,3072]
  █░░░░░░░░░      3 GiB  result[1][0].mu['embed']['table']  float32[262144,3072]
  █░░░░░░░░░      2 GiB  In [5] line 8, broadcast_in_dim    float32[8,2048,2048,16], widened
                                                            from less
  █░░░░░░░░░    1.5 GiB  In [5] line 10, reshape            float32[3145728,4], 48 MiB without
                                                            padding
  █░░░░░░░░░    256 MiB  In [5] line 6, random_bits         uint32[67108864], half of a 64-bit
                                                            array
                         and 2 more
  memory       arguments 6.1 GiB, results 6 GiB, temporaries 11.94 GiB
  padding      In [5] line 10, reshape float32[3145728,4] takes 32×: 1.5 GiB for 48 MiB of
               elements
  remat        the compiler computes 12 operations again to save memory
  calls        the device waits for Python on the host: `print` at In [5] line 9
               64-bit arithmetic is emulated: `X64Combine` ×2 at In [5] line 6
               custom call `flash_attention` ×24 at In [5] line 7
  bfloat16     products written in float32 are multiplied in bfloat16: In [5] line 7 ×24
  remedies     `jax.checkpoint` on the body of the loop at In [5] line 7: fits, needs 14.2 GiB
               donate `params` and `opt_state`: does not fit, needs 18.1 GiB
               the batch over the 8 devices of v5e-8: not known, 8 does not divide the batch
               of 4

programs                           where                 compiles  arguments  temporary  time
step                               In [5] line 19               1   16.1 MiB     96 MiB  800 ms"""

SHARDED = """\
Fits on v5e-8. Nothing to report: nothing was run, lowered in 2.4 s, planned in 2.1 s
step on v5e-8 (8 chips, 8 devices): fits — needs 3.2 of 15.75 GiB per device

  at the peak, 3.2 GiB per device:
  ██████░░░░      2 GiB  In [5] line 7, dot_general  bfloat16[24,8,2048,2816], residual of 24
                                                     trips
  ██░░░░░░░░    768 MiB  In [5] line 9, exp          float32[8,2048,12288], 576 MiB without
                                                     padding
  █░░░░░░░░░     96 MiB  In [5] line 7, add          bfloat16[8,2048,3072], ×2
  █░░░░░░░░░      8 MiB  a constant                  float32[2048,1024]
  memory       arguments 6.1 GiB, results 6 GiB (6 GiB of them in donated memory), temporaries
               3.29 GiB, constants 8 MiB
  collectives  all-gather 256 MiB float32[4096,16384] at In [5] line 7, runs 24 times, 6 GiB
               in all, among 8 devices, the whole array on each, which then keeps only its
               part
               all-reduce ×2 64 MiB float32[4096,4096] at In [5] line 13, among 8 devices
               collective-permute 2 KiB bfloat16[8,128] at In [5] line 8, in a loop that does
               not say how often
  bfloat16     products written in float32 are multiplied in bfloat16: In [5] line 7 ×24, In
               [5] line 9
  time         ~3.1 ms device time (compiler's estimate, usually within x1.3); MXU-bound, at
               62 % of the chip's peak
               █████░░░░░   52 %  ~1.61 ms In [5] line 7, dot_general, MXU-bound
               ███░░░░░░░   31 %  ~961 µs In [5] line 9, dot_general, MXU-bound
               █░░░░░░░░░    9 %  ~279 µs In [5] line 10, exp, HBM-bound, within x1.5
               █░░░░░░░░░    8 %  ~248 µs no line of yours, within x1.5
               not counted: sort ×24 (In [5] line 8), flash_attention ×24, all-reduce ×2"""


def body(report):
    """The text without what was compiled and run here, its line breaks undone."""
    return " ".join(report.to_text().split("\n\n" if "\n\n" in report.to_text() else "\n", 1)[1].split())


def plain(report):
    return " ".join("".join(Page(report.to_html()).text).replace("\xa0", " ").split())


def time_of(**changes):
    """What the text says of the time of a program with this cost."""
    cost = Cost(**{"seconds": 3.1e-3, "band": 1.3, **changes})
    return body(target_examples.dry(Answer(V5E_1, "planned", target_examples.fitting_plan(holders=()), cost=cost)))


def test_the_text_of_a_program_that_does_not_fit():
    assert REPORTS["too large"]().to_text() == TOO_LARGE


def test_the_text_of_a_dry_run_over_several_chips():
    assert target_examples.dry(target_examples.sharded()).to_text() == SHARDED


def test_where_nothing_was_asked_nothing_is_said():
    for report in (examples.rich(), examples.clean()):
        for shown in (report.to_text(), plain(report)):
            assert not re.search(r"\bfits?\b|per device|on v\d", shown)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (target_examples.fits(), "step on v5e-8 (8 chips, 8 devices): fits — needs 9.4 of 15.75 GiB per device"),
        (target_examples.too_large(), "step on v5e-1 (1 chip, 1 device): does not fit — needs 24.04 of 15.75 GiB per device"),
        (target_examples.vmem(), "step on v5e-1 (1 chip, 1 device): does not fit into VMEM — needs 20 of 16 MiB"),
        (target_examples.unsupported(), "step on v5e-1 (1 chip, 1 device): cannot be compiled — `eig` is not supported there"),
        (target_examples.unavailable(why="it crashed"), "step on v5e-1 (1 chip, 1 device): no answer — it crashed"),
        (target_examples.small(), "step on v5e-1 (1 chip, 1 device): fits — needs 3 MiB of 15.75 GiB per device"),
        (target_examples.fits(target_examples.TPU7X_8), "step on tpu7x-8 (4 chips, 8 devices): fits — needs 9.4 of 15.75 GiB per device"),
    ],
)  # fmt: skip
def test_the_answer_comes_first_and_in_one_line(answer, line):
    report = target_examples.report(target_examples.with_answers(answer))
    assert line in report.to_text().split("\n")
    assert line.split(": ", 1)[1].replace("`", "").replace(" — ", "") in plain(report).replace(" — ", "")


def test_a_program_that_misses_by_little_is_not_said_to_need_what_there_is():
    plan = Plan(fits=False, needed_bytes=V5E_1.hbm_bytes + MIB, available_bytes=V5E_1.hbm_bytes)
    assert "does not fit — needs 15.751 of 15.75 GiB" in target_examples.dry(Answer(V5E_1, "planned", plan)).to_text()


def test_an_answer_without_a_plan_is_no_verdict():
    text = target_examples.dry(Answer(V5E_1, "planned")).to_text()
    assert "step on v5e-1 (1 chip, 1 device): no answer — —" in text


def test_a_program_that_cannot_run_on_its_target_is_never_clean():
    for answer in (target_examples.too_large(), target_examples.vmem(), target_examples.unsupported()):
        report = target_examples.report(target_examples.with_answers(answer))
        assert "Nothing to report" not in report.to_text()
        assert '<span class="tm-state tm-error">' in report.to_html()


def test_a_missing_compiler_is_no_fault_of_the_cell():
    assert REPORTS["unavailable"]().to_text() == (
        "No answer for v5e-1. Nothing to report: compiled 1 program in 800 ms, ran 30 ms, wall\n"
        "    830 ms (dispatch 820 ms)\n"
        "step on v5e-1 (1 chip, 1 device): no answer — libtpu is not installed: run `tpumagic compiler\n"
        "    install`."
    )


def test_programs_without_an_answer_for_one_reason_share_a_line():
    programs = [
        target_examples.with_answers(target_examples.unavailable(why="it crashed."), name=f"f{n}") for n in range(5)
    ]
    assert (
        "5 programs on v5e-1 (1 chip, 1 device): no answer — it crashed." in target_examples.report(*programs).to_text()
    )


def test_several_shapes_of_one_function_share_a_line_with_the_most_that_one_needs():
    programs = [target_examples.with_answers(target_examples.small(needed=n * MIB)) for n in (3, 9, 5)]
    text = target_examples.report(*programs).to_text()
    assert "step ×3 on v5e-1 (1 chip, 1 device): fits — needs up to 9 MiB of 15.75 GiB per device" in text


def test_programs_that_fit_comfortably_take_a_line_each_and_many_share_one():
    lines = REPORTS["many"]().to_text().split("\n")
    assert sum(": fits — needs " in line for line in lines) == 8
    assert "and 22 programs more that fit, needing 22 MiB at most" in lines
    assert [line for line in lines if "at the peak" in line] == ["  at the peak, 9.4 GiB per device:"]


def test_what_cannot_run_is_told_before_larger_programs_that_fit():
    report = target_examples.report(
        target_examples.with_answers(target_examples.fits(V5E_1), name="large"),
        target_examples.with_answers(target_examples.vmem(), name="kernel"),
    )
    lines = report.to_text().split("\n")
    assert next(line for line in lines if " on v5e-1 " in line and ": " in line and "TPU" not in line).startswith(
        "kernel on v5e-1"
    )
    assert lines[0].startswith("TPU profile of In [5]: does not fit on v5e-1;")


def test_the_verdicts_of_several_targets_stand_together_at_the_top():
    report = REPORTS["three targets"]()
    assert report.to_text().startswith("TPU profile of In [5]: does not fit on v5e-1, fits on v5e-8, tpu7x-8; compiled")
    strip = plain(report).split("to build")[0]
    assert "does not fiton v5e-1, 1 chip, 1 devicestep needs 24.04 of 15.75 GiB per device" in strip
    assert "fitson tpu7x-8, 4 chips, 8 devicesstep needs 9.4 of 94.75 GiB per device" in strip


def test_a_program_without_an_answer_among_others_is_not_passed_over():
    report = target_examples.report(
        target_examples.with_answers(target_examples.small(), name="f"),
        target_examples.with_answers(target_examples.unavailable(), name="g"),
    )
    assert report.to_text().startswith("Fits, but for 1 program unknown, on v5e-1. Nothing to report:")


def test_a_cost_that_is_on_its_way_says_where_it_will_be():
    report = REPORTS["pending"]()
    assert "  time         still compiling — %tpu_last shows it" in report.to_text().split("\n")
    assert "timestill compiling — %tpu_last shows it" in plain(report)


def test_a_small_program_takes_one_line_with_its_time():
    little = dataclasses.replace(target_examples.fitting_plan(), needed_bytes=96 * 1024)
    pending = target_examples.fits(plan=little, cost=None, pending=True)
    made = target_examples.report(target_examples.with_answers(pending)).to_text()
    assert "fits — needs 96 KiB of 15.75 GiB per device\n" in made + "\n"
    assert "at the peak" not in made
    timed = target_examples.fits(plan=little, cost=target_examples.cost(25e-6))
    made = target_examples.report(target_examples.with_answers(timed)).to_text()
    assert "fits — needs 96 KiB of 15.75 GiB per device; ~25 µs device time (estimate)" in " ".join(made.split())
    assert "at the peak" not in made
    long = target_examples.fits(plan=little, cost=target_examples.cost(2e-3))
    assert "at the peak" in target_examples.report(target_examples.with_answers(long)).to_text()


def test_a_printed_report_is_its_text():
    report = REPORTS["pending"]()
    assert str(report) == report.to_text()


def test_a_cost_that_nobody_asked_for_is_not_mentioned():
    assert "time" not in body(target_examples.dry(target_examples.fits(cost=None))).replace("trips", "")


def test_a_cost_that_could_not_be_had_says_why():
    answer = target_examples.fits(cost=None, why="the compile took longer than 10 minutes")
    assert "time —, the compile took longer than 10 minutes" in body(target_examples.dry(answer))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "time ~3.1 ms device time (compiler's estimate, usually within x1.3)"),
        ({"bound": "mxu", "mxu_seconds": 1.55e-3}, "within x1.3); MXU-bound, at 50 % of the chip's peak"),
        ({"bound": "hbm", "hbm_seconds": 3.1e-3}, "within x1.3); HBM-bound, at 100 % of its bandwidth"),
        ({"bound": "vpu"}, "within x1.3); bound by the vector units"),
        ({"bound": "mxu", "mxu_seconds": 3.2e-3}, "within x1.3); MXU-bound"),
        ({"seconds": None, "not_counted": (NotCounted("sort"),)}, "time —, for what is not counted may be most of it not counted: sort"),
        ({"not_counted": (NotCounted("sort", 2, None, target_examples.at(8)), NotCounted("top_k", 1, 24))}, "not counted: sort ×2 (In [5] line 8), top_k ×24"),
        ({"loops_known": False}, "not counted: loops that do not say how often they run"),
    ],
)  # fmt: skip
def test_an_estimate_is_labelled_with_its_band_and_what_it_leaves_out(changes, words):
    assert time_of(**changes).endswith(words)


def test_a_share_of_the_peak_above_all_of_it_is_not_shown():
    assert "at 103 %" not in time_of(bound="mxu", mxu_seconds=3.2e-3)


def test_only_rougher_lines_say_their_band():
    lines = (LineCost(1e-3, 0.6, 1.3, target_examples.at(4)), LineCost(5e-4, 0.3, 1.5, target_examples.at(5)))
    told = time_of(lines=lines)
    assert "60 % ~1 ms In [5] line 4 " in told
    assert "30 % ~500 µs In [5] line 5, within x1.5" in told


def test_what_was_worked_out_is_not_told_as_the_compilers_figure():
    plan = target_examples.fitting_plan(needed_bytes=3 << 30)
    own = target_examples.fitting_plan(needed_bytes=3 << 30, worked_out=True)
    told = [target_examples.dry(target_examples.fits(plan=one)) for one in (plan, own)]
    assert "needs 3 of 15.75 GiB per device" in told[0].to_text()
    assert "needs about 3 of 15.75 GiB per device" in told[1].to_text()
    assert "needs about 3&nbsp;of&nbsp;15.75&nbsp;GiB per device" in told[1].to_html()


def test_padding_is_told_from_a_hundredth_of_the_memory_on():
    little = Buffer("argument", 4 * MIB, MIB, "float32", (3,), "x")
    much = Buffer("argument", 400 * MIB, 100 * MIB, "float32", (8, 2), "y")
    unknown = Buffer("argument", 4 * MIB, None, "float32", (8, 2), "z")
    plan = target_examples.fitting_plan(padded=(much, little, unknown))
    text = body(target_examples.dry(target_examples.fits(plan=plan)))
    assert "padding `y` float32[8,2] takes 4×: 400 MiB for 100 MiB of elements bfloat16" in text


def test_products_that_keep_their_type_are_no_news():
    plan = target_examples.fitting_plan(
        products=(Product("bfloat16", "default", False), Product("float32", "highest", False))
    )
    assert "multiplied in" not in body(target_examples.dry(target_examples.fits(plan=plan)))


def test_a_remedy_that_was_not_measured_claims_nothing():
    answer = target_examples.too_large(remedies=False)
    unknown = Remedy("checkpoint", "`jax.checkpoint` on the loop", None, None, "it took too long")
    text = body(target_examples.dry(dataclasses.replace(answer, remedies=(unknown,))))
    assert "remedies `jax.checkpoint` on the loop: not known, it took too long" in text
    assert "instead of" not in text


def test_unknown_parts_are_a_dash_and_never_zero():
    plan = Plan(fits=True, needed_bytes=GIB, available_bytes=V5E_1.hbm_bytes, argument_bytes=MIB)
    text = body(target_examples.dry(Answer(V5E_1, "planned", plan)))
    assert "memory arguments 1 MiB, results —, temporaries —" in text


def test_the_report_holds_the_answer():
    (target,) = REPORTS["sharded"]().programs[0].targets
    assert (target.name, target.chips, target.devices, target.status, target.fits) == ("v5e-8", 8, 8, "planned", True)
    assert target.compiler == target_examples.LIBTPU
    assert target.holders[0].site == examples.site(7, "block")
    assert [(one.kind, one.count, one.runs, one.total_bytes) for one in target.collectives] == [
        ("all-gather", 1, 24, 6 * GIB), ("all-reduce", 2, 2, 64 * MIB + 16 * 1024), ("collective-permute", 1, None, None),
    ]  # fmt: skip
    assert [(one.dtype, one.site.line, one.count) for one in target.bf16_products] == [
        ("float32", 7, 24),
        ("float32", 9, 1),
    ]
    assert target.cost.share_of_peak == pytest.approx(0.62)


def test_collectives_of_one_line_whose_loop_is_not_known_have_no_total():
    kinds = [
        Communication("all-reduce", "float32", (4,), 16, trips, stack=target_examples.at(3)) for trips in (2, None)
    ]
    plan = target_examples.fitting_plan(communications=tuple(kinds))
    (row,) = target_examples.dry(target_examples.fits(plan=plan)).programs[0].targets[0].collectives
    assert (row.count, row.bytes, row.runs, row.total_bytes) == (2, 32, None, None)


def test_the_peak_stays_in_a_timeline_that_is_cut():
    (target,) = REPORTS["fits"]().programs[0].targets
    assert len(target.timeline) == 120
    assert max(target.timeline, key=lambda point: point[1]) == (
        target_examples.schedule(9.36 * GIB)[151][0],
        int(9.36 * GIB),
    )


def pictures(report):
    return [
        ET.fromstring(svg) for svg in re.findall(r'<svg class="tm-chart".*?</svg>(?=<p)', report.to_html(), re.DOTALL)
    ]


def test_a_picture_is_well_formed_named_and_marks_peak_and_limit():
    (svg,) = pictures(REPORTS["too large"]())
    assert svg.get("role") == "img"
    assert svg.find("title").text == "Memory of v5e-1 in use while the program runs"
    assert svg.find("desc").text == (
        "Memory over the program's schedule: at most 20.2 GiB in use, 54.8 % of the way through; the limit is 15.75 GiB"
    )
    assert [text.text for text in svg.iter("text")] == ["peak 20.2 GiB", "limit 15.75 GiB"]
    assert {path.get("class") for path in svg.iter("path")} == {"tm-area", "tm-over", "tm-limit", "tm-peak", "tm-dot"}
    assert len(list(svg.iter("rect"))) == 7
    assert sum(float(one.get("width")[:-1]) for one in svg.iter("rect")) == pytest.approx(100, abs=0.1)


def test_a_picture_of_a_program_that_fits_shows_nothing_above_the_limit():
    (svg,) = pictures(REPORTS["fits"]())
    assert "tm-over" not in {path.get("class") for path in svg.iter("path")}


def test_a_limit_far_above_a_small_program_does_not_flatten_it():
    plan = target_examples.fitting_plan(needed_bytes=64 * MIB, timeline=target_examples.schedule(64 * MIB), holders=())
    (svg,) = pictures(target_examples.dry(target_examples.fits(plan=plan)))
    assert [text.text for text in svg.iter("text")] == ["peak 64 MiB", "limit 15.75 GiB ↑"]
    assert "tm-limit" not in {path.get("class") for path in svg.iter("path")}


def test_there_is_no_picture_without_a_schedule():
    for plan in (
        target_examples.fitting_plan(timeline=()),
        target_examples.fitting_plan(timeline=((0.0, 0), (1.0, 0))),
    ):
        assert pictures(target_examples.dry(target_examples.fits(plan=plan))) == []


def test_where_pictures_and_styles_are_stripped_words_and_bars_of_text_stay():
    stripped = re.sub(
        r"<style>.*?</style>|<svg class.*?</svg>(?=<p)| (class|aria-hidden)=\"[^\"]*\"", "", REPORTS["fits"]().to_html(), flags=re.DOTALL
    )  # fmt: skip
    text = "".join(Page(stripped).text).replace("\xa0", " ")
    assert "Memory over the program's schedule: at most 9.36 GiB in use, 63.2 % of the way through" in text
    assert re.search("[▁▂▃▄▅]{30,40}", text)
    assert "■ params['embed']['table']3 GiB████░░░░░░░░ 31.9 %float32[262144,3072], donated" in text


@pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)
def test_pages_hold_known_tags_and_lines_are_short(make):
    report = make()
    page = Page(report.to_html())
    assert set(page.tags) <= ALLOWED | DRAWN
    assert {name for name, _ in page.attributes} <= ATTRIBUTES | DRAWN_ATTRIBUTES
    assert max(map(len, report.to_text().split("\n"))) <= 100
    assert len(report.to_html().encode()) < 40_000


@pytest.mark.parametrize("name", ["too large", "sharded", "dry run of three"])
def test_all_that_the_text_says_of_answers_is_in_the_page(name):
    report = REPORTS[name]()
    shown = re.sub(r"[\s`]", "", plain(report))
    for program in report.programs:
        for target in program.targets:
            for fact in verdicts.facts(target, 9):
                assert all(re.sub(r"[\s`]", "", line) in shown for line in fact.lines)
            for holder in target.holders:
                assert re.sub(r"\s", "", verdicts.owner(holder)) in shown


def test_names_from_everywhere_are_escaped():
    evil = "<img src=x onerror=alert(1)>\"'&"
    plan = target_examples.fitting_plan(
        holders=(Buffer("argument", GIB, GIB, evil, (1,), evil, operation=evil),),
        communications=(Communication(evil, evil, (1,), GIB),),
    )
    answer = target_examples.fits(plan=plan, why=evil, compiler=evil, remedies=(Remedy("donation", evil, True, GIB),))
    refused = dataclasses.replace(
        target_examples.unsupported(),
        error=dataclasses.replace(target_examples.unsupported().error, message=evil, operation=evil),
    )
    report = target_examples.report(
        target_examples.with_answers(answer, name=evil),
        target_examples.with_answers(refused, name=evil),
        target_examples.with_answers(target_examples.unavailable(why=evil), name=evil),
    )
    assert set(Page(report.to_html()).tags) <= ALLOWED | DRAWN
    assert "<img" not in html.page([report], evil)


def test_a_thousand_programs_with_answers_fit_and_what_is_left_out_is_counted():
    answers = (target_examples.too_large(), target_examples.sharded())
    programs = tuple(
        target_examples.with_answers(*answers, name=f"layer_{n}", line=n, seconds=0.1) for n in range(1000)
    )
    report = build(
        CellRecord(wall_s=100.0, programs=programs), examples.rich_findings(), environment=examples.ENVIRONMENT
    )
    assert report.size_bytes < 60_000
    assert len(report.programs) + report.omitted.programs == 1000
    whole = build(CellRecord(programs=programs[:1]), (), environment={}).programs[0].targets[0]
    for program in report.programs:
        for target in program.targets:
            if target.fits is False:
                assert len(target.holders) + target.omitted.holders == 10
                assert len(target.calls) + target.omitted.calls == len(whole.calls)
    kept = [len(target.holders) for program in report.programs for target in program.targets]
    assert max(kept) > 3
    data, _ = mimebundle(report)
    assert len(json.dumps(data, ensure_ascii=False).encode()) <= 60_000
    assert "does not fit" in data["text/plain"].split("\n")[0]


def test_a_program_that_does_not_fit_is_kept_among_a_thousand_that_do():
    programs = [target_examples.with_answers(target_examples.small(), name=f"f{n}", seconds=9.0) for n in range(1000)]
    programs.insert(500, target_examples.with_answers(target_examples.too_large(), name="huge", seconds=0.1))
    report = target_examples.report(*programs)
    assert "huge" in [program.name for program in report.programs]
    assert "huge on v5e-1 (1 chip, 1 device): does not fit" in report.to_text()


def test_cutting_a_cut_report_again_still_counts_everything():
    report = REPORTS["too large"]()
    before = report.programs[0].targets[0]
    for limits in LEVELS:
        report = shortened(report, limits)
    target = report.programs[0].targets[0]
    for name in ("holders", "padded", "calls", "remedies"):
        assert len(getattr(target, name)) + getattr(target.omitted, name) == len(getattr(before, name))


def test_answers_for_too_many_targets_are_counted():
    answers = [target_examples.small(dataclasses.replace(V5E_8, name=f"v5e-{n}")) for n in range(12)]
    report = target_examples.report(target_examples.with_answers(*answers))
    assert len(report.programs[0].targets) + report.omitted.targets == 12
    assert "and 4 answers more for other targets" in report.to_text()


def test_of_what_is_left_out_whole_the_number_is_told():
    report = REPORTS["sharded"]()
    for limits in LEVELS[:2]:
        report = shortened(
            report, dataclasses.replace(limits, targets=dataclasses.replace(limits.targets, detailed=0, others=0))
        )
    text = " ".join(report.to_text().split())
    assert "collectives 3 left out" in text
    assert "not counted: 3 operations" in text
