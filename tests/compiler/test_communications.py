"""Whole arrays that devices gather and cut again, in the forms in which the compiler writes that."""

from __future__ import annotations

from tpumagic.compiler.communications import communications
from tpumagic.compiler.program_facts import index
from tpumagic.hlo import parse

TWO_AXES = """HloModule jit_mix, is_scheduled=true, num_partitions=8

%cut (whole: f32[64,64,64], at: s32[]) -> f32[64,8,64] {
  %whole = f32[64,64,64]{1,2,0:T(8,128)} parameter(0)
  %zero = s32[] constant(0)
  %at = s32[] parameter(1)
  ROOT %part = f32[64,8,64]{1,2,0:T(8,128)} dynamic-slice(%whole, %zero, %at, %zero), dynamic_slice_sizes={64,8,64}
}

ENTRY %main (u: f32[32,64,16]) -> f32[64,8,64] {
  %u = f32[32,64,16]{1,2,0:T(8,128)} parameter(0)
  %eight = s32[] constant(8)
  %device = u32[] partition-id()
  %number = s32[] convert(%device)
  %at = s32[] multiply(%number, %eight)
  %gather = f32[256,64,16]{1,2,0:T(8,128)} all-gather(%u), channel_id=2, replica_groups={{0,2,4,6,1,3,5,7}}, dimensions={0}
  %split = f32[2,32,64,4,16]{2,4,1,3,0:T(8,128)} bitcast(%gather)
  %ordered = f32[2,32,64,4,16]{2,4,3,1,0:T(8,128)} copy(%split)
  %all = f32[64,64,64]{1,2,0:T(8,128)} bitcast(%ordered)
  ROOT %own = f32[64,8,64]{1,2,0:T(8,128)} fusion(%all, %at), kind=kLoop, calls=%cut
}
"""


def found(text: str, *shapes: tuple[int, ...]):
    (one,) = communications(index(parse(text)), {"main": 1}, frozenset(shapes))
    return one


def test_an_array_gathered_over_two_axes_of_the_mesh_is_told_whole():
    one = found(TWO_AXES, (64, 64, 64))
    assert (one.kind, one.shape, one.bytes, one.group) == ("all-gather", (64, 64, 64), 1 << 20, 8)
    assert (one.whole, one.resliced) == (True, True)


def test_parts_that_never_make_up_the_users_array_are_parts():
    one = found(TWO_AXES, (64, 128, 64))
    assert (one.shape, one.whole, one.resliced) == ((256, 64, 16), False, False)


def test_a_whole_array_that_every_device_uses_is_not_cut_again():
    text = TWO_AXES.replace("fusion(%all, %at), kind=kLoop, calls=%cut", "negate(%all)").replace(
        "own = f32[64,8", "own = f32[64,64"
    )
    one = found(text, (64, 64, 64))
    assert (one.shape, one.whole, one.resliced) == ((64, 64, 64), True, False)
