"""Programs that need more memory than a TPU has, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned import (
    GIB,
    MIB,
    V5E,
    V5E_8,
    buffer,
    leaf,
    line,
    plan,
    planned,
    program,
    record,
    refused,
)

from tpumagic.events import DeviceMemory, Failure, LiveArray
from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import oom
from tpumagic.plans import Donation, Remedy

DATA = Path(__file__).parent.parent / "data" / "oom"
COMPILER = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (24.00G) exceeds available "
    "HBM (15.75G)."
)


def failure(message: str = COMPILER, at: int = 9, expression: str = "step(state, g)") -> Failure:
    return Failure("JaxRuntimeError", message, (line(at),), (("expression", expression),))


def one(*programs, **more):
    (finding,) = oom.find(record(*programs, **more))
    return finding


STATE = plan(
    24,
    buffer("argument", 12, shape=(1 << 30,), name="state[*]", count=3),
    buffer("output", 8, shape=(1 << 30,), name="result[*]", count=2, at=5, operation="add"),
    buffer("output", 4, shape=(1 << 30,), name="result[0]", at=6, operation="sub"),
    argument_bytes=12 * GIB,
    output_bytes=12 * GIB,
    temp_bytes=32768,
    donations=tuple(Donation(f"state[{n}]", n, 4 * GIB) for n in range(3)),
)


def test_a_state_that_could_be_donated_is_the_cause():
    finding = one(program(planned(STATE), arguments=("state", "g")))
    assert (finding.kind, finding.severity, finding.program) == ("oom.hbm", "error", "step")
    assert finding.title == (
        "`step` does not fit on v5e-1: it needs 24 of 15.75 GiB of HBM, of which 12 GiB are results that could take over the "
        "memory of `state`, which is not donated"
    )
    assert finding.detail == (
        "Not donated, 12 GiB: `state` keeps its memory while results of the same type get their own. Arguments, 12 GiB: "
        "`state[*]` float32[1073741824] and 2 more like it (12 GiB). In all 12 GiB arguments, 12 GiB results."
    )
    assert finding.fix == (
        "If `state` is not needed after the call, donate it: `jax.jit(step, donate_argnums=0)`, and go on with the result."
    )
    assert finding.site == line(9)
    assert finding.related == (line(5), line(6), line(1))
    assert finding.bytes == 24 * GIB
    assert finding.facts["causes"] == ["no_donation", "arguments"]
    assert finding.facts["cause_bytes"] == [12 * GIB, 12 * GIB]
    assert finding.facts["target"] == "v5e-1"
    assert finding.facts["holders"][0] == "state[*] float32[1073741824] 12 GiB"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [(("state", "g"), "donate_argnums=0"), (("g", "state"), "donate_argnums=1"), ((), "donate_argnames=('state',)")],
)
def test_the_argument_to_donate_is_told_by_place_or_by_name(arguments, option):
    assert f"`jax.jit(step, {option})`" in one(program(planned(STATE), arguments=arguments)).fix


def test_two_arguments_to_donate_are_told_with_both_places():
    made = replace(STATE, donations=(Donation("params['w']", 0, 6 * GIB), Donation("opt", 1, 6 * GIB)))
    finding = one(program(planned(made), arguments=("params", "opt", "batch")))
    assert finding.fix == (
        "If `params` and `opt` are not needed after the call, donate them: `jax.jit(step, donate_argnums=(0, 1))`, and go on "
        "with the result."
    )
    assert "memory of `params['w']` and `opt`, which are not donated" in finding.title


def test_a_gradient_does_not_replace_the_argument_of_its_type():
    finding = one(program(planned(STATE), wrapper="grad.<locals>.grad_f"))
    assert "no_donation" not in finding.facts["causes"]
    assert "donat" not in finding.fix


def test_arguments_that_alone_are_too_much_are_to_be_split():
    weights = buffer("argument", 18, "bfloat16", (36, 16384, 16384), name="w")
    finding = one(program(planned(plan(18.001, weights, argument_bytes=18 * GIB)), name="fwd"))
    assert finding.title == (
        "`fwd` does not fit on v5e-1: it needs 18 of 15.75 GiB of HBM, of which 18 GiB are arguments: `w` "
        "bfloat16[36,16384,16384]"
    )
    assert finding.fix == (
        "Split `w` over several devices, for example `jax.device_put(w, NamedSharding(jax.make_mesh((2,), ('x',)), P(None, "
        "'x')))`. They are more than one device has, so nothing inside `fwd` helps."
    )
    assert finding.facts["causes"] == ["arguments"]
    assert finding.site == line(9)


def test_on_several_devices_the_need_is_told_for_each():
    weights = buffer("argument", 18, "bfloat16", (36, 16384, 16384), name="w")
    finding = one(program(planned(plan(18, weights), V5E_8), name="fwd"))
    assert finding.title.startswith(
        "`fwd` does not fit on v5e-8: it needs 18 of 15.75 GiB of HBM on each device, of which"
    )


SCAN = """
def layer(x, w):
    return jax.nn.gelu(x @ w), None
def loss(w, x):
    return jax.lax.scan(layer, x, w)[0].sum()
jax.grad(loss)(w, x)
"""


def residual(gib: float, at: tuple[int, ...], **more):
    shape = more.pop("shape", (48, 8192, 8192))
    return buffer("temporary", gib, shape=shape, residual=True, stack=tuple(map(line, at)), operation="tanh", **more)


def test_what_a_scan_keeps_for_the_backward_pass_is_to_be_computed_again():
    made = plan(26, residual(12, (6, 5, 3), trips=48), residual(12, (6, 5, 3), trips=48), temp_bytes=24 * GIB)
    finding = one(program(planned(made), name="loss", at=6), source=SCAN)
    assert finding.title == (
        "`loss` does not fit on v5e-1: it needs 26 of 15.75 GiB of HBM, of which 24 GiB are kept for the backward pass, the "
        "largest float32[48,8192,8192] of `tanh` at In [1] line 3"
    )
    assert finding.detail == (
        "Kept for the backward pass, a slice for each of 48 steps, 24 GiB: float32[48,8192,8192] of `tanh` at In [1] line 3 "
        "(12 GiB); float32[48,8192,8192] of `tanh` at In [1] line 3 (12 GiB). In all 24 GiB temporaries."
    )
    assert finding.fix == (
        "Let the backward pass compute each step again instead of keeping it: `jax.lax.scan(jax.checkpoint(layer), …)`."
    )
    assert finding.facts["causes"] == ["residuals"]
    assert finding.site == line(3)
    assert finding.related == (line(6), line(1))


def test_a_loop_whose_call_is_not_in_the_cell_has_a_general_remedy():
    finding = one(program(planned(plan(26, residual(24, (6,), trips=48)))))
    assert finding.fix.endswith("put `jax.checkpoint(…)` around the loop's body.")


def test_residuals_of_no_loop_are_to_be_computed_again_where_they_are_made():
    kept = [
        buffer("temporary", 3, shape=(64, n), residual=True, stack=(line(4, "block"),), operation="exp")
        for n in range(6)
    ]
    finding = one(program(planned(plan(19, *kept))))
    assert finding.fix == (
        "Let the backward pass compute them again instead of keeping them: use `jax.checkpoint(block)` for the part that makes "
        "them."
    )


def test_the_whole_function_is_not_to_be_computed_again():
    kept = buffer("temporary", 2, shape=(9, 9), residual=True, stack=(line(4, "loss"),), operation="tanh", count=6)
    finding = one(program(planned(plan(19, replace(kept, bytes=14 * GIB, logical_bytes=14 * GIB))), name="loss"))
    assert finding.fix == (
        "Let the backward pass compute them again instead of keeping them: make each layer of `loss` a function of its own, and "
        "call it as `jax.checkpoint(layer)(…)`."
    )


def test_one_array_that_is_too_large_is_to_be_made_in_blocks():
    logits = residual(31.25, (8, 3), shape=(65536, 256000))
    finding = one(program(planned(plan(33.7, logits)), name="loss"))
    assert finding.fix == (
        "Never make float32[65536,256000] as a whole: compute blocks of its 65,536 rows one after the other, "
        "`jax.lax.map(jax.checkpoint(block), rows.reshape(blocks, -1, …))`, and keep only what is left of each."
    )
    assert finding.site == line(3)


def test_temporaries_are_told_with_the_line_that_makes_the_largest():
    parts = [
        buffer("temporary", size, shape=(4096, 512), at=n, operation="dot_general") for n, size in ((3, 3.5), (4, 3))
    ]
    finding = one(program(planned(plan(16, *parts, temp_bytes=14 * GIB))))
    assert finding.title == (
        "`step` does not fit on v5e-1: it needs 16 of 15.75 GiB of HBM, of which 6.5 GiB are temporaries, the largest "
        "float32[4096,512] of `dot_general` at In [1] line 3"
    )
    assert finding.fix == ("Give `step` a smaller batch, split the batch over several devices or compute in bfloat16.")
    assert finding.facts["causes"] == ["temp"]


def test_results_that_replace_no_argument_count_as_made_by_the_program():
    finding = one(program(planned(plan(18, buffer("output", 17, shape=(9, 9), name="result", at=3)))))
    assert finding.facts["causes"] == ["temp"]
    assert finding.title.endswith("of which 17 GiB are results: `result` float32[9,9]")
    assert finding.site == line(3)


def test_values_that_are_only_repeated_are_told():
    repeated = buffer("temporary", 17, shape=(512, 64, 64), repeated=True, at=4, operation="broadcast_in_dim")
    finding = one(program(planned(plan(18, repeated))))
    assert finding.facts["causes"] == ["broadcast"]
    assert "of which 17 GiB only repeat something smaller: float32[512,64,64] of `broadcast_in_dim`" in finding.title
    assert finding.fix == (
        "Keep the axis at size 1 instead of repeating the values: the operations that follow broadcast it by themselves. Where "
        "it is summed over later, `jnp.einsum` needs no such array."
    )


def test_padding_is_told_with_what_the_elements_take():
    small = buffer("temporary", 32, "int32", (8388608, 8, 4), logical_bytes=GIB, at=4, operation="floor")
    finding = one(program(planned(plan(33, small))))
    # Smaller blocks of it would be padded alike.
    assert finding.facts["causes"] == ["padding", "temp"]
    assert (
        "Padding, 31 GiB: int32[8388608,8,4] of `floor` at In [1] line 4 takes 32 GiB for 1 GiB of elements (32×)."
        in finding.detail
    )


def test_64_bit_arrays_are_told():
    wide = buffer("temporary", 17, "float64", (512, 512), x64=True, at=4, operation="add")
    finding = one(program(planned(plan(18, wide))))
    assert finding.facts["causes"] == ["x64"]
    assert "of which 17 GiB are 64-bit arrays: float64[512,512] of `add` at In [1] line 4" in finding.title
    assert finding.fix.startswith("Use 32-bit types for these arrays")


def test_a_small_part_is_no_cause():
    main = buffer("temporary", 16, shape=(9, 9), at=3)
    small = buffer("argument", 0.5, name="x")
    finding = one(program(planned(plan(30, main, small, argument_bytes=GIB // 2))))
    assert finding.facts["causes"] == ["temp"]


def test_what_alone_would_make_it_fit_is_a_cause_though_it_is_small():
    main = buffer("temporary", 14, shape=(9, 9), at=3)
    made = plan(16, main, donations=(Donation("x", 0, GIB // 2),))
    assert one(program(planned(made))).facts["causes"] == ["temp", "no_donation"]


def test_measured_remedies_are_told_and_no_others():
    measured = Remedy("donation", "`donate_argnums=0`", True, 12 * GIB)
    unknown = Remedy("checkpoint", "`jax.checkpoint`", why="no loop")
    finding = one(program(planned(STATE, remedies=(measured, unknown))))
    assert finding.detail.endswith("It fits with `donate_argnums=0` (12 of 15.75 GiB).")
    assert "It fits with" not in one(program(planned(STATE))).detail


def test_where_no_measured_remedy_suffices_the_nearest_is_told():
    remedies = Remedy("donation", "`w` donated", False, 23 * GIB), Remedy("precision", "bfloat16", False, 20 * GIB)
    finding = one(program(planned(STATE, remedies=remedies)))
    assert finding.detail.endswith(
        "No single change that was tried makes it fit; nearest comes bfloat16 (20 of 15.75 GiB)."
    )


def test_operations_that_the_compiler_repeats_are_counted():
    finding = one(program(planned(replace(STATE, rematerialized=3))))
    assert finding.detail.endswith("The compiler already computes 3 operations twice to save memory.")


def test_several_targets_are_one_finding():
    finding = one(program(planned(STATE), planned(STATE, V5E_8)))
    assert "Nor does it fit on v5e-8: 24 of 15.75 GiB." in finding.detail


def test_a_program_compiled_twice_alike_is_told_once():
    assert len(list(oom.find(record(program(planned(STATE)), program(planned(STATE)))))) == 1


def test_a_refusal_without_a_plan_is_told_with_its_figures():
    answer = refused("hbm", COMPILER, needed_bytes=24 * GIB, available_bytes=V5E.hbm_bytes)
    finding = one(program(answer))
    assert finding.title == "`step` does not fit on v5e-1: it needs 24 of 15.75 GiB of HBM"


def test_a_program_that_fits_is_not_told():
    assert list(oom.find(record(program(planned(plan(15.7, buffer("argument", 15, name="w"))))))) == []


def test_a_failed_compile_and_the_compilers_answer_are_one_finding():
    finding = one(program(planned(STATE), arguments=("state", "g"), at=8), failure=failure(at=9))
    assert finding.title.startswith("`step` does not fit on v5e-1")
    assert finding.site == line(8)
    assert line(9) in finding.related


def test_a_failed_compile_without_an_answer_is_explained_by_the_program():
    made = program(
        arguments=("state", "g"),
        kind="aot",
        inputs=(leaf("state[0]", 1 << 30), leaf("state[1]", 1 << 30), leaf("state[2]", 1 << 30), leaf("g", 1)),
        outputs=tuple(leaf(f"result {n}", 1 << 30) for n in range(3)),
    )
    finding = one(made, failure=failure())
    assert finding.severity == "error"
    assert finding.title == (
        "`step` needs 24 of 15.75 GiB of HBM and does not fit: 12 GiB are results that could take over the memory of `state`, "
        "which is not donated"
    )
    assert finding.facts["causes"] == ["no_donation", "arguments"]
    assert finding.site == line(9)


def test_arguments_that_are_donated_already_are_no_missed_donation():
    made = program(
        kind="aot",
        inputs=(leaf("w", 1 << 32),),
        outputs=(leaf("result", 1 << 32),),
        donated=(0,),
    )
    assert one(made, failure=failure()).facts["causes"] == ["arguments"]


def test_without_an_answer_the_largest_array_of_the_program_is_told():
    values = (Value((65536, 2048), "float32"), Value((2048, 256000), "float32"), Value((65536, 256000), "float32"))
    graph = Graph(values, (0, 1), (2,), (Operation("dot_general", (0, 1), (2,), (line(4),)),))
    finding = one(program(kind="aot", graph=graph), failure=failure())
    assert finding.facts["causes"] == ["temp"]
    assert "float32[65536,256000] of `dot_general` at In [1] line 4" in finding.title
    assert finding.site == line(4)


def test_a_failed_compile_of_an_unknown_program_is_told_with_the_compilers_table():
    text = (DATA / "public_multiline_samples.txt").read_text().split("### ")[1]
    finding = one(failure=failure(text, expression="train(state)"))
    assert finding.title == "`train(state)` needs 63.8 of 30.75 GiB of HBM and does not fit"
    assert finding.detail == (
        "The compiler's largest: f32[32,4096,4096]{1,2,0:T(8,128)} (2 GiB) of `dot_general` at attention_module.py line 1059."
    )
    assert finding.site == line(9)


def test_the_failing_program_is_found_by_the_name_of_its_module():
    text = COMPILER.removesuffix(".") + ". HLO module: jit_second."
    first, second = program(kind="aot", name="first"), program(kind="aot", name="second")
    assert one(first, second, failure=failure(text)).program == "second"


def test_a_program_that_fits_elsewhere_is_not_blamed_on_that_target():
    finding = one(program(planned(plan(24, target=replace(V5E, name="v5p-2", hbm_bytes=95 * GIB)))), failure=failure())
    assert finding.title.startswith("`step` needs 24 of 15.75 GiB of HBM and does not fit")
    assert finding.facts["target"] is None


def test_other_failures_are_not_told():
    assert list(oom.find(record(failure=failure("ValueError: shapes")))) == []


LIVE = (
    LiveArray(("params['w']",), (1024, 1024), "float32", 4 * GIB),
    LiveArray(("cache",), (8,), "bfloat16", 6 * GIB),
    LiveArray((), (2,), "float32", GIB),
    LiveArray(("old",), (2,), "float32", GIB, traceback=True),
)


def test_an_array_for_which_the_device_has_no_room_is_told_with_what_is_alive():
    text = "Attempting to allocate 15.65G. That was not possible. There are 11.08G free.; (0x0x0_HBM0)"
    finding = one(failure=failure(text), memory=DeviceMemory(live=LIVE))
    assert (finding.kind, finding.severity) == ("oom.runtime", "error")
    assert finding.title == "`step(state, g)` asks for 15.7 GiB, and the device has 11.1 GiB for it"
    assert finding.detail == (
        "4 arrays with 12 GiB are alive: `cache` bfloat16[8] (6 GiB); `params['w']` float32[1024,1024] (4 GiB); an array "
        "without a name float32[2] (1 GiB); 1 more."
    )
    assert (
        finding.fix == "Free what is no longer needed before this line (`del cache`), or make what it asks for smaller."
    )
    assert finding.site == line(9)


def test_fragments_are_told():
    text = (
        "Attempting to allocate 31.06M. That was not possible. There are 58.64M free. Due to fragmentation, the largest "
        "contiguous region of free memory is 30.56M.; (0x0x0_HBM0)"
    )
    finding = one(failure=failure(text))
    assert finding.title == (
        "`step(state, g)` asks for 31.1 MiB in one piece, and the largest free piece of the device's memory has 30.6 MiB"
    )
    assert finding.detail == "58.6 MiB are free in all, but in fragments between arrays that are alive."
    assert finding.fix == (
        "Free arrays that are no longer needed before this line, make the large and lasting ones first, or restart the kernel: "
        "that leaves no fragments."
    )


def test_a_program_that_cannot_be_loaded_is_told_with_what_can_be_reserved():
    text = (
        "Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G free, 0B reserved, and "
        "3.33G reservable."
    )
    shown = LiveArray(("Out[3]", "_3"), (8,), "float32", GIB)
    finding = one(failure=failure(text), memory=DeviceMemory(live=(shown,)))
    assert finding.title == "`step(state, g)` asks for 6.48 GiB, and the device has 3.33 GiB for it"
    assert finding.detail == (
        "6.78 GiB are free, of which 3.33 GiB can be reserved for the program. 1 array with 1 GiB is alive: `Out[3]` "
        "float32[8] (1 GiB)."
    )
    assert finding.fix == "IPython's output history holds `Out[3]`: `%reset -f out` frees it."


def test_a_machine_that_is_too_small_is_not_blamed_on_the_tpu():
    text = "RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes."
    finding = one(program(planned(plan(9.5))), failure=failure(text))
    assert finding.title == "`step(state, g)` asks for 64 GiB, more than this machine has; no TPU is involved"
    assert finding.detail == "On v5e-1, `step` fits: 9.5 of 15.75 GiB."


VMEM = (DATA / "vmem_table.txt").read_text()


def kernel(*answers, **more):
    graph = Graph((), (), (), (Operation("pallas_call", (), (), (line(4),), {"kernel": "k"}),))
    return program(*answers, name="twice", kind="aot", graph=graph, **more)


def test_a_kernel_whose_blocks_are_too_large_is_told_with_them():
    finding = one(kernel(), failure=failure(VMEM))
    assert (finding.kind, finding.severity) == ("oom.vmem", "error")
    assert finding.title == "The Pallas kernel `k` needs 256 of 128 MiB VMEM: its block is `float32[4096,4096]`"
    assert finding.detail == (
        "VMEM is the working memory of each core, not HBM: a smaller batch does not help. Input block float32[4096,4096] of "
        "float32[16384,4096]: 128 MiB, held 2 times. Output block float32[4096,4096] of float32[16384,4096]: 128 MiB, held 2 "
        "times."
    )
    assert finding.fix == (
        "Give its `BlockSpec` smaller blocks (rows in steps of 8, columns in steps of 128) and the grid more steps."
    )
    assert finding.site == line(4)
    assert finding.related == (line(9), line(1))


def test_the_compilers_refusal_and_the_failed_cell_are_one_finding():
    answer = refused(
        "vmem", "Ran out of memory in memory space vmem.", needed_bytes=256 * MIB, available_bytes=128 * MIB
    )
    finding = one(kernel(answer), failure=failure(VMEM))
    assert (
        finding.title == "The Pallas kernel `k` needs 256 of 128 MiB VMEM on v5e-1: its block is `float32[4096,4096]`"
    )


def test_without_the_compilers_table_the_block_is_read_from_the_source():
    answer = refused("vmem", "…", needed_bytes=33 * MIB, available_bytes=16 * MIB)
    source = "b = pl.BlockSpec((4096, 1024), lambda i: (i, 0))\ny = pl.pallas_call(k, in_specs=[b], out_specs=b)(x)"
    finding = one(kernel(answer), source=source)
    assert finding.title.endswith("needs 33 of 16 MiB VMEM on v5e-1: its block is `(4096, 1024)`")
    assert finding.fix.endswith(" Or raise its limit: `pltpu.CompilerParams(vmem_limit_bytes=…)`.")


def test_vmem_of_an_operation_that_is_no_pallas_kernel_is_told_as_that():
    text = "E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space vmem. Used 33.56M of 32.00M vmem."
    finding = one(failure=failure(text))
    assert finding.title == "A kernel needs 33.6 of 32 MiB VMEM"
    assert "xla_tpu_scoped_vmem_limit_kib" in finding.fix


def test_scratch_memory_that_is_too_large_is_told():
    text = (
        "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: #allocation2 [shape = "
        "'f32[8192,8192]{1,0:T(8,128)}', space=vmem, size = 0x10000000, scoped, tag = 'scratch operand'] :: run.1"
    )
    finding = one(kernel(), failure=failure(text))
    assert finding.title == "The Pallas kernel `k` needs 256 of 128 MiB VMEM: its block is `float32[8192,8192]`"
    assert finding.detail == (
        "VMEM is the working memory of each core, not HBM: a smaller batch does not help. Scratch operand float32[8192,8192]: "
        "256 MiB."
    )
    assert finding.fix == ("Ask for less in `scratch_shapes`, and work on smaller blocks in more steps of the grid.")


def test_scalars_that_do_not_fit_are_told():
    text = "Ran out of memory in memory space smem. Used 1.50M of 1.00M smem. Exceeded smem capacity by 512.0K."
    finding = one(kernel(), failure=failure(text))
    assert finding.title == "The Pallas kernel `k` needs 1.5 of 1 MiB SMEM"
    assert finding.fix.startswith("Pass fewer scalars to the kernel")


def test_a_kernel_that_fits_is_not_told():
    assert list(oom.find(record(kernel(planned(plan(1)))))) == []
