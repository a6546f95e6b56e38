"""Plans of programs that the real compiler compiles now, held against its own analysis of the executable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiler.plan_fixtures import DATA, V5E, line, line_of, memory_of
from tpumagic.compiler.plan import plan_of_executable, read_plan

pytest.importorskip("jax")
pytest.importorskip("libtpu")
pytestmark = pytest.mark.compiler


def compiled(name: str, folder: Path) -> dict[str, int]:
    command = [sys.executable, str(DATA / "compile.py"), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["points", "regroup", "adam_donated", "callbacks", "kernels"])
def test_the_plan_has_the_figures_of_the_executables_analysis(name, tmp_path):
    figures = compiled(name, tmp_path)
    plan = read_plan(tmp_path, V5E)
    assert plan.argument_bytes == figures["argument_size_in_bytes"]
    assert plan.output_bytes == figures["output_size_in_bytes"]
    assert plan.alias_bytes == figures["alias_size_in_bytes"]
    assert plan.fits
    own = plan_of_executable((tmp_path / "executable.txt").read_text(), memory_of(figures), V5E)
    assert own.needed_bytes == pytest.approx(plan.needed_bytes, rel=0.03, abs=4 << 20)


def test_a_program_that_the_compiler_refuses_has_its_whole_plan(tmp_path):
    figures = compiled("scanned", tmp_path)
    plan = read_plan(tmp_path, V5E)
    assert not plan.fits
    assert f"({plan.needed_bytes / 2**30:.2f}G)" in figures["error"]
    assert line_of(plan.holders[0]) == line("gelu")
    assert plan.holders[0].residual
