"""What the host does to the device, from records made by hand: the words, and when there are none."""

from __future__ import annotations

import pytest

from tpumagic.events import (
    Call,
    CellRecord,
    FunctionId,
    Leaf,
    LineTime,
    Program,
    Signature,
    SourceSite,
    SourceText,
    Structure,
    Transfer,
)
from tpumagic.findings import Finding
from tpumagic.graph import Graph, Operation
from tpumagic.passes.host import find


def at(line: int, function: str | None = None, cell: int = 1) -> SourceSite:
    return SourceSite(line, cell, function=function)


def jit(
    name: str, *lines: int, inputs: tuple[Leaf, ...] = (), graph: Graph | None = None, parameters: tuple[str, ...] = ()
):
    signature = Signature(FunctionId(name, name, 1), inputs, (("", Structure("tuple")),), positional=parameters)
    calls = tuple(Call((at(line),), i) for i, line in enumerate(lines))
    return Program(
        name, "jit", calls[0].stack if calls else (), signature=signature, calls=calls, inputs=inputs, graph=graph
    )


def eager(name: str, *stacks: tuple[SourceSite, ...]) -> Program:
    return Program(name, "eager", stacks[0], calls=tuple(Call(stack, i) for i, stack in enumerate(stacks)))


def read(
    line: int, name: str | None = "loss", how: str = "read", count: int = 1, shape: tuple[int, ...] = ()
) -> Transfer:
    return Transfer("to_host", how, (at(line),), 4, shape, "float32", name, count=count)


def record(source: str, *programs: Program, **fields: object) -> CellRecord:
    return CellRecord(source=source, cell=1, wall_s=3.0, programs=programs, **fields)


def only(found: CellRecord, kind: str) -> Finding:
    (finding,) = find(found)
    assert (finding.kind, finding.severity) == (kind, "warning")
    return finding


def texts(finding: Finding) -> tuple[str, str, str]:
    return finding.title, finding.detail, finding.fix


def silent(found: CellRecord) -> bool:
    return list(find(found)) == []


# Callbacks


def graph_of(operation: Operation) -> Graph:
    return Graph((), (), (), (operation,))


CALLS = "@jax.jit\ndef f(x):\n    return jax.pure_callback(host_sin, x, x)\ny = f(x)\n"


def with_callback(name: str, function: str) -> CellRecord:
    return record(CALLS, jit("f", 4, graph=graph_of(Operation(name, (), (), (at(3, "f"),), {"callback": function}))))


def test_a_callback_is_told_with_its_function_and_line():
    finding = only(with_callback("pure_callback", "host_sin"), "host.callback")
    assert texts(finding) == (
        "`host_sin` runs on the host at each call of `f`.",
        (
            "The program stops at `pure_callback`, copies the arguments to the host, waits for Python and copies the result "
            "back each time."
        ),
        "Write `host_sin` with jax.numpy so that it becomes part of the program, or call it before or after `f`.",
    )
    assert (finding.site, finding.related) == (at(3, "f"), (at(4),))
    assert finding.facts["callback"] == "host_sin"


@pytest.mark.parametrize(
    ("operation", "function", "words"),
    [
        (
            "io_callback",
            "save",
            (
                "`save` runs on the host at each call of `f`.",
                "The program stops at `io_callback`, copies its values to the host and waits for Python each time.",
                "Return the values from `f` and do this after the call, or only every N steps.",
            ),
        ),
        (
            "debug_callback",
            "<lambda>",
            (
                "A lambda runs on the host at each call of `f`.",
                "The program hands its values to Python through `jax.debug.callback` each time.",
                "Return the values from `f` and look at them after the call, every N steps.",
            ),
        ),
        (
            "debug_callback",
            "jax.debug.print",
            (
                "`jax.debug.print` sends values to the host at each call of `f`.",
                "Printing from inside a program is made for debugging: the device hands the values to Python each time.",
                "Take it out once you have seen the values, or return them and print every N steps.",
            ),
        ),
    ],
)
def test_each_way_of_calling_back_has_its_own_advice(operation: str, function: str, words: tuple[str, str, str]):
    assert texts(only(with_callback(operation, function), "host.callback")) == words


@pytest.mark.parametrize(
    ("length", "often"), [(10, "10 times in each call of `f`"), (None, "at every step of a loop inside `f`")]
)
def test_a_callback_in_a_loop_of_the_program_is_multiplied(length: int | None, often: str):
    body = graph_of(Operation("pure_callback", (), (), (at(3, "f"),), {"callback": "host_sin"}))
    name, attributes = ("scan", {"length": length}) if length else ("while", {})
    loop = Operation(name, (), (), (at(3, "f"),), attributes, (body,))
    assert (
        only(record(CALLS, jit("f", 4, graph=graph_of(loop))), "host.callback").title
        == f"`host_sin` runs on the host {often}."
    )


def test_one_callback_in_two_programs_is_told_once():
    graph = graph_of(Operation("pure_callback", (), (), (at(3, "f"),), {"callback": "host_sin"}))
    only(record(CALLS, jit("f", 4, graph=graph), jit("f", 4, graph=graph)), "host.callback")


def test_a_program_without_callbacks_is_quiet():
    assert silent(record(CALLS, jit("f", 4, graph=graph_of(Operation("sine", (), (), (at(3),))))))


# Waiting for values

LOOP = """step = jax.jit(lambda w: (w * 0.9, w.mean()))
for i in range(5):
    w, loss = step(w)
    log.append(float(loss))
"""


def test_a_value_read_at_every_step_is_a_sync():
    finding = only(record(LOOP, jit("step", 3), transfers=(read(4),) * 3 + (read(4, count=2),)), "host.sync")
    assert texts(finding) == (
        "Reading `loss` stops the host in every step of the loop (5 times).",
        (
            "The host waits at this line until the device has computed `loss` (float32[]), and only then prepares and "
            "dispatches the next step: the device stands idle in between."
        ),
        "Keep `loss` on the device: collect it in a list and read the list after the loop, or read it every N steps.",
    )
    assert (finding.site, finding.related, finding.count) == (at(4), (at(2),), 5)


def test_two_values_on_one_line_are_counted_each():
    source = LOOP.replace("w, loss", "w, loss, acc").replace("float(loss)", "(float(loss), float(acc))")
    transfers = (read(4), read(4, "acc")) * 3
    assert only(record(source, jit("step", 3), transfers=transfers), "host.sync").title == (
        "Reading `loss` and `acc` stops the host in every step of the loop (3 times each)."
    )


def test_a_condition_gets_advice_for_conditions():
    source = LOOP.replace("log.append(float(loss))", "if loss > best: break")
    finding = only(record(source, jit("step", 3), transfers=(read(4, None),) * 4), "host.sync")
    assert finding.title == "Reading `loss` stops the host in every step of the loop (4 times)."
    assert (
        finding.fix == "Decide on the device with jnp.where or jax.lax.cond, or look at the value only every N steps."
    )
    source = "while err > tol:\n    x, err = step(x)\n"
    finding = only(record(source, jit("step", 2), transfers=(read(1, None),) * 4), "host.sync")
    assert finding.title == "Reading `err` stops the host in every step of the loop (4 times)."
    assert finding.fix == "Write the loop as jax.lax.while_loop, or test the condition only every N steps."


def test_a_wait_at_every_step_is_a_sync():
    source = LOOP.replace("log.append(float(loss))", "loss.block_until_ready()")
    finding = only(record(source, jit("step", 3), transfers=(read(4, how="wait"),) * 4), "host.sync")
    assert finding.title == "Waiting for `loss` stops the host in every step of the loop (4 times)."
    assert finding.fix == "Take the wait out of the loop and wait once, after the last step."


def test_a_read_in_a_helper_is_told_with_the_call_in_the_loop():
    source = "def note(value):\n    log.append(float(value))\n" + LOOP.replace("log.append(float(loss))", "note(loss)")
    stack = (at(6), at(2, "note"))
    transfers = tuple(Transfer("to_host", "read", stack, 4, (), "float32", "value") for _ in range(5))
    finding = only(record(source, jit("step", 5), transfers=transfers), "host.sync")
    assert finding.detail.endswith(" The loop comes here through `note(loss)` (line 6).")
    assert (finding.site, finding.related) == (at(2, "note"), (at(6), at(4)))


def test_numpy_taking_each_result_is_seen_in_the_source():
    source = "import numpy as np\n" + LOOP.replace("float(loss)", "np.asarray(loss)")
    finding = only(record(source, jit("step", 4), array_names=frozenset({"w", "loss"})), "host.sync")
    assert finding.title == "Reading `loss` stops the host in every step of the loop (5 times)."
    assert finding.site == at(5)


def test_a_function_of_an_earlier_cell_is_read_from_its_text():
    body = "def fit(w):\n    for i in range(9):\n        w, loss = step(w)\n        print(loss)\n"
    stack = (at(1), at(4, "fit", cell=3))
    found = CellRecord(
        source="fit(w)",
        cell=1,
        programs=(Program("step", "jit", calls=(Call((at(1), at(3, "fit", cell=3)), 0),)),),
        transfers=(Transfer("to_host", "read", stack, 4, (), "float32", "loss"),) * 9,
    )
    assert silent(found)
    with_text = CellRecord(**{**vars(found), "other_sources": (SourceText(body, cell=3),)})
    assert only(with_text, "host.sync").site == at(4, "fit", cell=3)


QUIET_READS = {
    "twice": (LOOP, (read(4),) * 2),
    "read after the loop": (LOOP.replace("    log", "log"), (read(4),) * 5),
    "every tenth step": (
        LOOP.replace("    log.append(float(loss))", "    if i % 10 == 0:\n        print(loss)"),
        (read(5),) * 5,
    ),
    "behind continue": (LOOP.replace("    log", "    if i % 10: continue\n    log"), (read(5),) * 5),
    "once per epoch": (
        "for epoch in range(5):\n    for x in xs:\n        w, loss = step(w)\n    print(loss)\n",
        (read(4),) * 5,
    ),
    "collected values": ("for loss in losses:\n    print(float(loss))\n", (read(2),) * 5),
    "a value the loop does not make": (LOOP.replace("float(loss)", "float(rates[i])"), (read(4, "rates"),) * 5),
    "a wait beside a clock": (
        "import time\nt = time.time()\n" + LOOP.replace("log.append(float(loss))", "loss.block_until_ready()"),
        (read(6, how="wait"),) * 5,
    ),
}


@pytest.mark.parametrize("case", QUIET_READS)
def test_reads_as_they_should_be_are_quiet(case: str):
    source, transfers = QUIET_READS[case]
    line = (
        source.splitlines().index(next(one for one in source.splitlines() if "= step(w)" in one)) + 1
        if "step(w)" in source
        else 1
    )
    assert silent(record(source, jit("step", line), transfers=transfers))


# Operations outside jit

UPDATE = """def update(w, m, g):
    m = 0.9 * m + 0.1 * g
    w = w - 0.01 * m / (jnp.sqrt((m * m).sum()) + 1e-6)
    return jnp.clip(w, -1, 1), m
for _ in range(3):
    w, m = update(w, m, g)
"""


def operations(names: str, *stack: SourceSite) -> tuple[Program, ...]:
    return tuple(eager(name, *(stack,) * 3) for name in names.split())


def test_a_function_run_outside_jit_is_told_by_name():
    programs = operations("multiply add", at(6), at(2, "update")) + operations(
        "sqrt divide subtract", at(6), at(3, "update")
    )
    finding = only(record(UPDATE, *programs), "host.op_by_op")
    assert texts(finding) == (
        "`update` runs outside jit: 5 separate programs at each step of the loop.",
        (
            "Every operation (`multiply`, `add`, `sqrt`, `divide`, `subtract`, …) is dispatched from Python by itself and writes "
            "its result to memory."
        ),
        "Put @jax.jit on `update`, so that each step is one program.",
    )
    assert (finding.site, finding.related, finding.count) == (at(2, "update"), (at(6), at(3, "update")), 5)


def test_a_loop_body_outside_jit_is_told_by_its_line():
    source = "for t in range(9):\n    v = v - 0.1 * x / jnp.sqrt(v)\n    x = x + jnp.tanh(v)\n"
    programs = operations("multiply divide sqrt subtract", at(2)) + operations("tanh add", at(3))
    finding = only(record(source, *programs), "host.op_by_op")
    assert finding.title == "The loop at line 1 computes outside jit: 6 separate programs at each step."
    assert (
        finding.fix
        == "Put the computation of one step into a function with @jax.jit, so that each step is one program."
    )
    assert (finding.site, finding.related) == (at(2), (at(1), at(3)))


def test_a_gradient_outside_jit_is_to_be_jitted_whole():
    source = "def loss(w):\n    return (jnp.tanh(w @ w) ** 2).mean()\nfor i in range(9):\n    g = jax.grad(loss)(w)\n"
    programs = operations("dot tanh power mean multiply", at(4), at(2, "loss"))
    assert only(record(source, *programs), "host.op_by_op").fix == (
        "Make `jax.jit(jax.grad(loss))` once, before the loop, and call that: each step is then one program."
    )


QUIET_OPERATIONS = {
    "run once": (
        "y = jnp.sin(x) + jnp.cos(x) * x ** 2 - x / 3\n",
        operations("sine cosine power add divide subtract", at(1)),
    ),
    "a loop of two": (
        "for i in range(2):\n    y = jnp.sin(x) + jnp.cos(x) * x ** 2 - x / 3\n",
        operations("sine cosine power add divide subtract", at(2)),
    ),
    "bookkeeping beside a jitted step": (
        "for i in range(9):\n    w = step(w)\n    total = total + w.mean() / 9\n",
        (jit("step", 2), *operations("_mean divide add", at(3))),
    ),
    "making parameters": (
        "for n in sizes:\n    w.append(jax.random.normal(k, (n, n)) * 0.1 + jnp.zeros(n))\n",
        operations("_normal _threefry_split multiply add broadcast_in_dim convert_element_type iota", at(2)),
    ),
    "taking a batch": (
        "for i in range(9):\n    xb = xs[idx]\n",
        operations("less add select_n gather _broadcast_arrays broadcast_in_dim squeeze", at(2)),
    ),
    "another shape each time": (
        "for n in sizes:\n    w.append(jnp.tanh(jnp.full(n, 2.0)) * 3)\n",
        tuple(eager("tanh", (at(2),)) for _ in range(9)),
    ),
}


@pytest.mark.parametrize("case", QUIET_OPERATIONS)
def test_operations_that_are_no_repeated_computation_are_quiet(case: str):
    source, programs = QUIET_OPERATIONS[case]
    assert silent(record(source, *programs))


# Slow input

FEED = """def load(i):
    return read_file(i)
for i in range(8):
    x = load(i)
    w = step(w, x)
"""


def sampled(seconds: float, *stack: SourceSite, doing: str = "host", idle: float | None = None) -> LineTime:
    return LineTime(stack, doing, seconds, idle)


def test_input_that_takes_the_loops_time_is_told_by_the_function_that_makes_it():
    lines = (sampled(2.4, at(4), at(2, "load"), idle=2.4), sampled(0.1, at(5), doing="dispatch"))
    finding = only(record(FEED, jit("step", 5), lines=lines), "host.input_bound")
    assert texts(finding) == (
        "The device waits for `load`: making the input takes 2.4 s of the loop's 2.5 s (96 %).",
        "While the host makes the next batch, the device has nothing to do; a faster chip would not help.",
        "Run `load` ahead in a thread (a queue of two or three batches), or make the batches once before the loop.",
    )
    assert (finding.site, finding.related, finding.seconds) == (at(4), (at(2, "load"), at(3)), 2.4)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("for x in batches(9):\n    w = step(w, x)\n", "batches"),
        ("for i, x in enumerate(loader):\n    w = step(w, x)\n", "loader"),
        ("for i in range(9):\n    x = next(it); w = step(w, x)\n", "next(it)"),
        ("for i in range(9):\n    x = data[i]; w = step(w, x)\n", "data[i]"),
        ("for i in range(9):\n    x = np.load(paths[i]); y = x / 255; w = step(w, y)\n", "np.load"),
    ],
)
def test_the_input_is_named_as_written(source: str, name: str):
    line = 1 if source.startswith("for x") or "enumerate" in source else 2
    if line == 2:
        source = source.replace("; ", "\n    ")
    dispatch = len(source.splitlines())
    found = record(source, jit("step", dispatch), lines=(sampled(2.0, at(line), idle=2.0),))
    assert only(found, "host.input_bound").facts["name"] == name


QUIET_LINES = {
    "cheap": ((sampled(0.3, at(4), at(2, "load"), idle=0.3),), {}),
    "a small part": ((sampled(0.9, at(4), idle=0.9), sampled(2.0, at(5), doing="wait")), {}),
    "the device was busy": ((sampled(2.4, at(4), idle=0.2),), {}),
    "the device was behind": ((sampled(2.4, at(4)),), {"ready_s": 8.0}),
    "compilation": ((sampled(2.4, at(5), doing="compile"), sampled(0.2, at(4), idle=0.2)), {}),
}


@pytest.mark.parametrize("case", QUIET_LINES)
def test_loops_that_do_not_wait_for_input_are_quiet(case: str):
    lines, fields = QUIET_LINES[case]
    assert silent(record(FEED, jit("step", 5), lines=lines, **fields))


def test_host_work_without_jitted_work_in_its_loop_is_the_cells_purpose():
    source = FEED.replace("    w = step(w, x)", "w = step(w, x)")
    assert silent(record(source, jit("step", 5), lines=(sampled(2.4, at(4), at(2, "load"), idle=2.4),)))


def test_host_work_whose_result_no_step_takes_is_no_input():
    source = FEED.replace("x = load(i)", "save(i)").replace("step(w, x)", "step(w)")
    assert silent(record(source, jit("step", 5), lines=(sampled(2.4, at(4), idle=2.4),)))


# Host arrays

BATCHES = "for i in range(10):\n    w = step(w, X)\n"


def host_array(path: str, *shape: int) -> Leaf:
    size = 4
    for n in shape:
        size *= n
    return Leaf(path, shape, "float32", origin="host", bytes=size)


def test_the_same_host_array_at_every_step_is_told():
    program = jit("step", 2, inputs=(host_array("x", 512, 64),), parameters=("w", "x"))
    finding = only(record(BATCHES, program), "host.input_transfer")
    assert texts(finding) == (
        "The same host array `X` is copied to the device again by each call of `step` in this loop.",
        "`X` (float32[512,64], 128 KiB) is a NumPy array and goes to the device 10 times, 1.25 MiB in all.",
        "Put it on the device once, before the loop: `X = jax.device_put(X)`.",
    )
    assert (finding.site, finding.related, finding.bytes) == (at(2), (at(1),), 10 * 131072)


def test_a_large_host_array_is_an_implicit_transfer():
    program = jit("f", 1, inputs=(host_array("x", 1024, 1024),), parameters=("x",))
    finding = only(record("y = f(X)\n", program), "host.implicit_transfer")
    assert texts(finding) == (
        "The call of `f` copies the host array `X` (4 MiB) to the device.",
        "`X` is a NumPy array (float32[1024,1024], 4 MiB): each call that gets one waits for the copy first.",
        "Hand over an array that is on the device already: `jax.device_put(X)` before it is needed.",
    )


def test_a_large_array_of_the_same_loop_is_told_once():
    program = jit("step", 2, inputs=(host_array("x", 1024, 1024),), parameters=("w", "x"))
    only(record(BATCHES, program), "host.input_transfer")


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ("y = f(X)\n", (64, 64)),
        ("for x in xs:\n    y = f(x)\n", (64, 64)),
        ("for i in range(9):\n    y = f(X[i])\n", (64, 64)),
        ("for i in range(9):\n    y = f(load(i))\n", (64, 64)),
        ("for i in range(2):\n    y = f(X)\n", (64, 64)),
        ("for i in range(9):\n    y = f(X)\n", (8,)),
        ("for i in range(9):\n    X = f(X)\n", (64, 64)),
    ],
)
def test_host_arrays_that_have_to_travel_are_quiet(source: str, shape: tuple[int, ...]):
    line = len(source.splitlines())
    assert silent(record(source, jit("f", line, inputs=(host_array("x", *shape),), parameters=("x",))))
