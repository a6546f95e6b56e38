"""What is right to set for a framework on this host, as data: variables to set or clear, and why it should not start.

A leftover of a host or of an older way is cleared; what someone chose (``JAX_PLATFORMS=cpu``) stays and is told.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpumagic.events import Backend
from tpumagic.numbers import UNKNOWN
from tpumagic.runtime import requirements
from tpumagic.runtime.card import Problem
from tpumagic.runtime.environment import Environment
from tpumagic.runtime.requirements import LABELS

COMPUTING = ("jax", "torch_xla", "torch_tpu", "tensorflow")
"""Those that open the TPU themselves."""

_OPT_OUTS = {
    "jax": ("JAX_PLATFORMS", "cpu"),
    "torch_xla": ("PJRT_DEVICE", "cpu"),
    "tensorflow": ("TPU_LOAD_LIBRARY", "0"),
}
"""Engine -> the variable by which someone keeps it off the TPU, and its value in small letters."""

_SHARING = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_VISIBLE_DEVICE_PATHS")
"""Variables that give this process some of the chips and leave others to other processes."""

_CPU_DEVICES = re.compile(r"--xla_force_host_platform_device_count(?:=(\S*))?")

_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True)
class Step:
    """One variable to change. value: what to set it to, None to clear it."""

    name: str
    value: str | None
    why: str


@dataclass(frozen=True)
class Plan:
    """What setting up a framework means on this host.

    engine: the framework that computes, which is another one for Keras. steps: variables that are changed now, in time.
    restart_needed: variables that whoever reads them has read already; changing them now would do nothing. problems:
    why nothing is changed and nothing started. cpu: why it runs on the CPU, None where it is to run on a TPU. repair:
    what is wrong with an earlier import and is tried to be put right, None if nothing is. notes: worth knowing.
    """

    framework: str
    engine: str
    steps: tuple[Step, ...] = ()
    restart_needed: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()
    cpu: str | None = None
    repair: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Wish:
    """A step and who reads the variable: at the import of a module, or when that framework starts; None: it will be
    read in any case."""

    step: Step
    reader: str | None
    when: Literal["import", "start"]


@dataclass(frozen=True)
class _Look:
    """All that a rule may look at. modules: names of what is imported."""

    environment: Environment
    environ: Mapping[str, str]
    modules: frozenset[str]
    backends: Mapping[str, Backend]
    cpu_devices: int | None = None

    @property
    def usable_chips(self) -> int:
        return sum(chip.usable for chip in self.environment.chips)

    def runs_on(self, framework: str) -> str | None:
        """The platform on which a framework is running, None if it was not started."""
        backend = self.backends.get(framework)
        return backend.platform if backend is not None else None


def plan(
    framework: str,
    environment: Environment,
    environ: Mapping[str, str],
    modules: Collection[str],
    backends: Sequence[Backend] = (),
    cpu_devices: int | None = None,
) -> Plan:
    """The plan for one of ``frameworks.FRAMEWORKS``. modules: names of imported modules; backends: what imported frameworks say of
    themselves; cpu_devices: that many devices are wanted where JAX runs on the CPU. Looks at nothing else."""
    engine = environ.get("KERAS_BACKEND", "").lower() or "jax" if framework == "keras" else framework
    look = _Look(environment, environ, frozenset(modules), {one.framework: one for one in backends}, cpu_devices)
    cpu = _cpu(framework, engine, look)
    problems = tuple(_problems(framework, engine, cpu, look))
    if problems:
        return Plan(framework, engine, problems=problems, cpu=cpu)
    wishes = [wish for wish in _wishes(framework, engine, cpu, look) if _differs(wish.step, environ)]
    late = {wish.step.name for wish in wishes if _too_late(wish, look)}
    return Plan(
        framework,
        engine,
        steps=tuple(wish.step for wish in wishes if wish.step.name not in late),
        restart_needed=tuple(wish.step for wish in wishes if wish.step.name in late),
        cpu=cpu,
        repair=_repair(engine, look) if framework == "keras" else None,
        notes=tuple(_notes(framework, engine, look)),
    )


def cpu_device_steps(count: int, environ: Mapping[str, str]) -> tuple[Step, ...]:
    """Variables to change so that JAX, once it starts, has so many devices on the CPU."""
    why = "JAX then has as many CPU devices as the target has devices"
    flags = environ.get("XLA_FLAGS", "").strip()
    in_file = bool(flags) and not flags.startswith("-")  # then it names a file of flags, which is left alone
    found: list[Step] = []
    if "JAX_NUM_CPU_DEVICES" in environ or in_file:  # counts more than XLA's flag
        found.append(Step("JAX_NUM_CPU_DEVICES", str(count), why))
    now = _CPU_DEVICES.findall(flags)
    if not in_file and (now[-1] if now else "1") != str(count):
        others = _CPU_DEVICES.sub("", flags).split()
        found.append(Step("XLA_FLAGS", " ".join([*others, f"--xla_force_host_platform_device_count={count}"]), why))
    return tuple(step for step in found if environ.get(step.name) != step.value)


def other_device_count(found: int | None, wanted: int) -> str:
    """That JAX has started with another number of devices than a target has."""
    devices = f"{UNKNOWN if found is None else found} device{'' if found == 1 else 's'}"
    return f"JAX runs with {devices} already, and the target has {wanted}: restart the kernel and ask for the target first."


def _cpu(framework: str, engine: str, look: _Look) -> str | None:
    chips = look.environment.chips
    if framework == "keras" and engine not in ("jax", "tensorflow"):
        return f"Keras on {LABELS.get(engine, engine)} knows no TPU; KERAS_BACKEND=jax does"
    if not chips:
        says = look.environment.hosting.accelerator_type
        return f"this machine has no TPU chip{f', although it says it is {says}' if says else ''}"
    if not look.usable_chips:
        return f"of {_chips(len(chips))} of this machine none can be opened"
    name, wanted = _OPT_OUTS.get(engine, ("", ""))
    asked = look.environ.get(name, "")
    if name and asked.lower().split(",")[0] == wanted:
        return f"{name}={asked}, which was set before, asks for it, although this host has {_chips(look.usable_chips)}"
    if engine == "tensorflow" and not look.environment.version("tensorflow-tpu"):
        return f"the package {requirements.tensorflow_package(look.environment)} knows no TPU; tensorflow-tpu does"
    libtpu_elsewhere = engine == "torch_xla" or look.environ.get("TPU_LIBRARY_PATH")  # in its own wheel
    if not look.environment.version("libtpu") and not libtpu_elsewhere and look.runs_on(engine) != "tpu":
        return "libtpu, the TPU's driver, is not installed"
    return None


def _chips(count: int) -> str:
    return f"{count} TPU chip{'' if count == 1 else 's'}"


def _problems(framework: str, engine: str, cpu: str | None, look: _Look) -> Iterator[Problem]:
    if framework == "mxnet":
        yield Problem(
            "There is nothing to start: MXNet was retired in 2023 and never had a TPU backend.",
            "A trained model's -symbol.json and .params files can be turned into a JAX function; tpumagic has no reader "
            "for them.",
        )
        return
    if framework == "keras" and engine not in ("jax", "torch", "tensorflow"):
        yield Problem(
            f"KERAS_BACKEND={engine}, which was set before, is not a backend that tpumagic can set up.",
            "Set KERAS_BACKEND to jax, or take it away, and restart the kernel.",
        )
        return
    yield from requirements.missing(framework, engine, look.environment, look.modules)
    if look.runs_on(engine) == "tpu":
        return
    if cpu is None:
        yield from _waits(engine, look)
        yield from _held(engine, look)
    elif engine == "torch_tpu":
        yield Problem(
            f"TorchTPU cannot start: {cpu}, and it has no CPU mode.",
            "Use it on a machine with v5e chips or newer; PyTorch/XLA (%tpu_env torch_xla) runs on a CPU as well.",
        )


def _waits(engine: str, look: _Look) -> Iterator[Problem]:
    hosting = look.environment.hosting
    count = hosting.worker_count
    if count is None or count < 2 or look.environ.get("TPU_PROCESS_BOUNDS") == "1,1,1":
        return
    worker = "one worker" if hosting.worker is None else f"worker {hosting.worker}"
    others = f"the other {count - 1} start" if count > 2 else "the other one starts"
    bounds = _BOUNDS.get(len(look.environment.chips))
    to_chips = f"TPU_CHIPS_PER_PROCESS_BOUNDS={bounds}" if bounds else "TPU_CHIPS_PER_PROCESS_BOUNDS to its chips"
    yield Problem(
        f"{LABELS[engine]} was not started: this is {worker} of {count}, and it would wait here until {others} it too.",
        f"Run the same on all {count}; or, for this host alone, set TPU_PROCESS_BOUNDS=1,1,1 and {to_chips}, and restart "
        "the kernel.",
    )


def _held(engine: str, look: _Look) -> Iterator[Problem]:
    shares = any(look.environ.get(name) for name in _SHARING)
    for owner in look.environment.owners:
        if owner.mine:
            others = [LABELS[name] for name in COMPUTING if name in look.modules and name != engine]
            if others:
                yield Problem(
                    f"This process holds the TPU already, through {' or '.join(others)}: {LABELS[engine]} would not get it.",
                    f"Restart the kernel and set up {LABELS[engine]} first: one framework in a process can use the TPU.",
                )
        elif not shares:
            yield Problem(
                f"{LABELS[engine]} was not started: the TPU is held by {owner.name}.",
                f"Shut that {'kernel' if owner.kernel else 'process'} down and try again: only one process can use a chip.",
            )


def _wishes(framework: str, engine: str, cpu: str | None, look: _Look) -> Iterator[_Wish]:
    anew = "keras" not in look.modules or _repair(engine, look) is not None
    if framework == "keras" and anew and not look.environ.get("KERAS_BACKEND"):
        why = "Keras reads it when it is imported, and JAX is the one of its backends that runs on a TPU by itself"
        yield _Wish(Step("KERAS_BACKEND", engine, why), None, "import")
    if engine == "jax" and cpu is None and not look.environ.get("JAX_PLATFORMS") and look.runs_on("jax") != "tpu":
        why = "a TPU that does not start is then an error, and not a silent run on the CPU"
        yield _Wish(Step("JAX_PLATFORMS", "tpu,cpu", why), "jax", "import")
    if engine == "jax" and cpu is not None and look.cpu_devices is not None and look.runs_on("jax") is None:
        for step in cpu_device_steps(look.cpu_devices, look.environ):
            yield _Wish(step, "jax", "start" if step.name == "XLA_FLAGS" else "import")
    if engine == "torch_xla":
        yield from _torch_xla(cpu, look)


def _torch_xla(cpu: str | None, look: _Look) -> Iterator[_Wish]:
    if cpu is None and not look.environ.get("PJRT_DEVICE"):
        why = "PyTorch/XLA then takes the TPU or fails, and does not fall back to the CPU with a line in its log"
        yield _Wish(Step("PJRT_DEVICE", "TPU", why), "torch_xla", "start")
    if "XRT_TPU_CONFIG" in look.environ:
        why = "it belongs to XRT, which PyTorch/XLA has left, and gets in the way of PJRT"
        yield _Wish(Step("XRT_TPU_CONFIG", None, why), "torch_xla", "start")
    if look.environ.get("TPU_PROCESS_ADDRESSES") == "local":
        why = "the image sets it to spare a question to the metadata server; PyTorch/XLA takes it for a list of workers"
        yield _Wish(Step("TPU_PROCESS_ADDRESSES", None, why), "torch_xla", "start")
    alone = (look.environment.hosting.worker_count or 1) == 1 and "TPU_PROCESS_BOUNDS" not in look.environ
    if alone and "CLOUD_TPU_TASK_ID" in look.environ:
        why = "it numbers one process of several, and this host stands alone"
        yield _Wish(Step("CLOUD_TPU_TASK_ID", None, why), "torch_xla", "start")


def _differs(step: Step, environ: Mapping[str, str]) -> bool:
    return environ.get(step.name) != step.value


def _too_late(wish: _Wish, look: _Look) -> bool:
    if wish.reader is None:
        return False
    started = look.runs_on(wish.reader) is not None
    return started if wish.when == "start" else started or wish.reader in look.modules


def _repair(engine: str, look: _Look) -> str | None:
    if "keras" not in look.modules:
        if any(name.startswith("keras.") for name in look.modules):
            return "An import of Keras failed half-way: what it left behind is taken away, so that it can be imported anew."
        return None
    backend = look.backends.get("keras")
    now = dict(backend.settings).get("backend") if backend is not None else None
    if now is None or now == engine:
        return None
    return (
        f"Keras was imported with the backend {now}: it is changed to {engine}, unless the notebook holds layers, models "
        "or functions of the old one."
    )


def _notes(framework: str, engine: str, look: _Look) -> Iterator[str]:
    jax = look.backends.get("jax")
    if (
        engine == "jax"
        and jax is not None
        and jax.platform == "cpu"
        and look.cpu_devices not in (None, jax.device_count)
    ):
        yield other_device_count(jax.device_count, look.cpu_devices)
    for pin in look.environment.pins:
        if pin.verdict == "off pin" and pin.package == engine and pin.needs == "libtpu" and look.usable_chips:
            yield (
                f"{pin.package} {pin.version} asks for libtpu {pin.wanted}, and {pin.found} is installed: if it fails to "
                "start, that is the first suspect."
            )
    if engine == "torch_xla" and "tensorflow" in look.modules and look.environment.version("tensorflow-cpu") is None:
        yield "TensorFlow is imported in this process: if PyTorch/XLA fails to start, restart the kernel without it."
    if engine == "torch_tpu" or (engine == "tensorflow" and look.environment.version("tensorflow-tpu")):
        yield f"tpumagic has not been tried with {LABELS[engine]} on a TPU: where the two disagree, trust {LABELS[engine]}."
    if engine == "torch_tpu" and look.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield "TORCH_DEVICE_BACKEND_AUTOLOAD=0, which was set before, keeps `import torch` from loading TorchTPU by itself."
