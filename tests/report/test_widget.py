import shutil
import subprocess
import sys

import examples
import pytest
import target_examples

pytest.importorskip("anywidget")

from tpumagic.report.bundle import WIDGET_MIME
from tpumagic.report.widget import ReportWidget

# Colab's ipywidgets 7.7 calls traitlets in a way that traitlets 5 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in traitlets 4.1:DeprecationWarning")


def test_the_view_keeps_text_and_html_beside_it():
    report = examples.rich()
    data, _ = ReportWidget(report)._repr_mimebundle_()
    assert data["text/plain"] == report.to_text()
    assert data["text/html"] == report.to_html()
    assert data[WIDGET_MIME]["version_major"] == 2


def test_another_report_can_be_put_in_its_place():
    widget = ReportWidget(examples.rich())
    widget.report = examples.clean()
    assert widget.report == examples.clean()
    assert widget.content == examples.clean().to_html()


def test_the_estimate_that_comes_later_is_filled_in():
    widget = ReportWidget(target_examples.REPORTS["pending"]())
    assert "still compiling" in widget.content
    widget.report = target_examples.REPORTS["fits"]()
    assert "still compiling" not in widget.content
    assert "~3.1 ms device time" in widget.content


def test_it_stands_in_a_layout_of_widgets():
    import ipywidgets

    box = ipywidgets.VBox([ipywidgets.Label("before"), ReportWidget(examples.rich())])
    assert box.children[1].content.startswith('<div class="tpumagic-report">')


def test_the_view_in_the_browser_needs_nothing_from_outside():
    assert "import " not in ReportWidget._esm
    assert "http" not in ReportWidget._esm
    assert len(ReportWidget._esm) < 5000


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_view_is_valid_javascript(tmp_path):
    module = tmp_path / "widget.mjs"
    module.write_text(ReportWidget._esm, encoding="utf-8")
    subprocess.run(["node", "--check", str(module)], check=True)


def test_without_anywidget_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "tpumagic.report.widget")
    with pytest.raises(ImportError) as caught:
        import tpumagic.report.widget  # noqa: F401
    assert str(caught.value) == 'ReportWidget needs anywidget, which is not installed: pip install "tpumagic[widget]"'


def test_importing_reports_imports_no_widgets_and_no_ipython():
    code = (
        "import sys, tpumagic.report.bundle, tpumagic.report.store; "
        "print([name for name in ('anywidget', 'ipywidgets', 'IPython', 'jax', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
