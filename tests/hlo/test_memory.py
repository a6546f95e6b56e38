from tpumagic import hlo
from tpumagic.hlo import Value


def test_allocations_say_what_they_are_for():
    text = """BufferAssignment:
allocation 0: size 512, constant:
 value: <85 constant.193..sunk @0> (size=512,offset=0): s32[]{:T(128)}
allocation 1: size 4096, output shape is |f32[12,512,2048]|, maybe-live-out:
 value: <231 wide.arg_tuple.3{9,1} (phi) @0> (size=4096,offset=0): bf16[12,1024]{1,0:T(8,128)(2,1)}
allocation 2: size 64, parameter 1, shape |(f32[2], f32[3])| at ShapeIndex {0,1}, maybe-live-out:
allocation 10: size 100, color 1, preallocated-temp:
 value: <36 tuple.1{} @1> (size=100,offset=28): (f32[10]{0:T(1024)})
 what is this
allocation 11: size 7:

Total bytes used: 728897028 (695.13MiB)

Used values:
 value: <0 x @0> (size=1,offset=0): f32[]
"""
    constant, output, parameter, vmem, other = hlo.parse_buffer_assignment(text).allocations
    assert (constant.number, constant.size, constant.color, constant.constant, constant.temporary) == (
        0,
        512,
        0,
        True,
        False,
    )
    assert constant.values == (Value("constant.193..sunk", (), 512, 0, "s32[]{:T(128)}"),)
    assert (output.output, output.live_out, output.temporary, output.parameter) == (True, True, False, None)
    assert output.values[0].index == (9, 1)
    assert (parameter.parameter, parameter.parameter_index, parameter.live_out) == (1, (0, 1), True)
    assert (vmem.color, vmem.temporary, vmem.values[0].offset, vmem.values[0].index) == (1, True, 28, ())
    assert (other.temporary, other.values) == (True, ())


def test_live_ranges_are_those_of_the_text():
    text = """HloLiveRange (max 3):
  InstructionSequence:
    0:constant.6
    1:fusion
    2:tuple.1
  BufferLiveRange:
    constant.6{}:0-1
    fusion{0,1}:1-3
  Live ranges at 16 (peak):
    fusion{0}: 4294967296 bytes (cumulative: 4294967296 bytes)
"""
    ranges = hlo.parse_live_ranges(text)
    assert ranges.sequence == ("constant.6", "fusion", "tuple.1")
    assert ranges.ranges == {("constant.6", ()): (0, 1), ("fusion", (0, 1)): (1, 3)}


def test_every_value_of_the_schedule_has_its_range(stored, any_dump):
    dump = stored(any_dump)
    ranges = hlo.parse_live_ranges(dump.live_ranges)
    running = set(ranges.sequence)
    for allocation in hlo.parse_buffer_assignment(dump.buffer_assignment).allocations:
        assert all(value.offset + value.size <= allocation.size for value in allocation.values)
        for value in allocation.values:
            # Reducers are no part of the schedule: they run inside of the operations that have them.
            assert value.name not in running or (value.name, value.index) in ranges.ranges


def test_texts_of_another_kind_are_empty():
    assert hlo.parse_buffer_assignment("") == hlo.parse_buffer_assignment("x\ny") == hlo.BufferAssignment(())
    assert hlo.parse_live_ranges("HloModule x") == hlo.LiveRanges((), {})
