"""``tpumagic compiler install`` and ``status``, with pip itself on a package index of files."""

import platform
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpumagic.compiler import conditions, install, libraries, pairs


def wheel(folder: Path, version: str, tag: str = "py3-none-any", library: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"libtpu-{version}-{tag}.whl"
    info = f"libtpu-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("libtpu/__init__.py", "raise SystemExit('nothing of it is run')")
        if library:
            archive.writestr("libtpu/libtpu.so", b"\x7fELF not really")
        archive.writestr("elsewhere/file.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: libtpu\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(own_cache, tmp_path, monkeypatch):
    """Folder from which pip installs, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(libraries, "_from_package", lambda: None)
    monkeypatch.setattr(install, "_wanted", lambda: "==0.0.42.*")
    return folder


def test_the_sizes_are_said_first_and_the_library_is_used_then(index, own_cache):
    wheel(index, "0.0.42.3")
    said = []
    done = install.install(said.append)
    folder = own_cache / "libtpu"
    assert said == [
        f"Fetching libtpu==0.0.42.* with pip: about 205 MiB to download, 687 MiB in {folder}.",
    ]
    assert done == (
        f"libtpu 0.0.42.3 is in {folder}/0.0.42.3; the next program for a TPU target is compiled with it "
        "where it is needed."
    )
    (library,) = libraries.candidates()
    assert (library.name, library.origin) == ("libtpu 0.0.42.3", "installed")
    assert [path.name for path in folder.iterdir()] == ["0.0.42.3"]
    assert not (folder / "0.0.42.3" / "elsewhere").exists()


def test_the_second_time_it_is_there_already(index, own_cache):
    wheel(index, "0.0.42.3")
    install.install(lambda text: None)
    said = []
    assert install.install(said.append) == f"libtpu 0.0.42.3 is there already, in {own_cache}/libtpu/0.0.42.3."
    assert said == []


def test_a_new_one_takes_the_place_of_the_old_one(index, own_cache, monkeypatch):
    wheel(index, "0.0.42.3")
    install.install(lambda text: None)
    wheel(index, "0.0.50.1")
    monkeypatch.setattr(install, "_wanted", lambda: "==0.0.50.*")
    install.install(lambda text: None)
    assert [path.name for path in (own_cache / "libtpu").iterdir()] == ["0.0.50.1"]


def failure() -> str:
    with pytest.raises(install.InstallError) as raised:
        install.install(lambda text: None)
    return str(raised.value)


def test_what_the_index_has_not_is_one_sentence(index, own_cache):
    wheel(index, "0.0.42.3", "cp27-cp27m-manylinux_2_31_x86_64")
    assert failure().startswith("The package index has no libtpu==0.0.42.* for Python 3.")
    assert list((own_cache / "libtpu").iterdir()) == []


def test_an_index_that_is_not_reached_is_one_sentence(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert failure() == "The package index could not be reached."


def test_a_wheel_that_is_none_or_has_no_library_is_one_sentence(index):
    path = wheel(index, "0.0.42.3", library=False)
    assert failure() == "libtpu 0.0.42.3 has no libtpu.so."
    path.write_bytes(b"no wheel")
    assert failure().startswith(("pip could not fetch libtpu==0.0.42.*: ", "What pip fetched is no wheel."))


def test_a_full_disk_is_said_before_anything_is_fetched(index, monkeypatch):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**8))
    assert "needs 892 MiB while it is unpacked" in failure()
    assert failure().endswith("has 95.4 MiB free.")


def test_a_place_that_cannot_be_written_is_one_sentence(index, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert failure() == f"libtpu could not be written to {tmp_path}/file/tpumagic/libtpu: Not a directory."


@pytest.mark.parametrize(
    ("system", "machine", "says"),
    [
        ("darwin", "arm64", "The TPU compiler runs on Linux alone, and this is macOS."),
        ("linux", "aarch64", "The TPU compiler runs on x86_64 alone, and this machine is aarch64."),
    ],
)
def test_a_machine_for_which_there_is_none_is_told_so(index, monkeypatch, system, machine, says):
    monkeypatch.setattr(conditions.sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert failure() == says
    assert install.status()[0] == says


@pytest.mark.parametrize(
    ("pin", "wanted"),
    [
        (['libtpu==0.0.42.*; extra == "tpu"'], "==0.0.42.*"),
        (["jaxlib==1", 'libtpu==0.0.50.*; extra == "tpu"'], "==0.0.50.*"),
        (['libtpu==0.0.23; extra == "tpu"'], "==0.0.42.*"),
        ([], "==0.0.42.*"),
    ],
)
def test_what_goes_with_jax_is_fetched_but_nothing_too_old(monkeypatch, pin, wanted):
    monkeypatch.setattr(install.importlib.metadata, "requires", lambda package: pin)
    assert install._wanted() == wanted


def test_status_says_which_library_is_used(index, own_cache):
    wheel(index, "0.0.42.3")
    install.install(lambda text: None)
    (library,) = libraries.candidates()
    pairs.remember("0.10.2", library, "works")
    version = libraries.jax_version()
    first, kept = install.status()
    known = "works" if version == "0.10.2" else "never asked yet"
    assert first == f"libtpu 0.0.42.3 (tpumagic's own, 15 B) with JAX {version}: {known}, used; {library.path}"
    assert kept == f"Answers kept: 0 B of at most 64 MiB; {own_cache}/plans"


def test_of_two_libraries_the_newer_one_is_used_and_the_kernels_own_of_two_alike(index, tmp_path, monkeypatch):
    wheel(index, "0.0.42.3")
    install.install(lambda text: None)
    for version, used in (("0.0.21.1", "installed"), ("0.0.42.3", "package"), ("0.0.50.1", "package")):
        with zipfile.ZipFile(wheel(tmp_path / version, version)) as archive:
            archive.extractall(tmp_path / version)
        own = tmp_path / version / "libtpu" / "libtpu.so"
        monkeypatch.setattr(libraries, "_from_package", lambda own=own: own)
        assert libraries.candidates()[0].origin == used


def test_status_says_what_is_missing(index, own_cache):
    assert install.status()[0] == (
        "The TPU compiler, libtpu, is not installed: `tpumagic compiler install` fetches it, or pip install libtpu."
    )


def test_a_pair_that_crashes_is_not_the_one_used(index, own_cache, tmp_path, monkeypatch):
    own = tmp_path / "libtpu.so"
    own.write_bytes(b"crashes")
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(own))
    wheel(index, "0.0.42.3")
    install.install(lambda text: None)
    pairs.remember(libraries.jax_version(), libraries.candidates()[0], "crashes")
    crashing, used, _ = install.status()
    assert crashing.endswith(f": crashes; {own}")
    assert ": never asked yet, used; " in used


MEMINFO = "MemTotal: 16000000 kB\nMemAvailable: {} kB\n"


def test_free_memory_is_that_of_the_container_too(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO.format(8_000_000))
    assert conditions.free_bytes(tmp_path) == 8_000_000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1\n")
    assert conditions.free_bytes(tmp_path) == 8_000_000 * 1024
    (group / "memory.max").write_text("4000000000\n")
    (group / "memory.current").write_text("3500000000\n")
    (group / "memory.stat").write_text("anon 3000000000\ninactive_file 400000000\n")
    assert conditions.free_bytes(tmp_path) == 900_000_000
    assert conditions.why_not_now(tmp_path) is not None


def test_a_machine_that_does_not_say_its_memory_may_try(tmp_path):
    assert conditions.free_bytes(tmp_path) is None
    assert conditions.why_not_now(tmp_path) is None


def test_a_container_of_the_older_kind_is_read(tmp_path):
    group = tmp_path / "sys/fs/cgroup/memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("3000000000\n")
    (group / "memory.usage_in_bytes").write_text("2900000000\n")
    assert conditions.free_bytes(tmp_path) == 100_000_000
