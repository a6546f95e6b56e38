import json
import os

import examples
import pytest

from tpumagic.report import store
from tpumagic.report.store import Run

RUN = Run(file="train.py", cells=(examples.rich(), examples.clean()))


def test_a_saved_run_comes_back(tmp_path):
    path = tmp_path / "run.json"
    store.save(RUN, path)
    assert store.load(path) == RUN
    assert json.loads(path.read_text(encoding="utf-8"))["cells"][1]["timing"]["compiles"] == 1
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_save_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    store.save(RUN, path)

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(Run(), path)
    assert store.load(path) == RUN
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_file_name_that_is_no_unicode_is_kept_readable(tmp_path):
    path = tmp_path / "run.json"
    store.save(Run(file="bad\udcff.py"), path)
    assert store.load(path).file == "bad\\udcff.py"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "run.json is not a saved run: it is no JSON, or it was cut off"),
        (b"\xff\xfe", "run.json is not a saved run: it is not UTF-8 text"),
        (b"[" * 200_000, "run.json is not a saved run: it is no JSON, or it was cut off"),
        (b'{"version": 1, "cells": [{"version": 1, "timing": {"wall_s": NaN}}]}', "run.json is not a saved run: it is no JSON, or it was cut off"),
        (b'{"version": ' + b"9" * 5000 + b"}", "run.json is not a saved run: it is no JSON, or it was cut off"),
        (b"[]", "run.json has no version: it was not written by tpumagic"),
        (b'{"version": 7}', "run.json has version 7, and this tpumagic reads version 1"),
        (b'{"version": 1, "cells": {}}', "run.json is damaged: run.cells is not a list"),
        (b'{"version": 1, "cells": [{"version": 3}]}', "report 1 in run.json has version 3, and this tpumagic reads version 1"),
        (b'{"version": 1, "cells": [{"version": 1, "name": 4}]}', "run.json is damaged: run.cells[0].name is not text"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        store.load(path)
    assert str(caught.value) == message


def test_a_cut_off_file_is_refused(tmp_path):
    path = tmp_path / "run.json"
    store.save(RUN, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cut off"):
        store.load(path)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        store.load(tmp_path / "none.json")
