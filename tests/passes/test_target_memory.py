"""Padding and missed donations, and programs in which nothing is wasted."""

from __future__ import annotations

import pytest
from planned import GIB, MIB, buffer, leaf, line, plan, planned, program, record

from tpumagic.graph import Graph, Operation, Value
from tpumagic.passes import target_memory
from tpumagic.plans import Donation


def found(*programs, **more):
    return list(target_memory.find(record(*programs, **more)))


def padded(*buffers, **more):
    return program(planned(plan(6, padded=buffers)), name="regroup", kind="aot", **more)


REGROUPED = buffer(
    "temporary", 4, shape=(1000000, 8, 4), logical_bytes=GIB // 8, at=3, operation="reshape", tiling="T(8,128)"
)


def test_small_axes_that_fill_a_part_of_each_tile_are_a_warning():
    copied = buffer("temporary", 2, shape=(4000000, 8), logical_bytes=GIB // 8, at=3)
    (finding,) = found(padded(REGROUPED, copied))
    assert (finding.kind, finding.severity) == ("memory.padding", "warning")
    assert finding.title == (
        "float32[1000000,8,4] takes 4 GiB on v5e-1 for 128 MiB of elements, 32 times as much, by padding"
    )
    assert finding.detail == (
        "A TPU keeps arrays in tiles (`T(8,128)`), and its axes 8 and 4 fill only a part of each. 1 more of this line "
        "likewise."
    )
    assert finding.fix == "Arrange it so that the axis of 1000000 is the last one, with no small axes behind it."
    assert finding.site == line(3)
    assert finding.related == (line(9), line(1))
    assert (finding.count, finding.bytes) == (2, 4 * GIB - GIB // 8)
    assert finding.facts["factor"] == 32.0


def test_a_little_padding_of_an_argument_is_an_info_at_the_line_that_uses_it():
    graph = Graph(
        (Value((30000000, 3), "float32"),) * 2, (0,), (1,), (Operation("reduce_sum", (0,), (1,), (line(2),)),)
    )
    points = buffer("argument", 0.447, shape=(30000000, 3), name="p", logical_bytes=360000000)
    (finding,) = found(padded(points, graph=graph, inputs=(leaf("p", 30000000, 3),)))
    assert finding.severity == "info"
    assert finding.title == (
        "`p` float32[30000000,3] takes 458 MiB on v5e-1 for 343 MiB of elements, 1.33 times as much, by padding"
    )
    assert finding.detail == "A TPU keeps arrays in tiles, and its axis of 3 fills only a part of each."
    assert finding.fix == ""
    assert finding.site == line(2)


def test_an_argument_whose_use_is_not_known_is_told_at_the_call():
    (finding,) = found(padded(buffer("argument", 2, shape=(9, 9), name="p", logical_bytes=GIB)))
    assert finding.site == line(9)


@pytest.mark.parametrize(
    ("size", "logical", "severity"),
    [
        (96 * MIB, 24 * MIB, "warning"),
        (80 * MIB, 20 * MIB, "info"),
        (3000 * MIB, 1500 * MIB, "warning"),
        (1000 * MIB, 500 * MIB, "info"),
        (5 * GIB, 4 * GIB, "info"),
    ],
    ids=["four times and 64 MiB", "four times, but small", "a twentieth of memory", "less", "much, but not avoidable"],
)
def test_padding_is_loud_by_its_size(size, logical, severity):
    (finding,) = found(padded(buffer("temporary", size / GIB, shape=(99, 3, 5), logical_bytes=logical, at=3)))
    assert finding.severity == severity


@pytest.mark.parametrize(
    "quiet",
    [
        buffer("temporary", 1, logical_bytes=int(0.9 * GIB), at=3),
        buffer("temporary", 0.0009, logical_bytes=4096, at=3),
        buffer("temporary", 1, logical_bytes=None, at=3),
        buffer("temporary", 1, at=3),
    ],
    ids=["a tenth", "less than a mebibyte", "elements not known", "none"],
)
def test_little_padding_is_not_told(quiet):
    assert found(padded(quiet)) == []


def test_the_same_array_of_two_programs_is_told_once():
    assert len(found(padded(REGROUPED), padded(REGROUPED))) == 1


REBOUND = "for batch in data:\n    params, loss = train(params, batch)\n"
REPLACED = plan(9, donations=(Donation("params['w']", 0, 2 * GIB), Donation("params['b']", 1, GIB)))


def trained(made=REPLACED, **more):
    given = {"name": "train", "at": 2, "arguments": ("params", "batch"), **more}
    return program(planned(made), **given)


def test_arguments_that_the_call_replaces_are_to_be_donated():
    (finding,) = found(trained(), source=REBOUND)
    assert (finding.kind, finding.severity) == ("memory.donation_missed", "warning")
    assert finding.title == (
        "`params` has 3 GiB that `train` replaces, and the old and the new are in memory at the same time"
    )
    assert finding.detail == (
        "The call assigns its results to the same names, but the arguments are not donated. On v5e-1 the program needs 9 GiB."
    )
    assert finding.fix == (
        "Donate what is replaced: `jax.jit(train, donate_argnums=0)`. No other variable may need the old arrays then."
    )
    assert finding.site == line(2)
    assert finding.bytes == 3 * GIB


def test_a_small_state_is_an_info():
    (finding,) = found(trained(plan(1, donations=(Donation("params['w']", 0, 2 * MIB),))), source=REBOUND)
    assert finding.severity == "info"


@pytest.mark.parametrize(
    "source",
    [
        "for batch in data:\n    new, loss = train(params, batch)\n",
        "for batch in data:\n    loss = train(params, batch)\n",
        "for batch in data:\n    losses.append(train(params, batch))\n",
        "for batch in data:\n    params, loss = train(*args)\n",
        "",
    ],
    ids=["another name", "only a loss", "appended", "arguments not visible", "no source"],
)
def test_arguments_that_may_be_needed_again_are_not_advised(source):
    assert found(trained(), source=source) == []


def test_a_parameter_under_another_name_and_an_attribute_are_followed():
    (finding,) = found(trained(arguments=("params", "x")), source="self = s\nself.params = train(self.params, 1)\n")
    assert finding.site == line(2)
    assert found(trained(arguments=("other", "params")), source="x = 1\nparams = train(params, x)\n") == []


def test_a_gradient_replaces_nothing():
    assert found(trained(wrapper="grad.<locals>.grad_f"), source=REBOUND) == []


def test_a_program_compiled_ahead_of_time_is_told_with_care():
    inputs = (leaf("params['w']", 8), leaf("params['b']", 8), leaf("batch", 4))
    (finding,) = found(trained(kind="aot", inputs=inputs))
    assert finding.severity == "info"
    assert finding.title == "`train` returns new arrays of the types of `params` (3 GiB), and nothing is donated"
    assert finding.detail == "Both are in memory at the same time. On v5e-1 the program needs 9 GiB."
    assert finding.fix == "If the old ones are not needed after the call, give `jit` `donate_argnums=0`."


def test_ahead_of_time_a_single_array_of_the_type_of_a_result_may_be_anything():
    assert found(trained(plan(9, donations=(Donation("x", 0, GIB),)), kind="aot", inputs=(leaf("x", 8),))) == []


def test_ahead_of_time_a_part_of_an_argument_is_not_a_state():
    inputs = (leaf("params['w']", 8), leaf("params['b']", 8), leaf("params['c']", 8))
    assert found(trained(kind="aot", inputs=inputs)) == []


def test_padding_of_a_program_that_does_not_fit_is_part_of_that_finding():
    made = program(planned(plan(20, padded=(REGROUPED,))), name="regroup", kind="aot")
    assert [one.severity for one in found(made)] == ["info"]


def test_a_program_that_does_not_fit_has_that_said_elsewhere():
    made = plan(20, donations=(Donation("params['w']", 0, 8 * GIB),))
    assert not made.fits
    assert found(trained(made), source=REBOUND) == []


def test_a_program_without_an_answer_is_not_told():
    assert found(program(name="train", at=2), source=REBOUND) == []
