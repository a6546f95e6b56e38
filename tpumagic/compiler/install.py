"""A TPU compiler of tpumagic's own: one libtpu in the user's cache, which only the compiler's processes load.

It changes nothing for the kernel, whose own libtpu, if it has one, stays what it is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tpumagic.compiler import cache, conditions, folders, libraries, pairs
from tpumagic.numbers import bytes_text

OLDEST = (0, 0, 42)
"""The oldest libtpu series that knows every target and was seen to work with JAX 0.7.2 to 0.10."""

WHEEL_BYTES = 215 * 10**6
LIBRARY_BYTES = 720 * 10**6
"""About what the wheel and the library in it take."""

_UNREACHABLE = re.compile(
    r"name resolution|new connection|NewConnectionError|ConnectionError|Max retries|timed out|"
    r"Network is unreachable|Connection refused|ProxyError",
    re.IGNORECASE,
)


class InstallError(Exception):
    """It could not be installed; the message is one sentence that says why."""


def install(say: Callable[[str], None]) -> str:
    """Fetches libtpu with pip from the package index it is configured for; what was done, in one sentence.

    say: told what is going to happen, with sizes, before it does. Raises InstallError.
    """
    if why := conditions.wrong_machine():
        raise InstallError(why)
    wanted = _wanted()
    folder = folders.libraries()
    for library in libraries.candidates():
        if library.origin == "installed" and _matches(wanted, library.version or ""):
            return f"{library.name} is there already, in {library.path.parent.parent}."
    _check_disk(folder)
    say(
        f"Fetching libtpu{wanted} with pip: about {bytes_text(WHEEL_BYTES)} to download, "
        f"{bytes_text(LIBRARY_BYTES)} in {folder}."
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside its place: only within one file system is renaming atomic.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as part:
            version = _unpack(_download(f"libtpu{wanted}", Path(part)), Path(part))
            place = folder / version
            if place.exists():
                shutil.rmtree(place)
            (Path(part) / "whole").rename(place)
        for other in folder.iterdir():
            if other.name != version:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise InstallError(f"libtpu could not be written to {folder}: {error.strerror or error}.") from None
    return f"libtpu {version} is in {place}; the next program for a TPU target is compiled with it where it is needed."


def status() -> tuple[str, ...]:
    """What compiles for TPUs that are not there, and what is kept on the disk; one line each."""
    jax, found = libraries.jax_version(), libraries.candidates()
    why = conditions.why_never(jax, found)
    lines = [why] if why else []
    used = why is not None
    for library in found:
        state = pairs.state(jax, library) if jax else None
        words = {"works": "works", "crashes": "crashes", None: "never asked yet"}[state]
        origin = {"package": "package", "variable": "TPU_LIBRARY_PATH", "installed": "tpumagic's own"}[library.origin]
        is_used = not used and state != "crashes"
        used = used or is_used
        what = f"{library.name} ({origin}, {bytes_text(library.bytes)}) with JAX {jax or '—'}: {words}"
        lines.append(f"{what}{', used' if is_used else ''}; {library.path}")
    kept = f"{bytes_text(cache.size_bytes())} of at most {bytes_text(cache.LIMIT_BYTES)}"
    return (*lines, f"Answers kept: {kept}; {folders.plans()}")


def _wanted() -> str:
    """What of libtpu goes with this JAX, as pip takes it: JAX's own pin, but nothing older than ``OLDEST``."""
    try:
        needs = importlib.metadata.requires("jax") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    pin = next((match[1] for need in needs if (match := re.match(r"libtpu\s*==\s*([\d.]+?)(?:\.\*)?\s*;", need))), None)
    numbers = tuple(map(int, pin.split("."))) if pin else ()
    newest = max(numbers[:3], OLDEST)
    return f"=={'.'.join(map(str, newest))}.*"


def _matches(wanted: str, version: str) -> bool:
    return f"{version}.".startswith(wanted.removeprefix("==").removesuffix("*"))


def _check_disk(folder: Path) -> None:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = WHEEL_BYTES + LIBRARY_BYTES
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(place).free
        if free < needed:
            raise InstallError(
                f"libtpu needs {bytes_text(needed)} while it is unpacked, and {folder} has {bytes_text(free)} free."
            )


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    except OSError as error:
        raise InstallError(f"pip could not be started: {error.strerror or error}.") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    raise InstallError(_reason(done.stderr, requirement))


def _reason(errors: str, requirement: str) -> str:
    if "No module named pip" in errors:
        return f"pip is not installed for {sys.executable}; it is what fetches libtpu."
    if "No space left" in errors:
        return "The disk is full."
    if _UNREACHABLE.search(errors):
        return "The package index could not be reached."
    if "No matching distribution" in errors or "Could not find a version" in errors:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return f"The package index has no {requirement} for {python} on this machine."
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
    return (
        f"pip could not fetch {requirement}: {telling.removeprefix('ERROR:').strip()[:300] or 'it does not say why'}."
    )


def _unpack(wheel: Path, folder: Path) -> str:
    version = wheel.name.split("-")[1]
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("libtpu/") and ".." not in name]
            archive.extractall(folder / "whole", names)
    except zipfile.BadZipFile:
        raise InstallError("What pip fetched is no wheel.") from None
    wheel.unlink()
    if not (folder / "whole" / "libtpu" / "libtpu.so").exists():
        raise InstallError(f"libtpu {version} has no libtpu.so.")
    return version
