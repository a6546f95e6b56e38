"""What has to be installed for a framework to start on this host, and the command that installs it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tpumagic.runtime.card import Problem
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.versions import fits

LABELS: dict[str, str] = {
    "jax": "JAX",
    "torch_xla": "PyTorch/XLA",
    "torch_tpu": "TorchTPU",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
    "mxnet": "MXNet",
}
"""Framework -> its name."""

OLDEST_JAX = "0.7.2"

TENSORFLOW_PACKAGES = ("tensorflow-tpu", "tensorflow-cpu", "tensorflow")

_COMMANDS: dict[str, tuple[str, str]] = {
    "jax": ("pip install -U 'jax[tpu]>=0.7.2'", "pip install -U 'jax>=0.7.2'"),
    "torch_xla": (
        "pip install 'torch~=2.9.0' 'torch_xla[tpu]~=2.9.0'",
        "pip install 'torch~=2.9.0' 'torch_xla~=2.9.0'",
    ),
    "torch_tpu": ("pip install torch_tpu", "pip install torch_tpu"),
    "keras": ("pip install -U keras 'jax[tpu]>=0.7.2'", "pip install -U keras 'jax>=0.7.2'"),
    "torch": ("pip install torch", "pip install torch"),
    "tensorflow": ("pip install tensorflow-tpu==2.20.0 'libtpu<0.0.32'", "pip install tensorflow"),
}
"""Framework -> its command on a TPU host, and elsewhere."""


def command(framework: str, environment: Environment) -> str:
    """The pip command that installs a framework on this host."""
    on_tpu = bool(environment.chips) or environment.hosting.promises_tpu
    return _COMMANDS[framework][0 if on_tpu else 1]


def tensorflow_package(environment: Environment) -> str | None:
    """The package that TensorFlow came in, None if there is none: tensorflow-tpu before the others."""
    return next((name for name in TENSORFLOW_PACKAGES if environment.version(name)), None)


def missing(framework: str, engine: str, environment: Environment, modules: Collection[str]) -> Iterator[Problem]:
    """What is not installed, too old or known to fail when imported. What is imported already is there."""
    absent = [
        name for name in dict.fromkeys((framework, engine)) if not _installed(name, environment) and name not in modules
    ]
    if absent:
        names = " and ".join(LABELS[name] for name in absent)
        yield Problem(
            f"{names} {'is' if len(absent) == 1 else 'are'} not installed.",
            f"{command(framework if framework in absent else engine, environment)}, then restart the kernel.",
        )
        return
    checks = {"jax": _jax, "torch_xla": _torch_xla, "torch_tpu": _torch_tpu, "tensorflow": _tensorflow}
    if engine in checks and engine not in modules:
        yield from checks[engine](environment)


def _installed(framework: str, environment: Environment) -> bool:
    if framework == "tensorflow":
        return tensorflow_package(environment) is not None
    if framework in ("torch_xla", "torch_tpu") and not environment.version("torch"):
        return False
    return environment.version(framework) is not None


def _jax(environment: Environment) -> Iterator[Problem]:
    version = environment.version("jax") or ""
    if not fits(version, f">={OLDEST_JAX}"):
        yield Problem(
            f"JAX {version} is too old for tpumagic, which needs {OLDEST_JAX}.",
            f"{command('jax', environment)}, then restart the kernel.",
        )


def _torch_xla(environment: Environment) -> Iterator[Problem]:
    torch, torch_xla = environment.version("torch") or "", environment.version("torch_xla") or ""
    if _minor(torch) != _minor(torch_xla):
        wanted = ".".join(map(str, _minor(torch_xla)))
        yield Problem(
            f"torch_xla {torch_xla} and torch {torch} do not fit together: the import would end at an undefined symbol.",
            f"pip install 'torch~={wanted}.0', then restart the kernel.",
        )


def _torch_tpu(environment: Environment) -> Iterator[Problem]:
    torch, libtpu = environment.version("torch") or "", environment.version("libtpu")
    restart = "in an environment of its own, then restart the kernel there."
    if not (2, 11) <= _minor(torch) <= (2, 15):
        yield Problem(
            f"TorchTPU works with torch 2.11 to 2.15, and {torch} is installed.",
            f"pip install torch_tpu 'torch>=2.11,<=2.15', {restart}",
        )
    if libtpu is None or not fits(libtpu, ">=0.0.50"):
        found = "it is not installed" if libtpu is None else f"{libtpu} is installed"
        yield Problem(
            f"TorchTPU needs libtpu 0.0.50 or newer, and {found}.", f"pip install torch_tpu 'libtpu>=0.0.50', {restart}"
        )
    if environment.chips and not any("/vfio/" in node for chip in environment.chips for node in chip.nodes):
        yield Problem(
            f"TorchTPU does not find {environment.chips[0].model.name} chips: it looks for those below /dev/vfio.",
            "Use PyTorch/XLA on this host: %tpu_env torch_xla",
        )


def _tensorflow(environment: Environment) -> Iterator[Problem]:
    version, libtpu = environment.version("tensorflow-tpu"), environment.version("libtpu")
    if version is None or (libtpu is not None and not fits(libtpu, ">=0.0.32")):
        return
    if libtpu is None:
        yield Problem(
            f"tensorflow-tpu {version} needs libtpu, which is not installed.",
            "pip install 'libtpu<0.0.32', then restart the kernel.",
        )
        return
    yield Problem(
        f"TensorFlow was not imported: with libtpu {libtpu}, tensorflow-tpu {version} ends the whole process (libtpu must "
        "be older than 0.0.32).",
        "pip install 'libtpu<0.0.32' in an environment of its own, then restart the kernel there; JAX goes along up to "
        "jax[tpu]==0.8.1.",
    )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
