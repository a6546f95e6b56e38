"""Communication between devices, read from the optimised programs of this JAX."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tpumagic.backends.jax.collectives import Communication, communication
from tpumagic.events import SourceSite
from tpumagic.graph import Graph, Value

PROGRAM = """
import dataclasses, json, sys
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tpumagic.backends.jax.collectives import communication
from tpumagic.backends.jax.graphs import graph_of
from tpumagic.events import SourceSite

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
S = lambda *spec: NamedSharding(mesh, P(*spec))
put = lambda shape, *spec: jax.device_put(jnp.ones(shape), S(*spec))
keep = jax.lax.with_sharding_constraint

def read(function, *arguments):
    text = jax.jit(function).lower(*arguments).compile().runtime_executable().hlo_modules()[0].to_string()
    graph = graph_of(jax.make_jaxpr(function)(*arguments), lambda info: (), 10**6)
    site = lambda file, line, name: SourceSite(line, file="cell", function=name) if file == "<string>" else None
    return dataclasses.asdict(communication(text, graph, site))

def gradient(w, x):
    return w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

def reshard(a):
    return keep(a * 2, S(None, ("x", "y"), None))

found = {
    "data parallel": read(gradient, put((16,)), put((64, 16), "x")),
    "replicated": read(lambda w, x: x @ w, put((16, 16)), put((64, 16))),
    "split inside": read(lambda w, x: keep(x @ w, S("x")).sum(), put((16, 16)), put((64, 16))),
    "element by element": read(jnp.tanh, put((16, 16), "x")),
    "gathered weights": read(lambda w, x: x @ keep(w, S()), put((16, 16), "x"), put((64, 16), "x")),
    "gathered for a slice": read(lambda w, i: jax.lax.dynamic_slice_in_dim(keep(w, S()), i, 4), put((16, 16), "x"), jnp.int32(2)),
    "exchanged": read(lambda a: keep(a * 2, S(None, "x")), put((16, 16), "x")),
    "copied and cut": read(reshard, put((16, 16, 16), "y", None, "x")),
    "placed right": read(reshard, put((16, 16, 16), None, ("x", "y"))),
    "shard_map": read(jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()), put((16, 16))),
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    environment = {
        "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "PATH": "",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kinds(one) -> list[str]:
    return [collective["kind"] for collective in one["collectives"]]


def test_a_gradient_over_a_split_batch_is_summed_between_the_devices(found):
    (collective,) = found["data parallel"]["collectives"]
    assert (collective["kind"], collective["shape"], collective["dtype"], collective["bytes"]) == (
        "all-reduce",
        [16],
        "float32",
        64,
    )
    assert collective["site"]["line"] == 21
    assert found["data parallel"]["partitioned"] is True


def test_whole_copies_everywhere_are_work_that_nobody_shares(found):
    assert found["replicated"] == {"collectives": [], "partitioned": False}


@pytest.mark.parametrize(
    "name", ["split inside", "element by element", "gathered weights", "exchanged", "shard_map", "placed right"]
)
def test_programs_that_share_their_work_are_told_apart(found, name):
    assert found[name]["partitioned"] is True


def test_a_gather_that_is_used_whole_is_not_cut_again(found):
    for name in ("gathered weights", "gathered for a slice"):
        (collective,) = found[name]["collectives"]
        assert (collective["gathers_whole"], collective["resliced"]) == (True, False)


def test_an_exchange_of_parts_gathers_nothing(found):
    assert kinds(found["exchanged"]) == ["all-to-all"]
    assert not any(collective["gathers_whole"] for collective in found["exchanged"]["collectives"])


def test_an_array_copied_everywhere_and_cut_again_is_recognised(found):
    cut = [collective for collective in found["copied and cut"]["collectives"] if collective["resliced"]]
    assert [(one["kind"], one["shape"], one["bytes"]) for one in cut] == [("all-gather", [16, 16, 16], 16384)]


def test_an_array_that_lies_right_communicates_nothing(found):
    assert found["placed right"]["collectives"] == []


OLDER = """HloModule jit_f, is_scheduled=true, num_partitions=2

ENTRY %main (p: bf16[8,4]) -> bf16[16,4] {
  %p = bf16[8,4]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  %start = (bf16[8,4]{1,0}, bf16[16,4]{1,0}) all-gather-start(%p), dimensions={0}, metadata={op_name="x" source_file="cell" source_line=7}
  ROOT %done = bf16[16,4]{1,0} all-gather-done(%start)
}
"""


def test_asynchronous_collectives_and_file_and_line_metadata_are_read():
    value = Value((16, 4), "bfloat16")
    read = communication(
        OLDER, Graph((value,), (0,), (0,), ()), lambda file, line, function: SourceSite(line, file=file)
    )
    (collective,) = read.collectives
    assert (collective.kind, collective.shape, collective.dtype, collective.bytes) == (
        "all-gather",
        (16, 4),
        "bfloat16",
        128,
    )
    assert collective.site == SourceSite(7, file="cell")
    assert (collective.gathers_whole, read.partitioned) == (True, True)


@pytest.mark.parametrize("text", ["", "HloModule f", "HloModule f, num_partitions=4\n%%% not HLO {\n  x = (", OLDER.replace("num_partitions=2", "num_partitions=1")])  # fmt: skip
def test_text_that_is_not_understood_says_nothing(text):
    assert communication(text, None, lambda *_: None) == Communication()
