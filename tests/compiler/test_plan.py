"""What a plan says of programs whose code is known: figures, holders, lines. The dumps are the real compiler's."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.compiler.plan_fixtures import (
    DATA,
    V5E,
    at,
    holder,
    line,
    line_of,
    memory_of,
    stored_figures,
    stored_module,
    stored_plan,
)
from tpumagic.compiler.plan import NoPlanError, plan_of_executable, read_plan

GIB = 1 << 30
NAMES = sorted(path.stem for path in DATA.glob("*.zip"))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_results_and_donated_bytes_are_those_of_the_memory_analysis(name):
    plan, figures = stored_plan(name), stored_figures(name)
    if "error" in figures:
        return
    told = tuple(figures[f"{part}_size_in_bytes"] for part in ("argument", "output", "alias"))
    assert (plan.argument_bytes, plan.output_bytes, plan.alias_bytes) == told
    assert plan.fits


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_needs_what_the_compilers_own_error_says(name):
    plan, figures = stored_plan(name), stored_figures(name)
    if "error" not in figures:
        return
    gigabytes = re.search(r"temporaries \(([\d.]+)G\)", figures["error"])[1]
    assert f"{plan.needed_bytes / GIB:.2f}" == gigabytes
    assert not plan.fits
    assert plan.needed_bytes > plan.available_bytes


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_add_up_and_the_timeline_keeps_the_peak(name):
    plan = stored_plan(name)
    fixed = plan.argument_bytes + plan.output_bytes - plan.alias_bytes + plan.constant_bytes
    assert fixed + plan.temp_bytes == plan.needed_bytes
    assert len(plan.timeline) <= 240
    assert max(used for _, used in plan.timeline) == plan.reconstructed_bytes
    assert plan.reconstructed_bytes <= plan.needed_bytes
    assert [used for position, used in plan.timeline if position == plan.peak_at] == [plan.reconstructed_bytes]
    assert plan.reconstructed_bytes > 0.88 * plan.needed_bytes


@pytest.mark.parametrize("name", NAMES)
def test_holders_account_for_the_peak_and_never_for_more(name):
    plan = stored_plan(name)
    held = sum(one.bytes for one in plan.holders)
    assert held <= plan.needed_bytes
    assert held > 0.85 * plan.reconstructed_bytes
    assert list(plan.holders) == sorted(plan.holders, key=lambda one: -one.bytes)


def test_a_folder_without_a_plan_is_an_error(tmp_path: Path):
    with pytest.raises(NoPlanError):
        read_plan(tmp_path, V5E)


def test_what_a_scan_saves_for_its_gradient_stands_at_the_line_in_its_body():
    plan = stored_plan("scanned")
    largest = plan.holders[0]
    assert (largest.dtype, largest.shape, largest.trips) == ("float32", (48, 8192, 8192), 48)
    assert largest.residual
    assert line_of(largest) == line("gelu")
    saved = [one for one in plan.holders if one.residual and one.shape == (48, 8192, 8192)]
    assert {line_of(one) for one in saved} == {line("gelu")}
    assert sum(one.bytes for one in saved) == 66 * GIB
    assert {one.operation for one in saved} >= {"tanh", "dot_general"}
    assert at([one for one in plan.holders if one.residual], "add")


def test_a_copy_of_an_argument_is_called_so():
    copies = [one for one in stored_plan("scanned").holders if one.operation == "copy of w"]
    assert [(one.shape, one.trips) for one in copies] == [((48, 8192, 2048), 48)]


def test_with_checkpoint_only_the_carry_is_saved():
    saved = [one for one in stored_plan("scanned_remat").holders if one.residual]
    assert {one.shape for one in saved} == {(24, 8192, 1024)}
    assert {line_of(one) for one in saved} <= {line("remat add"), line("remat gelu")}


def test_state_that_is_not_donated_is_there_twice():
    plan = stored_plan("adam")
    assert [(one.argument, one.result, one.bytes) for one in plan.donations] == [
        ("state[0]", 0, 4 * GIB),
        ("state[1]", 1, 4 * GIB),
        ("state[2]", 2, 4 * GIB),
    ]
    arguments = holder(plan, "state[*]")
    assert (arguments.count, arguments.bytes, arguments.donated) == (3, 12 * GIB, False)
    assert line_of(holder(plan, "result[0]")) == line("adam")


def test_donated_state_is_there_once():
    plan = stored_plan("adam_donated")
    assert plan.donations == ()
    assert plan.alias_bytes == 12 * GIB
    assert [(one.name, one.donated) for one in plan.holders] == [("state[*]", True)]


@pytest.mark.parametrize(
    "name", ["scanned", "scanned_remat", "network", "lstm", "logits", "precisions", "sharded_weights"]
)
def test_weights_are_not_to_be_given_away_for_their_gradients(name):
    assert stored_plan(name).donations == ()


def test_where_only_the_momentum_is_donated_the_weights_could_be_too():
    plan = stored_plan("accumulated")
    assert [(one.argument, one.result) for one in plan.donations] == [("w['in']", 0), ("w['out']", 1)]
    assert plan.alias_bytes == holder(plan, "m['in']").bytes + holder(plan, "m['out']").bytes


def test_logits_hold_the_peak_under_their_line():
    largest = stored_plan("logits").holders[0]
    assert largest.shape == (65536, 256000)
    assert line_of(largest) == line("logits")
    assert largest.bytes > 31 * GIB


def test_padding_is_found_at_its_line_with_its_factor():
    worst = stored_plan("regroup").padded[0]
    assert (worst.shape, worst.tiling) == ((1_000_000, 8, 4), "T(8,128)")
    assert worst.bytes == 32 * worst.logical_bytes == 4_096_000_000
    assert line_of(worst) == line("regroup")


def test_a_padded_argument_has_its_name():
    padded = {one.name: one for one in stored_plan("points").padded}
    assert padded["p"].kind == "argument"
    assert padded["p"].bytes * 3 == padded["p"].logical_bytes * 4
    assert padded["result"].kind == "output"


@pytest.mark.parametrize("name", ["scanned", "adam", "network", "widened"])
def test_arrays_that_fill_their_tiles_are_not_padded(name):
    assert stored_plan(name).padded == ()


def test_each_gate_of_an_lstm_stands_at_its_own_line():
    saved = [one for one in stored_plan("lstm").holders if one.residual]
    assert {line_of(one) for one in saved} == {line("gates"), line("cell state"), line("hidden state")}
    assert {one.trips for one in saved} == {200}


def test_layers_that_the_compiler_repeats_are_counted_and_what_it_keeps_for_them_is_saved():
    plan = stored_plan("network")
    assert plan.rematerialized > 20
    kept = [one for one in plan.holders if one.residual]
    assert {line_of(one) for one in kept} == {line("layer")}
    assert max(one.count for one in kept) > 4
    assert holder(plan, "ws[*]").count == 24
    assert holder(plan, "result[*]").count == 24


def test_nothing_is_repeated_where_everything_fits():
    assert stored_plan("lstm").rematerialized == 0


def test_an_array_that_is_widened_and_kept_is_a_repetition():
    largest = stored_plan("widened").holders[0]
    assert largest.repeated
    assert (largest.shape, line_of(largest)) == ((4096, 1024, 128), line("wide"))


@pytest.mark.parametrize("name", ["zeros", "scanned", "logits", "adam", "regroup", "lstm", "network", "decompositions"])
def test_zeros_and_computed_arrays_are_no_repetition(name):
    assert not any(one.repeated for one in stored_plan(name).holders)


def test_calls_of_the_host_are_counted_once_each():
    calls = stored_plan("callbacks").calls
    assert [(one.kind, one.name, one.count, line_of(one)) for one in calls] == [
        ("host", "pure_callback", 1, line("pure")),
        ("host", "debug_print", 1, line("print")),
    ]


def test_kernels_have_the_names_of_their_functions():
    calls = {one.name: line_of(one) for one in stored_plan("kernels").calls}
    assert calls == {"twice_kernel": line("twice"), "second": line("second")}


def test_decompositions_are_named_and_what_serves_them_is_not():
    calls = {one.name: line_of(one) for one in stored_plan("decompositions").calls}
    assert calls == {
        "Cholesky": line("cholesky"),
        "QrDecompositionBlock": line("qr"),
        "EighTpu": line("eigh"),
        "TopK": line("top_k"),
        "sort": line("sort"),
    }


@pytest.mark.parametrize("name", ["scanned", "adam", "logits", "lstm", "sharded_weights", "precisions", "accumulated"])
def test_calls_of_the_compiler_itself_are_not_named(name):
    assert stored_plan(name).calls == ()


@pytest.mark.parametrize(
    ("metadata", "names"),
    [("", []), (', metadata={op_name="jit(f)/scale/pallas_call"}', ["scale"])],
)
def test_a_kernel_is_the_users_where_it_comes_from_their_program(metadata, names):
    # The compiler makes kernels of attention by itself.
    text = f"""HloModule jit_f, is_scheduled=true, entry_computation_layout={{(f32[16,128]{{1,0:T(8,128)}})->f32[16,128]{{1,0:T(8,128)}}}}

ENTRY %main (x: f32[16,128]) -> f32[16,128] {{
  %x = f32[16,128]{{1,0:T(8,128)}} parameter(0), metadata={{op_name="x"}}
  ROOT %name.4 = f32[16,128]{{1,0:T(8,128)}} custom-call(%x), custom_call_target="tpu_custom_call"{metadata}
}}
"""
    assert [call.name for call in plan_of_executable(text, None, V5E).calls] == names


def test_products_say_what_is_multiplied_and_how():
    products = {line_of(one): (one.dtype, one.precision, one.bf16) for one in stored_plan("precisions").products}
    assert products == {
        line("default"): ("float32", "default", True),
        line("highest"): ("float32", "highest", False),
        line("high"): ("float32", "high", False),
        line("half"): ("bfloat16", "default", False),
        line("convolution"): ("float32", "default", True),
        line("ints"): ("int8", "default", False),
    }


def test_products_that_the_compiler_makes_of_other_operations_are_not_the_users():
    assert stored_plan("decompositions").products == ()


def test_a_product_in_float32_is_one_though_its_factor_was_converted_before_the_loop():
    products = stored_plan("sharded_weights").products
    assert {(one.dtype, one.bf16, line_of(one)) for one in products} == {("float32", True, line("sharded layer"))}


def test_sixty_four_bits_are_named_by_operation_and_their_halves_marked():
    plan = stored_plan("sixty_four")
    work = {(one.name, line_of(one)) for one in plan.calls if one.kind == "x64"}
    assert ("float64 mul", line("double")) in work
    assert ("float64 dot_general", line("double product")) in work
    assert {one.dtype for one in plan.products} == {"float64"}
    assert any(one.x64 for one in plan.holders if one.kind == "temporary")


@pytest.mark.parametrize("name", ["scanned", "adam", "precisions"])
def test_thirty_two_bits_are_no_halves(name):
    plan = stored_plan(name)
    assert not any(one.x64 for one in plan.holders)
    assert not any(one.kind == "x64" for one in plan.calls)


def test_collectives_count_once_with_group_trips_and_line():
    found = stored_plan("sharded_weights").communications
    assert {(one.kind, one.group, one.trips, line_of(one)) for one in found} == {
        ("all-reduce", 8, 12, line("sharded layer")),
        ("all-gather", 8, 12, line("sharded layer")),
    }
    gathers = [one for one in found if one.kind == "all-gather"]
    assert [one.shape for one in gathers] == [(1, 2048, 2048)] * 2
    assert all(one.whole and not one.resliced for one in gathers)


@pytest.mark.parametrize("name", ["scanned", "adam", "callbacks"])
def test_one_device_sends_nothing(name):
    assert stored_plan(name).communications == ()


def test_results_have_the_names_of_their_leaves():
    names = {one.name for one in stored_plan("lstm").holders if one.kind == "output"}
    assert names == {"result[1]['kernel']"}


@pytest.mark.parametrize("name", NAMES)
def test_an_executables_own_text_gives_nearly_the_same(name):
    plan, figures = stored_plan(name), stored_figures(name)
    memory = memory_of(figures) if "error" not in figures else None
    own = plan_of_executable(stored_module(name), memory, V5E)
    assert own.needed_bytes == pytest.approx(plan.needed_bytes, rel=0.03, abs=4 << 20)
    assert own.fits
    assert (own.argument_bytes, own.output_bytes, own.alias_bytes) == (
        plan.argument_bytes,
        plan.output_bytes,
        plan.alias_bytes,
    )
    assert own.rematerialized == plan.rematerialized
    largest = next((one for one in plan.holders if one.kind == "temporary"), None)
    if largest is not None and largest.bytes > plan.needed_bytes / 4:
        assert line_of(largest) in {line_of(one) for one in own.holders[:6]}


def test_an_executable_without_an_analysis_has_a_plan_all_the_same():
    own = plan_of_executable(stored_module("adam_donated"), None, V5E)
    assert own.argument_bytes == own.output_bytes == own.alias_bytes + 512
    assert [(one.name, one.count) for one in own.holders] == [("state[*]", 3)]


def test_a_text_that_is_no_program_has_an_empty_plan():
    own = plan_of_executable("not a program", None, V5E)
    assert (own.holders, own.products, own.calls, own.communications) == ((), (), (), ())


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_text_costs_what_is_damaged_and_never_the_plan(seed):
    chance = random.Random(seed)
    lines = stored_module(["lstm", "accumulated", "callbacks", "sharded_weights"][seed % 4]).split("\n")
    damages = (
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: re.sub(r"\(%[^()]*\)", "()", text),
        lambda text: re.sub(r"index=\d+", "index=99", text),
        lambda text: re.sub(r"(?:calls|body)=%?[\w.\-]+", "calls=%nowhere", text),
    )
    damaged = [chance.choice(damages)(text) if chance.random() < 0.05 else text for text in lines]
    plan = plan_of_executable("\n".join(damaged), None, V5E)
    assert plan.needed_bytes >= 0
