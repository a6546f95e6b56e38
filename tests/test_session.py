"""One notebook's profiling: what a report says of the cell, of its neighbours and of tpumagic's own faults."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tpumagic import passes
from tpumagic.events import CellRecord
from tpumagic.report import Report
from tpumagic.session import Cell, Session

if TYPE_CHECKING:
    from conftest import Notebook


def kinds(report: Report, *severities: str) -> list[str]:
    return [f.kind for f in report.findings if not severities or f.severity in severities]


def test_a_clean_cell_has_no_findings(notebook: Notebook) -> None:
    report = notebook.run("y = 1 + 1")
    assert report.findings == ()
    assert report.unavailable == ()


def test_a_cell_that_imports_jax_itself_is_seen_whole() -> None:
    script = (
        "from tpumagic.session import Cell, Session\nfrom tpumagic.user_code import UserCode\n"
        "code, space = UserCode(), {}\nsession = Session(code, lambda: space)\n"
        "source = 'import jax\\nf = jax.jit(lambda v: v * 2)\\nf(1.0)'\ncode.add_cell('/nonexistent/a', 1, source)\n"
        "session.start(Cell(source, 1))\nexec(compile(source, '/nonexistent/a', 'exec'), space)\n"
        "report = session.finish()\nprint([(p.name, p.site.line) for p in report.programs if p.kind == 'jit'])"
    )
    import subprocess

    pytest.importorskip("jax", reason="imports JAX in a fresh interpreter")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('<lambda>', 3)]"


def test_the_recompilation_of_a_function_from_an_earlier_cell_is_told_at_the_call(jax_notebook: Notebook) -> None:
    jax_notebook.run("@jax.jit\ndef f(v):\n    return v * 2\nf(x)")
    report = jax_notebook.run("f(jnp.ones(3))")
    (finding,) = [f for f in report.findings if f.kind == "recompile.shape"]
    assert (finding.site.cell, finding.site.line) == (3, 1)
    assert finding.title == "`f` was compiled again because `v` changed shape: (4, 4) -> (3,)."


def test_a_failing_cell_gets_a_report_with_its_failure(jax_notebook: Notebook) -> None:
    report = jax_notebook.run("@jax.jit\ndef f(v):\n    if v.sum() > 0:\n        return v\n    return -v\nf(x)")
    assert kinds(report, "error") == ["unsupported.traced_control_flow"]


def test_a_pass_that_fails_costs_its_own_findings_and_a_line(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(record: CellRecord) -> Iterator[object]:
        raise ValueError("a bug")
        yield

    monkeypatch.setattr(passes, "PASSES", (broken, *passes.PASSES[1:]))
    report = notebook.run("y = 2")
    (gap,) = report.unavailable
    assert gap.what.startswith("findings of ")
    assert gap.why == "a fault in tpumagic, ValueError: a bug; please report it"


def test_a_second_session_says_that_another_profile_is_running(notebook: Notebook, other_notebook: Notebook) -> None:
    notebook.session.start(Cell("outer"))
    report = other_notebook.run("y = 3")
    notebook.session.finish()
    assert [(u.what, u.why) for u in report.unavailable] == [
        ("this cell", "another profile is running in this process")
    ]
    assert other_notebook.run("y = 4").unavailable == ()


def test_closing_in_mid_cell_leaves_nothing_behind(jax_notebook: Notebook) -> None:
    from jax._src import pjit

    finders, putenv, infer = list(sys.meta_path), os.putenv, pjit._infer_params
    threads = threading.active_count()
    jax_notebook.session.start(Cell("never finished"))
    assert pjit._infer_params is not infer
    jax_notebook.session.close()
    assert (list(sys.meta_path), os.putenv, pjit._infer_params) == (finders, putenv, infer)
    assert threading.active_count() == threads


def test_programs_of_a_background_thread_are_listed_as_outside(jax_notebook: Notebook) -> None:
    jax_notebook.run(
        "import threading\ngo = threading.Event()\ndef late():\n    go.wait()\n    jax.jit(lambda v: v * 31)(1.0)\n"
        "thread = threading.Thread(target=late)\nthread.start()"
    )
    report = jax_notebook.run("go.set()\nthread.join()\ny = jax.jit(lambda v: v - 31)(1.0)")
    assert sorted(p.outside for p in report.programs if p.kind == "jit") == [False, True]


def test_programs_of_a_thread_the_cell_starts_are_the_cells(jax_notebook: Notebook) -> None:
    report = jax_notebook.run(
        "import threading\nt = threading.Thread(target=lambda: jax.jit(lambda v: v * 37)(1.0))\nt.start()\nt.join()"
    )
    assert [p.outside for p in report.programs if p.kind == "jit"] == [False]


def test_memory_that_grows_with_each_run_is_told_from_the_fourth(jax_notebook: Notebook) -> None:
    jax_notebook.run("kept = []")
    reports = [jax_notebook.run("kept.append(jnp.ones((512, 1024)))") for _ in range(4)]
    assert "memory.growth" not in kinds(reports[1], "warning")
    assert "memory.growth" in kinds(reports[3], "warning")


def test_the_silent_fall_back_to_the_cpu_is_loud_once(jax_notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpumagic.findings import Finding

    fallback = Finding("env.cpu_fallback", "warning", "JAX runs on the CPU.")
    monkeypatch.setattr(passes, "PASSES", (lambda record: [fallback],))
    assert jax_notebook.run("x + 1").findings[0].severity == "warning"
    assert jax_notebook.run("x + 2").findings[0].severity == "info"


def test_a_worker_that_will_wait_for_others_is_warned_before_the_cell(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "_any_started", lambda self: False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for name, value in {
        "TPU_WORKER_HOSTNAMES": "a,b,c,d",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": "v4-32",
        "TPU_SKIP_MDS_QUERY": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tpumagic.backends.jax.setup.describe", lambda: None)
    notebook.session.start(Cell("import jax\njax.devices()", 1))
    said = capsys.readouterr().err
    notebook.session.finish()
    assert said.startswith("tpumagic: ")
    assert "4" in said


def test_reports_keep_nothing_of_the_users_alive(jax_notebook: Notebook) -> None:
    jax_notebook.run("big = jnp.ones((256, 256)) * 2\ndef user(v):\n    return v + big\nout = jax.jit(user)(big)")
    watched = [weakref.ref(jax_notebook.namespace[name]) for name in ("big", "user", "out")]
    import jax

    for name in ("big", "user", "out"):
        del jax_notebook.namespace[name]
    jax.clear_caches()
    gc.collect()
    assert [reference() for reference in watched] == [None, None, None]
    assert len(jax_notebook.session.reports) == 2


def test_the_last_fifty_reports_are_kept(notebook: Notebook) -> None:
    for number in range(55):
        notebook.run(f"y = {number}")
    assert len(notebook.session.reports) == 50


def test_an_interrupt_ends_the_wait_and_the_report_still_comes(
    jax_notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpumagic.backends.jax import JaxBackend

    def interrupted(self: JaxBackend) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JaxBackend, "wait", interrupted)
    report = jax_notebook.run("y = x * 2")
    assert report.timing.ready_s is None
    assert any(p.name for p in report.programs)


def test_what_does_not_fit_after_all_gets_its_finding_and_nothing_about_the_machine_gets_louder(
    jax_notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from tpumagic import answers
    from tpumagic.plans import Answer, CompilerError, Plan, Target

    target = Target("v5e-1", "v5e", 1, 1, 16_911_433_728)
    plan = Plan(True, target.hbm_bytes, target.hbm_bytes)
    late = []

    def ask(record: CellRecord, requests: object, user_code: object, **more: object) -> CellRecord:
        late.append(more["late"])
        return answers.with_answer(record, 0, Answer(target, "planned", plan, pending=True))

    monkeypatch.setattr(answers, "ask", ask)
    updates = []
    jax_notebook.session.on_update = lambda before, after: updates.append((before, after))
    before = jax_notebook.run("y = jax.jit(lambda v: v + 1)(x)")
    error = CompilerError("hbm", "Ran out of memory", target.hbm_bytes + 1, target.hbm_bytes)
    late[0](0, Answer(target, "planned", replace(plan, fits=False), error=error))
    ((old, after),) = updates
    assert old is before
    assert jax_notebook.session.reports[-1] is after
    assert "oom.hbm" not in kinds(before)
    assert [f.kind for f in after.findings if f.severity == "error"] == ["oom.hbm"]
    standing = [f for f in before.findings if f.kind.startswith("env.")]
    assert [f for f in after.findings if f.kind.startswith("env.")] == standing
