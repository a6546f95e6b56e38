"""Targets in Google's spellings, what they are, and how the compiler is asked for them."""

import pytest

from tpumagic.compiler.targets import (
    CHIPS,
    Topology,
    UnknownTargetError,
    chip,
    known_targets,
    parse_target,
    target_for,
    topology_of,
)


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [
        ("v2-8", "v2-8", 4, 8),
        ("v3-8", "v3-8", 4, 8),
        ("v4-8", "v4-8", 4, 4),
        ("v5p-8", "v5p-8", 4, 4),
        ("v5e-1", "v5e-1", 1, 1),
        ("v5e-8", "v5e-8", 8, 8),
        ("v5litepod-8", "v5e-8", 8, 8),
        ("v6e-1", "v6e-1", 1, 1),
        ("v6e-256", "v6e-256", 256, 256),
        ("tpu7x-8", "tpu7x-8", 4, 8),
        ("v7x-8", "tpu7x-8", 4, 8),
        ("V5E-8", "v5e-8", 8, 8),
        (" TPU v5e_8 ", "v5e-8", 8, 8),
        ("v3-32", "v3-32", 16, 32),
        ("v5p-128", "v5p-128", 64, 64),
    ],
)
def test_the_suffix_counts_what_google_counts(text, name, chips, devices):
    target = parse_target(text)
    assert (target.name, target.chips, target.devices) == (name, chips, devices)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "v5-e8",
            (
                "There is no target 'v5-e8' (did you mean v5e-8?): known are v2-8, v3-8, v4-8, v5e-1, v5e-4, v5e-8, v5p-8, "
                "v6e-1, v6e-4, v6e-8, tpu7x-2, tpu7x-8 and larger slices."
            ),
        ),
        (
            "h100",
            (
                "There is no target 'h100': known are v2-8, v3-8, v4-8, v5e-1, v5e-4, v5e-8, v5p-8, "
                "v6e-1, v6e-4, v6e-8, tpu7x-2, tpu7x-8 and larger slices."
            ),
        ),
        (
            "v5e-2",
            "There is no target 'v5e-2': known of v5e are v5e-1, v5e-4, v5e-8, v5e-16, v5e-32, v5e-64, v5e-128, v5e-256.",
        ),
        (
            "v6e",
            "There is no target 'v6e': known of v6e are v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256.",
        ),
    ],
)
def test_an_unknown_target_lists_the_known_in_one_sentence(text, says):
    with pytest.raises(UnknownTargetError) as raised:
        parse_target(text)
    assert str(raised.value) == says


@pytest.mark.parametrize("text", ["", "-", "-8", "8", "v5e-", "v5e--8", "v5e-8; rm", "v5e-" + "9" * 500, "ü", "v5e-０"])
def test_nonsense_is_no_target_and_no_long_message(text):
    with pytest.raises(UnknownTargetError) as raised:
        parse_target(text)
    assert len(str(raised.value)) < 300


def test_every_known_target_is_parsed_back():
    for target in known_targets():
        assert parse_target(target.name) == target
        assert target.devices == target.chips * chip(target.chip).devices_per_chip
        assert topology_of(target).name.startswith(f"{target.chip}:")


def test_v4_is_compiled_as_one_device_a_chip():
    assert topology_of(parse_target("v4-8")) == Topology("v4:2x2x1", None, "megacore")


def test_one_host_of_eight_chips_is_asked_for_as_one_host():
    assert topology_of(parse_target("v5e-8")) == Topology("v5e:2x4", (2, 4, 1), None)
    assert topology_of(parse_target("v5e-1")) == Topology("v5e:1x1", (1, 1, 1), None)
    assert topology_of(parse_target("v5e-16")) == Topology("v5e:4x4", None, None)


@pytest.mark.parametrize(
    ("kind", "devices", "name"),
    [
        ("TPU v5 lite", 8, "v5e-8"),
        ("TPU v5 lite", 3, "v5e-3"),
        ("TPU v5", 4, "v5p-8"),
        ("TPU v6 lite", 1, "v6e-1"),
        ("TPU7x", 8, "tpu7x-8"),
        ("TPU v4", 4, "v4-8"),
        ("TPU v3", 8, "v3-8"),
    ],
)
def test_devices_of_jax_are_a_target(kind, devices, name):
    assert target_for(kind, devices).name == name


@pytest.mark.parametrize(("kind", "devices"), [("cpu", 8), ("TPU v9", 4), ("TPU7x", 1), ("TPU v5", 0), ("", 1)])
def test_other_devices_are_no_target(kind, devices):
    assert target_for(kind, devices) is None


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("v2", 7.48), ("v3", 15.48), ("v4", 30.75), ("v5e", 15.75), ("v5p", 95.74), ("v6e", 31.25), ("tpu7x", 94.75)],
)
def test_memory_is_what_the_compiler_says_is_available(name, gigabytes):
    assert round(chip(name).hbm_bytes / 2**30, 2) == gigabytes


def test_figures_are_per_device_and_have_sources():
    for one in CHIPS.values():
        assert one.hbm_bytes * one.devices_per_chip < one.chip_hbm_bytes
        assert one.effective_hbm_bytes_per_s <= one.hbm_bytes_per_s
        assert one.sources
    assert chip("tpu7x").bf16_flops * 2 == 2308e12


@pytest.mark.compiler
def test_the_compiler_knows_the_targets(own_cache):
    from tests.compiler.compilers import PROOF, real_compiler

    names = ["v2-8", "v3-32", "v4-8", "v5e-1", "v5e-8", "v5e-16", "v5p-64", "v6e-256", "tpu7x-8"]
    answers = real_compiler().ask([(PROOF, parse_target(name)) for name in names], wait_for_cost=True)
    assert [(answer.target.name, answer.status, answer.plan.fits) for answer in answers] == [
        (name, "planned", True) for name in names
    ]
    assert all(answer.cost is not None for answer in answers)
