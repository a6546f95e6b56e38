"""The real TPU compiler on a machine without a TPU: JAX's compile-only client.

Runs in the compiler's own process, never in the user's: with some pairs of JAX and libtpu it crashes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpumagic.compiler.protocol import RefusedError, UnusableError
from tpumagic.compiler.targets import Topology

_ANALYSIS = "xla_dump_buffer_assignment_analysis"
"""Has the life of every value written down. New JAX asks for it by itself; libtpu before 0.0.30 does not know it."""

_WORDS: dict[str, object] = {"True": True, "true": True, "False": False, "false": False}


def prepare() -> None:
    """Imports JAX and what of it compiles; the TPU's library is not loaded yet. Raises UnusableError."""
    try:
        import jax
    except ImportError:
        raise UnusableError(
            "The TPU compiler is asked through JAX, which this Python does not have: pip install jax."
        ) from None
    try:
        _inner()
    except (ImportError, AttributeError):
        raise UnusableError(f"JAX {jax.__version__} has no compile-only client that tpumagic knows.") from None


def compile(  # noqa: A001 - what it does
    program: bytes,
    topology: Topology,
    devices: int,
    options: Sequence[tuple[str, str]],
    dump: Path,
    started: Callable[[], None],
) -> str:
    """Compiles StableHLO (bytecode or text) for the first devices of a topology; its text after code generation.

    Raises RefusedError, UnusableError.
    """
    inner = _inner()
    chosen = _devices(topology)[:devices]
    user_options = {name: _WORDS.get(value, value) for name, value in options}
    with inner.mlir.make_ir_context():
        try:
            module = inner.ir.Module.parse(program)
        except Exception as error:
            raise UnusableError(f"JAX could not read the program back: {_first_line(error)}.") from None
        started()
        options_of = functools.partial(_compile_options, inner, chosen, program)
        try:
            try:
                wanted = options_of({**user_options, **_dumps(dump), _ANALYSIS: True})
                executable = _executable(inner, chosen, module, wanted)
            except (RuntimeError, ValueError) as error:
                if _ANALYSIS not in str(error):
                    raise
                executable = _executable(inner, chosen, module, options_of({**user_options, **_dumps(dump)}))
        except (RuntimeError, ValueError) as error:
            if refused := _refused_option(str(error), user_options):
                raise UnusableError(f"The TPU compiler does not take the compiler option {refused}.") from None
            raise RefusedError(str(error)) from None
    after = sorted(dump.glob("*after_codegen.txt"), key=lambda path: path.stat().st_size)
    return after[-1].read_text() if after else executable.hlo_modules()[0].to_string()


class _Inner:
    """JAX's inner names that compiling needs; raises ImportError or AttributeError where they are no longer there."""

    def __init__(self) -> None:
        from jax._src import compiler
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
        from jax.experimental.topologies import get_topology_desc
        from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

        self.get_compile_options: Any = compiler.get_compile_options
        self.mlir: Any = mlir
        self.ir: Any = ir
        self.topology: Any = get_topology_desc
        self.DeviceList: Any = _jax.DeviceList
        _ = mlir.make_ir_context, ir.Module.parse


@functools.cache
def _inner() -> _Inner:
    return _Inner()


@functools.cache
def _devices(topology: Topology) -> tuple[Any, ...]:
    settings: dict[str, object] = {}
    if topology.chips_per_host_bounds:
        settings["chips_per_host_bounds"] = topology.chips_per_host_bounds
    if topology.chip_config:
        settings["chip_config_name"] = topology.chip_config
    try:
        found = _inner().topology(platform="tpu", topology_name=topology.name, **settings)
        return tuple(found.devices)
    except Exception as error:
        if "lockfile" in str(error):
            # libtpu's own words advise to remove the lock by force, which takes the chips from who uses them.
            raise UnusableError("Another process has loaded this libtpu and does not share it.") from None
        raise UnusableError(
            f"The libtpu in use has no topology {topology.name}, and `tpumagic compiler install` may fetch a newer one: "
            f"{_first_line(error)}."
        ) from None


def _dumps(folder: Path) -> dict[str, object]:
    return {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}


def _compile_options(inner: _Inner, devices: Sequence[Any], program: bytes, options: dict[str, object]) -> Any:
    import numpy as np

    assignment = np.array([[device.id for device in devices]])
    try:
        found = inner.get_compile_options(
            num_replicas=1,
            num_partitions=len(devices),
            device_assignment=assignment,
            env_options_overrides=options,
        )
    except Exception as error:
        raise UnusableError(f"JAX does not take the compiler options of this program: {_first_line(error)}.") from None
    build = found.executable_build_options
    build.use_spmd_partitioning = True
    # A program lowered without Shardy says its shardings in the older way.
    build.use_shardy_partitioner = b"sdy" in program or b"mhlo.sharding" not in program
    return found


def _executable(inner: _Inner, devices: Sequence[Any], module: Any, options: Any) -> Any:
    client, device_list = devices[0].client, inner.DeviceList(tuple(devices))
    try:
        return client.compile(module, device_list, options)
    except TypeError:
        # Before 0.8 it takes bytecode; what comes from the user's kernel is not always of this version.
        return client.compile(inner.mlir.module_to_bytecode(module), device_list, options)


def _refused_option(message: str, options: dict[str, object]) -> str | None:
    if "option" not in message.lower() and "flag" not in message.lower():
        return None
    return next((f"{name}={value}" for name, value in options.items() if name in message), None)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
