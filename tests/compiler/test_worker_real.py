"""The real TPU compiler in its process: sharded programs, options, refusals, and the pairs that hosts come with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiler.compilers import PROOF, V5E, real_compiler
from tpumagic.compiler.targets import parse_target
from tpumagic.plans import Lowered

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).parent.parent.parent

SHARDED = """
module @sharded attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
  {mesh}
  func.func public @main(%a: tensor<1024x1024xf32> {{{rows}}}) -> (tensor<1024x1024xf32> {{{columns}}}) {{
    %0 = stablehlo.add %a, %a : tensor<1024x1024xf32>
    return %0 : tensor<1024x1024xf32>
  }}
}}
"""


def sharded(devices: int) -> Lowered:
    text = SHARDED.format(
        devices=devices,
        mesh=f'sdy.mesh @mesh = <["x"={devices}]>',
        rows='sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>',
        columns='sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>',
    )
    return Lowered("sharded", text.encode(), devices)


def sharded_without_shardy(devices: int) -> Lowered:
    text = SHARDED.format(
        devices=devices,
        mesh="",
        rows=f'mhlo.sharding = "{{devices=[{devices},1]<=[{devices}]}}"',
        columns=f'mhlo.sharding = "{{devices=[1,{devices}]<=[{devices}]}}"',
    )
    return Lowered("sharded", text.encode(), devices)


def test_a_sharded_program_is_planned_for_one_of_its_devices(own_cache):
    cases = [
        (lowered, target, devices)
        for lowered in (sharded, sharded_without_shardy)
        for target, devices in (("v5e-8", 8), ("v5e-8", 4), ("v4-8", 4), ("v5e-16", 16))
    ]
    answers = real_compiler().ask([(lowered(devices), parse_target(target)) for lowered, target, devices in cases])
    for answer, (_, _, devices) in zip(answers, cases, strict=True):
        assert answer.status == "planned"
        assert answer.plan.argument_bytes == answer.plan.output_bytes == 1024 * 1024 * 4 // devices
        assert [one.kind for one in answer.plan.communications] == ["all-to-all"]


def test_options_reach_the_compiler_and_unknown_ones_are_named(own_cache):
    def with_options(*options):
        return Lowered("double", PROOF.stablehlo, options=options)

    good, wrong, value = real_compiler().ask(
        [
            (with_options(("xla_tpu_scoped_vmem_limit_kib", "65536")), V5E),
            (with_options(("xla_not_an_option", "1")), V5E),
            (with_options(("xla_tpu_scoped_vmem_limit_kib", "plenty")), V5E),
        ]
    )
    assert good.status == "planned"
    assert wrong.why == "The TPU compiler does not take the compiler option xla_not_an_option=1."
    assert value.why == "The TPU compiler does not take the compiler option xla_tpu_scoped_vmem_limit_kib=plenty."


LARGE = """
module @large {{
  func.func public @main(%a: tensor<{n}xf32>) -> tensor<{n}xf32> {{
    %0 = stablehlo.add %a, %a : tensor<{n}xf32>
    return %0 : tensor<{n}xf32>
  }}
}}
"""


def large(total_bytes: int) -> Lowered:
    return Lowered("large", LARGE.format(n=total_bytes // 8 // 1024 * 1024).encode())


def test_a_program_that_does_not_fit_has_a_plan_that_says_so(own_cache):
    (answer,) = real_compiler().ask([(large(24 * 2**30), V5E)], wait_for_cost=True)
    assert (answer.status, answer.plan.fits, answer.error.kind) == ("planned", False, "hbm")
    assert answer.plan.needed_bytes == pytest.approx(24 * 2**30, rel=0.001)
    assert answer.cost is None


def test_the_verdict_flips_at_the_memory_of_the_target(own_cache):
    targets = [parse_target(name) for name in ("v5e-1", "v6e-1", "v4-8", "v5p-8", "tpu7x-8")]
    requests = [(large(target.hbm_bytes + extra), target) for target in targets for extra in (-(2**20), 2**20)]
    answers = real_compiler().ask(requests, wait_for_cost=True)
    assert [answer.plan.fits for answer in answers] == [True, False] * 5
    assert [answer.cost is not None for answer in answers] == [True, False] * 5


def test_what_is_no_program_is_one_sentence(own_cache):
    (answer,) = real_compiler().ask([(Lowered("x", b"ML\xefR and nothing"), V5E)])
    assert answer.status == "unavailable"
    assert answer.why.startswith("JAX could not read the program back: ")


ASK = """
from tests.compiler.compilers import PROOF, V5E
from tpumagic.compiler.service import Compiler
compiler = Compiler()
for _ in range(2):
    (answer,) = compiler.ask([(PROOF, V5E)], wait_for_cost=True)
compiler.close()
assert answer.cost is not None or "crashes when it compiles" in answer.why, answer
print(answer.status, answer.compiler)
"""


@pytest.mark.parametrize(("name", "version"), [("colab", "0.0.21.1"), ("kaggle", "0.0.17"), ("newest", None)])
def test_what_a_host_comes_with_compiles_or_is_said_to_crash(own_cache, name, version):
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make test-compat` makes the environment of {name}")
    done = subprocess.run(
        [str(python), "-c", ASK], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    status, compiler = done.stdout.split()
    assert status == "unavailable" or version in (None, compiler)


def test_jax_is_not_imported_by_asking(own_cache):
    code = (
        "import sys; from tpumagic.compiler.service import Compiler; from tests.compiler.compilers import PROOF, V5E;"
        "compiler = Compiler(); answer = compiler.ask([(PROOF, V5E)])[0]; compiler.close();"
        "print(answer.status, 'jax' in sys.modules, 'libtpu' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "planned False False\n"
