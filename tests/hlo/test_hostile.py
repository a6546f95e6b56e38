import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpumagic import hlo

SETTINGS = settings(max_examples=60, deadline=None)

PIECES = [
    "HloModule m, is_scheduled=true\n", "\nENTRY %main (p: f32[8]) -> f32[8] {\n", "}\n", "  ROOT ", "%x", "#0", " = ",
    "f32[8]{0:T(8,128)(2,1)S(1)} ", "(f32[2], (s32[]), ", ") ", "add(%x, %x)", "parameter(0)", "constant({ { 1 ", ", calls=%main",
    ", condition=%c, body=%main", 'metadata={op_name="', 'stack_frame_id=1}', "\\", '"', "\n", "{", "while(%x)", "index=1",
    "FileNames\n", "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n", "1 \"a\"\n", "\x00", "é", "=", " ", "tuple(%x, %x)",
    "copy-start(%x)", "async-start(%x), calls=%main", "get-tuple-element(%x), index=99999999", "allocation 1: size 5, ", " value: <1 x{0} @0> (size=1,offset=2): f32[]",
]  # fmt: skip


def read_all(text: str) -> hlo.Module:
    """Everything that reads texts, on one text; fails only by raising."""
    module = hlo.parse(text)
    for body in module.computations.values():
        for instruction in body:
            hlo.arrays(instruction.shape)
            hlo.elements(instruction.shape)
            module.stack(instruction)
            if instruction.opcode == "while":
                hlo.trip_count(module, instruction)
    hlo.multiplicities(module)
    hlo.live_ranges(module)
    hlo.parse_buffer_assignment(text)
    hlo.parse_live_ranges(text)
    return module


@SETTINGS
@given(st.text())
def test_any_text_is_read(text):
    read_all(text)


@SETTINGS
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_mixture_of_what_modules_are_made_of_is_read(text):
    read_all(text)


@pytest.fixture(scope="module")
def module_text(stored):
    return stored("nested_loops_newer").module


@SETTINGS
@given(data=st.data())
def test_a_module_cut_anywhere_is_read(module_text, data):
    cut = data.draw(st.integers(0, len(module_text)))
    read_all(module_text[:cut])
    read_all(module_text[cut:])


@SETTINGS
@given(data=st.data())
def test_a_damaged_module_is_read(module_text, data):
    text = list(module_text)
    for _ in range(data.draw(st.integers(1, 20))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from('(){}[]"\\,%=# \nT0Z\x00é'))
    read_all("".join(text))


def test_a_damaged_line_costs_only_itself(stored):
    text = stored("transformer_scan").module
    lines = text.splitlines()
    spoilt = next(n for n, line in enumerate(lines) if " = " in line and "exponential" in line)
    lines[spoilt] = lines[spoilt].replace("exponential(", "[[[(")
    before, after = hlo.parse(text), hlo.parse("\n".join(lines))
    assert after.unread == 1
    count = sum(map(len, before.computations.values()))
    assert sum(map(len, after.computations.values())) == count - 1


def in_module(line: str) -> str:
    return f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n  %p = f32[8] parameter(0)\n{line}\n}}\n"


SIZE = 100_000


@pytest.mark.parametrize(
    "line",
    [
        "  %c = f32[8] constant({" + "1, " * SIZE + "})",
        "  %c = f32[8] constant({" + "{ " * SIZE,
        "  %c = f32[8] add(" + "(" * SIZE,
        "  %c = f32[8] add(" + '"' * SIZE,
        "  %c = f32[8] add(" + '\\"' * SIZE,
        "  %c = " + "(" * SIZE,
        "  %c = (" + ") " * SIZE,
        "  %c = (" + ") a" * SIZE,
        "  %c = " + "(" * SIZE + ")" * SIZE + " add(%p)",
        "  %c = (" + "f32[2]{0:T(8,128)}, " * 20_000 + "f32[]) tuple(%p)",
        "  " + " " * SIZE,
        "  " + "%" * SIZE,
        "  %c" + " =" * SIZE,
        "  %c = f32[8] " + "a" * SIZE,
        "  %c = f32[8] add(%p, %p), " + "calls=" * SIZE,
        "  %c = f32[8] add(%p, %p), calls={" + "%a, " * SIZE,
        '  %c = f32[8] add(%p, %p), metadata={op_name="' + "\\" * SIZE,
        '  %c = f32[8] add(%p, %p), metadata={op_name="' + 'op_name="' * SIZE,
        "  %c = f32[8] add(%p, %p), backend_config={" + '"estimated_cycles":' * SIZE,
        "  %c = f32[" + "1," * SIZE + "]{0} add(%p)",
        "  %c = f32[8]{0:" + "T(" * SIZE + "} add(%p)",
        "  %c = f32[8]{0:T(" + "9" * SIZE + ")} add(%p)",
        "  %c = f32[8] get-tuple-element(%p" + "#0" * SIZE + ")",
        "  %c = f32[8] tuple(" + "%p#0, " * SIZE + ")",
        "}\nFileNames\n1 " + '"' * SIZE,
        "}\nStackFrames\n" + "1 {" * SIZE,
        "}\n" + "\n".join(f"%c{n} (a: s32[]) -> s32[] {{" for n in range(20_000)),
    ],
    ids=range(27),
)
def test_a_giant_line_takes_the_time_of_its_length(line):
    start = time.process_time()
    read_all(in_module(line))
    assert time.process_time() - start < 10


def test_programs_nested_deeper_than_calls_can_be():
    bodies = "".join(
        f"%b{n} (p{n}: f32[8]) -> f32[8] {{\n  %p{n} = f32[8] parameter(0)\n"
        f"  ROOT %w{n} = f32[8] while(%p{n}), condition=%c, body=%b{n - 1}\n}}\n\n"
        for n in range(1, 3000)
    )
    start = "HloModule m\n\n%b0 (p0: f32[8]) -> f32[8] {\n  ROOT %p0 = f32[8] parameter(0)\n}\n\n"
    entry = "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n  ROOT %w = f32[8] while(%p), condition=%c, body=%b2999\n}\n"
    module = read_all(start + bodies + entry)
    assert len(hlo.live_ranges(module).sequence) == 6001


def test_computations_named_by_many_run_once_in_the_schedule():
    bodies = "".join(
        f"%b{n} (p{n}: f32[8]) -> f32[8] {{\n  %p{n} = f32[8] parameter(0)\n  %x{n} = f32[8] call(%p{n}), to_apply=%b{n - 1}\n"
        f"  ROOT %y{n} = f32[8] call(%x{n}), to_apply=%b{n - 1}\n}}\n\n"
        for n in range(1, 60)
    )
    start = "HloModule m\n\n%b0 (p0: f32[8]) -> f32[8] {\n  ROOT %p0 = f32[8] parameter(0)\n}\n\n"
    module = read_all(start + bodies + "ENTRY %main () -> f32[8] {\n  ROOT %w = f32[8] call(), to_apply=%b59\n}\n")
    assert hlo.multiplicities(module)["b0"] == 2**59
