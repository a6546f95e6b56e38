"""The JAX and libtpu that a hosted notebook comes with, older than any that belong together: what they can compile gets a
plan, what they cannot one sentence, and the kernel lives. JAX itself crashes with them when it compiles for a TPU that is
not there."""

import importlib.metadata

import nbformat
import pytest
from nbclient import NotebookClient

REPORT = "application/vnd.tpumagic.report.v1+json"
PROFILED = "%%tpu_profile --target {}\ny = jax.jit(lambda x: x @ x)(jnp.ones((256, 256)))\ny.block_until_ready()"
CELLS = (
    "%load_ext tpumagic\nimport jax, jax.numpy as jnp",
    PROFILED.format("v5e-1"),
    PROFILED.format("tpu7x-2"),
    "print(float(y[0, 0]))",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The cells with their outputs; nothing is known of the pair before the first."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("JAX_PLATFORMS", "cpu")
    patch.delenv("TPU_LIBRARY_PATH", raising=False)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    try:
        NotebookClient(notebook, kernel_name="python3", timeout=300).execute()
    finally:
        patch.undo()
    return notebook.cells


def answers(cell):
    (report,) = (output.data[REPORT] for output in cell.outputs if REPORT in output.get("data", {}))
    return [target for program in report["programs"] for target in program["targets"]]


def test_a_chip_that_the_stock_library_knows_gets_a_plan(ran):
    found = answers(ran[1])
    assert found
    assert {(answer["status"], answer["fits"]) for answer in found} == {("planned", True)}
    assert {answer["compiler"] for answer in found} == {importlib.metadata.version("libtpu")}


def test_a_chip_that_is_newer_than_the_library_gets_one_sentence(ran):
    found = answers(ran[2])
    assert found
    for answer in found:
        assert answer["status"] == "unavailable"
        assert answer["why"].startswith(
            "The libtpu in use has no topology tpu7x:1x1x1, and `tpumagic compiler install` may fetch a newer one: "
        )


def test_the_kernel_lives_and_has_what_the_cells_made(ran):
    assert ran[3].outputs[0].text == "256.0\n"
