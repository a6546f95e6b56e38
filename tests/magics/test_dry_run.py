"""``%tpu_dryrun`` and ``tpumagic.dry_run()``: what is evaluated and what is not, wrong requests, tracebacks, answers."""

import subprocess
import sys
import time

import pytest

pytest.importorskip("jax", reason="dry runs are of JAX programs")
pytestmark = pytest.mark.kernel

SETUP = """
%load_ext tpumagic
import os, jax, jax.numpy as jnp, tpumagic
from functools import partial
from tpumagic.magics.dry_run import evaluate_call
seen = []
def note(value):
    seen.append(value)
    return value
class Model:
    w = 3
    def step(self, x, *, scale=1):
        seen.append('called')
        return x * self.w * scale
model = Model()
class Outer:
    inner = model
def evaluated(text):
    seen.clear()
    function, args, kwargs = evaluate_call(get_ipython(), text, '<test>', globals())
    return getattr(function, '__name__', type(function).__name__), args, kwargs
"""

USED = "it is used like `%tpu_dryrun --target v5e-1 step(params, batch)`."


@pytest.fixture(scope="module", autouse=True)
def _prepared(kernel, tmp_path_factory):
    kernel.run(SETUP)
    kernel.run(f"os.environ['XDG_CACHE_HOME'] = {str(tmp_path_factory.mktemp('cache'))!r}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model.step(1)", ("step", (1,), {})),
        ("Outer.inner.step(1, scale=2)", ("step", (1,), {"scale": 2})),
        ("model.step(*[1, 2], 3, **{'scale': 4}, more=5)", ("step", (1, 2, 3), {"scale": 4, "more": 5})),
        ("(lambda x: x)(7)", ("<lambda>", (7,), {})),
        ("partial(model.step, scale=2)(5)", ("partial", (5,), {})),
        ("model.step(n := 4, n + 1)", ("step", (4, 5), {})),
        ("model.step(\n    1,  # a comment\n    scale=2,\n)", ("step", (1,), {"scale": 2})),
        ("# above\nmodel.step(1);", ("step", (1,), {})),
        ("model.step(function=1, args=2, kwargs=3)", ("step", (), {"function": 1, "args": 2, "kwargs": 3})),
    ],
)
def test_function_and_arguments_are_evaluated_as_python_does_and_the_call_is_not(kernel, text, found):
    assert kernel.value(f"evaluated({text!r})") == found
    assert kernel.value("seen") == []


def test_what_is_evaluated_is_so_once_and_in_pythons_order(kernel):
    kernel.value("evaluated('(note(0) or model.step)(note(1), *note([2]), k=note(3), **note({\"m\": 4}))')")
    assert kernel.value("seen") == [0, 1, [2], 3, {"m": 4}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%tpu_dryrun", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun --cost", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun seen", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun y = model.step(1)", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun note(1) + 1", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun note(1); note(2)", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun note(1", f"%tpu_dryrun cannot read the call: '(' was never closed; {USED}"),
        ("%%tpu_dryrun\nnote(1)\nnote(2)", f"%tpu_dryrun needs one call and nothing else; {USED}"),
        ("%tpu_dryrun --nope note(1)", "unrecognized arguments: --nope"),
        ("%tpu_dryrun --target v5e-2 note(1)", "There is no target 'v5e-2': known of v5e are v5e-1, v5e-4, v5e-8, v5e-16, v5e-32, v5e-64, v5e-128, v5e-256."),
        ("%%tpu_dryrun --target v5e-2\nnote(1)", "There is no target 'v5e-2': known of v5e are v5e-1, v5e-4, v5e-8, v5e-16, v5e-32, v5e-64, v5e-128, v5e-256."),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_sentence_and_nothing_is_evaluated(kernel, line, message):
    kernel.run("seen.clear()\n%tpu_env --target v5e-1")
    ran = kernel.run(line)
    kernel.run("%tpu_env --target none")
    assert ran.status == "error"
    assert ran.text("stderr") == f"UsageError: {message}\n"
    assert ran.reports == []
    assert kernel.value("seen") == []


def test_without_any_target_the_sentence_shows_how_to_name_one(kernel):
    ran = kernel.run("%tpu_dryrun note(1)")
    assert ran.text("stderr") == (
        "UsageError: There is no TPU here, so name a target, as in `%tpu_dryrun --target v5e-1 step(params, batch)`, "
        "or one for the whole notebook, as in `%tpu_env --target v5e-1`.\n"
    )


def test_without_jax_the_sentence_asks_for_its_import(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    ran = fresh_kernel.run("%tpu_dryrun --target v5e-1 print('evaluated') ")
    assert ran.text("stderr") == "UsageError: %tpu_dryrun compiles JAX programs: import jax first.\n"
    assert ran.text("stdout") == ""


def test_what_an_argument_raises_is_the_users_own(kernel):
    ran = kernel.run("%tpu_dryrun --target v5e-1 model.step(1 / 0)")
    assert ran.outputs[-1].data["ename"] == "ZeroDivisionError"
    assert "tpumagic/" not in ran.text("error")
    assert ran.reports == []


def test_what_tracing_raises_is_the_users_own(kernel):
    ran = kernel.run("def broken(x):\n    return x.nothing()\n%tpu_dryrun --target v5e-1 broken(jnp.ones(3))")
    assert ran.outputs[-1].data["ename"] == "AttributeError"
    assert "return x.nothing()" in ran.text("error")
    assert "tpumagic/" not in ran.text("error")
    assert ran.reports == []


def test_an_endless_recursion_is_the_users_own(kernel):
    ran = kernel.run("def endless(x):\n    return endless(x)\n%tpu_dryrun --target v5e-1 endless(jnp.ones(3))")
    assert ran.outputs[-1].data["ename"] == "RecursionError"
    assert "tpumagic/" not in ran.text("error")


def test_what_is_compiled_already_is_told_in_one_sentence(kernel):
    kernel.run("compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile()")
    ran = kernel.run("%tpu_dryrun --target v5e-1 compiled(jnp.ones(3))")
    assert ran.text("error").splitlines()[-1] == (
        "TypeError: a dry run compiles for its target: give the function itself, not what is compiled already."
    )


def test_help_tells_of_all_options(kernel):
    text = kernel.value("get_ipython().find_line_magic('tpu_dryrun').__doc__")
    for words in ("--target", "--cost", "--remedies", "traced at most once", "ShapeDtypeStruct"):
        assert words in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tpumagic.dry_run(note, 1)", "ValueError: There is no TPU here, so name a target, as in tpumagic.dry_run(step, x, target='v5e-1')."),
        ("tpumagic.dry_run(note, 1, target=3)", "TypeError: target is a name like 'v5e-1', not int."),
        ("tpumagic.dry_run(note, 1, target='v6e-3')", "UnknownTargetError: There is no target 'v6e-3': known of v6e are v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256."),
    ],
)  # fmt: skip
def test_from_python_a_wrong_target_is_a_value_error(kernel, line, message):
    ran = kernel.run(line)
    assert ran.text("error").splitlines()[-1] == message


def test_in_auto_mode_a_dry_run_has_its_own_report_alone(kernel):
    kernel.run("%tpu_auto on")
    try:
        ran = kernel.run("%%tpu_dryrun\nnote(1)")
    finally:
        kernel.run("%tpu_auto off")
    assert "UsageError" in ran.text("stderr")
    assert ran.reports == []


# With the real compiler.


@pytest.fixture
def compiler():
    pytest.importorskip("libtpu", reason="the TPU compiler is part of libtpu, which exists for Linux on x86_64 only")


PROGRAM = "@jax.jit\ndef product(x, *, scale=1.0):\n    return jnp.tanh(x @ x) * scale"


@pytest.mark.compiler
def test_a_dry_run_says_whether_it_fits_without_running_and_tpu_last_shows_it_again(kernel, compiler):
    kernel.run(f"{PROGRAM}\nruns = []")
    huge = "jax.ShapeDtypeStruct((65536, 65536), 'float32')"  # 16 GiB: could be neither made nor computed here
    ran = kernel.run(f"print('before')\n%tpu_dryrun --target v5e-1 product({huge}, scale=2.0)\nprint('after')")
    assert [output.kind for output in ran.outputs] == ["stdout", "display_data", "stdout"], ran.outputs
    (program,) = ran.report["programs"]
    (answer,) = program["targets"]
    assert (answer["name"], answer["fits"], program["name"]) == ("v5e-1", False, "product")
    assert kernel.run("%tpu_last").report["programs"][0]["targets"][0]["fits"] is False
    assert kernel.value("product._cache_size()") == 0


@pytest.mark.compiler
def test_a_call_over_several_lines_with_arrays_and_shapes_mixed(kernel, compiler):
    kernel.run("@jax.jit\ndef apply(w, x):\n    return x @ w\nw = jnp.ones((128, 128))")
    ran = kernel.run("%%tpu_dryrun --target v6e-1\napply(\n    w,\n    jax.ShapeDtypeStruct((8, 128), 'float32'),\n)")
    assert ran.status == "ok", ran.outputs
    (answer,) = ran.report["programs"][0]["targets"]
    assert (answer["name"], answer["fits"]) == ("v6e-1", True)
    assert ran.report["cell"]["count"] == ran.count


@pytest.mark.compiler
def test_a_method_is_compiled_like_a_function_and_the_default_target_holds(kernel, compiler):
    kernel.run("%tpu_env --target v5e-1")
    try:
        ran = kernel.run("%tpu_dryrun model.step(jnp.ones((8, 128)), scale=2)")
        assert ran.report["programs"][0]["targets"][0]["name"] == "v5e-1", ran.outputs
        kernel.run("report = tpumagic.dry_run(model.step, jnp.ones((8, 128)))")
        assert kernel.value("report.programs[0].targets[0].name") == "v5e-1"
        ran = kernel.run("tpumagic.dry_run(jnp.dot, jnp.ones((8, 8)), jnp.ones((8, 8)), target='v4-8')")
        assert (
            ran.outputs[-1].data["application/vnd.tpumagic.report.v1+json"]["programs"][0]["targets"][0]["name"]
            == "v4-8"
        )
    finally:
        kernel.run("%tpu_env --target none")


@pytest.mark.compiler
def test_the_time_comes_later_into_tpu_last_and_into_a_view_and_prints_nothing(kernel, compiler):
    pytest.importorskip("anywidget")
    kernel.run(f"{PROGRAM}\nfrom tpumagic.magics import loaded\nhooks = loaded(get_ipython())")
    kernel.run(
        "%tpu_dryrun --target v5e-1 product(jnp.ones((512, 512)))\n"
        "view = tpumagic.ReportWidget(hooks.last_report)\nfirst = hooks.last_report"
    )
    ends = time.monotonic() + 60
    while kernel.value("hooks.last_report.programs[0].targets[0].cost is None"):
        assert time.monotonic() < ends, "the estimate did not come"
        time.sleep(0.2)
    assert kernel.value("view.report is hooks.last_report") is True
    ran = kernel.run("pass")
    assert ran.outputs == []
    written = [one for one in kernel.strays if one["msg_type"] in ("stream", "display_data", "update_display_data")]
    assert written == []
    assert kernel.run("%tpu_last").report["programs"][0]["targets"][0]["cost"] is not None


@pytest.mark.compiler
def test_cost_waits_for_the_estimate(kernel, compiler):
    kernel.run(PROGRAM)
    ran = kernel.run("%tpu_dryrun --target v6e-1 --cost product(jnp.ones((384, 384)))")
    assert ran.report["programs"][0]["targets"][0]["cost"] is not None, ran.outputs


@pytest.mark.compiler
def test_a_profiled_cell_runs_as_ever_and_its_programs_are_compiled_for_the_target(kernel, compiler):
    kernel.run(PROGRAM)
    ran = kernel.run("%%tpu_profile --target v5e-1\nfloat(product(jnp.ones((8, 8)))[0, 0])")
    assert ran.text("execute_result") == "1.0"
    told = {program["name"]: program["targets"] for program in ran.report["programs"]}
    assert [answer["name"] for answer in told["product"]] == ["v5e-1"]
    body = "'tpu_profile', '--target v5e-1', 'product(jnp.ones((16, 16))).shape'"
    ran = kernel.run(f"get_ipython().run_cell_magic({body})")  # as nbconvert writes it
    assert ran.text("execute_result") == "(16, 16)"
    told = {program["name"]: program["targets"] for program in ran.report["programs"]}
    assert [answer["name"] for answer in told["product"]] == ["v5e-1"]
    ran = kernel.run("%tpu_profile --target v5e-1 product(jnp.ones((24, 24))).shape")
    assert ran.text("execute_result") == "(24, 24)"
    told = {program["name"]: program["targets"] for program in ran.report["programs"]}
    assert [answer["name"] for answer in told["product"]] == ["v5e-1"]


SCRIPT = """
import jax, jax.numpy as jnp, tpumagic
def double(x, target):
    return x * 2 if target else x
report = tpumagic.dry_run(lambda x: double(x, target=True), jnp.ones(8), target="v5e-1")
assert tpumagic.last_report() is report
assert report.programs[0].targets[0].fits is True, report.to_text()
import sys
assert "IPython" not in sys.modules
print("end")
"""


@pytest.mark.compiler
def test_a_script_without_ipython_gets_a_report_and_prints_nothing_by_itself(tmp_path, compiler):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")


def test_a_script_that_fails_while_it_is_traced_shows_its_own_frames_alone(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import tpumagic, jax\ndef broken(x):\n    raise KeyError('mine')\ntpumagic.dry_run(broken, 1.0, target='v5e-1')\n"
    )
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert "KeyError: 'mine'" in ran.stderr
    assert "tpumagic/" not in ran.stderr


SLOW = """
def blocks(params, x):
    for w in params:
        x = jax.nn.gelu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))
        x = (x - x.mean()) / jnp.sqrt(x.var() + 1e-5)
    return (x**2).mean()
slow = jax.jit(jax.grad(blocks))
shapes = [jax.ShapeDtypeStruct((64, 64, 3, 3), "float32")] * 12, jax.ShapeDtypeStruct((32, 64, 32, 32), "float32")
"""


@pytest.mark.compiler
def test_an_interrupt_ends_the_wait_for_the_time_in_one_sentence_and_keeps_the_plan(kernel, compiler, tmp_path):
    kernel.run(SLOW)
    kernel.run(f"os.environ['XDG_CACHE_HOME'] = {str(tmp_path)!r}")
    cache, interrupted = tmp_path, []
    message = kernel.send("%tpu_dryrun --target v5e-1 --cost slow(*shapes)")

    def interrupt(output):
        if "has been at work for" in output.text and not interrupted and list(cache.rglob("plans/*")):
            interrupted.append(True)  # the plan has come
            kernel.manager.interrupt_kernel()

    ran = kernel.outcome(message, on_output=interrupt)
    assert ran.status == "ok", ran.outputs
    (answer,) = ran.report["programs"][0]["targets"]
    assert (answer["fits"], answer["cost"], answer["why"]) == (True, None, "the wait for it was interrupted")
    assert ran.text("stderr").splitlines()[-1].startswith("tpumagic: the TPU compiler was at work for ")


@pytest.mark.compiler
def test_auto_mode_with_a_default_target_speaks_of_what_does_not_fit_and_of_nothing_else(kernel, compiler):
    kernel.run(PROGRAM.replace("product", "other_product"))
    kernel.run("%tpu_env --target v5e-1\n%tpu_auto on")
    try:
        silent = kernel.run("y = other_product(jnp.ones((40, 40)))")
        assert silent.outputs == [], silent.outputs[0].text
        (answer,) = kernel.run("%tpu_last").report["programs"][-1]["targets"]
        assert (answer["fits"], answer["cost"], answer["pending"]) == (True, None, False)
        ran = kernel.run("lowered = other_product.lower(jax.ShapeDtypeStruct((65536, 65536), 'float32'))")
        assert [f["kind"] for f in ran.report["findings"] if f["severity"] == "error"] == ["oom.hbm"]
    finally:
        kernel.run("%tpu_auto off\n%tpu_env --target none")
