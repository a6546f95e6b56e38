"""The programs that run notebooks without a person: nbclient, papermill, voila."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.kernel

REPORT_MIME = "application/vnd.tpumagic.report.v1+json"
KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook_of(*cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = KERNELSPEC
    return notebook


def test_nbclient_keeps_the_report_and_stops_at_the_failing_cell(tmp_path):
    notebook = notebook_of("%load_ext tpumagic", "%%tpu_profile\n1 + 1", "%%tpu_profile\n1 / 0", "never = 1")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        NotebookClient(notebook, timeout=120).execute()
    assert REPORT_MIME in notebook.cells[1].outputs[-1]["data"]
    assert notebook.cells[2].outputs[0]["output_type"] == "error"
    assert REPORT_MIME in notebook.cells[2].outputs[-1]["data"]
    assert notebook.cells[3].execution_count is None
    nbformat.validate(notebook)


def test_papermill_runs_a_notebook_with_reports(tmp_path):
    papermill = pytest.importorskip("papermill")
    nbformat.write(notebook_of("%load_ext tpumagic", "%%tpu_profile\nn = 2\nn + 1"), tmp_path / "in.ipynb")
    papermill.execute_notebook(str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False)
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    assert REPORT_MIME in cells[-1]["outputs"][-1]["data"]
    assert cells[-1]["outputs"][0]["data"]["text/plain"] == ["3"]


def page_at(address):
    ends = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return answer.read().decode()
        except urllib.error.URLError:  # not listening yet
            assert time.monotonic() < ends
            time.sleep(0.2)


def test_voila_shows_the_report_as_html(tmp_path):
    pytest.importorskip("voila")
    nbformat.write(notebook_of("%load_ext tpumagic", "%%tpu_profile --name shown\nn = 2"), tmp_path / "app.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "voila", "app.ipynb", "--no-browser", f"--port={port}"],
        cwd=tmp_path, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        page = page_at(f"http://127.0.0.1:{port}/")
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert "Nothing to report" in page
