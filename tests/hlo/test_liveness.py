import pytest

from tpumagic import hlo


def peak(values, kinds=("argument", "output", "constant", "temporary")) -> int:
    changes: dict[int, int] = {}
    for value in values:
        if value.kind in kinds:
            changes[value.first] = changes.get(value.first, 0) + value.bytes
            changes[value.last + 1] = changes.get(value.last + 1, 0) - value.bytes
    highest = now = 0
    for position in sorted(changes):
        now += changes[position]
        highest = max(highest, now)
    return highest


def live(*lines: str, before: str = "", header: str = "HloModule m, is_scheduled=true"):
    body = "".join(f"  {line}\n" for line in lines)
    module = hlo.parse(f"{header}\n\n{before}\nENTRY %main (x: f32[1024]) -> f32[1024] {{\n{body}}}\n")
    return {(value.name, value.index): value for value in hlo.live_values(module)}


def test_a_temporary_lives_from_its_definition_to_its_last_use():
    values = live(
        "%x = f32[1024]{0:T(1024)} parameter(0)",
        "%a = f32[1024]{0:T(1024)} add(%x, %x)",
        "%b = f32[1024]{0:T(1024)S(1)} add(%a, %a)",
        "%c = f32[1024]{0:T(1024)} add(%a, %b)",
        "ROOT %d = f32[1024]{0:T(1024)} add(%c, %c)",
    )
    assert {key[0]: (v.kind, v.bytes, v.first, v.last) for key, v in values.items()} == {
        "x": ("argument", 4096, 0, 5),
        "a": ("temporary", 4096, 1, 3),
        "c": ("temporary", 4096, 3, 4),
        "d": ("output", 4096, 4, 5),
    }


def test_a_donated_argument_and_its_result_are_one():
    values = live(
        "%x = f32[1024]{0:T(1024)} parameter(0)",
        "ROOT %d = f32[1024]{0:T(1024)} add(%x, %x)",
        header="HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, entry={}",
    )
    assert {key[0]: value.kind for key, value in values.items()} == {"x": "argument"}


def test_an_update_in_place_takes_no_memory_of_its_own():
    values = live(
        "%x = f32[1024]{0:T(1024)} parameter(0)",
        "%i = s32[]{:T(128)S(6)} constant(0)",
        '%a = f32[8192]{0:T(1024)} custom-call(), custom_call_target="AllocateBuffer"',
        "%b = f32[8192]{0:T(1024)} dynamic-update-slice(%a, %x, %i)",
        "%c = f32[8192]{0:T(1024)} dynamic-update-slice(%b, %x, %i)",
        "ROOT %d = f32[1024]{0:T(1024)} add(%c, %b)",
    )
    assert sorted(key[0] for key, value in values.items() if value.bytes == 8192 * 4) == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("transformer_scan", 0.99),
        ("out_of_memory_scan", 0.999),
        ("out_of_memory_scan_newer", 0.999),
        ("out_of_memory", 0.999),
        ("scan_gradient", 0.98),
        ("mlp_step", 0.94),
        ("sharded_block", 0.97),
        ("pallas_kernel", 0.999),
        ("element_types", 0.999),
    ],
)
def test_the_peak_is_near_the_compilers_own_plan(stored, name, share):
    dump = stored(name)
    planned = sum(a.size for a in hlo.parse_buffer_assignment(dump.buffer_assignment).allocations if a.color == 0)
    assert share <= peak(hlo.live_values(hlo.parse(dump.module))) / planned <= 1


@pytest.mark.parametrize("name", ["transformer_scan", "out_of_memory_scan", "out_of_memory_scan_newer"])
def test_temporaries_alone_are_within_a_tenth_of_the_compilers_own_plan(stored, name):
    dump = stored(name)
    allocations = hlo.parse_buffer_assignment(dump.buffer_assignment).allocations
    planned = sum(a.size for a in allocations if a.color == 0 and a.temporary)
    found = peak(hlo.live_values(hlo.parse(dump.module)), kinds=("temporary",))
    assert found == pytest.approx(planned, rel=0.1)


def test_arguments_and_results_are_those_of_the_plan(stored, any_dump):
    dump = stored(any_dump)
    allocations = [a for a in hlo.parse_buffer_assignment(dump.buffer_assignment).allocations if a.color == 0]
    values = hlo.live_values(hlo.parse(dump.module))
    arguments = sum(value.bytes for value in values if value.kind == "argument")
    assert arguments == sum(a.size for a in allocations if a.parameter is not None)
    outputs = sum(value.bytes for value in values if value.kind == "output")
    assert outputs == pytest.approx(sum(a.size for a in allocations if a.live_out and a.parameter is None), rel=0.01)


def test_the_schedule_is_the_compilers_own(stored, any_dump):
    dump = stored(any_dump)
    sequence = [name for name in hlo.live_ranges(hlo.parse(dump.module)).sequence if "#" not in name]
    compilers = hlo.parse_live_ranges(dump.live_ranges).sequence
    assert [name for name in compilers if name in set(sequence)] == sequence
    assert len(sequence) == len(set(sequence)) > 0


def test_ranges_are_within_the_schedule(stored, any_dump):
    ranges = hlo.live_ranges(hlo.parse(stored(any_dump).module))
    assert ranges.ranges
    for first, last in ranges.ranges.values():
        assert 0 <= first <= last <= len(ranges.sequence)


def test_the_largest_holder_has_a_line_of_the_program(stored):
    module = hlo.parse(stored("out_of_memory_scan").module)
    largest = next(value for value in hlo.live_values(module) if value.kind == "temporary")
    instruction = next(i for body in module.computations.values() for i in body if i.name == largest.name)
    assert module.stack(instruction)[-1].function in ("block", "gelu", "layer", "oom_scan.<locals>.<lambda>")


def test_an_empty_module_holds_nothing():
    assert hlo.live_values(hlo.parse("")) == ()
    assert hlo.live_ranges(hlo.parse("")) == hlo.LiveRanges((), {})
