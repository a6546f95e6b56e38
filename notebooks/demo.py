"""Run a notebook in a kernel, print the reports that it shows and leave it as a page: what ``make demo`` does.

usage: demo.py NOTEBOOK PAGE
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

REPORT = "application/vnd.tpumagic.report.v1+json"


def main(notebook_path: Path, page_path: Path) -> int:
    """Exit status: 1 if a cell of the notebook failed."""
    notebook = nbformat.read(notebook_path, as_version=4)
    print(f"Running {notebook_path} on {os.environ.get('JAX_PLATFORMS') or 'whatever JAX finds'} ...\n", flush=True)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        resources={"metadata": {"path": str(notebook_path.parent)}},
        extra_arguments=["--log-level=ERROR"],
    )
    failure = None
    try:
        client.execute()
    except CellExecutionError as error:
        failure = error
    shown = 0
    for cell in notebook.cells:
        reports = [output for output in cell.get("outputs", ()) if REPORT in output.get("data", {})]
        for output in reports:
            shown += 1
            print(f"{'-' * 100}\n{cell.source.rstrip()}\n\n{output['data']['text/plain']}\n")
    page_path.parent.mkdir(parents=True, exist_ok=True)
    page, _ = HTMLExporter().from_notebook_node(notebook)
    page_path.write_text(page, encoding="utf-8")
    print(
        f"{'-' * 100}\n{shown} reports. The whole notebook with its reports, to look at: {page_path.resolve().as_uri()}"
    )
    if failure is not None:
        print(f"\nA cell failed:\n{failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
