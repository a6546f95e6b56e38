import dataclasses
import re
from html.parser import HTMLParser

import examples

from tpumagic.events import CellRecord
from tpumagic.findings import Finding
from tpumagic.report import build, html


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that do not close."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


ALLOWED = set("div style p b span table thead tbody tr th td br details summary ul li code".split())
DRAWN = set("svg path rect text title desc".split())
"""Tags of the picture of a program's memory."""
ATTRIBUTES = {"class", "open", "aria-hidden"}
DRAWN_ATTRIBUTES = set("role x y width height viewbox preserveaspectratio d text-anchor".split())


def plain(report):
    return " ".join("".join(Page(report.to_html()).text).replace("\xa0", " ").split())


def test_a_report_is_well_formed_without_scripts_ids_or_anything_from_outside():
    for report in (examples.rich(), examples.clean(), examples.failed()):
        page = Page(report.to_html())
        assert set(page.tags) <= ALLOWED
        assert {name for name, _ in page.attributes} <= ATTRIBUTES
        assert "url(" not in report.to_html()
        assert "@import" not in report.to_html()


def test_all_styles_are_confined_to_the_report():
    style = re.search(r"<style>(.*?)</style>", examples.clean().to_html(), re.DOTALL).group(1)
    for selectors in re.findall(r"([^{}]+)\{", style):
        for selector in selectors.split(","):
            assert selector.strip().startswith((".tpumagic-report", "@media", "@container")), selector


def test_findings_stand_with_their_line_and_fix():
    text = plain(examples.rich())
    assert "error The update of params['dense']['kernel'] is lost" in text
    assert "In [5] line 19, in run_epoch, also line 3, line 17 · 2 times, 2.7 s · recompile.shape" in text
    assert "fix: End that cell with ; or run %reset -f out." in text
    assert "xb, n = pad_to(xb, 32), len(xb)<br>loss = " in examples.rich().to_html()


def test_programs_memory_environment_and_gaps_are_there():
    text = plain(examples.rich())
    assert "10 programs" in text
    assert "train_step ×3(params['dense']['kernel']: float32[1024,4096]" in text
    assert "4 eager operations: convert_element_type, add, multiply, …" in text
    assert "peak in this cell12.1 GiB█████████░░░ 76.8 % of 15.8 GiB" in text
    assert "params['embed']['table']2 GiB████░░░░░░░░ 37 %float32[262144,2048] P('data', None) over (data=8)" in text
    assert "frameworks jax0.10.2" in text
    assert "chips 0 memory_bytes17179869184" in text
    assert "settings jax_enable_x64no" in text
    assert "settings jax_compilation_cache_dir—" in text
    assert "transfers of arrays made in C: jax 0.12 does not report them" in text


def test_dispatch_and_ready_stand_apart():
    assert "6.9 suntil the device was readydispatched after 6.21 s" in plain(examples.rich())
    record = dataclasses.replace(examples.rich_record(), ready_s=None)
    assert "6.21 sto dispatchthe device was not waited for" in plain(build(record, (), environment={}))


def test_a_clean_cell_is_folded():
    page = Page(examples.clean().to_html())
    assert "Nothing to report" in "".join(page.text)
    assert "open" not in {name for name, _ in page.attributes}


def test_a_failed_cell_is_red_even_without_findings():
    assert '<span class="tm-state tm-error">failed with ZeroDivisionError</span>' in examples.failed().to_html()


def test_it_can_be_read_where_styles_classes_and_bars_are_stripped():
    stripped = re.sub(
        r"<style>.*?</style>| (class|aria-hidden)=\"[^\"]*\"", "", examples.rich().to_html(), flags=re.DOTALL
    )
    page = Page(stripped)
    assert page.tags.count("table") == 4
    assert page.tags.count("details") == 8
    assert "█" in "".join(page.text)
    assert "76.8\xa0%" in "".join(page.text)


def test_everything_of_the_users_is_escaped():
    evil = "<img src=x onerror=alert(1)>\"'&"
    findings = (Finding("a.b", "warning", evil, evil, evil, examples.site(1, evil), (), evil, facts={evil: evil}),
                Finding("a.b", "info", evil, evil, evil, examples.site(1, evil)))  # fmt: skip
    record = dataclasses.replace(examples.rich_record(), programs=(examples.program(evil), examples.eager(evil)))
    report = build(record, findings, name=evil, environment={evil: {evil: [evil]}})
    assert set(Page(report.to_html()).tags) <= ALLOWED
    page = html.page([report], evil)
    assert set(Page(page).tags) <= ALLOWED | {"html", "head", "meta", "title", "body", "h1"}
    assert "<img" not in page


def test_code_between_backticks_is_set_as_code_and_stays_escaped():
    finding = Finding("a.b", "warning", "Call `f(<x>)` once; a lone ` stays.")
    assert (
        "Call <code>f(&lt;x&gt;)</code> once; a lone ` stays."
        in build(CellRecord(), (finding,), environment={}).to_html()
    )


def test_a_huge_cell_fits_and_says_what_is_missing():
    report = build(examples.huge_record(name="layer_{}"), examples.huge_findings(text="<&\"'" * 3000), environment={})
    text = report.to_html()
    assert len(text.encode()) <= 60_000
    found = plain(report)
    assert re.search(r"and \d+ more findings: ", found)
    assert "1000 programs" in found
    assert re.search(r"and 9\d\d more(?! \w)", found)
    assert re.search(r"and 2,9\d\d more arrays", found)


def test_a_page_holds_several_reports_and_its_styles_once():
    page = html.page([examples.rich(), examples.clean()], "train.py")
    assert page.count('<div class="tpumagic-report">') == 2
    assert page.count("<style>") == 1
    assert "<title>train.py</title>" in page


def test_nothing_but_times_differs_between_a_fast_and_a_slow_run():
    from tpumagic.report.columns import DURATION

    fast, slow = (
        DURATION.sub("TIME", examples.rich(slow=slow).to_html().replace("&nbsp;", " ").replace("&lt;", "<"))
        for slow in (0.01, 100.0)
    )
    assert fast == slow
