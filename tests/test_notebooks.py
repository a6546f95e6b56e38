"""The notebook tests are strict: a report that says something else than the notebook shows fails them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"

pytest.importorskip("nbval")

TINY = [
    "%load_ext tpumagic",
    "import jax, jax.numpy as jnp\nstep = jax.jit(lambda x: x * 2)\nxs = [jnp.ones(n) for n in (8, 8, 5)]",
    "%%tpu_profile\nfor x in xs:\n    y = step(x)",
]


def nbval(path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
    command += ["--nbval-sanitize-with", str(NOTEBOOKS / "sanitize.cfg"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small notebook of one finding, with the outputs that it really has."""
    path = tmp_path_factory.mktemp("notebook") / "tiny.ipynb"
    cells = [
        {"id": f"c{n}", "cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for n, source in enumerate(TINY)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells})
    )
    subprocess.run([sys.executable, NOTEBOOKS / "update.py", path], check=True, capture_output=True)
    return path


@pytest.fixture
def notebook(made, tmp_path):
    """A copy to be changed, tested as the project's own notebooks are."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(NOTEBOOKS / "conftest.py", tmp_path)
    return Path(shutil.copy(made, tmp_path))


@pytest.mark.kernel
def test_a_changed_text_of_one_finding_fails_the_notebook(notebook):
    unchanged = nbval(notebook)
    assert unchanged.returncode == 0, unchanged.stdout
    text = notebook.read_text()
    assert "changed shape" in text
    notebook.write_text(text.replace("changed shape", "has another shape"))
    done = nbval(notebook)
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.kernel
def test_a_report_that_is_gone_fails_the_notebook(notebook):
    cells = json.loads(notebook.read_text())
    cells["cells"][2]["source"] = "for x in xs:\n    y = step(x)"
    notebook.write_text(json.dumps(cells))
    assert "1 failed, 2 passed" in nbval(notebook).stdout


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_no_report_of_a_notebook_is_left_out_of_the_comparison(path):
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if ("%tpu_profile" in source or "%tpu_dryrun" in source) and cell["cell_type"] == "code":
            assert "NBVAL" not in source
            assert not any("nbval" in tag for tag in cell["metadata"].get("tags", ()))
            assert cell["outputs"], source
