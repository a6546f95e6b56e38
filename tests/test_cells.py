"""A file read as cells."""

import json
from pathlib import Path

import pytest

from tpumagic.cells import FileCell, UnreadableFileError, notebook_cells, read, script_cells


def test_a_script_without_marks_is_one_cell():
    assert script_cells("a = 1\nb = 2\n") == (FileCell("a = 1\nb = 2\n", 1),)


def test_marks_cut_a_script_and_lines_keep_the_numbers_of_the_file():
    cells = script_cells("import x\n\n# %% first\na = 1\n#%%\nb = 2\n")
    assert [(c.first_line, c.title) for c in cells] == [(1, None), (3, "first"), (5, None)]
    assert cells[1].source == "# %% first\na = 1\n"


def test_text_that_looks_like_a_mark_inside_a_statement_does_not_cut():
    text = 'a = """\n# %%\n"""\nb = (\n# %%\n1)\ndef f():\n    x = 1\n# %%\n    return x\n'
    assert len(script_cells(text)) == 1


def test_cells_of_text_and_empty_cells_are_no_cells():
    text = '# a header\n\n# %% [markdown]\n"""\nwords\n"""\n# %%\n# only a comment\n# %%\na = 1\n'
    assert [c.first_line for c in script_cells(text)] == [9]


def test_a_script_with_a_syntax_error_is_still_cut_so_that_earlier_cells_run():
    assert [c.first_line for c in script_cells("a = 1\n# %%\nb = (\n")] == [1, 2]


def test_carriage_returns_and_form_feeds_do_not_shift_lines(tmp_path):
    path = tmp_path / "x.py"
    path.write_bytes(b"a = 1\r\n\x0c\r\n# %%\r\nb = 2\r\n")
    assert [c.first_line for c in read(path)] == [1, 3]


def test_a_coding_line_and_a_byte_order_mark_are_respected(tmp_path):
    path = tmp_path / "x.py"
    path.write_bytes("# coding: latin-1\na = 'é'\n".encode("latin-1"))
    assert "é" in read(path)[0].source
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read(path)[0].source == "a = 1\n"


def test_code_cells_of_a_notebook_are_read_whatever_the_form_of_their_source():
    notebook = {
        "nbformat": 4,
        "cells": [
            {"cell_type": "markdown", "source": "# words"},
            {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
            {"cell_type": "code", "source": "   \n"},
            {"cell_type": "code", "source": "c = 3"},
        ],
    }
    assert [c.source for c in notebook_cells(json.dumps(notebook), "x.ipynb")] == ["a = 1\nb = 2", "c = 3"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.py", None, "There is no file {path}."),
        ("x.txt", b"a = 1", "{path} is neither a .py nor an .ipynb file."),
        ("x.py", b"a = '\xff'\n", "{path} is not UTF-8 text (byte 0xff at offset 5): save it as UTF-8."),
        (
            "x.py",
            b"# coding: klingon\na = 1\n",
            "{path} cannot be read: its coding line names no encoding that Python knows.",
        ),
        (
            "x.ipynb",
            b'{"cells": [',
            "{path} is not a notebook: its JSON is broken (Expecting value: line 1 column 12 (char 11)).",
        ),
        ("x.ipynb", b'{"cells": [3]}', "{path} is not a notebook: one of its cells has no text as its source."),
        (
            "x.ipynb",
            b"[]",
            '{path} is not a notebook of format 4 (it has no list of "cells"): save it anew with Jupyter, or convert it with `jupyter nbconvert --to notebook`.',
        ),
    ],
)
def test_what_cannot_be_read_is_answered_in_one_sentence(tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableFileError) as caught:
        read(path)
    assert str(caught.value) == sentence.format(path=path)


def test_a_folder_is_answered_in_one_sentence(tmp_path):
    folder = tmp_path / "x.py"
    folder.mkdir()
    with pytest.raises(UnreadableFileError, match=r"is a folder, not a file\.$"):
        read(folder)


@pytest.mark.parametrize(
    ("metadata", "may_fail"),
    [
        ({}, False),
        ({"tags": ["raises-exception"]}, True),
        ({"tags": ["hide-output"]}, False),
        ({"allow_errors": True}, True),
        ({"allow_errors": False}, False),
        ({"tags": "raises-exception"}, False),
        (None, False),
    ],
)
def test_a_cell_of_a_notebook_says_itself_that_it_may_fail(metadata, may_fail):
    text = json.dumps({"cells": [{"cell_type": "code", "source": "1 / 0", "metadata": metadata}]})
    assert [cell.may_fail for cell in notebook_cells(text, Path("x.ipynb"))] == [may_fail]
