import json
import sys
import time
import types

import examples
import pytest

from tpumagic.report import build, html, text
from tpumagic.report.bundle import JSON_MIME, WIDGET_MIME, mimebundle


@pytest.fixture(autouse=True)
def plain_kernel(monkeypatch):
    for name in ("VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)


def test_text_html_and_json_come_in_one_bundle():
    report = examples.rich()
    data, metadata = mimebundle(report)
    assert data == {"text/plain": text.render(report), "text/html": html.render(report), JSON_MIME: report.to_dict()}
    assert metadata == {}


def test_json_can_be_left_out():
    assert set(mimebundle(examples.rich(), json=False)[0]) == {"text/plain", "text/html"}


@pytest.mark.parametrize("name", ["VSCODE_PID", "VSCODE_CWD"])
def test_vs_code_gets_no_json(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert set(mimebundle(examples.rich())[0]) == {"text/plain", "text/html"}


def test_vs_code_with_a_remote_kernel_gets_no_json(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "x.ipynb", raising=False)
    assert set(mimebundle(examples.rich())[0]) == {"text/plain", "text/html"}


def test_a_huge_cell_fits_in_one_bundle():
    report = build(examples.huge_record(), examples.huge_findings(), environment=examples.ENVIRONMENT)
    data, _ = mimebundle(report)
    assert len(json.dumps(data, ensure_ascii=False).encode()) <= 60_000
    assert "1000 programs" in data["text/html"]
    assert JSON_MIME in data


def test_a_report_shows_itself_at_the_end_of_a_cell():
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(examples.rich())
    assert {"text/plain", "text/html", JSON_MIME} <= set(data)
    assert data["text/html"].startswith('<div class="tpumagic-report">')


def test_a_thousand_programs_are_built_and_drawn_quickly():
    record, findings = examples.huge_record(name="layer_{}"), examples.rich_findings()

    def seconds():
        start = time.thread_time()
        report = build(record, findings, environment=examples.ENVIRONMENT)
        report.to_text()
        report.to_html()
        return time.thread_time() - start

    # The goal is 50 ms; a slow and busy machine gets four times as long.
    assert min(seconds() for _ in range(5)) < 0.2


@pytest.mark.filterwarnings("ignore:Deprecated in traitlets 4.1:DeprecationWarning")  # by Colab's ipywidgets 7.7
def test_in_colab_the_live_view_stands_beside_the_html(monkeypatch):
    pytest.importorskip("anywidget")
    monkeypatch.setattr("tpumagic.report.bundle.in_colab", lambda: True)
    data, _ = mimebundle(examples.rich())
    assert set(data[WIDGET_MIME]) >= {"model_id"}
    assert "text/html" in data


def test_colab_without_anywidget_still_gets_the_report(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "tpumagic.report.widget", raising=False)
    assert set(mimebundle(examples.rich())[0]) == {"text/plain", "text/html", JSON_MIME}
