import tarfile
from pathlib import Path

import pytest

from tpumagic.hlo import dump

DATA = Path(__file__).parent / "data"
STORED = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def dump_folder(tmp_path_factory):
    """Name of a stored dump -> a folder with its files, as the compiler left them."""
    unpacked: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = tmp_path_factory.mktemp(name)
            with tarfile.open(DATA / f"{name}.tar.gz") as archive:
                for member in archive:
                    (unpacked[name] / Path(member.name).name).write_bytes(archive.extractfile(member).read())
        return unpacked[name]

    return folder


@pytest.fixture(scope="session")
def stored(dump_folder):
    """Name of a stored dump -> what is read of it."""

    def read(name: str) -> dump.Dump:
        found = dump.read(dump_folder(name))
        assert found is not None
        return found

    return read


def pytest_generate_tests(metafunc):
    if "any_dump" in metafunc.fixturenames:
        metafunc.parametrize("any_dump", STORED)
