import pytest

from tpumagic import hlo

LOOP = """HloModule jit_loop, is_scheduled=true

%body (state: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %state = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{{0}} get-tuple-element(%state), index=1
  %n = s32[] get-tuple-element(%state), index=2
  %by = s32[] constant({by})
  %next = s32[] {operation}(%i, %by)
  %y = f32[8]{{0}} add(%x, %x)
  ROOT %out = (s32[], f32[8]{{0}}, s32[]) tuple(%next, %y, %n)
}}

%condition (state.1: (s32[], f32[8], s32[])) -> pred[] {{
  %state.1 = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %end = s32[] {end}
  ROOT %go = pred[] compare({compared}), direction={direction}
}}

ENTRY %main (x.1: f32[8], m: s32[]) -> f32[8] {{
  %x.1 = f32[8]{{0}} parameter(0)
  %m = s32[] parameter(1)
  %twenty = s32[] constant(20)
  %start = s32[] {start}
  %init = (s32[], f32[8]{{0}}, s32[]) tuple(%start, %x.1, {invariant})
  %while = (s32[], f32[8]{{0}}, s32[]) while(%init), condition=%condition, body=%body{attributes}
  ROOT %result = f32[8]{{0}} get-tuple-element(%while), index=1
}}
"""


def trips(**changes) -> int | None:
    parts = {
        "by": "1",
        "operation": "add",
        "end": "constant(12)",
        "compared": "%i.1, %end",
        "direction": "LT",
        "start": "constant(0)",
        "invariant": "%twenty",
        "attributes": "",
    }
    module = hlo.parse(LOOP.format(**(parts | changes)))
    return hlo.trip_count(module, module.by_name["main"]["while"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 12),
        ({"start": "constant(3)"}, 9),
        ({"start": "constant(-3)"}, 15),
        ({"start": "constant(12)"}, 0),
        ({"start": "constant(40)"}, 0),
        ({"by": "5"}, 3),
        ({"direction": "LE"}, 13),
        ({"direction": "LE", "by": "5"}, 3),
        ({"direction": "NE"}, 12),
        ({"direction": "NE", "by": "3"}, 4),
        ({"compared": "%end, %i.1", "direction": "GT"}, 12),
        ({"compared": "%end, %i.1", "direction": "GE"}, 13),
        ({"start": "constant(20)", "direction": "GT", "by": "-2"}, 4),
        ({"start": "constant(20)", "direction": "GE", "by": "2", "operation": "subtract"}, 5),
        ({"end": "get-tuple-element(%state.1), index=2"}, 20),
        ({"start": "copy(%twenty)", "end": "constant(25)"}, 5),
        ({"start": "add(%twenty, %twenty)", "end": "constant(45)"}, 5),
        ({"attributes": ', backend_config={"known_trip_count":{"n":"77"}}', "by": "0"}, 77),
    ],
)
def test_a_loop_between_constants_runs_so_often(changes, expected):
    assert trips(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"direction": "EQ"},
        {"direction": "GT", "start": "constant(13)"},
        {"by": "0"},
        {"by": "-1"},
        {"direction": "NE", "by": "5"},
        {"operation": "multiply", "by": "2"},
        {"start": "copy(%m)"},
        {"start": "multiply(%twenty, %twenty)"},
        {"end": "get-tuple-element(%state.1), index=2", "invariant": "%m"},
        {"end": "get-tuple-element(%state.1), index=0"},
        {"end": 'custom-call(), custom_call_target="x"'},
        {"compared": "%end, %end"},
        {"compared": "%gone, %end"},
        {"start": "constant(1.5)"},
    ],
)
def test_a_loop_that_proves_nothing_is_not_guessed(changes):
    assert trips(**changes) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scan_gradient", [12, 12]),
        ("transformer_scan", [6, 6]),
        ("out_of_memory_scan", [48, 48]),
        ("out_of_memory_scan_newer", [48, 48]),
        ("reversed_scan", [10]),
        ("unrolled_scan", [3]),
        ("loop_between_constants", [17]),
        ("loop_downwards", [9]),
        ("loop_in_branch", [7]),
        ("nested_loops", [5, 6]),
        ("nested_loops_newer", [5, 6]),
        ("loop_to_argument", [None]),
        ("loop_to_data", [None]),
        ("mlp_step", []),
    ],
)
def test_loops_of_compiled_programs(stored, name, expected):
    module = hlo.parse(stored(name).module)
    loops = [i for body in module.computations.values() for i in body if i.opcode == "while"]
    assert [hlo.trip_count(module, loop) for loop in loops] == expected


def test_what_an_outer_loop_hands_on_unchanged_is_known_inside():
    module = hlo.parse("""HloModule m

%inner (s: (s32[], s32[])) -> (s32[], s32[]) {
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %i.next = s32[] fusion(%one, %i), kind=kLoop, calls=%sum
  ROOT %s.next = (s32[], s32[]) tuple(%i.next, %n)
}

%sum (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %ab = s32[] add(%a, %b)
}

%less (p: s32[], q: s32[]) -> pred[] {
  %p = s32[] parameter(0)
  %q = s32[] parameter(1)
  ROOT %lt = pred[] compare(%p, %q), direction=LT
}

%inner_condition (t: (s32[], s32[])) -> pred[] {
  %t = (s32[], s32[]) parameter(0)
  %ti = s32[] get-tuple-element(%t), index=0
  %tn = s32[] get-tuple-element(%t), index=1
  ROOT %go = pred[] fusion(%ti, %tn), kind=kLoop, calls=%less
}

%outer (u: (s32[], s32[])) -> (s32[], s32[]) {
  %u = (s32[], s32[]) parameter(0)
  %ui = s32[] get-tuple-element(%u), index=0
  %un = s32[] get-tuple-element(%u), index=1
  %zero = s32[] constant(0)
  %in = (s32[], s32[]) tuple(%zero, %un)
  %while.inner = (s32[], s32[]) while(%in), condition=%inner_condition, body=%inner
  %two = s32[] constant(2)
  %u.next = s32[] add(%ui, %two)
  ROOT %u.out = (s32[], s32[]) tuple(%u.next, %un)
}

%outer_condition (v: (s32[], s32[])) -> pred[] {
  %v = (s32[], s32[]) parameter(0)
  %vi = s32[] get-tuple-element(%v), index=0
  %ten = s32[] constant(10)
  ROOT %vgo = pred[] compare(%vi, %ten), direction=LT
}

ENTRY %main () -> s32[] {
  %c0 = s32[] constant(0)
  %c7 = s32[] constant(7)
  %start = (s32[], s32[]) tuple(%c0, %c7)
  %while.outer = (s32[], s32[]) while(%start), condition=%outer_condition, body=%outer
  ROOT %r = s32[] get-tuple-element(%while.outer), index=0
}
""")
    assert hlo.trip_count(module, module.by_name["outer"]["while.inner"]) == 7
    counts = hlo.multiplicities(module)
    assert (counts["main"], counts["outer"], counts["inner"], counts["sum"], counts["less"]) == (1, 5, 35, 35, 35)


def test_what_an_unknown_loop_runs_is_unknown(stored):
    module = hlo.parse(stored("loop_to_data").module)
    counts = hlo.multiplicities(module)
    assert counts[module.entry] == 1
    assert None in counts.values()
    assert 0 not in counts.values()


def test_computations_that_run_each_other_in_a_circle_are_left_out():
    module = hlo.parse(
        "HloModule m\n\n%a (x: s32[]) -> s32[] {\n  %x = s32[] call(%x), to_apply=%b\n}\n\n"
        "%b (y: s32[]) -> s32[] {\n  %y = s32[] call(%y), to_apply=%a\n}\n\n"
        "ENTRY %main () -> s32[] {\n  ROOT %r = s32[] call(), to_apply=%a\n}\n"
    )
    assert hlo.multiplicities(module) == {"main": 1}
    assert hlo.multiplicities(hlo.parse("")) == {}
