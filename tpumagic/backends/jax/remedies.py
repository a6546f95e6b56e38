"""Other ways of writing a program that may need less memory, each lowered so that the compiler can say what it comes to.

Donation and sharding are changes of the lowered program; a checkpoint and another precision need the function traced
anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from tpumagic.backends import Variant
from tpumagic.backends.jax.lowering import callbacks_lowered, of_module
from tpumagic.backends.jax.patching import patch
from tpumagic.plans import Answer, Lowered, Remedy

_AXIS = "devices"
_NAME = re.compile(r'loc\("(?P<name>(?:[^"\\]|\\.)*)"')
_SHOWN_NAMES = 3


def variants(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    lowered: Lowered,
    answer: Answer,
) -> Iterator[Variant]:
    """The changes that can be made to this program without knowing what it is for. answer: the compiler's, to the
    program as it is."""
    if answer.plan is not None and answer.plan.donations:
        names = tuple(donation.argument for donation in answer.plan.donations)
        results = {donation.argument: donation.result for donation in answer.plan.donations}
        yield _made("donation", f"{_listed(names)} donated", partial(_with_donation, lowered, results))
    scans: list[int] = []
    again = partial(_traced_again, function, args, kwargs, lowered)
    with _checkpointed_scans(scans):
        checkpointed = _made("checkpoint", "jax.checkpoint on the body of every scan", again)
    if scans:
        yield checkpointed
    devices = answer.target.devices
    if devices > 1 and lowered.devices == 1:
        change = f"every argument sharded over the {devices} devices, along its longest axis that divides by {devices}"
        yield _made("sharding", change, partial(_sharded, lowered, devices))
    narrow, narrowed = _in_bfloat16((args, dict(kwargs)))
    if narrowed:
        arguments, keywords = narrow
        change = "bfloat16 for every float32 argument"
        yield _made("precision", change, partial(_traced_again, function, arguments, keywords, lowered))


def _made(name: Any, change: str, make: Callable[[], Lowered]) -> Variant:
    try:
        return Variant(Remedy(name, change), make())
    except _OtherProgramError as error:
        return Variant(Remedy(name, change, why=str(error)))
    except Exception as error:  # the user's function may not bear the change, and its own words say why
        first = next(iter(str(error).strip().splitlines()), "")
        return Variant(Remedy(name, change, why=f"{type(error).__name__}: {first[:200]}"))


class _OtherProgramError(Exception):
    """What can be traced again is not the user's program with this change alone."""


def _traced_again(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Lowered) -> Lowered:
    import jax

    # Flax and others do something of their own around the function, which its second trace would lack.
    if hasattr(function, "trace") and not isinstance(function, type(jax.jit(_traced_again))):
        raise _OtherProgramError("only what jax.jit itself has made can be compiled again with this change")
    # A jitted function would answer with the program that it has traced before.
    inner = getattr(function, "__wrapped__", function)
    donated = _donated_places(function, args, kwargs)

    def afresh(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    traced = jax.jit(afresh, donate_argnums=donated).trace(*args, **kwargs)
    with callbacks_lowered():
        made = of_module(before.name, traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo"))
    if made.devices != before.devices:
        raise _OtherProgramError("without the shardings that jax.jit was given it is another program")
    return made


def _donated_places(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Positional arguments that the user donates."""
    import jax

    if not hasattr(function, "trace"):
        return ()
    infos: Any = function.trace(*args, **kwargs).args_info[0]
    leaves = [jax.tree.leaves(info, is_leaf=lambda leaf: hasattr(leaf, "donated")) for info in infos]
    return tuple(place for place, of_it in enumerate(leaves) if any(leaf.donated for leaf in of_it))


@contextmanager
def _checkpointed_scans(seen: list[int]) -> Iterator[None]:
    """Every scan that is traced meanwhile recomputes its body in the backward pass."""
    import jax
    from jax._src.lax.control_flow import loops

    def wrap(original: Any) -> Any:
        def scan(f: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(1)
            return original(jax.checkpoint(f), *args, **kwargs)

        return scan

    restores = [patch(owner, "scan", wrap) for owner in (jax.lax, loops)]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _in_bfloat16(tree: Any) -> tuple[Any, int]:
    """The same arguments with float32 leaves as bfloat16 types, and how many there were."""
    import jax
    import jax.numpy as jnp

    changed = 0

    def narrow(leaf: Any) -> Any:
        nonlocal changed
        if str(getattr(leaf, "dtype", "")) != "float32" or not getattr(leaf, "shape", ()):
            return leaf
        changed += 1
        return jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=getattr(leaf, "sharding", None))

    return jax.tree.map(narrow, tree), changed


def _with_donation(lowered: Lowered, results: Mapping[str, int]) -> Lowered:
    """results: the argument's name -> the place of the result that takes its memory."""
    from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

    def donate(name: str, attributes: dict[str, Any], type_: Any) -> None:
        if name in results:
            attributes["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), results[name])

    return _rewritten(lowered, donate)


def _sharded(lowered: Lowered, devices: int) -> Lowered:
    from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

    def shard(name: str, attributes: dict[str, Any], type_: Any) -> None:
        shape = list(ir.RankedTensorType(type_).shape)
        axes = [axis for axis, size in enumerate(shape) if size % devices == 0 and size > 0]
        longest = max(axes, key=lambda axis: shape[axis], default=None)
        dimensions = ", ".join(f'{{"{_AXIS}"}}' if axis == longest else "{}" for axis in range(len(shape)))
        attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding<@{_AXIS}, [{dimensions}]>")

    return _rewritten(lowered, shard, devices=devices)


def _rewritten(
    lowered: Lowered, change: Callable[[str, dict[str, Any], Any], None], devices: int | None = None
) -> Lowered:
    """The program with other attributes of its arguments; with devices, over a mesh of so many."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

    with mlir.make_ir_context():
        module = ir.Module.parse(lowered.stablehlo)
        main: Any = ir.SymbolTable(module.operation)["main"]
        if devices is not None:
            mesh = ir.Operation.parse(f'sdy.mesh @{_AXIS} = <["{_AXIS}"={devices}]>')
            ir.InsertionPoint.at_block_begin(module.body).insert(mesh)
            count = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), devices)
            module.operation.attributes["mhlo.num_partitions"] = count
        block = main.regions[0].blocks[0]
        known: Any = _attribute(main, "arg_attrs")
        rewritten: list[Any] = []
        for index, argument in enumerate(block.arguments):
            attributes = {named.name: named.attr for named in known[index]} if known is not None else {}
            found = _NAME.search(str(argument.location))
            change(found["name"] if found else "", attributes, argument.type)
            rewritten.append(ir.DictAttr.get(attributes))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(rewritten)
        return of_module(lowered.name, module, lowered.options)


def _attribute(operation: Any, name: str) -> Any:
    try:
        return operation.attributes[name]
    except KeyError:
        return None


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
