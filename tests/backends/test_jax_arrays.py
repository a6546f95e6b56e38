"""Live arrays are told by the user's names, and looking for them changes nothing."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import time
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState

from tpumagic.backends.jax import arrays
from tpumagic.user_code import UserCode

_sizes = iter(range(50_001, 60_000))


def fresh() -> jax.Array:
    """An array of a size that no other has, larger than what other tests left behind."""
    return jnp.zeros((next(_sizes),))


def live(namespace, *, out=None, traceback=None, before=frozenset(), limit=2000, user_code=None):
    return arrays.live_arrays(
        namespace, out=out, traceback=traceback, before=before, limit=limit, user_code=user_code or UserCode()
    )


def names_of(array, namespace, **options) -> tuple[str, ...]:
    return next(one.names for one in live(namespace, **options) if one.shape == array.shape)


@dataclasses.dataclass
class Point:
    x: object


class Slotted:
    __slots__ = ("w",)


class Model:
    def __init__(self, w):
        self.w = w


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - the untyped kind is what old code has


def slotted(a):
    made = Slotted()
    made.w = a
    return made


@pytest.mark.parametrize(
    ("hold", "name"),
    [
        (lambda a: a, "v"),
        (lambda a: {"dense": {"kernel": a}}, "v['dense']['kernel']"),
        (lambda a: [1, (a,)], "v[1][0]"),
        (lambda a: Pair(1, a), "v.right"),
        (lambda a: Point(a), "v.x"),
        (lambda a: slotted(a), "v.w"),
        (lambda a: Model([a]), "v.w[0]"),
        (lambda a: collections.deque([a]), "v[0]"),
        (lambda a: collections.OrderedDict({3: a}), "v[3]"),
        (lambda a: FrozenDict({"p": {"w": a}}), "v['p']['w']"),
        (lambda a: TrainState.create(apply_fn=len, params={"w": a}, tx=optax.sgd(0.1)), "v.params['w']"),
        (lambda a: {(1, "k"): a}, "v[1, 'k']"),
    ],
)  # fmt: skip
def test_an_array_is_named_by_the_path_the_user_would_write(hold, name):
    array = fresh()
    assert names_of(array, {"v": hold(array)}) == (name,)


def test_optimiser_states_and_flax_models_are_named():
    params = linen.Dense(next(_sizes)).init(jax.random.key(0), jnp.ones((1, 3)))
    state = optax.adam(1e-3).init(params)
    kernel = params["params"]["kernel"]
    found = {one.names for one in live({"params": params, "opt": state}) if one.shape == kernel.shape}
    assert found == {
        ("params['params']['kernel']",),
        ("opt[0].mu['params']['kernel']",),
        ("opt[0].nu['params']['kernel']",),
    }


class Net(nnx.Module):
    def __init__(self, width, rngs):
        layers = [nnx.Linear(3, width, rngs=rngs)]
        self.layers = nnx.List(layers) if hasattr(nnx, "List") else layers


def test_flax_nnx_parameters_are_named_with_their_layers():
    width = next(_sizes)
    model = Net(width, nnx.Rngs(0))
    namespace = {"model": model, "state": nnx.state(Net(width, nnx.Rngs(1)))}
    found = {one.names for one in live(namespace) if one.shape == (3, width)}
    assert found == {("model.layers[0].kernel.value",), ("state['layers'][0]['kernel'].value",)}


def test_equinox_modules_are_named():
    equinox = pytest.importorskip("equinox")
    width = next(_sizes)
    model = equinox.nn.Linear(3, width, key=jax.random.key(0))
    assert names_of(model.weight, {"model": model}) == ("model.weight",)


def test_random_keys_are_named():
    keys = jax.random.split(jax.random.key(0), next(_sizes))
    found = [one.names for one in live({"keys": keys}) if one.shape == (keys.shape[0], 2)]
    assert found == [("keys",)]


def test_every_variable_that_holds_it_is_told():
    array = fresh()
    assert names_of(array, {"x": array, "cache": {"old": array}}) == ("x", "cache['old']")


class Hostile:
    """Everything a class can do when it is looked at."""

    def __init__(self, w):
        self.__dict__["w"] = w

    @property
    def loud(self):
        raise SystemExit("a property was read")

    def __getattr__(self, name):
        raise SystemExit(f"{name} was asked for")

    def __getattribute__(self, name):
        raise SystemExit(f"{name} was asked for")

    def __repr__(self):
        raise SystemExit("it was printed")

    def __eq__(self, other):
        raise SystemExit("it was compared")

    def __hash__(self):
        return 1

    def __iter__(self):
        raise SystemExit("it was iterated")

    def __bool__(self):
        raise SystemExit("it was tested")


class LoudDict(dict):
    def items(self):
        raise SystemExit("items() of the user's class was called")

    __iter__ = keys = values = items


def hostile(array):
    made = object.__new__(Hostile)
    object.__getattribute__(made, "__dict__")["w"] = array
    return made


def test_no_code_of_the_user_runs_while_arrays_are_named():
    inside, keyed, loud = fresh(), fresh(), fresh()
    namespace = {"evil": hostile(inside), "d": {hostile(None): keyed}, "e": LoudDict(a=loud)}
    assert names_of(inside, namespace) == ("evil.w",)
    assert names_of(keyed, namespace) == ("d[…]",)
    assert names_of(loud, namespace) == ("e['a']",)


def test_cycles_and_deep_nesting_end():
    array = fresh()
    loop: list = [array]
    loop.append(loop)
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert names_of(array, {"deep": deep, "loop": loop}) == ("loop[0]",)


def test_arrays_that_nothing_names_are_listed_without_a_name():
    array = fresh()
    assert names_of(array, {"other": 1}) == ()


def test_deleted_arrays_are_gone_and_new_ones_are_marked():
    old = fresh()
    before = arrays.identities()
    new, gone = fresh(), fresh()
    gone.delete()
    found = {one.shape: one.new for one in live({"old": old, "new": new, "gone": gone}, before=before)}
    assert found[old.shape] is False
    assert found[new.shape] is True
    assert gone.shape not in found


def test_the_largest_come_first_up_to_the_limit():
    large, larger = jnp.zeros(3_000_001), jnp.zeros(3_000_002)
    found = live({"a": large, "b": larger}, limit=2)
    assert [one.shape for one in found] == [larger.shape, large.shape]
    assert [one.bytes for one in found] == [12_000_008, 12_000_004]


def test_an_array_that_was_printed_is_not_counted_twice():
    array = jnp.zeros(300_003)
    before = arrays.total_live_bytes()
    repr(array)
    assert arrays.total_live_bytes() == before
    assert [one.names for one in live({"x": array}) if one.shape == array.shape] == [("x",)]


def test_what_out_still_holds_is_told_with_the_line_that_showed_it():
    array = fresh()
    namespace = {
        "In": ["", "import jax\nx = make()\nx\n", "del x"],
        "Out": {1: array},
        "_": array,
        "_1": array,
        "_i1": "x",
    }
    found = next(one for one in live(namespace, out=namespace["Out"]) if one.shape == array.shape)
    assert found.names == ("Out[1]", "_", "_1")
    assert (found.site.cell, found.site.line) == (1, 3)
    assert not found.traceback


def test_a_variable_is_told_before_what_out_holds():
    array = fresh()
    namespace = {"Out": {1: array}, "_1": array, "x": array}
    found = next(one for one in live(namespace, out=namespace["Out"]) if one.shape == array.shape)
    assert found.names[0] == "x"
    assert found.site is None


def test_a_loop_variable_called_underscore_is_the_users_own():
    array = fresh()
    assert names_of(array, {"_": array}, out={}) == ("_",)


def test_what_a_traceback_still_holds_is_told_by_its_local_name():
    source = "def work(batch):\n    raise ValueError\n\nwork(make())\n"
    user_code = UserCode()
    user_code.add_cell("/nonexistent/held.py", 4, source)
    array = fresh()
    try:
        exec(compile(source, "/nonexistent/held.py", "exec"), {"make": lambda: array})
    except ValueError as error:
        traceback = error.__traceback__.tb_next
        found = next(one for one in live({}, traceback=traceback, user_code=user_code) if one.shape == array.shape)
        assert (found.names, found.traceback) == (("batch",), True)
        assert (found.site.cell, found.site.line, found.site.function) == (4, 2, "work")
        named = next(one for one in live({"x": array}, traceback=traceback) if one.shape == array.shape)
        assert (named.names[0], named.traceback) == ("x", False)


def test_nothing_is_kept_alive():
    array = fresh()
    reference = weakref.ref(array)
    live({"x": {"y": array}})
    arrays.total_live_bytes()
    del array
    assert reference() is None


def test_the_device_is_not_waited_for():
    slow = jax.jit(lambda a: jax.lax.fori_loop(0, 40, lambda i, b: b @ b * 1e-3, a))
    start = jnp.ones((500, 500))
    slow(start).block_until_ready()
    began = time.perf_counter()
    result = slow(start)
    live({"result": result})
    arrays.total_live_bytes()
    looked = time.perf_counter() - began
    result.block_until_ready()
    assert looked < (time.perf_counter() - began) / 2 or looked < 0.05


def test_the_cpu_tells_no_device_memory():
    assert arrays.device_memory() == (None, None, None)


def test_lists_of_numbers_cost_little():
    namespace = {"numbers": list(range(1_000_000)), "table": {str(i): i for i in range(200_000)}}
    began = time.process_time()
    live(namespace)
    assert time.process_time() - began < 0.5


NOT_STARTED = """
import jax
from tpumagic.backends.jax import arrays
from tpumagic.user_code import UserCode
assert arrays.live_arrays({}, out=None, traceback=None, before=frozenset(), limit=9, user_code=UserCode()) == ()
assert arrays.total_live_bytes() is None and arrays.device_memory() == (None, None, None)
assert arrays.identities() == frozenset()
from jax._src import xla_bridge
assert not xla_bridge._backends
"""

SHARDED = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from tpumagic.backends.jax import arrays
from tpumagic.user_code import UserCode
x = jax.device_put(jnp.zeros((8, 100_000)), NamedSharding(jax.make_mesh((4,), ("d",)), P("d")))
before = arrays.total_live_bytes()
repr(x), [shard.data for shard in x.addressable_shards]
found = arrays.live_arrays({"x": x}, out=None, traceback=None, before=frozenset(), limit=9, user_code=UserCode())
large = [one for one in found if one.bytes > 300_000]
assert [(one.names, one.sharding, one.devices, one.bytes) for one in large] == [
    (("x",), "P('d') over (d=4)", (0, 1, 2, 3), 3_200_000)], large
"""


@pytest.mark.parametrize("program", [NOT_STARTED, SHARDED], ids=["before JAX starts", "sharded over four devices"])
def test_in_a_fresh_interpreter(program):
    environment = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "PATH": "",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
