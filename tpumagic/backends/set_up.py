"""How setting up a framework went, whichever it is: started, proven by a small computation, timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, cast

from tpumagic.events import Backend
from tpumagic.numbers import seconds_text

PROOF = 256
"""The proof is the mean of the product of two square matrices of ones with this many rows: the mean is as large."""

_LABELS = {
    "jax": "JAX",
    "torch_xla": "PyTorch/XLA",
    "torch_tpu": "TorchTPU",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
}


@dataclass(frozen=True)
class SetUp:
    """How setting up a framework went. problem: why it did not, None if it did.

    warning: it runs, but not as one would expect (on the CPU, without its cache). import_s is None where the framework
    had been imported before, start_s where it was running already; compile_s and run_s are those of the proof, a matrix
    multiplication; compile_s is None where the two cannot be told apart. under: what computes for Keras. cache: the
    directory of the compilation cache, None if it is off; cache_stored: the proof is in it. repaired: what was put right
    of an earlier import.
    """

    problem: str | None = None
    warning: str | None = None
    backend: Backend | None = None
    import_s: float | None = None
    start_s: float | None = None
    compile_s: float | None = None
    run_s: float | None = None
    under: str | None = None
    cache: str | None = None
    cache_stored: bool | None = None
    repaired: str | None = None

    @property
    def ok(self) -> bool:
        """The framework runs."""
        return self.problem is None

    def to_dict(self) -> dict[str, object]:
        """The same as JSON; None becomes null."""
        return {**asdict(self), "ok": self.ok}


def start(
    framework: str, cache: str | None = None, names: MutableMapping[str, Any] | None = None, *, tpu: bool = True
) -> SetUp:
    """Import and start a framework and prove that it computes. cache: only with JAX and Keras on JAX. names: the
    notebook's variables, for repairs of an earlier import. tpu: try the TPU where the framework has to be told. Never
    raises; KeyboardInterrupt passes."""
    module: Any = importlib.import_module(f"tpumagic.backends.{framework}.setup")
    set_up = cast("Callable[..., SetUp]", module.set_up)
    options: Mapping[str, Any] = {
        "jax": {"cache": cache},
        "keras": {"cache": cache, "names": names},
        "tensorflow": {"tpu": tpu},
    }.get(framework, {})
    try:
        return set_up(**options)
    except Exception as error:  # whatever the framework, its plugins or the hardware raise is the answer
        return SetUp(problem=failure(_LABELS[framework], error))


def describe_imported() -> tuple[Backend, ...]:
    """What the frameworks that are imported say of themselves, as far as they can without being started."""
    from tpumagic.backends.jax import setup as jax
    from tpumagic.backends.keras import setup as keras
    from tpumagic.backends.torch_xla import setup as torch_xla

    return tuple(found for room in (jax, keras, torch_xla) if (found := room.describe()) is not None)


def failure(label: str, error: BaseException) -> str:
    """One sentence about an exception at the import or the start."""
    said = " ".join(str(error).split()).rstrip(".")
    what = "could not be imported" if isinstance(error, ImportError) else "did not start"
    return f"{label} {what} ({type(error).__name__}{f': {said}' if said else ''})."


def wrong_product(label: str, total: float) -> str | None:
    """A sentence if the proof came out wrong."""
    return (
        None
        if total == PROOF
        else f"{label} runs but computes wrongly: a mean that must be {PROOF} came out as {total}."
    )


def lines(result: SetUp) -> tuple[str, ...]:
    """The result in sentences."""
    if result.problem is not None:
        return (result.problem,)
    assert result.backend is not None
    backend = result.backend
    count = "—" if backend.device_count is None else f"{backend.device_count}"
    devices = f"{count} device{'' if backend.device_count == 1 else 's'}"
    kind = f" ({backend.device_kind})" if backend.device_kind not in (None, backend.platform) else ""
    imported = "was imported already" if result.import_s is None else f"imported in {seconds_text(result.import_s)}"
    started = "was running already" if result.start_s is None else f"started in {seconds_text(result.start_s)}"
    compiled = "" if result.compile_s is None else f"compiled in {seconds_text(result.compile_s)} and "
    under = "" if result.under is None else f" with {result.under}"
    found = [
        f"{_LABELS[backend.framework]} {backend.version}{under} runs on {backend.platform}: {devices}{kind}.",
        f"It {imported} and {started}; a matrix multiplication {compiled}ran in {seconds_text(result.run_s)}.",
    ]
    if result.repaired is not None:
        found.insert(0, result.repaired)
    if result.cache is not None:
        kept = {
            True: ": small programs are kept too",
            False: ", which did not keep the program just compiled",
            None: "",
        }
        found.append(f"Compilation cache in {result.cache}{kept[result.cache_stored]}.")
    if result.warning is not None:
        found.insert(0, result.warning)
    return tuple(found)


def text(result: SetUp) -> str:
    """The result for a terminal."""
    return "\n".join(lines(result))


def html_of(sentences: tuple[str, ...]) -> str:
    """Sentences for a notebook."""
    return f"<div>{''.join(f'<p>{escape(line)}</p>' for line in sentences)}</div>"
