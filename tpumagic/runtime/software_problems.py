"""Packages that do not fit, a libtpu that is none, frameworks that fight, and variables that old notebooks left."""

from __future__ import annotations

from collections.abc import Iterator

from tpumagic.runtime.environment import Environment
from tpumagic.runtime.library import Library
from tpumagic.runtime.problem import Problem
from tpumagic.runtime.versions import numbers

NAMES = {"jax": "JAX", "torch_xla": "PyTorch/XLA", "torch_tpu": "TorchTPU", "tensorflow": "TensorFlow"}

_UNKNOWN_CHIPS = {"tpu8t": (0, 10), "tpu8i": (0, 10)}
"""Chip -> the last release line of JAX that does not know it."""

_OLD_JAX = (0, 7)
"""Before it: what images of notebook hosts shipped until 2025."""


def find(environment: Environment) -> Iterator[Problem]:
    """All of it."""
    yield from _library(environment)
    yield from _loaded(environment)
    yield from _off_pin(environment)
    yield from _jaxlib(environment)
    yield from _old(environment)
    yield from _conflict(environment)
    yield from _leftovers(environment)


def _library(environment: Environment) -> Iterator[Problem]:
    """No libtpu, or something that cannot be one."""
    severity = "warning" if environment.chips else "info"
    version = environment.version("libtpu")
    named = next((one for one in environment.libraries if one.origin == "TPU_LIBRARY_PATH"), None)
    if named and named.state != "present":
        yield Problem(
            f"TPU_LIBRARY_PATH names {named.path}, which {_what(named)}.",
            'Before the first import: import os; os.environ.pop("TPU_LIBRARY_PATH", None)',
            "env.libtpu_replaced",
            severity,
        )
    broken = next((one for one in environment.libraries if one.origin == "libtpu" and one.state != "present"), None)
    if broken:
        yield Problem(
            f"libtpu {version} is installed, but its libtpu.so {_what(broken)}.",
            f"pip install --force-reinstall --no-deps 'libtpu=={version}', then restart the kernel.",
            "env.libtpu_replaced",
            severity,
            "Another package that writes the same folder, or an installation that was cut short, does that.",
        )
    nightly = environment.version("libtpu-nightly")
    if version and nightly:
        yield Problem(
            f"libtpu {version} and libtpu-nightly {nightly} are both installed and write the same files.",
            f"pip uninstall -y libtpu libtpu-nightly; {_install(environment)}, then restart the kernel.",
            "env.libtpu_replaced",
            severity,
        )
    framework = next((name for name in ("jax", "torch_xla") if environment.version(name)), None)
    there = version or nightly or any(one.state == "present" for one in environment.libraries)
    if environment.chips and framework and not there:
        yield Problem(
            f"libtpu, the TPU's driver, is not installed, so {NAMES[framework]} cannot use the TPU.",
            f"{_install(environment)}, then restart the kernel.",
            "env.no_tpu",
        )


def _what(library: Library) -> str:
    return {"missing": "is missing", "empty": "is empty"}.get(library.state, "is no library")


def _install(environment: Environment) -> str:
    package = next((name for name in ("jax", "torch_xla") if environment.version(name)), None)
    return f"pip install '{package}[tpu]=={environment.version(package)}'" if package else "pip install libtpu"


def _loaded(environment: Environment) -> Iterator[Problem]:
    library = environment.process.library
    if library and library.replaced:
        yield Problem(
            "libtpu was replaced while this process has the old one loaded.",
            "Restart the kernel.",
            "env.libtpu_replaced",
        )


def _off_pin(environment: Environment) -> Iterator[Problem]:
    for pin in environment.pins:
        if pin.verdict != "off pin":
            continue
        if pin.needs == "torch":
            yield Problem(
                f"{pin.package} {pin.version} is made for torch {pin.wanted}, and {pin.found} is installed.",
                f"pip install 'torch{pin.wanted if pin.wanted.startswith('>') else '==' + pin.wanted}', then restart the "
                "kernel.",
                "env.version_mismatch",
            )
        # Without a chip, a libtpu that JAX did not ask for only compiles, and may have been chosen for that.
        elif environment.chips:
            extra = "torch_tpu" if pin.package == "torch_tpu" else f"{pin.package}[tpu]"
            yield Problem(
                f"{pin.package} {pin.version} asks for {pin.needs} {pin.wanted}, and {pin.found} is installed.",
                f"If it fails to start: pip install '{extra}=={pin.version}', then restart the kernel.",
                "env.version_mismatch",
            )


def _jaxlib(environment: Environment) -> Iterator[Problem]:
    jax, jaxlib = environment.version("jax"), environment.version("jaxlib")
    if jax and jaxlib and numbers(jaxlib)[:3] > numbers(jax)[:3]:
        yield Problem(
            f"jaxlib {jaxlib} is newer than jax {jax}, which cannot be.",
            f"pip install 'jaxlib=={jax}', then restart the kernel.",
            "env.version_mismatch",
        )


def _old(environment: Environment) -> Iterator[Problem]:
    """Software from before the chip, or from before this year."""
    jax = environment.version("jax")
    if jax is None:
        return
    for name in sorted({chip.model.name for chip in environment.chips} & set(_UNKNOWN_CHIPS)):
        if numbers(jax)[:2] <= _UNKNOWN_CHIPS[name]:
            yield Problem(
                f"jax {jax} does not know {name} chips yet.",
                "pip install -U 'jax[tpu]', then restart the kernel.",
                "env.version_mismatch",
            )
    newer = {
        "colab": "Runtime > Change runtime type > Runtime version: Latest.",
        "kaggle": "Settings > Environment > Always use latest environment in the notebook's menu.",
    }.get(environment.hosting.kind)
    if newer and numbers(jax)[:2] < _OLD_JAX:
        yield Problem(f"This image is old: it has jax {jax}.", newer, "env.version_mismatch", "info")


def _conflict(environment: Environment) -> Iterator[Problem]:
    """Several frameworks of one process, each of which takes the chip for itself."""
    asked = dict(environment.variables).get("JAX_PLATFORMS", "").lower()
    takers = [
        name
        for name in environment.process.imported
        if name in ("torch_xla", "torch_tpu")
        or (name == "jax" and (not asked or "tpu" in asked.split(",")))
        or (name == "tensorflow" and environment.version("tensorflow-tpu"))
    ]
    if len(takers) < 2 or not environment.chips:
        return
    names = [NAMES[name] for name in takers]
    off = {
        "jax": 'os.environ["JAX_PLATFORMS"] = "cpu"',
        "tensorflow": 'os.environ["TPU_LOAD_LIBRARY"] = "0"',
    }
    lines = [f"{off[name]} before {NAMES[name]} is imported keeps it off the TPU" for name in takers if name in off]
    yield Problem(
        f"{', then '.join(names)} were imported in this process, and only one of them can have the TPU.",
        "; ".join(["Restart the kernel and import only one", *lines]) + ".",
        "env.framework_conflict",
        # PyTorch/XLA imports JAX by itself for its Pallas kernels, and keeps it off the chip.
        "info" if takers == ["torch_xla", "jax"] else "warning",
    )


def _leftovers(environment: Environment) -> Iterator[Problem]:
    """Variables of runtimes that are gone, or that get in the way of one framework."""
    if not (environment.chips or environment.hosting.promises_tpu):
        return
    variables = dict(environment.variables)
    if variables.get("XRT_TPU_CONFIG"):
        yield Problem(
            "XRT_TPU_CONFIG is set, which is from before PJRT and gets in its way.",
            _pop("XRT_TPU_CONFIG"),
            "env.old_snippet",
        )
    if variables.get("COLAB_TPU_ADDR"):
        yield Problem(
            "COLAB_TPU_ADDR is set, as it was for Colab's TPU nodes, which are gone: code that looks at it goes wrong.",
            _pop("COLAB_TPU_ADDR"),
            "env.old_snippet",
            "info",
        )
    several = len(environment.chips) > 1 and environment.version("torch_xla")
    names = [
        *(["TPU_PROCESS_ADDRESSES"] if variables.get("TPU_PROCESS_ADDRESSES") == "local" else []),
        *(["CLOUD_TPU_TASK_ID"] if variables.get("CLOUD_TPU_TASK_ID") else []),
    ]
    for name in names if several else ():
        yield Problem(
            f"{name}={variables[name]} stops PyTorch/XLA from starting a process for each chip.",
            _pop(name),
            "env.old_snippet",
            "warning" if "torch_xla" in environment.process.imported else "info",
        )


def _pop(name: str) -> str:
    return f'Before the first use of a device: import os; os.environ.pop("{name}", None)'
