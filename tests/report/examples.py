"""Reports and records for tests: a rich one, a clean one, a failed one, and one too large to show."""

from tpumagic.events import (
    CellRecord,
    Compile,
    DeviceMemory,
    Failure,
    FunctionId,
    Leaf,
    LiveArray,
    MemorySample,
    Program,
    ProgramMemory,
    Signature,
    SourceSite,
    Structure,
    Unavailable,
)
from tpumagic.findings import Finding
from tpumagic.report import Report, build

MIB = 2**20
GIB = 2**30

ENVIRONMENT: dict[str, object] = {
    "host": "Cloud TPU VM",
    "accelerator": "v5litepod-8",
    "chips": [{"kind": "TPU v5 lite", "count": 8, "memory_bytes": 17179869184}],
    "frameworks": {"jax": "0.10.2", "flax": "0.12.1", "optax": "0.2.6", "libtpu": "0.0.42.1"},
    "python": "3.12.7",
    "settings": {"jax_enable_x64": False, "jax_compilation_cache_dir": None},
}


def site(line, function=None, cell=5):
    return SourceSite(line, cell, None, function)


def signature(name="train_step", rows=32, cell=5):
    leaves = (
        Leaf("params['dense']['kernel']", (1024, 4096), "float32", bytes=16 * MIB),
        Leaf("xb", (rows, 1024), "float32", bytes=rows * 4096),
        Leaf("yb", (rows,), "int32", bytes=rows * 4),
    )
    structure = tuple((leaf.path, Structure("leaf")) for leaf in leaves)
    return Signature(FunctionId(name, "0", 1, site(3, cell=cell)), leaves, structure)


def program(name="train_step", line=19, rows=32, seconds=1.2, cell=5, **changes):
    compiled = Compile(
        signature(name, rows, cell), (site(line, cell=cell),), seconds * 0.2, seconds * 0.05, seconds * 0.75
    )
    fields = {
        "name": name, "kind": "jit", "stack": (site(line, cell=cell),), "signature": signature(name, rows, cell), "compiles": (compiled,),
        "memory": ProgramMemory(16 * MIB + rows * 4100, 16 * MIB, 96 * MIB, 16 * MIB, 130 * MIB),
    }  # fmt: skip
    return Program(**{**fields, **changes})


def eager(name, line=12, seconds=0.03, cell=5):
    compiled = Compile(None, (site(line, cell=cell),), seconds / 3, seconds / 3, seconds / 3)
    return Program(name, "eager", stack=(site(line, cell=cell),), compiles=(compiled,))


def rich_record(*, cell=5, slow=1.0):
    """A training cell with three shapes of one step, an earlier program, a callback's program and eager operations.

    slow: factor of all times, with nothing else changed.
    """
    return CellRecord(
        source="for xb, yb in batches:\n    params, loss = train_step(params, xb, yb)\n",
        cell=cell,
        wall_s=6.21 * slow,
        ready_s=6.9 * slow,
        programs=(
            *(program(rows=rows, seconds=seconds * slow, cell=cell) for rows, seconds in ((32, 1.9), (7, 1.4), (5, 1.3))),
            program("evaluate", 24, 32, 0.41 * slow, cell),
            program("init_params", 9, 1, cell=cell, compiles=()),
            program("on_slider_change", 3, 8, 0.2 * slow, cell, outside=True),
            *(eager(name, seconds=0.03 * slow, cell=cell) for name in ("convert_element_type", "add", "multiply", "reduce_sum")),
        ),
        memory=DeviceMemory(
            limit_bytes=int(15.75 * GIB),
            peak_bytes=int(12.1 * GIB),
            cell_peak_bytes=int(12.1 * GIB),
            live_before_bytes=int(3.2 * GIB),
            live_after_bytes=int(5.4 * GIB),
            live=(
                LiveArray(("params['embed']['table']",), (262144, 2048), "float32", 2 * GIB, "P('data', None) over (data=8)"),
                LiveArray(("opt_state[0].mu['embed']['table']",), (262144, 2048), "float32", 2 * GIB, "P('data', None) over (data=8)"),
                LiveArray(("Out[3]",), (65536, 2048), "float32", 512 * MIB),
                LiveArray(("activations",), (8192, 4096), "float32", 128 * MIB, traceback=True),
                LiveArray((), (4096, 4096), "float32", 64 * MIB),
                LiveArray(("xb",), (32, 1024), "float32", 128 * 1024),
            ),
        ),
        unavailable=(Unavailable("transfers of arrays made in C", "jax 0.12 does not report them"),),
    )  # fmt: skip


def sampled_record(devices=2, looks=6, *, duty_cycle=True):
    """A long cell on TPU whose devices were looked at once a second."""
    samples = tuple(
        MemorySample(
            at_s=float(look + 1),
            device=device,
            bytes_in_use=int((2 + look % 6 * 2 + device * 0.1) * GIB),
            limit_bytes=int(15.75 * GIB),
            duty_cycle_percent=float(100 - 15 * (look % 6) - device) if duty_cycle and look != 1 else None,
        )
        for look in range(looks)
        for device in range(devices)
    )
    return CellRecord(wall_s=6.5, ready_s=6.9, memory=DeviceMemory(samples=samples))


def sampled(**changes):
    return build(sampled_record(**changes), (), environment={})


def rich_findings(*, cell=5, slow=1.0):
    return (
        Finding(
            "recompile.shape", "warning",
            "`train_step` was compiled 3 times because the first axis of `xb` and `yb` changed: 32, then 7, then 5.",
            "Each new shape is a new program. Against the closest earlier call only `xb` (float32[32,1024] -> float32[7,1024]) and "
            "`yb` (int32[32] -> int32[7]) differ; the last batch of each file is smaller than the others.",
            "Drop the smaller batch or pad it to 32 rows and mask the loss:\n"
            "xb, n = pad_to(xb, 32), len(xb)\nloss = (per_row * (jnp.arange(32) < n)).sum() / n",
            site(19, "run_epoch", cell), (site(3, None, cell), site(17, None, cell)), "train_step", 2, 2.7 * slow, None,
            {"argument": "xb", "axis": 0, "sizes": [32, 7, 5]},
        ),
        Finding(
            "precision.bf16_update_lost", "error",
            "The update of `params['dense']['kernel']` is lost: 1.0 - 0.0009 is 1.0 in bfloat16.",
            "61 % of its elements did not change in this step.",
            "Keep a float32 copy of the parameters and cast to bfloat16 inside the step.",
            site(14, "update", cell), (), "train_step", 1, None, None, {"old": 1.0, "new": 1.0},
        ),
        Finding(
            "memory.held_by_out", "warning", "`Out[3]` still holds 512 MiB on the device: the value of a cell that ended with an expression.",
            "", "End that cell with `;` or run `%reset -f out`.", site(1, None, cell and cell - 2), (), None, None, None, 512 * MIB,
        ),
        Finding(
            "precision.default_matmul", "info", "`x @ w` in `train_step` multiplies float32 in bfloat16 passes on a TPU.",
            "", "If that is too coarse, set `precision='highest'` on this one product.", site(5, "loss_fn", cell), (), "train_step",
        ),
        Finding("compile.cache_not_written", "info", "2 programs were not kept in the compilation cache: each compiled in under a second.", site=site(24, None, cell)),
    )  # fmt: skip


def rich(*, cell=5, slow=1.0) -> Report:
    return build(
        rich_record(cell=cell, slow=slow),
        rich_findings(cell=cell, slow=slow),
        name="first epoch",
        environment=ENVIRONMENT,
    )


def clean(*, cell=5) -> Report:
    record = CellRecord(
        source="y = step(x)",
        cell=cell,
        wall_s=0.82,
        ready_s=0.83,
        programs=(program("step", 1, cell=cell, seconds=0.8),),
    )
    return build(record, (), environment={})


def failed(*, cell=5) -> Report:
    failure = Failure("ZeroDivisionError", "division by zero", (site(2, cell=cell),))
    return build(CellRecord(source="1/0", cell=cell, wall_s=0.02, failure=failure), (), environment={})


def huge_record(programs=1000, name="layer_{}_" + "very_long_name_" * 200):
    return CellRecord(
        source="x" * 1_000_000,
        cell=5,
        wall_s=100.0,
        programs=tuple(program(name.format(n), n + 1, 32, 0.1 + n % 7) for n in range(programs)),
        memory=DeviceMemory(
            live=tuple(LiveArray((f"weights[{n}]",), (n, 128), "float32", n * 512) for n in range(3000))
        ),
        unavailable=tuple(Unavailable(f"thing {n}", "because " * 500) for n in range(100)),
    )


def huge_findings(count=500, text="A sentence that never ends. " * 500):
    severities = ("error", "warning", "info")
    related = tuple(site(n) for n in range(200))
    facts: dict[str, object] = {"sizes": list(range(5000)), "names": [text] * 50}
    return tuple(
        Finding("recompile.shape", severities[n % 3], f"{n}: {text}", text, text, site(n), related,
                count=n, seconds=float(n), facts=facts)
        for n in range(count)
    )  # fmt: skip
