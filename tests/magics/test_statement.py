"""``%tpu_profile STATEMENT`` and ``tpumagic.profile()``."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernel


def test_a_statement_gives_its_value_and_a_report(kernel):
    ran = kernel.run("%tpu_profile 3 + 4")
    assert ran.text("execute_result") == "7"
    assert len(ran.reports) == 1
    assert kernel.value("_") == 7


def test_a_statement_in_the_middle_of_a_cell_is_reported_where_it_stands(kernel):
    ran = kernel.run("print('before')\n%tpu_profile --name middle y = 5\nprint('after', y)\ny")
    assert [output.kind for output in ran.outputs] == ["stdout", "display_data", "stdout", "execute_result"]
    assert ran.report["name"] == "middle"


def test_its_value_can_be_assigned(kernel):
    ran = kernel.run("z = %tpu_profile 40 + 2\nz")
    assert ran.text("execute_result") == "42"


def test_a_semicolon_silences_the_value(kernel):
    ran = kernel.run("%tpu_profile 3 + 4;")
    assert ran.text("execute_result") == ""
    assert len(ran.reports) == 1


def test_a_statement_may_await(kernel):
    kernel.run("import asyncio")
    ran = kernel.run("%tpu_profile await asyncio.sleep(0.01, 5)")
    assert ran.text("execute_result") == "5"


def test_several_statements_and_a_last_expression(kernel):
    ran = kernel.run("%tpu_profile p = 2; q = 3; p * q")
    assert ran.text("execute_result") == "6"


def test_a_loop_makes_a_report_each_time(kernel):
    ran = kernel.run("for i in range(3):\n    %tpu_profile i + 1")
    assert len(ran.reports) == 3


def test_local_variables_of_a_function_are_seen(kernel):
    ran = kernel.run("def f():\n    local = 5\n    v = %tpu_profile --quiet local + 1\n    return v\nf()")
    assert ran.text("execute_result") == "6"


def test_a_failing_statement_is_reported_under_the_traceback(kernel):
    for code in ("%tpu_profile 1 / 0", "pass\n%tpu_profile 1 / 0"):
        ran = kernel.run(code)
        assert ran.status == "error"
        assert [output.kind for output in ran.outputs] == ["error", "display_data"]
        assert ran.report["cell"]["failure"] == "ZeroDivisionError"
        assert "tpumagic/magics" not in ran.outputs[0].text


def test_in_a_profiled_cell_the_cells_report_covers_the_statement(kernel):
    ran = kernel.run("%%tpu_profile --name outer\n%tpu_profile --name inner 1 + 1")
    assert ran.report["name"] == "outer"
    ran = kernel.run("import tpumagic")
    ran = kernel.run("%%tpu_profile --name outer\nwith tpumagic.profile() as inner:\n    pass\ninner.report is None")
    assert ran.text("execute_result") == "True"
    assert ran.report["name"] == "outer"


def test_a_block_is_profiled_in_a_notebook(kernel):
    ran = kernel.run("import tpumagic\nwith tpumagic.profile('block') as profiled:\n    w = 1\nprofiled.report.name")
    assert ran.text("execute_result") == "'block'"
    assert ran.report["name"] == "block"
    assert kernel.run("tpumagic.last_report().name").text("execute_result") == "'block'"


def test_a_failing_block_is_reported_under_the_traceback(kernel):
    ran = kernel.run("with tpumagic.profile():\n    1 / 0")
    assert ran.status == "error"
    assert [output.kind for output in ran.outputs] == ["error", "display_data"]


SCRIPT = """
import tpumagic
assert tpumagic.last_report() is None
with tpumagic.profile("whole") as profiled:
    x = 1
assert profiled.report.name == "whole"
assert tpumagic.last_report() is profiled.report
with tpumagic.profile(quiet=True):
    pass
import sys
assert "IPython" not in sys.modules
print("end")
"""


def test_a_block_is_profiled_in_a_script_without_ipython(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "end\n"
    assert ran.stderr.count("Nothing to report") == 1


def test_the_value_is_that_of_an_exported_notebook_too(tmp_path):
    path = tmp_path / "exported.ipy"
    path.write_text(
        "%load_ext tpumagic\nget_ipython().run_cell_magic('tpu_profile', '', 'import asyncio\\nawait asyncio.sleep(0)\\nz = 1\\n')\nprint('z is', z)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", path], capture_output=True, text=True
    )
    assert "z is 1" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("Nothing to report") == 1


def test_a_block_is_told_in_the_names_of_its_own_module(tmp_path):
    (tmp_path / "other.py").write_text("import tpumagic\nwith tpumagic.profile(quiet=True):\n    pass\n")
    (tmp_path / "script.py").write_text(
        "import other, tpumagic\nimport jax.numpy as jnp\nwith tpumagic.profile(quiet=True) as profiled:\n"
        "    mine = jnp.ones((64, 64))\nprint(profiled.report.memory.live[0].name)\n"
    )
    ran = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("mine\n", 0), ran.stderr
