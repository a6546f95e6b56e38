"""A cache of its own for every test, and a compiler that obeys."""

import pytest

from tests.compiler.compilers import STAND_INS, compiler
from tpumagic.compiler import libraries, pairs


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pairs, "_here", {})
    return tmp_path / "cache" / "tpumagic"


@pytest.fixture
def stand_in(own_cache, tmp_path, monkeypatch):
    """Makes compilers (limits by name), closed at the end."""
    library = tmp_path / "libtpu.so"
    library.write_bytes(b"not loaded by a stand-in")
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    monkeypatch.setattr(libraries, "_from_package", lambda: None)
    monkeypatch.syspath_prepend(STAND_INS)
    made = []

    def make(**limits):
        made.append(compiler(**limits))
        return made[-1]

    make.log = lambda: (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
    yield make
    for one in made:
        one.close()
