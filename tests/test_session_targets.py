"""Cells whose programs are compiled for a TPU that is not there, by the real compiler."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tpumagic.compiler.targets import parse_target
from tpumagic.session import Cell

if TYPE_CHECKING:
    from conftest import Notebook

    from tpumagic.report import Report

pytest.importorskip("jax", reason="these are sessions with JAX in them")
pytest.importorskip("libtpu", reason="the TPU compiler is part of libtpu, which exists for Linux on x86_64 only")
pytestmark = pytest.mark.compiler

V5E_1 = parse_target("v5e-1")
V5E_8 = parse_target("v5e-8")


def verdicts(report: Report) -> dict[str, bool | None]:
    return {program.name: answer.fits for program in report.programs for answer in program.targets}


def kinds(report: Report) -> list[str]:
    return [f.kind for f in report.findings if f.severity != "info"]


def test_a_cell_without_a_target_is_told_nothing_of_tpus(jax_notebook: Notebook) -> None:
    report = jax_notebook.run("y = jax.jit(lambda v: v + 1)(x)")
    assert verdicts(report) == {}


def test_every_program_of_a_cell_gets_a_verdict_and_the_cell_its_results(jax_notebook: Notebook) -> None:
    source = "@jax.jit\ndef f(v):\n    return v + 1\n@jax.jit\ndef g(v):\n    return v @ v\ny = float(g(f(x))[0, 0])"
    report = jax_notebook.run(source, target=V5E_1)
    assert verdicts(report) == {"f": True, "g": True}
    assert jax_notebook.namespace["y"] == 16.0
    assert report.unavailable == ()
    assert kinds(report) == []


def test_the_time_comes_later_and_takes_the_reports_place(jax_notebook: Notebook) -> None:
    came = threading.Event()
    updates: list[tuple[Report, Report]] = []

    def update(before: Report, after: Report) -> None:
        updates.append((before, after))
        came.set()

    jax_notebook.session.on_update = update
    report = jax_notebook.run("y = jax.jit(lambda v: v @ v + 1)(jnp.ones((256, 256)))", target=V5E_1)
    if report.programs[-1].targets[0].cost is None:  # a fast machine has it at once
        assert came.wait(120)
        ((before, after),) = updates
        assert before is report
        report = after
    (answer,) = report.programs[-1].targets
    assert answer.cost.estimate_s > 0
    assert not answer.pending
    assert jax_notebook.session.reports[-1] is report


def test_a_report_that_waits_for_the_time_has_it(jax_notebook: Notebook) -> None:
    source = "@jax.jit\ndef f(v):\n    return v @ v\ny = f(jnp.ones((256, 256)))"
    report = jax_notebook.run(source, target=V5E_1, cost=True)
    (answer,) = [a for program in report.programs for a in program.targets]
    assert answer.cost.estimate_s > 0
    assert {line.site.line for line in answer.cost.lines} == {3}


def test_a_program_too_large_for_this_machine_gets_its_verdict(jax_notebook: Notebook) -> None:
    source = (
        "@jax.jit\ndef f(w, v):\n    return jnp.tanh(v @ w)\n"
        "S = jax.ShapeDtypeStruct\nlow = f.lower(S((65536, 65536), 'float32'), S((65536, 65536), 'float32'))"
    )
    report = jax_notebook.run(source, target=V5E_1)
    assert verdicts(report) == {"f": False}
    (finding,) = [f for f in report.findings if f.kind == "oom.hbm"]
    assert finding.severity == "error"
    assert "arguments" in finding.facts["causes"]


def test_a_cell_that_only_this_machine_cannot_run_is_planned(jax_notebook: Notebook) -> None:
    source = (
        "from jax.experimental import pallas as pl\n"
        "def kernel(i, o):\n    o[...] = i[...] * 2\n"
        "@jax.jit\ndef twice(v):\n    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype))(v)\n"
        "twice(jnp.ones((8, 128)))"
    )
    report = jax_notebook.run(source, target=V5E_1)
    assert report.cell.failure == "ValueError"
    assert verdicts(report) == {"twice": True}
    assert "unsupported.cpu_only" in [f.kind for f in report.findings]


KERNEL = """
from jax.experimental import pallas as pl
def kernel(i, o):
    def row(n, _):
        o[pl.ds(n * 8, 8), :] = i[pl.ds(n * 8, 8), :] * 2
    jax.lax.fori_loop(0, i.shape[0] // 8, row, None)
def twice(v, rows):
    block = pl.BlockSpec((rows, 4096), lambda i: (i, 0))
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype), grid=(16384 // rows,),
                          in_specs=[block], out_specs=block)(v)
try:
    jax.jit(twice, static_argnums=1)(jnp.ones((16384, 4096)), ROWS)
except ValueError:
    pass  # not on a CPU
"""


def test_a_kernel_whose_blocks_are_too_large_is_refused_although_the_program_has_room(jax_notebook: Notebook) -> None:
    report = jax_notebook.run(KERNEL.replace("ROWS", "4096"), target=V5E_1)
    (answer,) = [a for program in report.programs for a in program.targets]
    assert (answer.status, answer.error.kind) == ("refused", "vmem")
    assert [f.kind for f in report.findings if f.severity == "error"] == ["oom.vmem"]


def test_a_kernel_whose_blocks_have_room_is_planned(jax_notebook: Notebook) -> None:
    report = jax_notebook.run(KERNEL.replace("ROWS", "128"), target=V5E_1)
    assert verdicts(report) == {"twice": True}
    assert [f.kind for f in report.findings if f.severity == "error"] == []


def test_a_kernel_whose_compile_takes_long_is_left_open_where_nobody_could_hear_its_end(
    jax_notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpumagic import answers

    monkeypatch.setattr(answers, "_KERNEL_S", 0.0)
    source = KERNEL.replace("ROWS", "128").replace("* 2", "* 3")  # not in the cache
    report = jax_notebook.run(source, target=V5E_1)
    (answer,) = [a for program in report.programs for a in program.targets]
    assert answer.why == (
        "its compile has not ended, and only the end tells whether its kernel's own memory suffices; --cost waits for it"
    )
    assert not answer.pending


def test_what_the_compiler_of_an_absent_tpu_refused_in_the_cell_is_planned_without_a_target(
    jax_notebook: Notebook,
) -> None:
    source = (
        "from jax.experimental import topologies as T\n"
        "d = T.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices[0]\n"
        "S = lambda *s: jax.ShapeDtypeStruct(s, 'float32', sharding=jax.sharding.SingleDeviceSharding(d))\n"
        "def grow(w):\n    return w * 2\n"
        "jax.jit(grow).lower(S(1 << 31)).compile()"
    )
    report = jax_notebook.run(source)
    assert report.cell.failure == "JaxRuntimeError"
    (answer,) = [a for program in report.programs for a in program.targets]
    assert (answer.name, answer.fits) == ("v5e-1", False)
    assert answer.needed_bytes >= 2 * (1 << 33)
    assert {holder.name for holder in answer.holders} >= {"w"}


def test_a_program_compiled_for_an_absent_slice_is_told_for_as_many_devices(jax_notebook: Notebook) -> None:
    source = (
        "from jax.experimental import topologies as T\n"
        "devices = T.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices\n"
        "rows = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, 'a'), jax.sharding.PartitionSpec('a'))\n"
        "jax.jit(lambda w: w * 2).lower(jax.ShapeDtypeStruct((8, 8), 'float32', sharding=rows)).compile()"
    )
    report = jax_notebook.run(source, target=V5E_1)
    assert [answer.name for program in report.programs for answer in program.targets] == ["v5e-4"]


def dry_run(notebook: Notebook, function, *args, target=V5E_1, **options) -> Report:
    return notebook.session.dry_run(function, args, {}, target=target, cell=Cell("step(w)", 9), **options)


def test_a_dry_run_traces_once_and_runs_nothing(jax_notebook: Notebook) -> None:
    import jax
    import numpy as np

    traces, runs = [], []

    def step(w):
        traces.append(1)
        jax.debug.callback(lambda: runs.append(1))
        return w * 2

    report = dry_run(jax_notebook, step, np.ones((8, 8), "float32"))
    assert verdicts(report) == {"step": True}
    assert (traces, runs) == ([1], [])
    assert jax_notebook.session.reports[-1] is report


def test_a_dry_run_of_shapes_alone(jax_notebook: Notebook) -> None:
    import jax

    report = dry_run(jax_notebook, lambda w: w["a"] * 2, {"a": jax.ShapeDtypeStruct((1 << 33,), "float32")})
    assert verdicts(report) == {"<lambda>": False}


def test_a_flax_module_jitted_by_flax_and_called_by_itself(jax_notebook: Notebook) -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    step = nnx.jit(lambda model, v: model(v))
    v = jax_notebook.namespace["jnp"].ones((2, 8))
    assert verdicts(dry_run(jax_notebook, step, model, v)) == {"<lambda>": True}
    assert verdicts(dry_run(jax_notebook, model, v)) == {"Linear": True}


def test_what_tracing_raises_is_the_users(jax_notebook: Notebook) -> None:
    def step(w):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dry_run(jax_notebook, step, jax_notebook.namespace["x"])


def test_a_dry_run_within_a_profiled_cell(jax_notebook: Notebook) -> None:
    jax_notebook.namespace["dry_run"] = lambda f, v: verdicts(dry_run(jax_notebook, f, v))
    report = jax_notebook.run("told = dry_run(lambda v: v + 1, x)\ny = x + 1")
    assert jax_notebook.namespace["told"] == {"<lambda>": True}
    assert report.unavailable == ()


def test_remedies_are_measured_by_a_compile_of_each(jax_notebook: Notebook) -> None:
    import jax
    import jax.numpy as jnp

    def layer(v, w):
        return jnp.tanh(v @ w), None

    def loss(w, v):
        return jax.lax.scan(layer, v, w)[0].sum()

    def step(w, v):
        return w - jax.grad(loss)(w, v)

    shapes = jax.ShapeDtypeStruct((16, 2048, 2048), "float32"), jax.ShapeDtypeStruct((32768, 2048), "float32")
    report = dry_run(jax_notebook, step, *shapes, target=V5E_8, remedies=True)
    (answer,) = report.programs[0].targets
    found = {remedy.name: remedy for remedy in answer.remedies}
    assert set(found) == {"donation", "checkpoint", "sharding", "precision"}
    assert all(remedy.why is None for remedy in found.values()), found
    # What the scan keeps is most of it, and its memory is free again when the result needs some.
    assert found["donation"].needed_bytes <= answer.needed_bytes
    assert found["checkpoint"].needed_bytes < answer.needed_bytes
    assert found["sharding"].needed_bytes < answer.needed_bytes / 4
    assert found["precision"].needed_bytes < answer.needed_bytes


def test_a_donation_that_makes_an_update_fit_is_measured(jax_notebook: Notebook) -> None:
    import jax

    state = jax.ShapeDtypeStruct((3 << 30,), "float32")
    report = dry_run(jax_notebook, lambda state: state * 0.9, state, remedies=True)
    (answer,) = report.programs[0].targets
    found = {remedy.name: remedy for remedy in answer.remedies}
    assert (answer.fits, found["donation"].fits) == (False, True)
    assert found["donation"].change == "`state` donated"
    assert answer.needed_bytes - found["donation"].needed_bytes == 12 * 2**30
    assert set(found) == {"donation", "precision"}


def test_an_interrupt_while_remedies_are_measured_keeps_the_report(jax_notebook: Notebook) -> None:
    import jax

    traces = []

    def step(w):
        traces.append(1)
        if len(traces) > 1:
            raise KeyboardInterrupt
        return w * 2

    report = dry_run(jax_notebook, step, jax.ShapeDtypeStruct((8, 128), "float32"), remedies=True)
    assert verdicts(report) == {"step": True}
    assert report.programs[0].targets[0].remedies == ()


def test_a_fault_of_ours_in_asking_costs_the_answer_and_not_the_report(
    jax_notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpumagic import answers

    def broken(*args: object, **parameters: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(answers, "ask", broken)
    report = jax_notebook.run("y = jax.jit(lambda v: v + 1)(x)", target=V5E_1)
    (gap,) = report.unavailable
    assert (gap.what, gap.why) == (
        "the TPU compiler's answer",
        "a fault in tpumagic, ValueError: a bug; please report it",
    )
