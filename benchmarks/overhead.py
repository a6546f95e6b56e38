"""What the profiler costs: the same cells bare and under %%tpu_profile, one after the other in one process.

usage: overhead.py [--rounds N] [NAME ...]

Cells run in an IPython shell with the extension loaded, by the way that notebooks take. "inside" is what the cell's own
clock says, "whole" includes everything until the report is there; both columns are what profiling adds. Ratios are of
medians over interleaved rounds, the middle half is that of the rounds' own ratios, and "processor" is the same ratio in
processor time of all threads, which other work on the machine disturbs less. Nothing is asserted: it prints what it is.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace

from tpumagic import magics, passes
from tpumagic.events import Call, CellRecord, Compile, FunctionId, Leaf, Program, Signature, SourceSite, Structure
from tpumagic.report import build
from tpumagic.runner import make_shell

SET_UP = """
import time
import jax, jax.numpy as jnp
small = jnp.ones(8)
step = jax.jit(lambda x: x * 1.5 + 1)
tree = {f"leaf{n}": jnp.ones(4) for n in range(2000)}
tree_step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))
step(small), tree_step(tree), (small * 1.5 + 0.5)
None
"""


@dataclass(frozen=True)
class Scenario:
    """A cell to run bare and profiled. rounds: how often, where it is too slow for the usual number."""

    name: str
    cell: str
    rounds: int = 15


SCENARIOS = (
    Scenario("empty cell", "pass", 101),
    Scenario("1,000 cached calls", "for _ in range(1_000):\n    y = step(small)\ny.block_until_ready()", 41),
    Scenario("100,000 cached calls", "for _ in range(100_000):\n    y = step(small)\ny.block_until_ready()"),
    Scenario(
        "200 compiles", "for n in range(200):\n    y = jax.jit(lambda x: x * 2 + n)(small)\ny.block_until_ready()", 5
    ),
    Scenario("2,000 eager ops", "y = small\nfor _ in range(1_000):\n    y = y * 1.5 + 0.5\ny.block_until_ready()", 21),
    Scenario("2,000-leaf pytree, 1 call", "y = jax.block_until_ready(tree_step(tree))", 21),
    Scenario(
        "2,000-leaf pytree, 100 calls", "for _ in range(100):\n    y = tree_step(tree)\njax.block_until_ready(y)", 11
    ),
)


@dataclass(frozen=True)
class Round:
    """Seconds of one cell: by its own clock, of all the process's processors meanwhile, and until it was over, report
    included."""

    inside_s: float
    processor_s: float
    whole_s: float


def run_cell(shell, scenario: Scenario, profiled: bool) -> Round:
    source = f"_took = -time.perf_counter(), -time.process_time()\n{scenario.cell}\n"
    source += "_took = _took[0] + time.perf_counter(), _took[1] + time.process_time()\n"
    started = time.perf_counter()
    result = shell.run_cell(("%%tpu_profile --quiet\n" if profiled else "") + source)
    whole = time.perf_counter() - started
    result.raise_error()
    inside, processor = shell.user_ns["_took"]
    return Round(inside, processor, whole)


def measure(shell, scenario: Scenario, rounds: int) -> str:
    for profiled in (False, True):
        run_cell(shell, scenario, profiled)
    bare: list[Round] = []
    ours: list[Round] = []
    for number in range(rounds):
        pair = ((bare, False), (ours, True)) if number % 2 else ((ours, True), (bare, False))
        for rows, profiled in pair:
            rows.append(run_cell(shell, scenario, profiled))
    inside, ours_inside = (statistics.median(r.inside_s for r in rows) for rows in (bare, ours))
    whole, ours_whole = (statistics.median(r.whole_s for r in rows) for rows in (bare, ours))
    processor, ours_processor = (statistics.median(r.processor_s for r in rows) for rows in (bare, ours))
    ratios = sorted(b.inside_s / a.inside_s for a, b in zip(bare, ours, strict=True))
    return (
        f"{scenario.name:<30} {inside * 1e3:>10.3f} {ours_inside / inside:>7.3f}"
        f" {ratios[len(ratios) // 4]:>7.3f}-{ratios[-1 - len(ratios) // 4]:<7.3f}"
        f" {ours_processor / processor:>9.3f} {(ours_inside - inside) * 1e3:>+10.3f} {(ours_whole - whole) * 1e3:>+10.3f} {rounds:>6}"
    )


LOAD = """
import time
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
started = time.perf_counter()
shell.extension_manager.load_extension("tpumagic")
print(time.perf_counter() - started)
"""


def load_seconds(rounds: int = 7) -> float:
    """Median time of %load_ext tpumagic in fresh processes."""
    command = [sys.executable, "-c", LOAD]
    return statistics.median(float(subprocess.check_output(command, text=True)) for _ in range(rounds))


def make_record(programs: int) -> CellRecord:
    """A cell that compiled this many programs: 20 functions of 20 leaves each, called with ever new shapes."""
    made: list[Program] = []
    for number in range(programs):
        line = 1 + number % 20
        site = SourceSite(line=line, cell=1)
        leaves = tuple(
            Leaf(f"params['layer{n}']", (8, 1 + (number if n == 3 else 0)), "float32", bytes=32) for n in range(20)
        )
        children = tuple(Structure("leaf") for _ in leaves)
        signature = Signature(
            function=FunctionId(f"step{line}", f"code{line}", line, definition=site),
            leaves=leaves,
            structure=(("params", Structure("dict", tuple(f"layer{n}" for n in range(20)), children=children)),),
            positional=("params",),
            site=site,
        )
        earlier = tuple(s for p in made[-20::-20][:8] if (s := p.signature) is not None)
        compiled = Compile(signature, (site,), 0.01, 0.01, 0.02, earlier=earlier)
        call = Call((site,), number, inputs=leaves)
        made.append(
            Program(
                f"step{line}",
                "jit",
                (site,),
                site,
                signature=signature,
                compiles=(compiled,),
                calls=(call,),
                inputs=leaves,
            )
        )
    return CellRecord(
        source="\n".join(f"step{n}(params)" for n in range(1, 21)), cell=1, wall_s=60.0, programs=tuple(made)
    )


def report_seconds(programs: int, rounds: int = 7) -> tuple[float, float]:
    """Median seconds of findings and of the report for one record."""
    record = make_record(programs)
    finding_s: list[float] = []
    building_s: list[float] = []
    for _ in range(rounds):
        fresh = replace(record)
        started = time.perf_counter()
        found = passes.in_order(finding for one_pass in passes.PASSES for finding in one_pass(fresh))
        middle = time.perf_counter()
        build(fresh, found, environment={})
        finding_s.append(middle - started)
        building_s.append(time.perf_counter() - middle)
    return statistics.median(finding_s), statistics.median(building_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only scenarios whose name contains one of these")
    parser.add_argument("--rounds", type=int, help="rounds of each scenario")
    options = parser.parse_args()
    chosen = [s for s in SCENARIOS if not options.names or any(name in s.name for name in options.names)]
    shell = make_shell()
    magics.load(shell)
    shell.run_cell(SET_UP).raise_error()
    import jax

    print(f"jax {jax.__version__} on {jax.default_backend()}, Python {sys.version.split()[0]}; times in ms\n")
    print(
        f"{'cell':<30} {'bare':>10} {'ratio':>7} {'middle half':>15} {'processor':>9} {'inside':>10} {'whole':>10} rounds"
    )
    for scenario in chosen:
        print(measure(shell, scenario, options.rounds or scenario.rounds), flush=True)
    if options.names:
        return
    print(f"\n%load_ext tpumagic {load_seconds() * 1e3:.1f} ms")
    for programs in (100, 1_000, 2_000, 4_000):
        finding, building = report_seconds(programs)
        total = finding + building
        print(
            f"report of {programs:>5,} programs: findings {finding * 1e3:.1f} ms, report {building * 1e3:.1f} ms, "
            f"together {total * 1e6 / programs:.1f} µs a program"
        )


if __name__ == "__main__":
    main()
