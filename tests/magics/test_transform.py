"""The text of cells, with and without the magic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpumagic.magics.transform import Request, find_request, only_own_magics, split_statement, strip_magic


def strip(cell, valid=lambda options: "--nope" not in options):
    return "".join(strip_magic(cell.splitlines(keepends=True), valid))


@pytest.mark.parametrize(
    ("cell", "stripped"),
    [
        ("%%tpu_profile\nx = 1\n", "#%%tpu_profile\nx = 1\n"),
        ("%%tpu_profile --quiet\n\nx = 1\n", "#%%tpu_profile --quiet\n\nx = 1\n"),
        ("%%tpu_profile\n%%time\nx = 1\n", "%%time\nx = 1\n"),
        ("%%tpu_profile\n\n%%time\nx = 1\n", "%%time\nx = 1\n"),
        ("%%tpu_profile\n%%tpu_profile\nx = 1\n", "#%%tpu_profile\nx = 1\n"),
        ("%%tpu_profile\n    x = 1\n    x\n", "#%%tpu_profile\nx = 1\nx\n"),
        ("%%bash\n%%tpu_profile\necho\n", "%%bash\necho\n"),
        ("%%bash\n%%tpu_profile --nope\necho\n", "%%tpu_profile --nope\n%%bash\necho\n"),
        ("%tpu_profile f(x)\n", "f(x)\n"),
        ("%tpu_profile --quiet f(x);\n", "f(x);\n"),
    ],
)
def test_the_magic_goes_and_the_cell_stays(cell, stripped):
    assert strip(cell) == stripped


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1\n",
        "",
        "%%tpu_profile",
        "%%tpu_profile?\n",
        "%%tpu_profile??\n",
        "%%tpu_profiles\nx\n",
        "%%tpu_profile --nope\nx\n",
        "%%time\n%%tpu_profile\nx\n",
        "%%writefile a\n%%tpu_profile\nx\n",
        "%tpu_profile\n",
        "%tpu_profile?\n",
        "%tpu_profile --quiet\n",
        "%tpu_profile --nope f()\n",
        "y = 2\n%tpu_profile f(x)\n",
        "s = '''\n%%tpu_profile\n'''\n",
    ],
)
def test_anything_else_is_left_as_it_is(cell):
    assert strip(cell) == cell


@given(st.text(alphabet="%tpu_profile? \n\t'\"#ab=-\r", max_size=80))
def test_no_text_makes_the_step_fail_and_other_cells_keep_every_character(cell):
    stripped = strip(cell)
    if "tpu_profile" not in cell:
        assert stripped == cell
    find_request(cell)
    only_own_magics(cell)


@pytest.mark.parametrize(
    ("cell", "request_"),
    [
        ("%%tpu_profile\nx", Request("")),
        ("\n\n%%tpu_profile --quiet\nx", Request("--quiet")),
        ("  %%tpu_profile\n  x", Request("")),
        ("%%time\n%%capture c\n%%tpu_profile\nx", Request("", above=("time", "capture"))),
        ("%%time\n\n%%tpu_profile\nx", Request("", above=("time",))),
        ("%tpu_profile --name n f(x)", Request("--name n", statement="f(x)")),
        ("%%tpu_profile", None),
        ("%%writefile f\n%%tpu_profile\nx", None),
        ("%%time\nx\n%%tpu_profile\ny", None),
        ("x = 1\n%tpu_profile f(x)", None),
        ("", None),
    ],
)
def test_what_a_cell_asks_for(cell, request_):
    assert find_request(cell) == request_


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (" f(x)", ("", "f(x)")),
        (" --quiet f(x)", ("--quiet", "f(x)")),
        (" --name 'two words' f(x, '--quiet')", ("--name 'two words'", "f(x, '--quiet')")),
        (" --name=n --widget y = -x", ("--name=n --widget", "y = -x")),
        (" -x", ("", "-x")),
        (" --nope f()", ("--nope", "f()")),
        ("", ("", "")),
    ],
)
def test_options_end_where_the_statement_begins(text, parts):
    assert split_statement(text) == parts


@pytest.mark.parametrize("cell", ["%tpu_last", "%load_ext tpumagic\n%tpu_auto on", "%tpu_env\n\n%tpu_auto off\n", ""])
def test_cells_of_our_own_magics_alone_are_recognised(cell):
    assert only_own_magics(cell)


@pytest.mark.parametrize("cell", ["%tpu_last\nx = 1", "%load_ext autoreload", "%tpu_profile f(x)\nf(x)"])
def test_cells_with_something_of_the_users_are_not(cell):
    assert not only_own_magics(cell)
