"""Run the notebooks as nbval does and keep their new outputs, after a change that was wanted.

usage: update.py [NOTEBOOK ...]    (all in this folder without a name)
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PACKAGES = sysconfig.get_path("purelib")
PROGRESS = "tpumagic: the TPU compiler "
"""So begins the line that tells how long a cell has been waiting."""


def update(path: Path) -> None:
    """With nbval the kernel does not count cells, so neither do we: reports name a line without its cell."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    with client.setup_kernel():
        count = 0
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            client.execute_cell(cell, index, store_history=False)
            count += 1
            cell.execution_count = count  # nbval takes a cell without a number for one that was never run
            cell.outputs = [output for output in cell.outputs if PROGRESS not in output.get("text", "")]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = count
    # Where the environment and the cache lie is this machine's business.
    text = nbformat.writes(notebook).replace(f"{PACKAGES}/", "site-packages/")
    path.write_text(text.replace(os.environ["XDG_CACHE_HOME"], "~/.cache") + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tpumagic-notebooks-") as kept:
        os.environ["XDG_CACHE_HOME"] = kept  # what an earlier run has asked is asked again
        for name in sys.argv[1:] or sorted(Path(__file__).parent.glob("*.ipynb")):
            update(Path(name))
