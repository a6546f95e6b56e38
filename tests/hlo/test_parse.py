import pytest

from tpumagic import hlo
from tpumagic.hlo import Frame

HEAD = "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0:T(256)})->f32[8]{0:T(256)}}\n\n"


def module_of(*lines: str, before: str = "") -> hlo.Module:
    body = "".join(f"  {line}\n" for line in lines)
    return hlo.parse(f"{HEAD}{before}\nENTRY %main.1 (x.1: f32[8]) -> f32[8] {{\n{body}}}\n\n")


def one(line: str, before: str = "") -> hlo.Instruction:
    module = module_of(line, before=before)
    assert module.unread == 0
    (instruction,) = module.computations["main.1"]
    return instruction


def test_a_module_has_its_name_its_entry_and_its_schedule():
    module = module_of("%x.1 = f32[8]{0:T(256)} parameter(0)", "ROOT %y = f32[8]{0:T(256)} add(%x.1, %x.1)")
    assert (module.name, module.entry, module.header) == ("jit_step", "main.1", HEAD.strip())
    assert [i.name for i in module.computations["main.1"]] == ["x.1", "y"]
    assert module.root("main.1").name == "y"
    assert module.by_name["main.1"]["y"].operands == ("x.1", "x.1")


def test_types_of_tuples_may_hold_tuples_and_comments():
    shape = "((f32[2]{0:T(128)}), f32[1]{0:T(128)S(1)}, s32[]{:S(2)}, f32[], f32[], /*index=5*/(), token[])"
    start = one(f"%start = {shape} async-start(%x), calls=%async_computation")
    assert (start.shape, start.opcode, start.called) == (shape, "async-start", ("async_computation",))
    assert hlo.elements(shape)[0] == "(f32[2]{0:T(128)})"
    assert hlo.elements(shape)[5] == "()"
    assert hlo.elements(shape)[6] == "token[]"
    assert hlo.elements("f32[8]") == ("f32[8]",)
    assert hlo.elements("((f32[2], s32[]), (f32[], /*index=1*/(pred[])))") == (
        "(f32[2], s32[])",
        "(f32[], (pred[]))",
    )


@pytest.mark.parametrize(
    ("attributes", "called"),
    [
        (", kind=kLoop, calls=%fused.1", ("fused.1",)),
        (", condition=%cond.1, body=%body.1", ("cond.1", "body.1")),
        (", dimensions={0}, to_apply=%region_0.1", ("region_0.1",)),
        (", branch_computations={%a.1, %b.clone}", ("a.1", "b.clone")),
        (", true_computation=%yes, false_computation=%no", ("yes", "no")),
        (', custom_call_target="x", called_computations={%one, %two}', ("one", "two")),
        (", window={size=2}, select=%ge.1, scatter=%add.1", ("ge.1", "add.1")),
        (', metadata={op_name="calls=%nothing"}', ()),
        (', backend_config={"text":"body=%nothing"}', ()),
    ],
)
def test_computations_that_an_instruction_runs(attributes, called):
    assert one(f"%y = f32[8]{{0}} fusion(%x, %x){attributes}").called == called


def test_what_strings_hold_is_no_structure():
    call = one(
        r'%c = f32[8]{0} custom-call(%a, %b), custom_call_target="x) = {", metadata={op_name="f(\"a b\") {x}" '
        r'stack_frame_id=7}, backend_config={"custom_call_config":{"body":"} ROOT %q = ("},"estimated_cycles":"58367"}'
    )
    assert (call.opcode, call.operands, call.cycles, call.frame) == ("custom-call", ("a", "b"), 58367, 7)
    assert call.op_name == r"f(\"a b\") {x}"


@pytest.mark.parametrize("text", ["{ { 1, 2 }, { 3, 4 } }", '"a ) string"', "(1, 2)", "-inf", "{...}"])
def test_constants_have_no_operands(text):
    constant = one(f'%c = f32[2,2]{{1,0}} constant({text}), metadata={{op_name="k"}}')
    assert (constant.argument_text, constant.operands, constant.op_name) == (text, (), "k")


def test_operands_with_their_types_as_other_printers_write_them():
    added = one("ROOT add.3 = f32[8]{0} add(f32[8]{0} x.1, f32[8]{0} Arg_0.2), to_apply=region.1")
    assert (added.name, added.operands, added.called, added.is_root) == (
        "add.3",
        ("x.1", "Arg_0.2"),
        ("region.1",),
        True,
    )
    assert one("%add = f32[8]{0:T(256)} add(f32[8]{0:T(256)} %x.1, f32[8]{0} %y)").operands == ("x.1", "y")


FRAMES = """
FileNames
1 "/home/user/a \\"b\\".py"
2 "<string>"

FunctionNames
1 "<module>"
2 "outer.<locals>.inner"

FileLocations
1 {file_name_id=1 function_name_id=1 line=40 end_line=40 column=10 end_column=33}
2 {file_name_id=2 function_name_id=2 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=3}
4 {file_location_id=9 parent_frame_id=5}

"""


@pytest.mark.parametrize(
    ("frame", "stack"),
    [
        (1, [('/home/user/a "b".py', 40, "<module>")]),
        (2, [('/home/user/a "b".py', 40, "<module>"), ("<string>", 7, "outer.<locals>.inner")]),
        (3, [('/home/user/a "b".py', 40, "<module>"), *[("<string>", 7, "outer.<locals>.inner")] * 2]),
        (4, []),
        (5, []),
        (0, []),
    ],
)
def test_stacks_run_from_the_outermost_call_to_the_line(frame, stack):
    module = module_of(f'%y = f32[8] add(%x, %x), metadata={{op_name="a" stack_frame_id={frame}}}', before=FRAMES)
    assert module.stack(module.computations["main.1"][0]) == tuple(Frame(*one) for one in stack)


def test_older_compilers_name_file_and_line_at_the_instruction():
    module = module_of(
        '%y = f32[8] add(%x, %x), metadata={op_type="add" op_name="jit(f)/add" source_file="/tmp/a.py" source_line=12}',
        '%z = f32[8] add(%x, %x), metadata={op_name="jit(f)/add" source_file="/tmp/a.py" source_line=12 source_end_line=14}',
        '%w = f32[8] add(%x, %x), metadata={op_name="jit(f)/add" source_file="/tmp/b.py"}',
    )
    y, z, w = module.computations["main.1"]
    assert module.stack(y) == module.stack(z) == (Frame("/tmp/a.py", 12, ""),)
    assert module.stack(w) == (Frame("/tmp/b.py", 0, ""),)
    assert y.op_name == "jit(f)/add"


def test_elements_that_newer_compilers_read_without_an_instruction_have_one():
    module = module_of(
        "%t = (f32[8]{0}, (s32[], pred[4]{0})) parameter(0)",
        "%a = f32[8]{0} add(%t#0, %t#0)",
        "ROOT %b = f32[8]{0} select(%t#1#1, %a, %t#0)",
    )
    assert [(i.name, i.opcode, i.shape, i.operands) for i in module.computations["main.1"]] == [
        ("t", "parameter", "(f32[8]{0}, (s32[], pred[4]{0}))", ()),
        ("t#0", "get-tuple-element", "f32[8]{0}", ("t",)),
        ("a", "add", "f32[8]{0}", ("t#0", "t#0")),
        ("t#1", "get-tuple-element", "(s32[], pred[4]{0})", ("t",)),
        ("t#1#1", "get-tuple-element", "pred[4]{0}", ("t#1",)),
        ("b", "select", "f32[8]{0}", ("t#1#1", "a", "t#0")),
    ]


def test_a_line_that_cannot_be_read_costs_that_line():
    module = module_of("%a = f32[8] parameter(0)", "%b = what is this", "%c = f32[8] add(%a, %a)")
    assert [i.name for i in module.computations["main.1"]] == ["a", "c"]
    assert module.unread == 1


def test_a_computation_of_another_thread_ends_too():
    text = (
        'HloModule m\n\n%a (p: s32[]) -> s32[] {\n  ROOT %p = s32[] parameter(0)\n}, execution_thread="sparsecore"\n\n'
    )
    text += "ENTRY %main (q: s32[]) -> s32[] {\n  ROOT %q = s32[] parameter(0)\n}\n"
    module = hlo.parse(text)
    assert {name: len(body) for name, body in module.computations.items()} == {"a": 1, "main": 1}


@pytest.mark.parametrize(
    "text", ["", "\n\n", "nonsense", "HloModule", "HloModule \n", "}\n}", "ENTRY {", "{", "ENTRY  {\n"]
)
def test_what_is_no_module_is_an_empty_one(text):
    assert sum(map(len, hlo.parse(text).computations.values())) == 0


def test_every_line_of_real_modules_is_read(stored, any_dump):
    text = stored(any_dump).module
    module = hlo.parse(text)
    assert module.unread == 0
    written = sum(line.startswith("  ") and " = " in line for line in text.splitlines())
    assert sum("#" not in i.name for body in module.computations.values() for i in body) == written
    names = {i.name for body in module.computations.values() for i in body}
    for body in module.computations.values():
        for instruction in body:
            assert set(instruction.operands) <= names
            assert set(instruction.called) <= set(module.computations)
            assert instruction.frame == 0 or module.stack(instruction)
    assert module.root(module.entry).is_root


@pytest.mark.parametrize("name", ["functions_of_functions", "functions_of_functions_newer"])
def test_the_calls_on_the_way_to_a_line_are_those_of_the_program(stored, name):
    module = hlo.parse(stored(name).module)
    sines = [i for body in module.computations.values() for i in body if i.opcode == "sine"]
    functions = [frame.function.rpartition(".")[2] for frame in module.stack(sines[0])]
    assert functions[-5:] == ["<module>", "calls", "a", "b", "c"]
    assert [frame.line for frame in module.stack(sines[0])][-3:] == [109, 110, 112]


def test_costs_are_there_once_the_compiler_is_done(stored):
    dump = stored("scan_gradient")
    assert not any(i.cycles for body in hlo.parse(dump.module).computations.values() for i in body)
    module = hlo.parse(dump.compiled)
    cycles = {i.name: i.cycles for body in module.computations.values() for i in body if i.cycles}
    assert len(cycles) > 5
