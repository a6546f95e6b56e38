"""Programs of a cell, lowered for a TPU that is not there: on every supported version of JAX, without any compiler."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import weakref

import pytest

from tpumagic.plans import Answer, CompilerError, Lowered, Target

pytest.importorskip("jax", reason="these are tests of the JAX backend")

V5E = Target("v5e-1", "v5e", 1, 1, 16_911_433_728)


def requested(seen) -> list[str]:
    return [request.lowered.name for request in seen.requests]


def test_without_a_target_nothing_is_asked(notebook):
    seen = notebook.run("import jax\njax.jit(lambda v: v + 1)(x)")
    assert seen.requests == ()


def test_every_jitted_program_that_a_cell_ran_is_asked_about(notebook):
    source = "@jax.jit\ndef f(v):\n    return v + 1\n@jax.jit\ndef g(v):\n    return v * 2\ny = g(f(x))"
    seen = notebook.run(source, target=V5E)
    assert requested(seen) == ["f", "g"]
    request = seen.requests[0]
    assert request.target == V5E
    assert seen.programs[request.program].name == "f"
    assert request.lowered.devices == 1
    assert request.lowered.stablehlo.startswith(b"ML\xefR")


def test_single_operations_are_not_asked_about(notebook):
    assert notebook.run("y = jnp.sin(x) + 1", target=V5E).requests == ()


def test_a_program_that_was_compiled_in_an_earlier_cell_is_asked_about(notebook):
    notebook.run("@jax.jit\ndef f(v):\n    return v + 1\ny = f(x)")
    assert requested(notebook.run("y = f(x)", target=V5E)) == ["f"]


def test_a_program_that_was_called_ten_times_is_asked_about_once(notebook):
    seen = notebook.run("@jax.jit\ndef f(v):\n    return v + 1\nfor _ in range(10):\n    y = f(x)", target=V5E)
    assert requested(seen) == ["f"]


def test_a_program_that_was_only_lowered_is_asked_about(notebook):
    source = "@jax.jit\ndef f(v):\n    return v + 1\nlow = f.lower(jax.ShapeDtypeStruct((8,), 'float32'))"
    seen = notebook.run(source, target=V5E)
    assert requested(seen) == ["f"]
    assert seen.programs[seen.requests[0].program].compiles == ()


def test_a_program_that_was_only_traced_is_not(notebook):
    source = "f = jax.jit(lambda v: v + 1)\nt = f.trace(x)\ns = jax.eval_shape(f, x)\nj = jax.make_jaxpr(f)(x)"
    assert notebook.run(source, target=V5E).requests == ()


def test_a_kernel_for_tpus_only_is_asked_about_although_the_cell_failed(notebook):
    source = (
        "from jax.experimental import pallas as pl\n"
        "def kernel(i, o):\n    o[...] = i[...] * 2\n"
        "@jax.jit\ndef twice(v):\n    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype))(v)\n"
        "twice(jnp.ones((8, 128)))"
    )
    seen = notebook.run(source, raises=ValueError, target=V5E)
    assert requested(seen) == ["twice"]
    assert b"tpu_custom_call" in seen.requests[0].lowered.stablehlo


def test_host_callbacks_are_lowered_although_there_is_no_tpu_to_call_back(notebook):
    source = (
        "@jax.jit\ndef f(v):\n    jax.debug.print('{}', v.sum())\n"
        "    return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(v.shape, v.dtype), v)\ny = f(x)"
    )
    assert requested(notebook.run(source, target=V5E)) == ["f"]


def test_after_that_a_callback_still_runs_here(notebook):
    source = "@jax.jit\ndef f(v):\n    jax.debug.callback(lambda a: seen.append(1), v)\n    return v\n"
    notebook.run("seen = []\n" + source + "y = f(x)", target=V5E)
    notebook.run("y = f(x); jax.effects_barrier()")
    assert notebook.namespace["seen"] == [1, 1]


def test_an_operation_that_tpus_do_not_have_is_an_answer(notebook):
    source = "@jax.jit\ndef f(v):\n    return jnp.linalg.eig(v)[0]\ny = f(x)"
    seen = notebook.run(source, target=V5E)
    assert seen.requests == ()
    (program,) = [p for p in seen.programs if p.name == "f"]
    (answer,) = program.answers
    assert answer.status == "refused"
    assert isinstance(answer.error, CompilerError)
    assert (answer.error.kind, answer.error.operation) == ("unsupported", "eig")


ANGRY = """
from jax.extend.core import Primitive
from jax.interpreters import mlir
angry = Primitive('angry')
angry.def_abstract_eval(lambda v: v)
class Silent(Exception):
    def __str__(self):
        raise RuntimeError('no words')
def lowered(context, v):
    if 'tpu' in str(context.module_context.platforms):
        raise {error}
    return [v]
mlir.register_lowering(angry, lowered)
y = jax.jit(lambda v: angry.bind(v) + 1)(x)
"""


@pytest.mark.parametrize(
    ("error", "why", "cause"),
    [
        ("ValueError('one\\ntwo')", "JAX did not lower it for a TPU (ValueError: one)", "lowering"),
        ("ValueError", "JAX did not lower it for a TPU (ValueError)", "lowering"),
        ("Silent", "JAX did not lower it for a TPU", "lowering"),
        ("KeyboardInterrupt", "it was interrupted before JAX had lowered it", "interrupted"),
    ],
)
def test_what_a_users_own_lowering_raises_costs_its_answer_alone(notebook, error, why, cause):
    seen = notebook.run(ANGRY.format(error=error), target=V5E)
    (answer,) = (answer for program in seen.programs for answer in program.answers)
    assert answer.why.startswith(why)
    assert (answer.status, answer.cause) == ("unavailable", cause)


def test_the_largest_programs_are_asked_about_and_the_others_counted(notebook):
    source = "for n in range(1, 16):\n    y = jax.jit(lambda v: v + 1)(jnp.ones(n))"
    seen = notebook.run(source, target=V5E)
    assert len(seen.requests) == 12
    (left,) = [u for u in seen.unavailable if "compiled for" in u.what]
    assert left.what == "3 more programs compiled for v5e-1"


def test_nothing_of_the_users_is_held_after_the_cell(notebook):
    notebook.run("class Big:\n    pass\nbig = Big()")
    held = weakref.ref(notebook.namespace["big"])
    notebook.run("@jax.jit\ndef f(v):\n    return v + 1, big and v\ny = f(x)", target=V5E)
    array = weakref.ref(notebook.namespace["x"])
    notebook.namespace.clear()
    import jax

    jax.clear_caches()
    gc.collect()
    assert held() is None
    assert array() is None


@pytest.mark.parametrize(
    "message",
    ["Memory kind pinned_host is not supported by cpu", "argument 'x' not found", "donation is not implemented"],
)
def test_what_fails_for_another_reason_is_not_told_as_the_tpus(message):
    from tpumagic.backends.jax.lowering import refusal

    error = ValueError(message)
    with pytest.raises(ValueError, match=message):
        refusal(error)


def test_what_jax_cannot_lower_for_tpus_is_a_refusal():
    from tpumagic.backends.jax.lowering import refusal

    told = refusal(ValueError("Dynamic grids are not supported by the Pallas TPU lowering"))
    assert (told.kind, told.message) == (
        "unsupported",
        "ValueError: Dynamic grids are not supported by the Pallas TPU lowering",
    )


def test_two_programs_that_are_lowered_first_and_compiled_later_keep_their_names(notebook):
    source = (
        "def f(v):\n    return v + 1\ndef g(v):\n    return v * 2\n"
        "one, two = jax.jit(f).lower(x), jax.jit(g).lower(x)\none.compile()\ntwo.compile()"
    )
    seen = notebook.run(source)
    found = {p.name: str(p.signature) for p in seen.programs if p.kind == "aot"}
    assert found == {"f": "f(v: float32[4,4])", "g": "g(v: float32[4,4])"}


class MadeForTpu:
    """An executable as a TPU's runtime gives it, of which no machine here has one."""

    def __init__(self, kind: str) -> None:
        self.asked = 0
        self._kind = kind

    def local_devices(self):
        return [types.SimpleNamespace(device_kind=self._kind, platform="tpu", id=0)]

    def hlo_modules(self):
        self.asked += 1
        return [types.SimpleNamespace(to_string=lambda: TPU_TEXT)]


TPU_TEXT = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[256]{0:T(256)})->f32[256]{0:T(256)}}

ENTRY %main (x: f32[256]) -> f32[256] {
  %x = f32[256]{0:T(256)} parameter(0), metadata={op_name="x"}
  ROOT %add = f32[256]{0:T(256)} add(%x, %x), metadata={op_name="jit(f)/add"}
}
"""


def on_a_tpu(notebook, loaded, target, told=None, executable=None):
    """What is asked and told of a program that runs on this host's own TPU."""
    from tpumagic.backends.jax.recording import RawProgram
    from tpumagic.backends.jax.targets import for_tpus
    from tpumagic.events import Program

    notebook.run("@jax.jit\ndef f(v):\n    return v + 1\ny = f(x)")
    notebook.backend.start(lambda: True, V5E)
    notebook.namespace["f"](notebook.namespace["x"])
    notebook.backend.stop()
    (seen,) = notebook.backend._observer.lowered
    raw = RawProgram("f", "jit", (), "MainThread", None, None, executable=executable, loaded=loaded, traced=seen.traced)
    program = Program("f", "jit", devices=(0,))
    return for_tpus([raw], [program], target, notebook.user_code, {} if told is None else told)


def test_on_a_tpu_its_own_compiler_has_answered_already(notebook):
    ((program,), requests, _) = on_a_tpu(notebook, MadeForTpu("TPU v5 lite"), None)
    assert [(answer.target.name, answer.status) for answer in program.answers] == [("v5e-1", "planned")]
    assert requests == ()


def test_on_a_tpu_another_target_is_asked_for_beside_it(notebook):
    v6e = Target("v6e-1", "v6e", 1, 1, 33_550_237_696)
    ((program,), requests, _) = on_a_tpu(notebook, MadeForTpu("TPU v5 lite"), v6e)
    assert [answer.target.name for answer in program.answers] == ["v5e-1"]
    assert [request.target for request in requests] == [v6e]


def test_on_a_tpu_its_own_target_is_not_compiled_again(notebook):
    from tpumagic.compiler.targets import parse_target

    ((program,), requests, _) = on_a_tpu(notebook, MadeForTpu("TPU v5 lite"), parse_target("v5e-1"))
    assert (len(program.answers), requests) == (1, ())


def test_the_text_of_an_executable_is_read_in_its_first_cell_only(notebook):
    loaded, told, executable = MadeForTpu("TPU v5 lite"), weakref.WeakKeyDictionary(), type("Executable", (), {})()
    first = on_a_tpu(notebook, loaded, None, told, executable)
    again = on_a_tpu(notebook, loaded, None, told, executable)
    assert first[0][0].answers == again[0][0].answers
    assert loaded.asked == 1


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tpumagic.backends.jax import JaxBackend
from tpumagic.plans import Target
from tpumagic.user_code import UserCode
backend = JaxBackend(UserCode())
backend.start(lambda: True, Target("v5e-%d", "v5e", %d, %d, 16911433728))
mesh = Mesh(np.array(jax.devices()), ("d",))
f = jax.jit(lambda v: v @ v.T)
y = f(jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("d"))))
backend.stop()
seen = backend.observation({}, out=None, traceback=None)
print([(r.lowered.name, r.lowered.devices) for r in seen.requests], [a.why for p in seen.programs for a in p.answers])
"""


def sharded(devices: int) -> str:
    import os

    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", SHARDED % (devices, devices, devices)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_a_sharded_program_is_lowered_for_as_many_devices_as_it_has():
    assert sharded(4) == "[('<lambda>', 4)] []"


def test_a_target_with_another_number_of_devices_gets_a_sentence():
    assert sharded(8) == "[] ['it runs on 4 devices, and v5e-8 has 8']"


def test_a_function_jitted_by_others_has_no_remedy_that_needs_a_second_trace():
    import jax
    import jax.numpy as jnp

    from tpumagic.backends.jax.remedies import variants

    nnx = pytest.importorskip("flax.nnx")
    x = jax.ShapeDtypeStruct((4, 4), "float32")
    unplanned = Answer(V5E, "planned")
    (variant,) = variants(nnx.jit(jnp.sin), (x,), {}, Lowered("f", b""), unplanned)
    assert variant.lowered is None
    assert variant.remedy.why == "only what jax.jit itself has made can be compiled again with this change"
    (variant,) = variants(jax.jit(jnp.sin), (x,), {}, Lowered("f", b"", devices=4), unplanned)
    assert variant.remedy.why == "without the shardings that jax.jit was given it is another program"
    (variant,) = variants(jax.jit(jnp.sin), (x,), {}, Lowered("f", b""), unplanned)
    assert variant.lowered is not None
