"""What a TPU or its compiler cannot do, and what it can."""

from __future__ import annotations

import pytest
from planned import V5E, leaf, line, plan, planned, program, record, refused

from tpumagic.events import Backend, Failure
from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import targets, unsupported
from tpumagic.plans import Answer, SpecialCall

NO_RULE = "MLIR translation rule for primitive 'eig' not found for platform tpu"
EIG = """
def spec(a):
    return jnp.linalg.eig(a)[0]
spec(jnp.eye(3))
jax.jit(spec).lower(a).compile()
"""


def found(*programs, **more):
    return list(unsupported.find(record(*programs, **more)))


def failure(message: str, type_name: str = "JaxRuntimeError", at: int = 5) -> Failure:
    return Failure(type_name, message, (line(at),))


def test_an_operation_without_a_rule_for_tpu_is_told_at_the_line_that_uses_it():
    (finding,) = found(source=EIG, failure=failure(NO_RULE, "NotImplementedError"))
    assert (finding.kind, finding.severity) == ("unsupported.op", "error")
    assert finding.title == "`spec` uses `eig`, which JAX cannot compile for TPU"
    assert finding.detail == "JAX has `eig` only for other platforms; that is why the cell failed."
    assert finding.fix == (
        "If the matrix is symmetric, use `jnp.linalg.eigh`. If not, run it outside of the jitted function on the CPU: `with "
        "jax.default_device(jax.devices('cpu')[0]):`, or call NumPy with `jax.pure_callback`."
    )
    assert (finding.site.line, finding.related) == (3, (line(5),))
    assert finding.facts == {"operation": "eig", "target": None}


def test_it_is_told_before_it_fails_on_a_tpu():
    graph = Graph((Value((8, 8), "float32"),) * 2, (0,), (1,), (Operation("eig", (0,), (1,), (line(3, "spec"),)),))
    (finding,) = found(program(refused("unsupported", NO_RULE, operation="eig"), name="spec", at=4, graph=graph))
    assert finding.title == "`spec` uses `eig`, which JAX cannot compile for TPU"
    assert finding.detail == (
        "JAX has `eig` only for other platforms; on CPU it works, and on a TPU the call fails with a NotImplementedError."
    )
    assert (finding.site, finding.facts["target"]) == (line(3, "spec"), "v5e-1")


def test_the_function_that_the_user_called_is_told_beside_the_operation():
    source = EIG.replace("jnp.linalg.eig(a)[0]", "jnp.roots(a)")
    (finding,) = found(source=source, failure=failure(NO_RULE, "NotImplementedError"))
    assert finding.title == "`spec` uses `eig` (by `jnp.roots`), which JAX cannot compile for TPU"


def test_the_transform_of_a_real_float64_array_is_told_as_complex128():
    message = "INVALID_ARGUMENT: during context [pre-optimization]: Unexpected operand type for FFT: f64[256,256]{1,0}"
    refusing = program(refused("other", message), name="solve", at=5)
    (finding,) = found(refusing, failure=failure(message))
    assert (finding.kind, finding.facts["dtype"]) == ("unsupported.c128", "complex128")


def test_the_failed_cell_and_the_refused_answer_are_one_finding():
    refusing = program(refused("unsupported", NO_RULE), name="spec", at=5)
    assert len(found(refusing, source=EIG, failure=failure(NO_RULE, "NotImplementedError"))) == 1


@pytest.mark.parametrize(
    ("operation", "call", "fix"),
    [
        ("schur", "jax.scipy.linalg.sqrtm(a)", "For a symmetric matrix `jnp.linalg.eigh` gives the same."),
        ("geqp3", "jax.scipy.linalg.qr(a, pivoting=True)", "Use `jnp.linalg.qr` without pivoting"),
        ("hessenberg", "jax.lax.linalg.hessenberg(a)", "Run it outside of the jitted function on the CPU"),
        ("eig", "jnp.roots(a)", "If the matrix is symmetric"),
    ],
)
def test_other_operations_without_a_rule_are_found_by_the_functions_that_use_them(operation, call, fix):
    source = f"\ndef f(a):\n    return {call}\n\njax.jit(f)(a)\n"
    (finding,) = found(source=source, failure=failure(NO_RULE.replace("eig", operation), "NotImplementedError"))
    assert finding.site.line == 3
    assert finding.fix.startswith(fix)


def test_a_rule_missing_for_cpu_is_not_this_finding():
    assert found(source=EIG, failure=failure(NO_RULE.replace("tpu", "cpu"), "NotImplementedError")) == []


FFT = "INVALID_ARGUMENT: during context [pre-optimization]: Unexpected operand type for FFT: c128[1024]{0}\n\t\n"


def spectrum(*answers, dtype: str = "float64", **more):
    values = (Value((1024,), dtype), Value((1024,), "complex128"), Value((1024,), "complex128"), Value((1024,), dtype))
    operations = (
        Operation("convert", (0,), (1,), (line(3),)),
        Operation("fft", (1,), (2,), (line(3, "spec"),)),
        Operation("abs", (2,), (3,), (line(4),)),
    )
    graph = Graph(values, (0,), (3,), operations)
    return program(*answers, name="spec", kind="aot", at=5, graph=graph, inputs=(leaf("x", 1024, dtype=dtype),), **more)


def test_complex128_that_nobody_wrote_is_told_with_the_operation_that_needs_it():
    (finding,) = found(spectrum(), failure=failure(FFT))
    assert (finding.kind, finding.severity) == ("unsupported.c128", "error")
    assert finding.title == "`spec` needs complex128 for `fft`, which the TPU compiler refuses"
    assert finding.detail == (
        "Nobody wrote complex128: `x` is float64, and its transform is complex128. The compiler: INVALID_ARGUMENT: during "
        "context [pre-optimization]: Unexpected operand type for FFT: c128[1024]{0}"
    )
    assert finding.fix == (
        "Pass `x.astype(jnp.float32)`, which makes it complex64, or do this part on the host with NumPy."
    )
    assert finding.site == line(3, "spec")
    assert finding.related == (line(5), line(1))


def test_a_refusal_by_the_compiler_is_told_with_the_target():
    (finding,) = found(spectrum(refused("unsupported", FFT)))
    assert finding.title == "`spec` needs complex128 for `fft`, which the TPU compiler refuses for v5e-1"


CRASH = "The TPU compiler gave no plan: its process ended with SIGABRT."


def phases(why: str = CRASH, dtype: str = "complex128"):
    values = (Value((1024,), "float64"), Value((1024,), dtype), Value((1024,), "float64"))
    operations = (
        Operation("convert", (0,), (1,), (line(3, "evolve"),)),
        Operation("real", (1,), (2,), (line(4),)),
    )
    return program(
        Answer(V5E, "unavailable", why=why), name="evolve", at=5, graph=Graph(values, (0,), (2,), operations)
    )


def test_a_conversion_to_complex128_at_which_the_compiler_crashes_is_told_at_its_line():
    (finding,) = found(phases())
    assert (finding.kind, finding.severity) == ("unsupported.c128", "error")
    assert finding.title == "`evolve` converts float64 to complex128, at which the TPU compiler for v5e-1 crashes"
    assert finding.detail == (
        "Its process ended while it compiled this program; on a TPU that is the process of the notebook."
    )
    assert finding.fix == (
        "Use float32, which makes it complex64; or make the complex numbers with `jax.lax.complex(real, imaginary)`, which "
        "it compiles."
    )
    assert finding.site == line(3, "evolve")
    assert list(targets.find(record(phases()))) == []


@pytest.mark.parametrize("one", [phases(dtype="complex64"), phases("The TPU compiler gave no plan in 60 s.")])
def test_a_crash_without_such_a_conversion_and_one_without_a_crash_have_no_reason(one):
    assert found(one) == []
    assert [finding.kind for finding in targets.find(record(one))] == ["env.compiler_missing"]


def test_a_complex_argument_is_to_be_passed_in_complex64():
    (finding,) = found(spectrum(dtype="complex128"), failure=failure(FFT))
    assert finding.fix == "Pass `x.astype(jnp.complex64)`, or do this part on the host with NumPy."
    assert not finding.detail.startswith("Nobody")


LU = "UNIMPLEMENTED: Only F32 and C64 types are implemented in LuDecomposition; got shape f64[64,64]:     @     0x7fd5 xla"


def test_a_64_bit_type_that_an_operation_does_not_take_is_told():
    values = (Value((64, 64), "float64"), Value((64, 64), "float64"))
    graph = Graph(values, (0,), (1,), (Operation("lu", (0,), (1,), (line(3),)),))
    made = program(refused("unsupported", LU), name="solve", graph=graph, inputs=(leaf("a", 64, 64, dtype="float64"),))
    (finding,) = found(made)
    assert finding.kind == "unsupported.x64"
    assert finding.title == "`solve` needs 64-bit numbers for `lu`, which the TPU compiler refuses for v5e-1"
    assert finding.detail == (
        "The compiler: UNIMPLEMENTED: Only F32 and C64 types are implemented in LuDecomposition; got shape f64[64,64]:"
    )
    assert finding.fix == "Pass `a.astype(jnp.float32)`, or do this part on the host with NumPy."
    assert finding.site == line(3)


def test_anything_else_that_the_compiler_does_not_support_is_told_in_its_words():
    answer = refused("unsupported", "UNIMPLEMENTED: no such reduction", operation="reduce_xor", stack=(line(7),))
    (finding,) = found(program(answer))
    assert finding.kind == "unsupported.op"
    assert finding.title == "The TPU compiler cannot compile `reduce_xor` in `step` for v5e-1"
    assert finding.detail == "The compiler: UNIMPLEMENTED: no such reduction"
    assert finding.site == line(7)


@pytest.mark.parametrize(
    "more",
    [
        {"failure": failure("complex128 arrays are not supported", "TypeError")},
        {"failure": failure("INVALID_ARGUMENT: got f64[8]"), "backends": (Backend("jax", "0.10", "cpu"),)},
        {"failure": failure("INTERNAL: something else")},
    ],
    ids=["the user's own exception", "the CPU's compiler", "another reason"],
)
def test_other_failures_are_not_told(more):
    assert found(program(), **more) == []


def test_a_program_that_compiles_is_not_told():
    assert found(spectrum(planned(plan(1)))) == []


def test_a_decomposition_is_an_info():
    calls = (SpecialCall("custom", "EighTpu", 2, (line(3),)), SpecialCall("custom", "EighTpu", 1, (line(3),)))
    (finding,) = found(program(planned(plan(1, calls=calls)), name="spec"))
    assert (finding.kind, finding.severity) == ("unsupported.slow_op", "info")
    assert finding.title == "`spec` has 2 eigendecompositions (`eigh`), which a TPU computes step by step"
    assert finding.detail == "Each step waits for the one before it, so the matrix units are mostly idle."
    assert finding.fix == (
        "If it takes much of the time, compute it less often or for smaller matrices, or on the host."
    )
    assert finding.site == line(3)


def test_kernels_and_calls_of_the_compilers_own_are_not_slow_operations():
    calls = (
        SpecialCall("custom", "flash_attention", 1, (line(3),)),
        SpecialCall("custom", "TopK", 1, (line(3),)),
        SpecialCall("host", "Cholesky", 1, (line(3),)),
    )
    assert found(program(planned(plan(1, calls=calls)))) == []
