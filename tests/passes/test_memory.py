"""What keeps device memory after a cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tpumagic.backends.jax import arrays
from tpumagic.events import (
    CellRecord,
    DeviceMemory,
    Failure,
    FunctionId,
    Leaf,
    LiveArray,
    Program,
    ProgramMemory,
    Signature,
    SourceSite,
)  # fmt: skip
from tpumagic.graph import Graph, Value
from tpumagic.passes import memory
from tpumagic.user_code import UserCode

MIB = 2**20


def array(*names: str, mib: float = 4, **more) -> LiveArray:
    return LiveArray(names, (1024, 1024), "float32", int(mib * MIB), **more)


def findings(*live: LiveArray, **more):
    return list(memory.find(CellRecord(memory=DeviceMemory(live=live), **more)))


SHOWN = SourceSite(line=3, cell=1)


def test_an_array_kept_only_by_out_is_a_warning_with_what_frees_it():
    (finding,) = findings(array("Out[1]", "_", "_1", site=SHOWN))
    assert (finding.kind, finding.severity) == ("memory.held_by_out", "warning")
    assert finding.title == "`Out[1]` still holds float32[1024,1024] (4 MiB) on the device"
    assert (
        finding.detail
        == "No variable leads to it any more, but IPython keeps what a cell shows: `Out[1]`, `_` and `_1`."
    )
    assert finding.fix == "End the cell's last line with `;` so that nothing is kept. `%xdel _1` frees it now."
    assert (finding.site, finding.bytes) == (SHOWN, 4 * MIB)


def test_many_arrays_of_one_shown_value_are_one_finding():
    (finding,) = findings(
        array("Out[3]['w']", mib=0.6), array("Out[3]['b']", mib=0.6), array("Out[3]['c']", "_3['c']", mib=0.6)
    )
    assert finding.title == "`Out[3]` still holds 3 arrays (1.8 MiB) on the device"


def test_what_del_out_has_left_behind_is_told():
    (finding,) = findings(array("___", "_4"))
    assert finding.fix.endswith("`%xdel _4` frees it now.")


@pytest.mark.parametrize(
    "quiet",
    [
        array("x", "Out[1]", "_1"),
        array("Out[1]", mib=0.9),
        array(),
        array("_"),
        array("_params['w']"),
        array("Output[1]"),
        array("_1x"),
    ],
    ids=[
        "a variable holds it",
        "small",
        "nothing names it",
        "a loop variable",
        "a private name",
        "another name",
        "a name with a digit",
    ],
)
def test_arrays_that_somebody_wants_are_not_told(quiet):
    assert findings(quiet) == []


def test_an_array_kept_only_by_a_traceback_is_a_warning():
    site = SourceSite(line=2, cell=4, function="f")
    (finding,) = findings(array("batch", traceback=True, site=site), array("h[0]", traceback=True, mib=1))
    assert (finding.kind, finding.severity) == ("memory.held_by_traceback", "warning")
    assert (
        finding.title
        == "The traceback of the last exception still holds 2 arrays (5 MiB) on the device: `batch` and `h[0]`"
    )
    assert finding.detail == "Python keeps the local variables of every function in it until the next exception."
    assert finding.fix == (
        "The next exception frees it: run `1/0` in a cell of its own. Or forget it: `sys.last_traceback = sys.last_value = "
        "sys.last_exc = None; get_ipython().InteractiveTB.tb = None`."
    )
    assert finding.site == site


def test_right_after_the_exception_it_is_only_an_info():
    (finding,) = findings(array("batch", traceback=True), failure=Failure("ValueError", "", ()))
    assert finding.severity == "info"


def test_a_small_array_in_a_traceback_is_not_told():
    assert findings(array("batch", traceback=True, mib=0.5)) == []


GROWING = "y = step(x)\nhistory.append(y)\n"


def growing(*earlier: int, before: int, after: int, live=(), source=GROWING):
    record = CellRecord(
        source=source,
        cell=7,
        memory=DeviceMemory(live_before_bytes=before * MIB, live_after_bytes=after * MIB, live=live),
        previous_live_bytes=tuple(size * MIB for size in earlier),
    )
    return list(memory.find(record))


def test_a_cell_that_leaves_more_with_each_run_is_told_with_the_variable():
    (finding,) = growing(10, 14, before=14, after=18, live=(array("history[2]", new=True), array("x", mib=9)))
    assert (finding.kind, finding.severity) == ("memory.growth", "warning")
    assert finding.title == "Each run of this cell leaves 4 MiB more on the device, kept in `history`"
    assert finding.detail == "Live arrays after its last 3 runs: 10 MiB, 14 MiB, 18 MiB."
    assert finding.fix == (
        "Empty `history` at the start of the cell, or keep numbers in it (`float(x)`, `np.asarray(x)`) and not device arrays."
    )
    assert finding.site == SourceSite(line=2, cell=7)
    assert (finding.count, finding.bytes) == (3, 4 * MIB)


def test_growth_without_a_name_still_says_how_much():
    (finding,) = growing(10, 14, 18, before=18, after=22)
    assert finding.title == "Each run of this cell leaves 4 MiB more on the device"
    assert finding.fix == "Delete or overwrite what an earlier run made before making it again."


@pytest.mark.parametrize(
    ("earlier", "before", "after"),
    [
        ((), 10, 14),
        ((10,), 10, 14),
        ((10, 10), 10, 10),
        ((10, 14), 14, 14),
        ((10, 14), 14, 40),
        ((10, 14), 18, 18),
        ((14, 10), 10, 14),
    ],
    ids=[
        "first run",
        "second run",
        "steady",
        "stopped",
        "not by the same",
        "grew between the runs",
        "went down before",
    ],
)
def test_cells_that_do_not_grow_steadily_are_not_told(earlier, before, after):
    assert growing(*earlier, before=before, after=after) == []


# Donation.

SOURCE = "@partial(jax.jit, donate_argnums=0)\ndef norm(x):\n    return (x * x).sum()\n\nnorm(jnp.ones((1024, 8)))\n"
DEFINITION, CALL = SourceSite(line=1, cell=1, function="norm"), SourceSite(line=5, cell=1)
X = Leaf("x", (1024, 8), "float32", bytes=32768)


def donating(
    outputs, inputs=(X,), donated=(0,), *, alias: int | None = 0, kind="jit", source=SOURCE, name="norm", **more
):
    program = Program(
        name, kind, (CALL,), DEFINITION, signature=Signature(FunctionId(name, "", 1), tuple(inputs), ()), inputs=tuple(inputs),
        outputs=tuple(outputs), donated=tuple(donated), devices=more.pop("devices", (0,)),
        memory=ProgramMemory(argument_bytes=sum(leaf.bytes for leaf in inputs), alias_bytes=alias) if alias is not None else None, **more,
    )  # fmt: skip
    return list(memory.find(CellRecord(source=source, cell=1, programs=(program,))))


def result(*shape: int, dtype: str = "float32") -> Leaf:
    return Leaf("result", shape, dtype)


def test_a_donation_that_fits_no_result_is_told_with_both_shapes():
    (finding,) = donating([result()])
    assert (finding.kind, finding.severity) == ("memory.donation_unused", "warning")
    assert finding.title == "`x` float32[1024,8] is donated to `norm`, but no result has this shape and type"
    assert finding.detail == "The 32 KiB cannot be reused; the results are float32[]."
    assert finding.fix == "Return the updated array from `norm`, or take `x` out of the donated arguments."
    assert finding.site == SourceSite(line=1, cell=1)
    assert finding.related == (CALL,)
    assert (finding.count, finding.bytes) == (1, 32768)


def test_several_unused_donations_of_one_call_are_one_finding():
    leaves = [replace(X, path=f"p['{name}']") for name in "abc"]
    (finding,) = donating([result(1024, 8)], leaves, (0, 1, 2), alias=32768)
    assert (
        finding.title
        == "`p['b']` float32[1024,8] and 1 more are donated to `norm`, but no result has such shapes and types"
    )


def test_another_dtype_is_another_buffer():
    (finding,) = donating([result(1024, 8, dtype="bfloat16")])
    assert finding.detail == "The 32 KiB cannot be reused; the results are bfloat16[1024,8]."


def test_a_donation_that_the_compiler_did_not_use_is_told_as_such():
    (finding,) = donating([result(1024, 8)], devices=(0, 1))
    assert finding.title == "`x` float32[1024,8] is donated to `norm`, but the compiler cannot reuse the buffer"
    assert finding.fix == "Give the result the sharding of `x` (`out_shardings`), or do not donate it."


def test_results_known_only_from_the_graph_count():
    values = (Value((1024, 8), "float32"), Value((), "float32"))
    (finding,) = donating([], graph=Graph(values, (0,), (1,), ()))
    assert finding.detail == "The 32 KiB cannot be reused; the results are float32[]."


def test_the_line_that_asks_for_the_donation_is_found_among_several():
    source = "f = jax.jit(other, donate_argnums=0)\n\n\n\n\nstep = jax.jit(norm, donate_argnums=0)\nstep(x)\n"
    (finding,) = donating([result()], source=source)
    assert finding.site == SourceSite(line=6, cell=1)


STATE = [replace(X, path="state['w']"), Leaf("state['step']", (), "int32", bytes=4)]


@pytest.mark.parametrize(
    "quiet",
    [
        {"outputs": [result(1024, 8)], "alias": 32768},
        {"outputs": [result(1024, 8)], "alias": None},
        {"outputs": [result(8, 1024)], "alias": 32768},
        {"outputs": [result(1024, 8), result()], "inputs": STATE, "donated": (0, 1), "alias": 32768},
        {"outputs": [result()], "donated": ()},
        {"outputs": [result()], "kind": "eager"},
        {"outputs": [result()], "outside": True},
        {"outputs": []},
    ],
    ids=[
        "used",
        "not known",
        "reused in another shape",
        "only a scalar is lost",
        "no donation",
        "eager",
        "outside the cell",
        "results not known",
    ],
)
def test_donations_that_are_used_are_not_told(quiet):
    assert donating(**quiet) == []


# The same with real arrays in a real shell.


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    return InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))


def live_in(shell, traceback=None):
    found = arrays.live_arrays(
        shell.user_ns,
        out=shell.user_ns["Out"],
        traceback=traceback,
        before=frozenset(),
        limit=300,
        user_code=UserCode(),
    )
    return list(memory.find(CellRecord(memory=DeviceMemory(live=found))))


def run(shell, source):
    return shell.run_cell(source, store_history=True)


def test_a_shown_and_deleted_array_is_told_until_the_advice_is_followed(shell, capsys):
    run(shell, "import jax.numpy as jnp\nx = jnp.ones((700, 701))\nx")
    assert live_in(shell) == []
    run(shell, "del x")
    (finding,) = live_in(shell)
    assert finding.title == "`Out[1]` still holds float32[700,701] (1.87 MiB) on the device"
    assert (finding.site.cell, finding.site.line) == (1, 3)
    run(shell, "%xdel _1")
    assert live_in(shell) == []


def test_the_semicolon_keeps_nothing(shell, capsys):
    run(shell, "import jax.numpy as jnp\nx = jnp.ones((700, 702))\nx;")
    run(shell, "del x")
    assert live_in(shell) == []


def test_the_next_exception_frees_what_a_traceback_holds(shell, capsys):
    import sys

    run(shell, "import jax.numpy as jnp\ndef work(batch):\n    raise ValueError\n\nwork(jnp.ones((700, 703)))")
    (finding,) = live_in(shell, sys.last_traceback)
    assert (
        finding.title
        == "The traceback of the last exception still holds float32[700,703] (1.88 MiB) on the device: `batch`"
    )
    run(shell, "1/0")
    assert live_in(shell, sys.last_traceback) == []
