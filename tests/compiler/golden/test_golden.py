"""Plans of real programs against what the compiler says of the same programs when JAX alone compiles them as a whole
(``make.py``, taken once for one version of the compiler)."""

import importlib.metadata
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tpumagic.compiler.service import Compiler
from tpumagic.compiler.targets import parse_target
from tpumagic.plans import Plan

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text())
TARGETS = {"v5e": "v5e-4", "v6e": "v6e-4", "v4": "v4-8", "v5p": "v5p-8", "tpu7x": "tpu7x-8"}
STEPS = {"mlp": 16384, "softmax_table": 1024}
"""Programs that stop fitting a v5e at some batch size: by how much that was varied."""


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        (f"libtpu {version_of('libtpu')}", version_of("jax")) != (GOLDEN["compiler"], GOLDEN["jax"]),
        reason=f"the stored figures are of jax {GOLDEN['jax']} with {GOLDEN['compiler']}",
    ),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("flax", "optax")), reason="the programs use flax and optax"
    ),
]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory):
    """The programs as the compiler is asked for them, by the number of devices of the mesh."""
    folder = tmp_path_factory.mktemp("lowered")
    batches = {name: [largest, largest + STEPS[name]] for name, largest in GOLDEN["largest_batch_on_v5e"].items()}
    found = {}
    for devices in (4, 8):
        file = folder / str(devices)
        command = [sys.executable, str(HERE / "programs.py"), str(devices), str(file), json.dumps(batches)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(HERE.parents[2])})
        found[devices] = pickle.loads(file.read_bytes())
    return found


@pytest.fixture(scope="module")
def plans(lowered, tmp_path_factory):
    """Plan by chip and program; ``NAME BATCH`` for the sizes around the limit of v5e."""
    requests, keys = [], []
    for chip, name in TARGETS.items():
        target = parse_target(name)
        for program, asked in lowered[target.devices].items():
            if chip == "v5e" or " " not in program:
                keys.append((chip, program))
                requests.append((asked, target))
    compiler = Compiler()
    try:
        answers = compiler.ask(requests)
    finally:
        compiler.close()
    for key, answer in zip(keys, answers, strict=True):
        assert answer.status == "planned", (key, answer.why, answer.error)
    return {key: answer.plan for key, answer in zip(keys, answers, strict=True)}


CASES = [(chip, program) for chip, programs in GOLDEN["programs"].items() for program in programs]


@pytest.mark.parametrize(("chip", "program"), CASES)
def test_a_plan_has_the_figures_of_a_full_compile(plans, chip, program):
    plan: Plan = plans[chip, program]
    golden = GOLDEN["programs"][chip][program]
    assert plan.argument_bytes == golden["argument_bytes"]
    assert plan.output_bytes == golden["output_bytes"]
    assert (plan.alias_bytes or 0) == golden["alias_bytes"]
    assert plan.needed_bytes == golden["hbm_bytes"]
    assert plan.fits


@pytest.mark.parametrize("program", sorted(STEPS))
def test_the_verdict_flips_at_the_batch_size_at_which_a_full_compile_fails(plans, program):
    largest = GOLDEN["largest_batch_on_v5e"][program]
    assert plans["v5e", f"{program} {largest}"].fits
    assert not plans["v5e", f"{program} {largest + STEPS[program]}"].fits


def test_what_holds_the_peak_is_named_as_in_the_code(plans):
    def names(program):
        return {holder.name: holder.bytes for holder in plans["v5e", program].holders}

    assert names("mlp")["params[1][0]"] == 4 * 1000 * 1024  # rows are padded to lanes
    assert names("transformer_scanned")["momentum['down']"] == 6 * 1024 * 256 * 4
    assert names("flax_with_optax")["state[0].mu['hidden']['kernel']"] == 784 * 512 * 4
    assert names("sharded_block")["x"] == 1024 * 512 * 2
    (table,) = [holder for holder in plans["v5e", "softmax_table"].holders if holder.name == "result[1]"]
    assert table.stack[-1].function == "similarities"
    source = (HERE / "programs.py").read_text().splitlines()
    assert "jax.nn.softmax(x @ x.T)" in source[table.stack[-1].line - 1]
