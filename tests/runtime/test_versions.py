"""Installed packages and whether they fit together."""

import importlib.metadata

import pytest

from tpumagic.runtime.versions import fits, installed, pins, wanted


def test_installed_versions_are_those_of_the_metadata():
    found = installed()
    assert found["ipython"] == importlib.metadata.version("ipython")
    assert "numpy" not in found or found["numpy"] == importlib.metadata.version("numpy")


def test_the_first_folder_of_the_path_wins_and_spellings_do_not_matter(tmp_path):
    for name in (
        "a/torch_xla-2.9.0.dist-info",
        "b/torch_xla-2.8.0.dist-info",
        "b/tensorflow_cpu-2.20.0.dist-info",
        "a/jax-0.7.2-py3.11.egg-info",
    ):
        (tmp_path / name).mkdir(parents=True)
    path = [str(tmp_path / "a"), str(tmp_path / "missing"), str(tmp_path / "b")]
    assert installed(path) == {"jax": "0.7.2", "torch_xla": "2.9.0", "tensorflow-cpu": "2.20.0"}


@pytest.mark.parametrize(
    ("version", "specification", "answer"),
    [
        ("0.0.42.1", "0.0.42.*", True),
        ("0.0.42", "0.0.42.*", True),
        ("0.0.421", "0.0.42.*", False),
        ("0.0.23", "0.0.23", True),
        ("0.0.23.1", "0.0.23", False),
        ("2.9.0+cpu", "2.9.*", True),
        ("2.13.0", ">=2.11", True),
        ("2.8.0", ">=2.11", False),
    ],
)
def test_a_version_fits_what_is_asked_for(version, specification, answer):
    assert fits(version, specification) is answer


def test_the_three_verdicts():
    assert [pin.verdict for pin in pins({"jax": "0.10.2", "libtpu": "0.0.42.1"})] == ["as pinned"]
    assert [pin.verdict for pin in pins({"jax": "0.7.2", "libtpu": "0.0.21.1"}, "colab")] == ["shipped by this image"]
    assert [pin.verdict for pin in pins({"jax": "0.7.2", "libtpu": "0.0.21.1"}, "kaggle")] == ["off pin"]
    assert [pin.verdict for pin in pins({"jax": "0.7.2", "libtpu": "0.0.21.1"})] == ["off pin"]


@pytest.mark.parametrize("versions", [{}, {"jax": "0.10.2"}, {"libtpu": "0.0.42"}, {"jax": "99.0", "libtpu": "0.0.42"}])
def test_what_is_not_known_gets_no_verdict(versions):
    assert pins(versions) == ()


def test_torch_and_torch_xla_must_match():
    assert {
        (pin.needs, pin.verdict) for pin in pins({"torch": "2.8.0", "torch_xla": "2.9.0", "libtpu": "0.0.21.1"})
    } == {
        ("torch", "off pin"),
        ("libtpu", "as pinned"),
    }


def test_the_table_agrees_with_the_jax_that_is_installed():
    jax = pytest.importorskip("jax")
    declared = [
        line for line in importlib.metadata.requires("jax") or () if line.startswith("libtpu") and '"tpu"' in line
    ]
    table = wanted("jax", jax.__version__, "libtpu")
    assert declared
    assert table is not None
    assert declared[0].startswith(f"libtpu=={table};")
