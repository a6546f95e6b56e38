"""``%%tpu_profile`` and its sisters in a real kernel: one report a cell, wrong requests, nesting, help, interrupts."""

import time

import IPython
import pytest

pytestmark = pytest.mark.kernel


def test_a_clean_cell_says_so_in_one_line(kernel):
    ran = kernel.run("%%tpu_profile\n1 + 1")
    assert [output.kind for output in ran.outputs] == ["execute_result", "display_data"]
    text = ran.outputs[-1].text
    assert text.startswith("Nothing to report")
    assert "\n" not in text.strip()


def test_a_report_is_text_html_and_json_in_one_bundle(kernel):
    output = kernel.run("%%tpu_profile\npass").outputs[-1]
    assert {"text/plain", "text/html"} < set(output.data)
    assert output.report["version"] == 1


def test_the_report_knows_name_and_number_of_its_cell(kernel):
    ran = kernel.run("%%tpu_profile --name 'my run'\npass")
    assert ran.report["name"] == "my run"
    assert ran.report["cell"]["count"] == ran.count


def test_a_report_follows_the_untouched_traceback_of_a_failing_cell(kernel):
    ran = kernel.run("%%tpu_profile\ndef f():\n    return 1 / 0\nf()")
    assert ran.status == "error"
    assert [output.kind for output in ran.outputs] == ["error", "display_data"]
    assert "tpumagic" not in ran.outputs[0].text
    assert ran.report["cell"]["failure"] == "ZeroDivisionError"


def test_drawing_the_traceback_is_not_the_cells_own_time(fresh_kernel):
    fresh_kernel.run(
        "%load_ext tpumagic\nimport time\nshell = get_ipython()\nshown = shell._showtraceback\n"
        "def slow(*arguments):\n    time.sleep(1.5)\n    shown(*arguments)\nshell._showtraceback = slow"
    )
    ran = fresh_kernel.run("%%tpu_profile\n1 / 0")
    assert ran.report["timing"]["wall_s"] < 1.5
    assert fresh_kernel.run("'showtraceback' in vars(shell)").outputs[0].text == "False"


def test_a_failing_cell_stops_what_was_queued_behind_it(kernel):
    first = kernel.send("%%tpu_profile\nimport time\ntime.sleep(0.5)\n1 / 0", stop_on_error=True)
    second = kernel.send("never_run = True")
    assert kernel.outcome(first).status == "error"
    assert kernel.outcome(second).status == "aborted"
    assert kernel.value("'never_run' in globals()") is False


def test_quiet_shows_nothing_and_tpu_last_shows_it_later(kernel):
    ran = kernel.run("%%tpu_profile --quiet --name hushed\n5")
    assert [output.kind for output in ran.outputs] == ["execute_result"]
    assert kernel.run("%tpu_last").report["name"] == "hushed"
    assert kernel.run("%tpu_last").report["name"] == "hushed"


def test_tpu_last_before_any_profile_says_how_to_make_one(fresh_kernel):
    ran = fresh_kernel.run("%load_ext tpumagic\n%tpu_last")
    assert ran.text("stdout") == "Nothing has been profiled yet: put %%tpu_profile on the first line of a cell.\n"


@pytest.mark.parametrize(
    ("magic", "message"),
    [
        ("%%tpu_profile --nope", "unrecognized arguments: --nope"),
        ("%%tpu_profile --name", "argument --name: expected one argument"),
        ("%%tpu_profile v5e-8", "unrecognized arguments: v5e-8"),
        (
            "%%tpu_profile --target v5e-9",
            "There is no target 'v5e-9': known of v5e are v5e-1, v5e-4, v5e-8, v5e-16, v5e-32, v5e-64, v5e-128, v5e-256.",
        ),
        ("%%tpu_profile --target", "argument --target: expected one argument"),
        (
            "%%tpu_profile --cost",
            "There is no TPU here, so name a target, as in `%%tpu_profile --target v5e-1 --cost`, or one for the whole notebook, as in `%tpu_env --target v5e-1`.",
        ),
        ("%%tpu_profile --name 'open", "%tpu_profile: No closing quotation: --name 'open"),
        ("%%time\n%%tpu_profile --nope", "unrecognized arguments: --nope"),
        ("%%bash\n%%tpu_profile --nope", "unrecognized arguments: --nope"),
    ],
)
def test_a_wrong_option_is_a_usage_error_and_the_cell_is_not_run(kernel, magic, message):
    ran = kernel.run(magic + "\nprint('has run')")
    # IPython 7's own %%time swallows whatever is raised below it.
    assert ran.status == "error" or (IPython.version_info < (8,) and magic.startswith("%%time"))
    assert f"UsageError: {message}" in ran.text("stderr")
    assert "has run" not in ran.text("stdout")
    assert ran.reports == []
    assert "Traceback" not in ran.text("stderr") + ran.text("error")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%tpu_profile --nope f()", "unrecognized arguments: --nope"),
        ("%tpu_profile --target v6e-3 f()", "There is no target 'v6e-3': known of v6e are v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256."),
        ("%tpu_profile", "%tpu_profile needs a statement, as in `%tpu_profile step(x)`; to profile a cell, put %%tpu_profile on its first line."),
        ("%tpu_auto", "%tpu_auto is followed by `on` or `off`."),
        ("%tpu_auto maybe", "%tpu_auto is followed by `on` or `off`."),
        ("%tpu_last 3", "%tpu_last takes no arguments."),
        ("%tpu_env nosuch", "%tpu_env does not know the framework 'nosuch'; it can set up: jax, torch_xla, torch_tpu, keras, tensorflow, mxnet"),
        ("%tpu_env --cache here", "--cache goes with a framework: %tpu_env jax --cache DIR"),
        ("%tpu_env --nope", "unrecognized arguments: --nope"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_a_usage_error_in_one_sentence(kernel, line, message):
    ran = kernel.run(line)
    assert ran.status == "error"
    assert ran.text("stderr") == f"UsageError: {message}\n"
    assert ran.reports == []


def test_an_empty_cell_is_told_as_for_other_magics(kernel):
    ran = kernel.run("%%tpu_profile")
    assert ran.status == "error"
    assert "%%tpu_profile is a cell magic, but the cell body is empty." in ran.text("stderr")
    assert ran.reports == []


def test_help_explains_the_options_and_runs_nothing(kernel):
    message = kernel.send("%%tpu_profile?")
    kernel.outcome(message)
    text = kernel.value("get_ipython().find_cell_magic('tpu_profile').__doc__")
    for option in ("--name", "--quiet", "--widget", "--target", "--cost", "%tpu_profile STATEMENT"):
        assert option in text
    details = kernel.value("get_ipython().object_inspect_text('%%tpu_profile')")
    assert "runs exactly as without it" in details


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("%%tpu_profile\n%%time\nprint('in')", "in"),
        ("%%time\n%%tpu_profile\nprint('in')", "in"),
        ("%%time\n\n%%tpu_profile\nprint('in')", "in"),
        ("%%tpu_profile\n%%bash\necho in", "in"),
        ("%%bash\n%%tpu_profile\necho in", "in"),
        ("%%tpu_profile\n\n%%bash\necho in", "in"),
        ("%%tpu_profile\n%%capture\nprint('in')", None),
        ("%%tpu_profile\n%%time\n%%tpu_profile\nprint('in')", "in"),
        ("%%tpu_profile\n%%timeit -n 1 -r 1\nprint('in')", "in"),
        ("\n\n%%tpu_profile\nprint('in')", "in"),
        ("  %%tpu_profile\n  print('in')", "in"),
        ("In [3]: %%tpu_profile\n   ...: print('in')", "in"),
    ],
)
def test_nested_with_other_magics_there_is_one_report(kernel, cell, printed):
    ran = kernel.run(cell)
    assert ran.status == "ok", ran.outputs
    assert ("in\n" in ran.text("stdout")) == (printed is not None)
    assert "job control" not in ran.text("stderr")
    assert ran.outputs[-1].is_report
    assert len(ran.reports) == 1


def test_under_capture_the_report_is_captured_and_stays_reachable(kernel):
    ran = kernel.run("%%capture seen\n%%tpu_profile --name captured\nprint('hidden')")
    assert ran.outputs == []
    assert kernel.value("seen.stdout") == "hidden\n"
    assert kernel.value("['text/html' in o.data for o in seen.outputs]") == [True]
    assert kernel.run("%tpu_last").report["name"] == "captured"


def test_a_file_that_a_cell_writes_may_hold_the_magic(kernel, tmp_path):
    path = tmp_path / "cell.txt"
    ran = kernel.run(f"%%writefile {path}\n%%tpu_profile\npass")
    assert path.read_text() == "%%tpu_profile\npass\n"
    assert ran.reports == []


def test_lines_below_other_magics_are_those_of_the_cell(kernel):
    cell = "%%tpu_profile --quiet\n%%time\nimport sys\nfrom tpumagic.magics import loaded\nhooks = loaded(get_ipython())\nsite = hooks.user_code.stack(sys._getframe())[-1]"
    ran = kernel.run(cell)
    assert kernel.value("str(site)") == f"In [{ran.count}] line 6"
    cell = "%%capture\n%%tpu_profile --quiet\nsite = hooks.user_code.stack(sys._getframe())[-1]"
    ran = kernel.run(cell)
    assert kernel.value("str(site)") == f"In [{ran.count}] line 3"
    ran = kernel.run("\n\n%%tpu_profile --quiet\nsite = hooks.user_code.stack(sys._getframe())[-1]")
    assert kernel.value("str(site)") == f"In [{ran.count}] line 4"
    ran = kernel.run("x = 1\n%time site = hooks.user_code.stack(sys._getframe())[-1]")
    assert kernel.value("str(site)") == f"In [{ran.count}] line 2"
    ran = kernel.run("x = 1\n%tpu_profile --quiet site = hooks.user_code.stack(sys._getframe())[-1]")
    assert kernel.value("str(site)") == f"In [{ran.count}] line 2"


def test_code_from_before_the_extension_was_loaded_is_known_by_its_cell(fresh_kernel):
    defined = fresh_kernel.run("\nimport sys\ndef where():\n    return hooks.user_code.stack(sys._getframe())[-1]")
    fresh_kernel.run("%load_ext tpumagic\nfrom tpumagic.magics import loaded\nhooks = loaded(get_ipython())")
    fresh_kernel.run("%%tpu_profile --quiet\nsite = where()")
    assert fresh_kernel.value("str(site)") == f"In [{defined.count}] line 4"


def test_a_cell_without_number_has_none_in_its_report(kernel):
    ran = kernel.run("%%tpu_profile\npass", store_history=False)
    assert ran.report["cell"]["count"] is None


def test_an_interrupted_cell_gets_its_report(kernel):
    message = kernel.send("%%tpu_profile\nimport time\nprint('running', flush=True)\ntime.sleep(50)")

    def interrupt(output):
        if "running" in output.text and output.kind == "stdout":
            time.sleep(0.2)
            kernel.manager.interrupt_kernel()

    ran = kernel.outcome(message, on_output=interrupt)
    assert ran.status == "error"
    assert [output.kind for output in ran.outputs] == ["stdout", "error", "display_data"]
    assert ran.outputs[1].data["ename"] == "KeyboardInterrupt"
    assert ran.report["cell"]["failure"] == "KeyboardInterrupt"
    assert len(kernel.run("%%tpu_profile\npass").reports) == 1


def test_an_interrupted_await_gets_its_report(kernel):
    message = kernel.send("%%tpu_profile\nimport asyncio\nprint('running', flush=True)\nawait asyncio.sleep(50)")

    def interrupt(output):
        if "running" in output.text and output.kind == "stdout":
            time.sleep(0.2)
            kernel.manager.interrupt_kernel()

    ran = kernel.outcome(message, on_output=interrupt)
    assert ran.status == "error"
    assert len(ran.reports) == 1
    assert len(kernel.run("%%tpu_profile\npass").reports) == 1


def test_debug_lands_in_the_users_frame(kernel):
    kernel.run("%%tpu_profile\ndef f():\n    inner = 42\n    return inner / 0\nf()")
    message = kernel.send("%debug", allow_stdin=True)
    ran = kernel.outcome(message, answers=["p inner + 1", "up", "p __name__", "q"])
    assert "43" in ran.text("stdout")
    assert "__main__" in ran.text("stdout")


def test_debug_after_a_statement_lands_in_the_users_frame(kernel):
    kernel.run("def f():\n    inner = 42\n    return inner / 0")
    kernel.run("pass\n%tpu_profile f()")
    message = kernel.send("%debug", allow_stdin=True)
    ran = kernel.outcome(message, answers=["p inner + 1", "q"])
    assert "43" in ran.text("stdout")


def test_pdb_stops_in_the_users_frame_and_the_report_follows(kernel):
    kernel.run("%pdb on")
    try:
        message = kernel.send("%%tpu_profile\ndef f():\n    inner = 42\n    return inner / 0\nf()", allow_stdin=True)
        ran = kernel.outcome(message, answers=["p inner + 1", "q"])
    finally:
        kernel.run("%pdb off")
    assert "43" in ran.text("stdout")
    assert ran.outputs[-1].is_report


def test_nothing_of_ours_is_in_the_namespace_or_the_history(kernel):
    kernel.run("%%tpu_profile\nmine = 1")
    assert kernel.value("[n for n in globals() if 'tpu' in n.lower() and not n.startswith('_i')]") == []
    assert kernel.value("In[-1]") == "#%%tpu_profile\nmine = 1"
    assert kernel.value("get_ipython().history_manager.input_hist_raw[-1]") == "%%tpu_profile\nmine = 1"


def test_a_fault_of_ours_costs_one_sentence_and_not_the_cell(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic\nfrom tpumagic import session\ndef fault(*a, **k): raise TypeError('oh')")
    for method in ("start", "finish"):
        fresh_kernel.run(f"kept = session.Session.{method}\nsession.Session.{method} = fault")
        ran = fresh_kernel.run("%%tpu_profile\nprint('has run')\n7")
        fresh_kernel.run(f"session.Session.{method} = kept")
        assert ran.status == "ok"
        assert ran.text("stdout") == "has run\n"
        assert ran.text("execute_result") == "7"
        assert "tpumagic could not profile this cell (TypeError: oh); the cell itself is not affected.\n" in ran.text(
            "stderr"
        )
        assert "Traceback" not in ran.text("stderr") + ran.text("stdout")
        assert len(fresh_kernel.run("%%tpu_profile\npass").reports) == 1


def test_a_fault_in_the_text_step_still_runs_the_cell(fresh_kernel):
    fresh_kernel.run(
        "%load_ext tpumagic\nfrom tpumagic.magics import transform\ndef fault(*a): raise TypeError('oh')\ntransform.strip_magic = fault"
    )
    ran = fresh_kernel.run("%%tpu_profile\nprint('has run')\n7")
    assert ran.status == "ok"
    assert ran.text("stdout") == "has run\n"
    assert ran.text("execute_result") == "7"


def test_the_magic_called_by_name_runs_its_body(kernel):
    ran = kernel.run("get_ipython().run_cell_magic('tpu_profile', '--name exported', 'n = 4\\nn + 1')")
    assert ran.text("execute_result") == "5"
    assert ran.report["name"] == "exported"
    ran = kernel.run("get_ipython().run_cell_magic('tpu_profile', '', '1 / 0')")
    assert ran.status == "error"
    assert [output.kind for output in ran.outputs] == ["error", "display_data"]
