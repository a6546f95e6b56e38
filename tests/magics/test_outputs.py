"""Where a report lands: under its own cell, whatever threads, tasks, subshells and Output widgets do meanwhile."""

import ipykernel
import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.kernel

REPORT_MIME = "application/vnd.tpumagic.report.v1+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def executed(tmp_path, *cells, **options):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}, **options)
    client.execute()
    return client, notebook


def reports_of(outputs):
    return [output for output in outputs if REPORT_MIME in output.get("data", {})]


def captured_by_widgets(client):
    return [output for state in client.widget_state.values() for output in state.get("outputs", ())]


THREAD = """import threading, time
entered, leave = threading.Event(), threading.Event()
def work():
    with out:
        print('inside')
        entered.set()
        leave.wait(20)
thread = threading.Thread(target=work)
thread.start()
entered.wait(20)"""
LEAVE = """if 'leave' in globals():
    leave.set()
    thread.join()
else:
    out.__exit__(None, None, None)"""


@pytest.mark.parametrize(
    "inside",
    ["out.__enter__()\nprint('inside')", THREAD, "with out:\n    print('inside')\n    %tpu_profile 1 + 1"],
    ids=["left open", "held by a thread", "statement inside"],
)
def test_a_report_does_not_land_in_an_output_widget(tmp_path, inside):
    magic = "" if "%tpu_profile" in inside else "%%tpu_profile\n"
    client, notebook = executed(
        tmp_path,
        "%load_ext tpumagic\nimport ipywidgets\nout = ipywidgets.Output()\nout",
        magic + inside,
        LEAVE,
    )
    assert len(reports_of(notebook.cells[1].outputs)) == 1
    inner = captured_by_widgets(client)
    assert reports_of(inner) == []
    assert "inside" in "".join(output.get("text", "") for output in inner)


def test_what_is_printed_in_the_widget_after_the_report_still_lands_there(tmp_path):
    client, _ = executed(
        tmp_path,
        "%load_ext tpumagic\nimport ipywidgets\nout = ipywidgets.Output()\nout",
        "out.__enter__()\n%tpu_profile --name seen 1 + 1\nprint('after')\nout.__exit__(None, None, None)",
    )
    assert "after" in "".join(output.get("text", "") for output in captured_by_widgets(client))


def test_the_live_view_stands_beside_text_and_html(tmp_path):
    # A view's id is another one in every run and dead after a restart; what it says must stand in the notebook itself.
    bundles = []
    for _ in range(2):
        _, notebook = executed(tmp_path, "%load_ext tpumagic", "%%tpu_profile --widget\npass")
        (output,) = [output for output in notebook.cells[1].outputs if "data" in output]
        bundles.append(output["data"])
    first, second = bundles
    assert first[WIDGET_MIME]["model_id"] != second[WIDGET_MIME]["model_id"]
    for bundle in bundles:
        assert bundle["text/plain"].startswith("Nothing to report")
        assert "Nothing to report" in bundle["text/html"]
        assert bundle[REPORT_MIME]["version"] == 1


def test_a_report_widget_goes_into_a_layout(tmp_path):
    _, notebook = executed(
        tmp_path,
        "%load_ext tpumagic\nimport ipywidgets, tpumagic",
        "%%tpu_profile --quiet\npass",
        "box = ipywidgets.VBox([tpumagic.ReportWidget(tpumagic.last_report())])\nbox",
    )
    assert WIDGET_MIME in notebook.cells[2].outputs[0]["data"]


def test_without_anywidget_the_live_view_is_one_sentence(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nimport sys\nsys.modules['anywidget'] = None")
    ran = fresh_kernel.run("%%tpu_profile --widget\npass")
    assert len(ran.reports) == 1
    assert ran.text("stderr") == "--widget needs anywidget (pip install anywidget); this is the report without it.\n"


def test_a_task_that_outlives_its_cell_prints_where_it_did_before(fresh_kernel):
    kernel = fresh_kernel
    kernel.run("%load_ext tpumagic\nimport asyncio")
    cell = "import asyncio\nasync def late(word):\n    await asyncio.sleep(0.2)\n    print(word)\ntask = asyncio.ensure_future(late('{}'))"
    parents = {}
    for word, magic in (("bare", ""), ("profiled", "%%tpu_profile\n")):
        started = kernel.run(magic + cell.format(word))
        waited = kernel.run("%%tpu_profile --name waiting\nawait asyncio.sleep(0.6)")
        assert waited.report["name"] == "waiting"
        assert len(started.reports) == (1 if magic else 0)
        strays = [m["parent_header"]["msg_id"] for m in kernel.strays if m["content"].get("text") == word + "\n"]
        in_second = word in waited.text("stdout")
        parents[word] = (strays == [started.msg_id], in_second)
    assert parents["bare"] == parents["profiled"]


def test_a_cell_run_in_a_thread_of_a_profiled_cell_makes_no_second_report(kernel):
    ran = kernel.run(
        "%%tpu_profile --name outer\nimport threading\n"
        "t = threading.Thread(target=lambda: get_ipython().run_cell('%%tpu_profile --name inner\\nprint(5)'))\nt.start()\nt.join()"
    )
    assert [report["name"] for report in ran.reports] == ["outer"]
    assert "5" in ran.text("stdout")
    assert "tpumagic: another cell is being profiled, so this one runs without a report.\n" in ran.text("stderr")
    assert len(kernel.run("%%tpu_profile\npass").reports) == 1


def test_reports_of_a_thread_and_of_its_cell_after_one_another(kernel):
    ran = kernel.run(
        "import threading\n"
        "t = threading.Thread(target=lambda: get_ipython().run_cell('%%tpu_profile --name inner\\nprint(5)'))\nt.start()\nt.join()"
    )
    assert [report["name"] for report in ran.reports] == ["inner"]


if ipykernel.version_info >= (7,):

    def subshell(kernel):
        control, session = kernel.client.control_channel, kernel.client.session
        request = session.msg("create_subshell_request", {})
        control.send(request)
        while True:
            reply = kernel.client.get_control_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return reply["content"]["subshell_id"]

    def test_a_cell_in_a_subshell_neither_takes_nor_ends_the_profile_of_the_main_shell(kernel):
        shell_id = subshell(kernel)
        main = kernel.send(
            "%%tpu_profile --name main\nimport time\nprint('running', flush=True)\ntime.sleep(1.5)\n'end'"
        )
        content = {"code": "%%tpu_profile --name sub\nprint('in the subshell')", "silent": False, "store_history": False,
                   "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}  # fmt: skip
        message = kernel.client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = shell_id
        sent = []

        def send(output):
            if not sent and "running" in output.text:
                kernel.client.shell_channel.send(message)
                sent.append(message)

        ran = kernel.outcome(main, on_output=send)
        assert sent
        assert ran.report["name"] == "main"
        assert ran.text("execute_result") == "'end'"
        inside = [m for m in kernel.strays if m["parent_header"].get("msg_id") == message["header"]["msg_id"]]
        assert "in the subshell" in "".join(m["content"].get("text", "") for m in inside)
        assert not any(m["msg_type"] == "display_data" for m in inside)
