"""Programs that a cell compiled itself for devices that are not there, told from their own text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Notebook

pytest.importorskip("jax", reason="these are sessions with JAX in them")
pytest.importorskip("libtpu", reason="the TPU compiler is part of libtpu, which exists for Linux on x86_64 only")
pytestmark = pytest.mark.compiler

MIX = """\
from jax.experimental import topologies as T
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.sharding.Mesh(__import__("numpy").array(T.get_topology_desc("v5e:2x4", "tpu").devices).reshape(4, 2), ("a", "b"))
S = lambda *axes: jax.ShapeDtypeStruct((64, 64, 64), "float32", sharding=NamedSharding(mesh, P(*axes)))
def mix(u, v):
    w = jax.lax.with_sharding_constraint(jnp.sin(u), S(None, ("a", "b"), None).sharding)
    return v * w
made = jax.jit(mix).lower(S(AXES), S(None, ("a", "b"), None)).compile()
"""


def test_an_array_that_a_slice_gathers_over_two_axes_and_cuts_again_is_told(jax_notebook: Notebook) -> None:
    report = jax_notebook.run(MIX.replace("AXES", '"b", None, "a"'))
    (finding,) = [one for one in report.findings if one.kind == "sharding.full_remat"]
    assert finding.title == (
        "Resharding float32[64,64,64] to `P(None, ('a', 'b'), None)` copies the whole array to every device"
    )
    assert finding.site is not None
    assert finding.site.line == 6


def test_an_array_that_lies_there_already_is_not(jax_notebook: Notebook) -> None:
    report = jax_notebook.run(MIX.replace("AXES", 'None, ("a", "b"), None'))
    assert [one.kind for one in report.findings if one.kind.startswith("sharding")] == []
