"""Clocks read too early, found in source alone: what is told, and what may wait and is therefore left alone."""

from __future__ import annotations

import pytest

from tpumagic.events import Call, CellRecord, Program, SourceSite
from tpumagic.passes.timing import find

IMPORTS = """import jax, time, timeit, numpy as np, jax.numpy as jnp
from time import perf_counter as pc
f = jax.jit(lambda x: x * 2)
"""
CALLED = Program("<lambda>", "jit", calls=(Call((SourceSite(3, 1),), 0),))


def findings(source: str, **fields: object):
    return list(find(CellRecord(source=IMPORTS + source, cell=1, programs=(CALLED,), **fields)))


def test_a_clock_read_before_the_device_is_done_is_told():
    (found,) = findings("t = time.time()\nout = f(a)\ngen = time.time() - t\n")
    assert (found.kind, found.severity) == ("host.timing_no_block", "warning")
    assert found.title == "The timer around `f` stops before the device is done: it measures the dispatch only."
    assert found.detail == (
        "`f` returns as soon as its work is handed to the device. The clock is started at line 4 and read at line 6 without "
        "waiting for the result."
    )
    assert found.fix == "Call `jax.block_until_ready(out)` before the clock is read."
    assert found.site == SourceSite(5, 1)
    assert found.related == (SourceSite(6, 1), SourceSite(4, 1))


EARLY = {
    "two readings": "t0 = time.perf_counter()\ny = f(a)\nt1 = time.perf_counter()\nprint(t1 - t0)",
    "another name of the clock": "t = pc(); y = f(a); print(pc() - t)",
    "timeit's clock": "t = timeit.default_timer(); y = f(a); print(timeit.default_timer() - t)",
    "datetime": "from datetime import datetime\nt = datetime.now(); y = f(a); print((datetime.now() - t).total_seconds())",
    "around a loop": "t = time.time()\nfor _ in range(9):\n    y = f(y)\nprint((time.time() - t) / 9)\nprint(y)",
    "inside a loop": "for _ in range(9):\n    t = time.time()\n    y = f(a)\n    ts.append(time.time() - t)\nprint(y)",
    "the result is printed behind the clock": "t = time.time()\ny = f(a)\nprint(time.time() - t, y)",
    "something else is printed": "t = time.time()\ny = f(a)\nprint('done')\nprint(time.time() - t)",
    "results only collected": "t = time.time()\nfor a in xs:\n    ys.append(f(a))\nprint(time.time() - t)",
    "an attribute": "self.t = time.time()\ny = f(a)\nself.took = time.time() - self.t",
    "a function": "def run(a):\n    t = time.time()\n    y = f(a)\n    return y, time.time() - t\nrun(a)",
    "a function that is handed over": "def bench(g, *a):\n    t = time.time()\n    g(*a)\n    return time.time() - t\nbench(f, a)",
    "called by a function": "def run(a):\n    h = f(a)\n    return h\nt = time.time()\ny = run(a)\nprint(time.time() - t)",
    "waited for the wrong side of the clock": "t = time.time()\ny = f(a)\ndt = time.time() - t\ny.block_until_ready()",
    "waited for an earlier call": "t = time.time()\nf(a).block_until_ready()\ny = f(b)\nprint(time.time() - t)",
    "a timer of the cell's own": (
        "class Timer:\n    def __enter__(self):\n        self.t = time.time()\n        return self\n"
        "    def __exit__(self, *_):\n        self.s = time.time() - self.t\nwith Timer():\n    y = f(a)"
    ),
    "a timer made of a generator": (
        "import contextlib\n@contextlib.contextmanager\ndef timer():\n    t = time.time()\n    yield\n"
        "    took.append(time.time() - t)\nwith timer():\n    y = f(a)"
    ),
    "timeit with a lambda": "timeit.timeit(lambda: f(a), number=10)",
    "line magic": "%timeit -n 10 f(a)",
    "line magic with a name": "%time y = f(a)",
}


@pytest.mark.parametrize("case", EARLY)
def test_every_way_of_timing_too_early_names_the_function(case: str):
    (found,) = findings(EARLY[case])
    assert found.facts["function"] == "f"


def test_the_cell_of_timeit_is_read_as_well():
    source = "%%timeit\ny = f(a)\n"
    (found,) = find(CellRecord(source=source, cell=1, programs=(CALLED,), jitted_names=frozenset({"f"})))
    assert found.site == SourceSite(2, 1)


def test_jitted_names_of_earlier_cells_count():
    source = "t = time.time()\ny = model.predict(a)\nprint(time.time() - t)"
    (found,) = findings(source, jitted_names=frozenset({"model.predict"}))
    assert found.facts["function"] == "model.predict"


def test_a_call_without_a_name_for_its_result_is_waited_for_whole():
    assert findings("t = time.time()\nf(a)\nprint(time.time() - t)")[0].fix == (
        "Call `jax.block_until_ready(f(a))` before the clock is read."
    )


def test_a_function_timed_at_two_places_is_one_finding():
    (found,) = findings(
        "t = time.time()\ny = f(a)\nu = time.time() - t\nt = time.time()\nz = f(b)\nv = time.time() - t\n"
    )
    assert found.count == 2
    assert SourceSite(8, 1) in found.related


DONE = {
    "waits": "t = time.time(); y = f(a).block_until_ready(); print(time.time() - t)",
    "waits on a line of its own": "t = time.time()\ny = f(a)\ny.block_until_ready()\nprint(time.time() - t)",
    "waits for a tree": "t = time.time(); y = jax.block_until_ready(f(a)); print(time.time() - t)",
    "reads a number": "t = time.time(); y = float(f(a)); print(time.time() - t)",
    "reads what was computed from it": "t = time.time()\ny = f(a)\nz = y.sum()\nn = int(z)\nprint(time.time() - t)",
    "reads an item": "t = time.time(); y = f(a).sum().item(); print(time.time() - t)",
    "prints first": "t = time.time()\ny = f(a)\nprint(y)\nprint(time.time() - t)",
    "formats first": "t = time.time()\ny = f(a)\nprint(f'{y} {time.time() - t}')",
    "NumPy": "t = time.time(); y = np.asarray(f(a)); print(time.time() - t)",
    "device_get": "t = time.time(); y = jax.device_get(f(a)); print(time.time() - t)",
    "a barrier": "t = time.time(); y = f(a); jax.effects_barrier(); print(time.time() - t)",
    "a condition": "t = time.time()\ny = f(a)\nif y > 3:\n    pass\nprint(time.time() - t)",
    "an unknown function gets it": "t = time.time()\ny = f(a)\nshow(y)\nprint(time.time() - t)",
    "a NumPy array gets it": "host = np.zeros(9)\nt = time.time()\nhost[0] = f(a)\nprint(time.time() - t)",
    "a wait in the loop": "t = time.time()\nfor a in xs:\n    y.block_until_ready()\n    y = f(a)\nprint(time.time() - t)",
    "a wait after the loop": "t = time.time()\nfor a in xs:\n    y = f(a)\ny.block_until_ready()\nprint(time.time() - t)",
    "a function that waits": "def run(a):\n    return f(a).block_until_ready()\nt = time.time()\nrun(a)\nprint(time.time() - t)",
    "nothing jitted": "t = time.time()\ny = np.sort(a)\nprint(time.time() - t)\nz = f(y)",
    "only compiled": "t = time.time()\nc = f.lower(a).compile()\nprint(time.time() - t)",
    "the clock is for something else": "y = f(a)\nt = time.time()\ntime.sleep(1)\nprint(time.time() - t)",
    "a function nobody calls": "def run(a):\n    t = time.time()\n    y = f(a)\n    return y, time.time() - t",
    "no second reading": "t = time.time()\ny = f(a)",
    "a difference of other numbers": "t = 3.0\ny = f(a)\nprint(time.time() - t)",
    "timeit that waits": "%timeit f(a).block_until_ready()",
    "timeit with a lambda that waits": "timeit.timeit(lambda: f(a).block_until_ready(), number=10)",
    "a timer that waits": (
        "class Timer:\n    def __enter__(self):\n        self.t = time.time()\n    def __exit__(self, *_):\n"
        "        jax.effects_barrier()\n        self.s = time.time() - self.t\nwith Timer():\n    y = f(a)"
    ),
    "a timer of unknown make": "with Timer():\n    y = f(a)",
}


@pytest.mark.parametrize("case", DONE)
def test_timing_that_waits_is_quiet(case: str):
    assert findings(DONE[case]) == []


def test_a_cell_that_ran_nothing_is_quiet():
    source = IMPORTS + "t = time.time()\ny = f(a)\nprint(time.time() - t)"
    assert list(find(CellRecord(source=source, cell=1))) == []
