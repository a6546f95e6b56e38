"""What only a shell can show of JAX: cells run again, values that ``Out`` keeps, awaiting cells, captured reports."""

import pytest

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module", autouse=True)
def jax_imported(kernel):
    assert kernel.run("import jax, jax.numpy as jnp").status == "ok"


def told(ran, kind):
    return [finding for finding in ran.report["findings"] if finding["kind"] == kind and finding["severity"] != "info"]


REDEFINES = """%%tpu_profile
import jax, jax.numpy as jnp
x = jnp.ones((32, 32))
@jax.jit
def step(a):
    return jnp.sin(a @ a).sum()
step(x)
"""


def test_a_cell_that_is_run_again_compiles_its_functions_again(kernel):
    first = kernel.run(REDEFINES)
    assert told(first, "recompile.redefined") == []
    second = kernel.run(REDEFINES)
    (finding,) = told(second, "recompile.redefined")
    assert "step" in finding["title"] + finding["detail"]
    assert finding["site"]["cell"] == second.count
    lines = [site["line"] for site in (finding["site"], *finding["related"])]
    assert 7 in lines
    third = kernel.run(REDEFINES)
    assert len(told(third, "recompile.redefined")) == 1


def test_a_function_of_another_cell_is_not_compiled_again(kernel):
    kernel.run("@jax.jit\ndef kept(a):\n    return jnp.cos(a @ a).sum()\nx = jnp.ones((32, 32))")
    kernel.run("%%tpu_profile\nkept(x)")
    ran = kernel.run("%%tpu_profile\nkept(x)")
    assert [f for f in ran.report["findings"] if f["severity"] != "info"] == []


def test_an_array_that_out_keeps_is_told_by_its_name(kernel):
    shown = kernel.run("big = jnp.ones((1024, 1024)) * 2\nbig")
    kernel.run("del big")
    ran = kernel.run("%%tpu_profile\ny = jnp.zeros(3)")
    (finding,) = told(ran, "memory.held_by_out")
    text = finding["title"] + finding["detail"] + finding["fix"]
    assert f"Out[{shown.count}]" in text
    assert "4 MiB" in text
    kernel.run("%reset -f out")


def test_an_array_that_the_user_still_has_is_not_told(kernel):
    kernel.run("mine = jnp.ones((1024, 1024)) * 3\nmine")
    ran = kernel.run("%%tpu_profile\ny = jnp.zeros(3)")
    assert told(ran, "memory.held_by_out") == []
    kernel.run("del mine")
    kernel.run("%reset -f out")


def test_an_awaiting_cell_is_profiled_to_its_end(kernel):
    ran = kernel.run(
        "%%tpu_profile\nimport asyncio\nawait asyncio.sleep(0)\nz = jax.jit(lambda a: a + 1)(jnp.ones(7))\nz.sum().item()"
    )
    assert ran.status == "ok"
    assert ran.text("execute_result") == "14.0"
    assert any(program["kind"] == "jit" for program in ran.report["programs"])


def test_a_captured_report_holds_the_cells_programs(kernel):
    ran = kernel.run("%%capture\n%%tpu_profile\nw = jax.jit(lambda a: a + 2)(jnp.ones(11))")
    assert ran.outputs == []
    last = kernel.run("%tpu_last")
    assert any(program["kind"] == "jit" for program in last.report["programs"])


def test_sites_below_another_magic_are_lines_of_the_cell(kernel):
    ran = kernel.run("%%tpu_profile\n%%time\nv = jnp.ones(5)\nu = jax.jit(lambda a: a * 3)(v)")
    assert {program["site"]["line"] for program in ran.report["programs"] if program["kind"] == "jit"} == {4}


def test_auto_mode_is_silent_over_clean_cells_and_tells_what_comes_back(kernel):
    kernel.run("%tpu_auto on")
    try:
        ran = kernel.run("q = jax.jit(lambda a: a + 4)(jnp.ones(13))")
        assert ran.reports == []
        last = kernel.run("%tpu_last")
        assert any(program["kind"] == "jit" for program in last.report["programs"])
        assert kernel.run("%tpu_last").report == last.report
        cell = REDEFINES.replace("%%tpu_profile\n", "").replace("step", "auto_step")
        shown = [len(kernel.run(cell).reports) for _ in range(5)]
        assert shown == [0, 0, 0, 1, 0]
        assert len(kernel.run("%%tpu_profile\npass").reports) == 1
        assert len(kernel.run("%tpu_profile 1 + 1").reports) == 1
        assert len(kernel.run("r = 1\n%tpu_profile r + 1").reports) == 1
    finally:
        kernel.run("%tpu_auto off")
    kernel.run(cell)
    assert kernel.run("%tpu_last").report["cell"]["count"] < kernel.value("get_ipython().execution_count") - 2


def test_auto_mode_speaks_when_a_finding_is_an_error(kernel):
    kernel.run("%tpu_auto on")
    try:
        ran = kernel.run(
            "@jax.jit\ndef branch(a):\n    if a > 0:\n        return a\n    return -a\nbranch(jnp.float32(1))"
        )
        assert ran.status == "error"
        assert any(finding["severity"] == "error" for finding in ran.report["findings"])
        assert kernel.run("not_a_name").reports == []
    finally:
        kernel.run("%tpu_auto off")


def test_an_interrupt_inside_jax_shows_no_frame_of_ours(kernel):
    kernel.run(
        "from jax.extend.core import Primitive\n"
        "from jax.interpreters import mlir\n"
        "stopped = Primitive('stopped')\n"
        "stopped.def_abstract_eval(lambda v: v)\n"
        "def lowered(context, v):\n    raise KeyboardInterrupt\n"
        "mlir.register_lowering(stopped, lowered)"
    )
    ran = kernel.run("%%tpu_profile\njax.jit(lambda v: stopped.bind(v))(jnp.ones(3))")
    assert "KeyboardInterrupt" in ran.text("error")
    assert "tpumagic/" not in ran.text("error")
