"""Work and arrays over several devices: what fails, what is not shared, what is sent around."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tpumagic.events import (
    Backend,
    CellRecord,
    Collective,
    DeviceMemory,
    Failure,
    FunctionId,
    Leaf,
    LiveArray,
    Program,
    Signature,
    SourceSite,
)  # fmt: skip
from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import sharding

# Placement that fails, with real exceptions. Several devices need an interpreter of their own.

PLACEMENTS = {
    "device_put": "x = jnp.ones((19, 10))\njax.device_put(x, S('d'))",
    "in_shardings": "jax.jit(lambda x: x * 2, in_shardings=S('d'))(jnp.ones((19, 10)))",
    "shard_map": "f = jax.shard_map(lambda rows: rows * 2, mesh=mesh, in_specs=P('d'), out_specs=P('d'))\nf(jnp.ones((19, 10)))",
    "two axes": "x = jnp.ones((16, 10))\njax.device_put(x, NamedSharding(grid, P(None, ('x', 'y'))))",
    "second axis": "x = jnp.ones((16, 3))\njax.device_put(x, NamedSharding(grid, P('x', 'y')))",
    "too small": "x = jnp.ones((3, 3))\njax.device_put(x, S('d'))",
    "reshape": "batch = jnp.ones((19, 10))\nbatch.reshape(jax.device_count(), -1, 10)",
    "tree": "jax.device_put({'a': jnp.ones((16, 10)), 'b': jnp.ones((19,))}, S('d'))",
    "two devices": "a = jax.device_put(jnp.ones(3), jax.devices()[0])\nb = jax.device_put(jnp.ones(3), jax.devices()[1])\na + b",
    "mesh and device": "a = jax.device_put(jnp.ones(4), S('d'))\nb = jax.device_put(jnp.ones(4), jax.devices()[5])\njax.jit(lambda p, q: p + q)(a, b)",
    "other mesh": "x = jax.device_put(jnp.ones(8), jax.devices()[5])\njax.jit(lambda x: x * 2, in_shardings=S('d'))(x)",
    "constraint": "x = jax.device_put(jnp.ones(8), jax.devices()[0])\n@jax.jit\ndef f(x):\n    return jax.lax.with_sharding_constraint(x, S('d'))\nf(x)",
    "too many": "jax.make_mesh((4, 4), ('x', 'y'))",
    "too few": "from jax.experimental import mesh_utils\nmesh_utils.create_device_mesh((2, 2))",
    "pmap": "step = jax.pmap(lambda x: x * 2, axis_name='i')\nstep(jnp.ones((16, 2)))",
    "pmap, no multiple": "step = jax.pmap(lambda x: x * 2, axis_name='i')\nstep(jnp.ones((9, 2)))",
    "squeeze": "jnp.ones((2, 3)).squeeze(0)",
    "wrong rank": "jax.device_put(jnp.ones(16), S(None, 'd'))",
    "unknown axis": "jax.device_put(jnp.ones(16), S('model'))",
    "plain reshape": "jnp.ones((19, 10)).reshape(4, -1, 10)",
    "array reshape": "np.arange(6).reshape(4, 4)",
}

RUN = """
import dataclasses, json, linecache, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tpumagic.backends.jax.failures import failure
from tpumagic.events import Backend, CellRecord
from tpumagic.passes import errors, sharding
from tpumagic.user_code import UserCode

mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
grid = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
found = {}
for name, source in json.loads(sys.argv[1]).items():
    file = f"/nonexistent/{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    user_code = UserCode()
    user_code.add_cell(file, 1, source)
    scope = dict(jax=jax, jnp=jnp, np=np, mesh=mesh, grid=grid, NamedSharding=NamedSharding, P=P,
                 S=eval("lambda *spec: NamedSharding(mesh, P(*spec))", globals()))
    try:
        exec(compile(source, file, "exec"), scope)
        raise SystemExit(f"{name} did not fail")
    except Exception as error:
        told = failure(error, user_code.traceback_stack(error.__traceback__), scope, user_code, lambda array: None)
        record = CellRecord(source=source, cell=1, failure=told, backends=(Backend("jax", "", "cpu", 8),))
        found[name] = [dataclasses.asdict(one) for one in (*errors.find(record), *sharding.find(record))]
print(json.dumps(found))
"""


def on_eight_devices(program: str, *arguments: str) -> str:
    environment = {
        "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "PATH": "",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]  # some versions of JAX print as well


@pytest.fixture(scope="module")
def failures() -> dict:
    return json.loads(on_eight_devices(RUN, json.dumps(PLACEMENTS)))


@pytest.mark.parametrize(
    ("name", "title", "fix"),
    [
        ("device_put", "Axis 0 of `x` (shape (19, 10)) has size 19, which does not divide over the 4 devices of mesh axis 'd'",
         "Pad axis 0 to 20, or drop to 16, or split another axis."),
        ("shard_map", "Axis 0 of `rows` (shape (19, 10)) has size 19, which does not divide over the 4 devices of mesh axis 'd'",
         "Pad axis 0 to 20, or drop to 16, or split another axis."),
        ("two axes", "Axis 1 of `x` (shape (16, 10)) has size 10, which does not divide over the 8 devices of mesh axes 'x' and 'y'",
         "Pad axis 1 to 16, or drop to 8, or split another axis."),
        ("second axis", "Axis 1 of `x` (shape (16, 3)) has size 3, which does not divide over the 2 devices of mesh axis 'y'",
         "Pad axis 1 to 4, or drop to 2, or split another axis."),
        ("too small", "Axis 0 of `x` (shape (3, 3)) has size 3, which does not divide over the 4 devices of mesh axis 'd'",
         "Pad axis 0 to 4, or split another axis."),
        ("reshape", "Axis 0 of `batch` (shape (19, 10)) has size 19, which does not divide over 8 devices",
         "Pad axis 0 to 24, or drop to 16, or split another axis."),
        ("tree", "Axis 0 of an array (shape (19,)) has size 19, which does not divide over the 4 devices of mesh axis 'd'",
         "Pad axis 0 to 20, or drop to 16, or split another axis."),
    ],
)  # fmt: skip
def test_a_size_that_does_not_divide_is_told_with_axis_mesh_and_the_next_sizes(failures, name, title, fix):
    (finding,) = failures[name]
    assert (finding["kind"], finding["severity"]) == ("sharding.not_divisible", "error")
    assert (finding["title"], finding["fix"]) == (title, fix)
    assert finding["site"]["line"] == 2 if name != "tree" else 1


def test_the_remainder_is_told(failures):
    assert failures["device_put"][0]["detail"] == "Every device must get an equal part: 19 / 4 leaves 3."
    assert failures["device_put"][0]["facts"] == {
        "axis": 0, "size": 19, "parts": 4, "mesh_axes": ["d"], "shape": [19, 10], "pad_to": 20,
    }  # fmt: skip


def test_in_shardings_that_do_not_divide_are_told(failures):
    (finding,) = failures["in_shardings"]
    assert finding["kind"] == "sharding.not_divisible"
    assert "(shape (19, 10)) has size 19, which does not divide over the 4 devices of mesh axis 'd'" in finding["title"]


@pytest.mark.parametrize(
    ("name", "title", "fix"),
    [
        ("two devices", "`a` is on device 0 and `b` on device 1, and one program cannot use both",
         "Put both on the same devices: `b = jax.device_put(b, a.sharding)`."),
        ("mesh and device", "`a` is on devices 0 to 3 and `b` on device 5, and one program cannot use both",
         "Put both on the same devices: `b = jax.device_put(b, NamedSharding(mesh, P()))`."),
        ("other mesh", "`x` is placed on 1 device, but `in_shardings` asks for 4",
         "Place it as the function expects: `jax.device_put(x, sharding)`, or do not place it at all."),
        ("constraint", "`x` is on device 0 and a sharding_constraint inside jit on devices 0 to 3, and one program cannot use both",
         "Move `x` to the mesh first: `jax.device_put(x, NamedSharding(mesh, P(…)))`."),
    ],
)  # fmt: skip
def test_arrays_on_different_devices_are_named_with_where_they_are(failures, name, title, fix):
    (finding,) = failures[name]
    assert (finding["kind"], finding["severity"]) == ("sharding.incompatible_devices", "error")
    assert (finding["title"], finding["fix"]) == (title, fix)


@pytest.mark.parametrize(
    ("name", "title", "fix"),
    [
        ("too many", "A mesh of shape (4, 4) needs 16 devices, and there are 8",
         ("Build the mesh from the devices that are there: `(4, jax.device_count() // 4)` here. To try 16 devices on CPU, "
         "start Python with `XLA_FLAGS=--xla_force_host_platform_device_count=16`.")),
        ("too few", "A mesh of shape (2, 2) needs 4 devices, and there are 8",
         ("Build the mesh from the devices that are there: `(2, jax.device_count() // 2)` here. To use fewer on purpose, "
         "pass `devices=jax.devices()[:4]`.")),
        ("pmap", "`jax.pmap` over this leading axis needs 16 devices, and there are 8",
         ("Take the number from `jax.device_count()`. To try 16 devices on CPU, start Python with "
         "`XLA_FLAGS=--xla_force_host_platform_device_count=16`.")),
        ("pmap, no multiple", "`jax.pmap` over this leading axis needs 9 devices, and there are 8",
         ("Take the number from `jax.device_count()`. To try 9 devices on CPU, start Python with "
         "`XLA_FLAGS=--xla_force_host_platform_device_count=9`.")),
    ],
)  # fmt: skip
def test_a_mesh_of_another_size_is_told_with_what_is_there(failures, name, title, fix):
    (finding,) = failures[name]
    assert (finding["kind"], finding["severity"]) == ("sharding.device_count", "error")
    assert (finding["title"], finding["fix"]) == (title, fix)


@pytest.mark.parametrize("name", ["squeeze", "wrong rank", "unknown axis", "plain reshape", "array reshape"])
def test_other_failures_around_devices_are_left_alone(failures, name):
    assert failures[name] == []


@pytest.mark.parametrize(
    ("cell", "title", "fix"),
    [
        ("jax.make_mesh((1, 8), ('batch', 'model'))", "A mesh of shape (1, 8) needs 8 devices, and there is 1",
         ("Build the mesh from the devices that are there: `(1, jax.device_count())` here. To try 8 devices on CPU, start "
         "Python with `XLA_FLAGS=--xla_force_host_platform_device_count=8`.")),
        ("jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ('x', 'y'))",
         "A mesh of shape (2, 4) needs 8 devices, and there is 1",
         ("Build the mesh from the devices that are there: `(1, jax.device_count())` here. To try 8 devices on CPU, start "
         "Python with `XLA_FLAGS=--xla_force_host_platform_device_count=8`.")),
        ("found = np.array(jax.devices())\nfound.reshape((8,))", "A mesh of shape (8,) needs 8 devices, and there is 1",
         ("Build the mesh from the devices that are there: `(jax.device_count(),)` here. To try 8 devices on CPU, start "
         "Python with `XLA_FLAGS=--xla_force_host_platform_device_count=8`.")),
        ("last = 7\njax.devices()[last]", "`jax.devices()[last]` needs 8 devices, and there is 1",
         ("Take the number from `jax.device_count()`. To try 8 devices on CPU, start Python with "
         "`XLA_FLAGS=--xla_force_host_platform_device_count=8`.")),
    ],
)  # fmt: skip
def test_code_written_for_eight_devices_is_explained_on_one(failed_cell, cell, title, fix):
    (finding,) = sharding.find(failed_cell(cell))
    assert finding.kind == "sharding.device_count"
    assert (finding.title, finding.fix) == (title, fix)
    assert finding.site.line == len(cell.splitlines())


def test_kerass_device_mesh_is_explained_too():
    message = "Shape does not match the size of `devices`. Received: shape=(1, 8); devices.shape=1"
    failure = Failure("ValueError", message, (SourceSite(line=3, cell=1),))
    (finding,) = sharding.find(CellRecord(failure=failure))
    assert finding.title == "A mesh of shape (1, 8) needs 8 devices, and there is 1"


@pytest.mark.parametrize("cell", ["[1, 2][5]", "np.arange(8).reshape(4, 4)", "devices = [1]\ndevices[3]"])
def test_indices_and_shapes_that_are_not_of_devices_are_left_alone(failed_cell, cell):
    assert list(sharding.find(failed_cell(cell))) == []


# Work that is not shared.

CALL, PUT, DEFINITION = (SourceSite(line=line, cell=1) for line in (6, 4, 1))
SOURCE = "step = jax.jit(lambda w, x: x @ w)\n\nmesh = make()\nx = jax.device_put(x, NamedSharding(mesh, P()))\nw = put(w)\nstep(w, x)\n"


def product(rows: int, inner: int, columns: int, **attributes) -> Graph:
    shapes = ((inner, columns), (rows, inner), (rows, columns))
    values = tuple(Value(shape, "float32") for shape in shapes)
    return Graph(values, (0, 1), (2,), (Operation("dot_general", (1, 0), (2,), (SourceSite(line=1, cell=1),)),))


def program(
    *, devices=(0, 1, 2, 3), partitioned=False, sharding="P() over (d=4)", name="step", kind="jit", rows=64, **more
):
    on = devices if sharding is not None else devices[:1]
    leaves = (
        Leaf("w", (16, 16), "float32", sharding=sharding, devices=on),
        Leaf("x", (rows, 16), "float32", sharding=sharding, devices=on),
    )
    signature = Signature(FunctionId(name, "", 1, definition=DEFINITION), leaves, ())
    fields = {"stack": (CALL,), "definition": DEFINITION, "graph": product(rows, 16, 16), "inputs": leaves, **more}
    return Program(name, kind, signature=signature, devices=devices, partitioned=partitioned, **fields)


def findings(*programs: Program, count: int = 4, live=(), source: str = SOURCE, kind: str | None = None):
    record = CellRecord(
        source=source,
        cell=1,
        programs=programs,
        backends=(Backend("jax", "", "cpu", count),),
        memory=DeviceMemory(live=live),
    )
    return [one for one in sharding.find(record) if kind is None or one.kind == kind]


def test_whole_copies_on_every_device_are_a_warning_with_the_argument_to_split():
    (finding,) = findings(program())
    assert (finding.kind, finding.severity) == ("sharding.replicated_work", "warning")
    assert finding.title == "`step` does the same work on each of 4 devices"
    assert finding.detail == (
        "All of its arguments are whole copies on every device and nothing in it is split, so more devices make it no faster."
    )
    assert finding.fix == (
        "Split `x` over the mesh before the call: `jax.device_put(x, NamedSharding(mesh, P('d')))`; the parameters may stay whole."
    )
    assert finding.site == CALL
    assert finding.related == (PUT, SourceSite(line=5, cell=1), DEFINITION)


@pytest.mark.parametrize(
    "quiet",
    [
        program(partitioned=True),
        program(partitioned=None),
        program(devices=(0,), sharding=None),
        program(kind="eager"),
        program(outside=True),
        program(graph=Graph((Value((8,), "float32"),), (0,), (0,), ())),
        program(graph=None),
    ],
    ids=["split", "not known", "one device", "eager", "outside the cell", "no products", "no graph"],
)
def test_programs_that_share_or_have_no_work_are_not_told(quiet):
    assert findings(quiet, kind="sharding.replicated_work") == []


def test_a_small_program_beside_a_large_shared_one_is_not_told():
    assert (
        findings(program(rows=4096, partitioned=True, sharding="P('d') over (d=4)"), program(rows=4, name="norm")) == []
    )


def test_devices_without_work_are_an_info():
    array = LiveArray(("w",), (16, 16), "float32", 1024, devices=(0,))
    (finding,) = findings(program(devices=(0,), sharding=None), live=(array,))
    assert (finding.kind, finding.severity) == ("sharding.idle_devices", "info")
    assert finding.title == "4 devices are there, and everything in this cell is on device 0: 3 idle"
    assert finding.detail == "`step` and all live arrays are on one device."
    assert finding.fix.startswith("Split the batch over all of them: `jax.device_put(x, NamedSharding(jax.make_mesh(")
    assert finding.site == CALL


def test_devices_are_not_idle_when_anything_lives_there():
    array = LiveArray(("w",), (16, 16), "float32", 1024, devices=(2,))
    assert findings(program(devices=(0,), sharding=None), live=(array,)) == []
    assert findings(program(devices=(0,), sharding=None), program(devices=(1,), sharding=None)) == []


def test_one_device_or_no_jitted_program_is_no_idleness():
    assert findings(program(devices=(0,), sharding=None), count=1) == []
    assert findings(program(devices=(0,), sharding=None, kind="eager")) == []


# Communication.

LINE = SourceSite(line=14, cell=1)


def resharding(*, replicated: bool = False) -> Graph:
    value = Value((16, 16, 16), "float32")
    operations = (
        Operation("multiply", (0, 1), (2,), (SourceSite(line=13, cell=1),)),
        Operation(
            "sharding_constraint",
            (2,),
            (3,),
            (LINE,),
            {"sharding": "P(None, ('x', 'y'), None)", "replicated": replicated},
        ),
    )
    return Graph((value, Value((), "float32", literal=2.0), value, value), (0,), (3,), operations)


def gathering(graph: Graph, *collectives: Collective) -> Program:
    leaf = Leaf("a", (16, 16, 16), "float32", sharding="P('y', None, 'x') over (x=4, y=2)", devices=tuple(range(8)))
    return Program(
        "f",
        "jit",
        (CALL,),
        DEFINITION,
        inputs=(leaf,),
        graph=graph,
        devices=tuple(range(8)),
        collectives=collectives,
        partitioned=True,
    )


WHOLE = Collective(
    "all-gather",
    (16, 16, 16),
    "float32",
    16384,
    SourceSite(line=14, cell=1, function="f"),
    gathers_whole=True,
    resliced=True,
)
PART = Collective("all-gather", (8, 16, 16), "float32", 8192, LINE)


@pytest.mark.parametrize("site", [WHOLE.site, None], ids=["line known", "line not known"])
def test_a_whole_copy_that_is_cut_again_is_told_at_the_constraint(site):
    from dataclasses import replace

    (finding,) = findings(gathering(resharding(), PART, replace(WHOLE, site=site)), count=8, kind="sharding.full_remat")
    assert finding.severity == "warning"
    assert finding.title == (
        "Resharding float32[16,16,16] from `P('y', None, 'x')` to `P(None, ('x', 'y'), None)` copies the whole array to every device"
    )
    assert finding.detail == (
        "XLA cannot exchange the parts directly: each device receives all 16 KiB and keeps its own part "
        "(XLA calls it involuntary full rematerialization)."
    )
    assert finding.fix == (
        "Give the array this sharding where it is made, or get there in two constraints that change one array axis each."
    )
    assert (finding.site, finding.bytes) == (LINE, 16384)
    assert finding.related == (CALL, DEFINITION)


def test_a_gather_whose_result_is_used_whole_is_no_rematerialisation():
    from dataclasses import replace

    program = gathering(resharding(replicated=True), replace(WHOLE, resliced=False))
    assert findings(program, count=8, kind="sharding.full_remat") == []


def test_communication_is_summed_by_kind_as_an_info():
    (finding,) = findings(gathering(resharding(), PART, WHOLE), count=8, kind="sharding.collectives")
    assert finding.severity == "info"
    assert finding.title == "`f` communicates between 8 devices: 2 all-gathers"
    assert (
        finding.detail == "24 KiB arrive on each device in one run; the largest is the all-gather of float32[16,16,16]."
    )
    assert (finding.site.line, finding.bytes) == (14, 24576)


def test_no_communication_no_finding():
    assert findings(gathering(resharding()), count=8) == []


# The same on real programs, through the whole observer.

OBSERVED = """
import json, linecache, sys
from tpumagic.backends.jax import JaxBackend
from tpumagic.events import CellRecord
from tpumagic.passes import sharding
from tpumagic.user_code import UserCode

setup = '''import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
put = lambda shape, *spec: jax.device_put(jnp.ones(shape), NamedSharding(mesh, P(*spec)))
step = jax.jit(lambda w, x: jnp.tanh(x @ w))
'''
found = {}
for name, cell in json.loads(sys.argv[1]).items():
    source, namespace, user_code = setup + cell, {}, UserCode()
    user_code.add_cell(f"/nonexistent/{name}", 1, source)
    import jax
    backend = JaxBackend(user_code)
    backend.start(lambda: True)
    exec(compile(source, f"/nonexistent/{name}", "exec"), namespace)
    backend.stop()
    seen = backend.observation(namespace, out=None, traceback=None)
    record = CellRecord(source=source, cell=1, programs=seen.programs, memory=seen.memory, backends=(backend.describe(),))
    found[name] = [(one.kind, one.severity, one.title, one.site.line) for one in sharding.find(record)]
    backend.close()
print(json.dumps(found))
"""

CELLS = {
    "replicated": "w, x = put((16, 16)), put((64, 16))\ny = step(w, x)",
    "data parallel": "w, x = put((16, 16)), put((64, 16), 'x')\ny = step(w, x)",
    "remat": "f = jax.jit(lambda a: jax.lax.with_sharding_constraint(a * 2, NamedSharding(mesh, P(None, ('x', 'y'), None))))\n"
    "f(put((16, 16, 16), 'y', None, 'x'))",
    "one of eight": "y = step(jnp.ones((16, 16)), jnp.ones((64, 16)))",
}


def test_real_programs_on_eight_devices_are_told_apart():
    found = {
        name: json.loads(on_eight_devices(OBSERVED, json.dumps({name: cell})))[name] for name, cell in CELLS.items()
    }
    assert found["replicated"] == [
        ["sharding.replicated_work", "warning", "`step` does the same work on each of 8 devices", 7]
    ]
    assert found["data parallel"] == []
    assert [one[:2] for one in found["remat"]] == [["sharding.full_remat", "warning"], ["sharding.collectives", "info"]]
    assert found["remat"][0][2:] == [
        "Resharding float32[16,16,16] from `P('y', None, 'x')` to `P(None, ('x', 'y'), None)` copies the whole array to every device",
        6,
    ]
    assert found["one of eight"] == [
        ["sharding.idle_devices", "info", "8 devices are there, and everything in this cell is on device 0: 7 idle", 6],
    ]
