"""What a user's own objects and cells may do to the observation of JAX: nothing, and nothing of theirs is executed."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpumagic.backends.jax import JaxBackend
from tpumagic.backends.jax.frames import device_idle
from tpumagic.backends.jax.signatures import Identities
from tpumagic.backends.jax.structures import text_of
from tpumagic.user_code import UserCode

ORIGINAL_DEVICE_PUT = jax.device_put


class Touched(Exception):
    """Code of the user's was executed."""


class Meta(type):
    def __getattr__(cls, name: str) -> object:
        raise Touched(name)


class Hostile(metaclass=Meta):
    def __getattribute__(self, name: str) -> object:
        raise Touched(name)

    def __eq__(self, other: object) -> bool:
        raise Touched("==")

    def __hash__(self) -> int:
        raise Touched("hash")

    def __repr__(self) -> str:
        raise Touched("repr")


class HostileList(list):
    def __len__(self) -> int:
        raise Touched("len")

    def __getitem__(self, place: object) -> object:
        raise Touched("item")


class Number(int):
    def __repr__(self) -> str:
        raise Touched("repr")


def observe(action, namespace):
    backend = JaxBackend(UserCode())
    backend.user_code.add_file(__file__)
    backend.start(lambda: True)
    try:
        action()
    finally:
        backend.stop()
    seen = backend.observation(namespace, out=None, traceback=None)
    names = backend.named_values(namespace)
    backend.close()
    return seen, names


def test_variables_are_named_without_running_code_of_their_classes():
    captured = jnp.arange(100_000.0)
    namespace = {"h": Hostile(), "hs": [Hostile()], "captured": captured, "step": jax.jit(lambda x: x)}
    seen, (jitted, arrays) = observe(lambda: jax.jit(lambda x: x + captured)(1.0), namespace)
    assert not seen.unavailable
    assert "step" in jitted
    assert "h" not in jitted
    assert arrays == {"captured"}
    assert [c.name for p in seen.programs for c in p.constants] == ["captured"]


def test_asking_whether_the_device_is_idle_runs_no_code_of_the_users():
    values = HostileList([jnp.ones(2).block_until_ready()])
    assert device_idle({"h": Hostile(), "values": values}, ["h", "values"]) is True


def test_texts_of_static_values_run_no_code_of_the_users():
    assert text_of(Hostile()) == "Hostile"
    assert text_of(Number(4)) == "4"
    assert text_of((Number(4),)) == "tuple"


def test_a_class_that_can_only_be_rebuilt_from_arrays_is_seen():
    class Strict:
        def __init__(self, value):
            self.value = value

    def rebuild(_, children):
        if not hasattr(children[0], "shape"):
            raise TypeError("arrays only")
        return Strict(children[0])

    jax.tree_util.register_pytree_node(Strict, lambda s: ((s.value,), None), rebuild)
    function = jax.jit(lambda s: s.value * 2)
    argument = Strict(jnp.ones(3))
    seen, _ = observe(lambda: function(argument), {})
    assert not seen.unavailable
    assert [leaf.shape for p in seen.programs if p.kind == "jit" for leaf in p.inputs] == [(3,)]


def test_a_function_imported_from_jax_during_a_cell_is_jax_s_own_afterwards():
    kept: dict[str, object] = {}

    def cell():
        kept["device_put"] = jax.device_put
        kept["asarray"] = jnp.asarray
        jnp.asarray(np.ones(3, np.float32))

    observe(cell, {})
    assert kept["device_put"] is jax.device_put is ORIGINAL_DEVICE_PUT
    assert kept["asarray"] is jnp.asarray


@pytest.mark.parametrize("replacement", [None, object()])
def test_a_cell_that_takes_jax_away_is_told_so(replacement):
    function = jax.jit(lambda x: x + 1)
    argument = jnp.ones(3)

    def cell():
        function(argument)
        sys.modules["jax"] = replacement  # type: ignore[assignment]

    backend = JaxBackend(UserCode())
    backend.start(lambda: True)
    try:
        cell()
        backend.wait()
        backend.stop()
        seen = backend.observation({}, out=None, traceback=None)
        assert not backend.loaded
        assert backend.describe() is None
    finally:
        sys.modules["jax"] = jax
        backend.close()
    assert [u.why for u in seen.unavailable] == [
        "the cell took jax out of sys.modules; restart the kernel to import it afresh"
    ]
    assert len(seen.programs) == 1


def test_numbers_of_objects_that_are_gone_are_forgotten():
    identities = Identities()
    for _ in range(100):
        identities.of(Number)
        identities.of(set())
    assert len(identities._known) == 1
