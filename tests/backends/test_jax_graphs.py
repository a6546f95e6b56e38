"""A jaxpr read as a neutral graph, the same on every supported version of JAX."""

from __future__ import annotations

import gc
import time
import weakref
from functools import partial

import pytest

jax = pytest.importorskip("jax", reason="these are tests of the JAX backend")

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpumagic.backends.jax.graphs import graph_of
from tpumagic.events import SourceSite
from tpumagic.graph import Graph


def stack_of(source_info) -> tuple[SourceSite, ...]:
    frames = [frame for frame in source_info.traceback.frames if frame.file_name == __file__]
    return tuple(SourceSite(frame.line_num, file=frame.file_name) for frame in reversed(frames))


def read(function, *arguments, limit: int = 10_000) -> Graph:
    return graph_of(jax.make_jaxpr(function)(*arguments), stack_of, limit)


def names(graph: Graph) -> list[str]:
    return [operation.name for operation in graph.operations]


def only(graph: Graph, name: str):
    (found,) = [operation for _, operation in graph.walk() if operation.name == name]
    return found


half = jnp.ones((8,), jnp.bfloat16)
square = jnp.ones((4, 4))
mesh = Mesh(np.array(jax.devices()[:1]), ("d",))


def test_operations_have_stablehlo_names_types_and_the_users_line() -> None:
    graph = read(lambda x: (x - 1) * 2.0, square)
    assert names(graph) == ["subtract", "multiply"]
    assert [(value.shape, value.dtype, value.literal) for value in graph.values] == [
        ((4, 4), "float32", None), ((), "float32", 1.0), ((4, 4), "float32", None), ((), "float32", 2.0),
        ((4, 4), "float32", None),
    ]  # fmt: skip
    assert (graph.inputs, graph.outputs) == ((0,), (4,))
    assert graph.operations[0].site.file == __file__
    assert not graph.truncated


@pytest.mark.parametrize(
    ("precision", "told"),
    [(None, "default"), ("highest", "highest"), (("default", "highest"), "default,highest"), ("BF16_BF16_F32", "bf16_bf16_f32")],
)  # fmt: skip
def test_a_product_tells_its_precision_and_axes(precision, told) -> None:
    dot = only(read(lambda a, b: jnp.dot(a, b, precision=precision), square, square), "dot_general")
    assert dot.attributes == {
        "precision": told, "preferred_dtype": "float32", "contracting": ((1,), (0,)), "batch": ((), ()),
    }  # fmt: skip


def test_the_context_that_sets_a_precision_shows_in_the_product() -> None:
    with jax.default_matmul_precision("float32"):
        assert only(read(jnp.dot, square, square), "dot_general").attributes["precision"] == "highest"


def test_a_scan_names_its_constants_carries_and_length() -> None:
    graph = read(lambda w, c, xs: jax.lax.scan(lambda c, x: (c + x * w, x), c, xs), 2.0, jnp.ones(3), jnp.ones((5, 3)))
    scan = only(graph, "scan")
    assert scan.attributes == {"length": 5, "carry_count": 1, "constant_count": 1, "reverse": False}
    assert [graph.values[i].shape for i in scan.inputs] == [(), (3,), (5, 3)]
    (body,) = scan.bodies
    assert [body.values[i].shape for i in body.inputs] == [(), (3,), (3,)]


@pytest.mark.parametrize(
    ("start", "keep_on", "step", "length"),
    [
        (0, lambda i: i < 7, lambda i: i + 2, 4),
        (1, lambda i: i <= 7, lambda i: i + 1, 7),
        (9, lambda i: i < 7, lambda i: i + 1, 0),
        (1, lambda i: i < 7, lambda i: i * 2, None),
        (0, lambda i: i != 7, lambda i: i + 1, None),
    ],
)
def test_a_while_that_counts_tells_how_often_it_runs(start, keep_on, step, length) -> None:
    graph = read(
        lambda x: jax.lax.while_loop(lambda s: keep_on(s[0]), lambda s: (step(s[0]), s[1] * x), (start, x)), 2.0
    )
    loop = only(graph, "while")
    assert loop.attributes["length"] == length
    assert (loop.attributes["condition_constant_count"], loop.attributes["body_constant_count"]) == (0, 1)


def test_a_loop_to_an_argument_has_no_known_length() -> None:
    loop = only(read(lambda x, n: jax.lax.fori_loop(0, n, lambda i, x: x * 2, x), 1.0, 5), "while")
    assert loop.attributes["length"] is None


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (g * 2,))


@pytest.mark.parametrize(
    ("function", "operation", "inside"),
    [
        (jax.jit(lambda x: jnp.sin(x)), "call", "sine"),
        (jax.checkpoint(lambda x: jnp.sin(x)), "remat", "sine"),
        (jax.nn.relu, "call", "maximum"),
        (doubled, "call", "multiply"),
        (jax.shard_map(lambda x: jnp.sin(x), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()), "shard_map", "sine"),
        (lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), "cond", "cosine"),
    ],
)  # fmt: skip
def test_calls_have_bodies(function, operation, inside) -> None:
    graph = read(function, half)
    assert operation in names(graph)
    assert inside in [one.name for _, one in graph.walk()]


def test_callbacks_have_the_name_of_the_users_function() -> None:
    def reads(x):
        return np.asarray(x)

    def program(x):
        jax.debug.print("x {}", x)
        jax.debug.callback(reads, x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(reads, shape, x) + jax.experimental.io_callback(partial(reads), shape, x)

    graph = read(program, half)
    assert [operation.attributes.get("callback") for operation in graph.operations] == [
        "jax.debug.print", "reads", "reads", "reads", None,
    ]  # fmt: skip


def test_a_sharding_constraint_tells_its_axes() -> None:
    constraint = only(
        read(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("d"))), half),
        "sharding_constraint",
    )
    assert constraint.attributes["sharding"] == "P('d')"
    assert constraint.attributes["replicated"] is True  # over one device


def test_kernels_and_foreign_calls_stay_closed() -> None:
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    graph = read(pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8,), "bfloat16"), interpret=True), half)
    assert only(graph, "pallas_call").attributes == {"kernel": "kernel", "interpret": True}
    assert only(graph, "pallas_call").bodies == ()
    foreign = read(jax.ffi.ffi_call("there", jax.ShapeDtypeStruct((8,), "bfloat16")), half)
    assert only(foreign, "custom_call").attributes == {"target": "there"}


def test_other_operations_tell_axes_exponents_and_lengths() -> None:
    graph = read(lambda x: (x.sum(0), x**3, jnp.fft.fft(x), jnp.cumsum(x, 1), x.astype("bfloat16")), square)
    assert only(graph, "reduce_sum").attributes == {"axes": (0,)}
    assert only(graph, "integer_pow").attributes == {"exponent": 3}
    assert only(graph, "fft").attributes == {"kind": "fft", "lengths": (4,)}
    assert only(graph, "cumsum").attributes == {"axes": (1,), "reverse": False}
    assert [o.attributes["new_dtype"] for _, o in graph.walk() if o.name == "convert"] == ["complex64", "bfloat16"]


def test_a_promotion_is_told_from_a_cast() -> None:
    def implicit(function) -> list[object]:
        graph = read(function, half)
        return [o.attributes["implicit"] for _, o in graph.walk() if "implicit" in o.attributes]

    assert implicit(lambda x: x * np.float32(2)) == [True]
    assert implicit(lambda x: x.astype(jnp.float32) * np.float32(2)) == [False]
    assert implicit(lambda x: x.mean()) == [False]


def test_the_backward_pass_is_marked() -> None:
    graph = read(jax.grad(lambda w: jnp.tanh(square @ w).sum()), square)
    marks = [operation.attributes.get("gradient") for operation in graph.operations if operation.name == "dot_general"]
    assert marks == [None, True]


def test_a_library_function_called_at_two_lines_has_both_lines() -> None:
    x = jnp.ones((3, 5))

    def program(x):
        first = jnp.where(x > 0, x, -x)
        return first + jnp.where(x > 1, x, -x)

    read(program, x)
    lines = [operation.site.line for _, operation in read(program, x).walk() if operation.name == "select"]
    assert lines[1] == lines[0] + 1


def test_reading_stops_at_the_limit_and_says_so() -> None:
    def long(x):
        for _ in range(100):
            x = x * 2.0
        return x

    graph = read(long, square, limit=10)
    assert len(graph.operations) == 10
    assert graph.truncated
    assert graph.outputs[0] < len(graph.values)


def test_one_function_called_often_is_read_once() -> None:
    @jax.jit
    def layer(x):
        return jnp.tanh(x) * 2.0

    graph = read(lambda x: layer(layer(layer(x))), square)
    assert len({id(operation.bodies[0]) for operation in graph.operations}) == 1


def test_the_graph_keeps_nothing_of_the_users_alive() -> None:
    class Held(np.ndarray):
        pass

    def build():
        held = np.ones((64, 64), np.float32).view(Held)

        def program(x):
            jax.debug.callback(lambda _: held.sum(), x)
            return x + 1

        return weakref.ref(held), graph_of(jax.make_jaxpr(program)(square), stack_of, 1000)

    gone, graph = build()
    jax.clear_caches()
    gc.collect()
    assert len(graph.operations) == 2
    assert gone() is None


def test_time_grows_with_the_number_of_operations() -> None:
    def long(n):
        def program(x):
            for _ in range(n):
                x = x * 2.0
            return x

        jaxpr = jax.make_jaxpr(program)(square)
        times = []
        for _ in range(5):
            start = time.process_time()
            graph_of(jaxpr, lambda _: (), 10**6)
            times.append(time.process_time() - start)
        return min(times) / n

    assert long(4000) < 4 * long(400)
    assert long(4000) < 100e-6
