import pytest

from tpumagic import hlo
from tpumagic.hlo import Array


def test_an_array_with_all_that_its_layout_says():
    (array,) = hlo.arrays("bf16[12,1024,100]{2,1,0:T(8,128)(2,1)S(1)}")
    assert array == Array(
        dtype="bfloat16",
        shape=(12, 1024, 100),
        minor_to_major=(2, 1, 0),
        tiles=((8, 128), (2, 1)),
        memory_space=1,
        logical_bytes=12 * 1024 * 100 * 2,
        bytes=12 * 1024 * 128 * 2,
    )


@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ("f32[]", 4),
        ("f32[]{:T(128)}", 512),
        ("bf16[]{:T(256)}", 512),
        ("pred[]{:T(512)}", 512),
        ("u32[]{:S(2)}", 4),
        ("f32[1]{0:T(128)}", 512),
        ("f32[1000]{0:T(1024)}", 4096),
        ("f32[100,3]{1,0:T(8,128)}", 104 * 128 * 4),
        ("f32[100,3]{0,1:T(4,128)}", 4 * 128 * 4),
        ("f32[17,1,1]{0,2,1:T(1,128)}", 512),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[1,5]{1,0:T(2,128)(2,1)}", 2 * 128 * 2),
        ("s8[64,64]{1,0:T(8,128)(4,1)}", 64 * 128),
        ("s4[64,300]{1,0:T(8,128)(4,1)E(4)}", 64 * 384 // 2),
        ("s4[7]{0}", 7),
        ("s4[7]{0:E(4)}", 4),
        ("f32[0,3]{1,0}", 0),
        ("f32[<=10,3]{1,0}", 120),
        ("c64[5]{0}", 40),
        ("f32[5]{0:D(D)T(128)}", 512),
        ("f32[5,3]", 60),
    ],
)
def test_bytes_are_those_of_the_layout(shape, taken):
    (array,) = hlo.arrays(shape)
    assert array.bytes == taken


@pytest.mark.parametrize(
    ("name", "dtype", "logical"),
    [
        ("pred", "bool", 6),
        ("bf16", "bfloat16", 12),
        ("f8e4m3fn", "float8_e4m3fn", 6),
        ("f8e5m2", "float8_e5m2", 6),
        ("f4e2m1fn", "float4_e2m1fn", 3),
        ("s4", "int4", 3),
        ("u2", "uint2", 2),
        ("s64", "int64", 48),
        ("c128", "complex128", 96),
    ],
)
def test_types_have_numpys_names(name, dtype, logical):
    (array,) = hlo.arrays(f"{name}[2,3]{{1,0}}")
    assert (array.dtype, array.logical_bytes) == (dtype, logical)


def test_leaves_of_tuples_come_in_order_without_tokens():
    shape = "((f32[2]{0:T(128)}), bf16[1]{0:T(256)S(1)}, token[], /*index=3*/opaque[], s32[]{:S(2)})"
    assert [(array.dtype, array.memory_space) for array in hlo.arrays(shape)] == [
        ("float32", 0),
        ("bfloat16", 1),
        ("int32", 2),
    ]


@pytest.mark.parametrize("shape", ["", "()", "token[]", "strange[3]", "f32", "f32[", "what {is} this"])
def test_what_is_no_array_is_none(shape):
    assert hlo.arrays(shape) == ()


def test_every_size_in_hbm_and_vmem_is_the_compilers_own(stored, any_dump):
    allocations = hlo.parse_buffer_assignment(stored(any_dump).buffer_assignment).allocations
    values = [value for a in allocations if a.color in (0, 1) for value in a.values]
    assert values
    for value in values:
        if value.shape.startswith("("):
            assert value.size == 512
        else:
            assert (value.shape, sum(array.bytes for array in hlo.arrays(value.shape))) == (value.shape, value.size)
