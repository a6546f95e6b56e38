"""Why placing arrays on several devices failed: sizes that do not divide, devices that do not match, meshes that ask
for more devices than there are. JAX words these differently from version to version; the patterns here cover 0.7 to
0.12 and what Keras says."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

from tpumagic.events import CellRecord, Failure
from tpumagic.findings import Finding, quantity
from tpumagic.passes.wording import callers_of, code, expression_of, facts_of, quoted, site_of

_PARTITIONED = re.compile(
    r"array axis (?P<axis>\d+) is partitioned (?P<parts>\d+) times, but (?:does not evenly divide )?the dimension size"
    r"(?: is)? (?P<size>\d+)"
)
_DIVISIBLE = re.compile(
    r"global size of its dimension (?P<axis>\d+) should be divisible by (?P<parts>\d+), but it is equal to (?P<size>\d+)"
)
_MAPPED = re.compile(
    r"maps array axis (?P<axis>\d+) \(of size (?P<size>\d+)\) to mesh ax[ei]s (?P<names>.+?) \(of (?:total )?size "
    r"(?P<parts>\d+)\)"
)
_PARAMETER = re.compile(r"is bound to [^']*'s parameter '(?P<name>[^']+)'")
_SHAPE = re.compile(r"(?:full shape|Got shape): \((?P<shape>[\d, ]*)\)|of shape \w+\[(?P<other>[\d,]*)\]")
_AXIS_SPEC = re.compile(r"Sharding spec \((?P<names>[^()]*)\) implies")
_SPEC = re.compile(r"spec=(?:P|PartitionSpec)\((?P<spec>(?:[^()]|\([^()]*\))*)\)")
_RESHAPE = re.compile(r"cannot reshape array of shape \((?P<shape>[\d, ]*)\).* into shape \((?P<target>[-\d, ]*)\)")

_ARGUMENT = re.compile(
    r"(?:argument (?P<name>\S+) of (?P<function>.+?) with shape (?P<shape>\S+)|(?P<inside>\w+ inside jit))(?: and)?"
    r"(?: with)? device ids \[(?P<ids>[\d, ]*)\]"
)
_DEVICES_WANTED = re.compile(
    r"Number of devices (?P<have>\d+) must (?:be >=|equal) the product of mesh_shape \((?P<shape>[\d, ]+)\)"
    r"|Shape does not match the size of `devices`\. Received: shape=[(\[](?P<keras>[\d, ]+)[)\]].*?devices\.\w+=(?P<keras_have>\d+)"
    r"|requires (?P<logical>\d+) logical devices, but only (?P<logical_have>\d+) XLA devices"
)
_SQUEEZED = re.compile(r"axis to squeeze out which has size not equal to one, got shape=\((?P<parts>\d+)")
_FLAT_RESHAPE = re.compile(r"cannot reshape array of size (?P<have>\d+) into shape \((?P<shape>[-\d, ]+)\)")


_PMAPPED = "`jax.pmap` over this leading axis"


def explain(record: CellRecord, failure: Failure) -> Finding | None:
    """sharding.not_divisible, .incompatible_devices or .device_count; None for any other failure."""
    for one in (_not_divisible, _incompatible, _device_count):
        finding = one(record, failure)
        if finding is not None:
            return finding
    return None


def _finding(kind: str, failure: Failure, title: str, detail: str, fix: str, facts: dict[str, object]) -> Finding:
    return Finding(kind, "error", title, detail, fix, site_of(failure), callers_of(failure), facts=facts)


@dataclass(frozen=True)
class _Split:
    """An axis that does not divide. axes: mesh axes it is split over, empty if not known."""

    axis: int
    size: int
    parts: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]


def _not_divisible(record: CellRecord, failure: Failure) -> Finding | None:
    facts = facts_of(failure)
    if "mapped_by" in facts:
        return None  # for pmap the leading axis is not split but must be as long as there are devices
    split = _split(failure.message) or _pmap_reshape(record, failure, facts)
    if split is None:
        return None
    name = _array_name(failure.message, facts["expression"])
    shape = f" (shape {_shape_text(split.shape)})" if split.shape else ""
    over = (
        f"the {split.parts} devices of mesh axis {_axes_text(split.axes)}" if split.axes else f"{split.parts} devices"
    )
    if len(split.axes) > 1:
        over = f"the {split.parts} devices of mesh axes {_axes_text(split.axes)}"
    more, fewer = math.ceil(split.size / split.parts) * split.parts, split.size // split.parts * split.parts
    drop = f", or drop to {fewer}" if fewer else ""
    return _finding(
        "sharding.not_divisible",
        failure,
        f"Axis {split.axis} of {name}{shape} has size {split.size}, which does not divide over {over}",
        f"Every device must get an equal part: {split.size} / {split.parts} leaves {split.size % split.parts}.",
        f"Pad axis {split.axis} to {more}{drop}, or split another axis.",
        {
            "axis": split.axis,
            "size": split.size,
            "parts": split.parts,
            "mesh_axes": list(split.axes),
            "shape": list(split.shape),
            "pad_to": more,
        },
    )


def _split(message: str) -> _Split | None:
    match = _PARTITIONED.search(message) or _DIVISIBLE.search(message) or _MAPPED.search(message)
    if match is None:
        return None
    axis = int(match["axis"])
    if "names" in match.re.groupindex:
        axes = _quoted_names(match["names"])
    elif told := _AXIS_SPEC.search(message):
        axes = _quoted_names(told["names"])
    else:
        spec = _SPEC.search(message)
        axes = _axes_of(spec["spec"], axis) if spec else ()
    shape = _SHAPE.search(message)
    sizes = _numbers(shape["shape"] or shape["other"] or "") if shape else ()
    axes = tuple(name for name in axes if not name.startswith("_internal"))
    return _Split(axis, int(match["size"]), int(match["parts"]), axes, sizes)


def _axes_of(spec: str, axis: int) -> tuple[str, ...]:
    """The mesh axes that a PartitionSpec's text names for an array axis."""
    try:
        entries: tuple[object, ...] = ast.literal_eval(f"({spec.rstrip(', ')},)") if spec else ()
    except (SyntaxError, ValueError):
        return ()
    entry = entries[axis] if axis < len(entries) else None
    return _quoted_names(repr(entry))


def _quoted_names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'([^']+)'", text))


def _pmap_reshape(record: CellRecord, failure: Failure, facts: dict[str, str]) -> _Split | None:
    """The old way to shard: a leading axis as long as there are devices, made by ``reshape``."""
    match = _RESHAPE.search(failure.message)
    if match is None or "device" not in facts["expression"] + facts["statement"]:
        return None
    shape, target = _numbers(match["shape"]), _numbers(match["target"])
    counts = {backend.device_count for backend in record.backends}
    if not shape or not target or target[0] not in counts or target[0] < 2 or shape[0] % target[0] == 0:
        return None
    return _Split(0, shape[0], target[0], (), shape)


def _array_name(message: str, expression: str) -> str:
    """The array in the user's words: JAX's path to an argument, else what the line places."""
    tree = expression_of(expression) if expression else None
    call = tree if isinstance(tree, ast.Call) else None
    callee = ast.unparse(call.func) if call is not None else ""
    if call is not None and call.args and callee.endswith(("device_put", "with_sharding_constraint", "reshard")):
        placed = call.args[0]
        return "an array" if isinstance(placed, ast.Dict | ast.List | ast.Tuple) else code(ast.unparse(placed))
    if "jit outputs" in message:
        return "the result"
    path = quoted(r"pytree key path (\S+)", message)
    if path is not None and not path.startswith("flat_args"):
        return code(path)
    parameter = _PARAMETER.search(message)
    if parameter is not None:
        return code(parameter["name"])
    if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "reshape":
        return code(ast.unparse(call.func.value))
    return "an array"


def _incompatible(record: CellRecord, failure: Failure) -> Finding | None:
    message = failure.message
    if "incompatible devices for jitted computation" in message:
        told = [(m["name"] or m["inside"], m["function"], _numbers(m["ids"])) for m in _ARGUMENT.finditer(message)]
    elif "does not match the sharding on the respective arg" in message:
        return _wrong_mesh(failure)
    else:
        return None
    if len(told) < 2:
        return None
    placed = _placed(facts_of(failure).get("placed", ""))
    names = placed if len(placed) >= 2 else [(name, ids) for name, _, ids in told[:2]]
    (first, first_ids), (second, second_ids) = names[:2]
    many, few = (first, second) if len(first_ids) >= len(second_ids) else (second, first)
    target = f"{many}.sharding" if max(len(first_ids), len(second_ids)) == 1 else "NamedSharding(mesh, P())"
    inside = next((name for name, function, _ in told if function is None), None)
    if inside is not None and len(placed) < 2:
        fix = f"Move {code(first)} to the mesh first: {code(f'jax.device_put({first}, NamedSharding(mesh, P(…)))')}."
    else:
        fix = f"Put both on the same devices: {code(f'{few} = jax.device_put({few}, {target})')}."
    return _finding(
        "sharding.incompatible_devices",
        failure,
        f"{_named(first)} is on {_devices_text(first_ids)} and {_named(second)} on {_devices_text(second_ids)}, "
        "and one program cannot use both",
        "Arrays that were placed explicitly stay where they are; JAX does not move them for a computation.",
        fix,
        {"names": [first, second], "devices": [list(first_ids), list(second_ids)]},
    )


def _named(name: str) -> str:
    return f"a {name}" if name.endswith(" inside jit") else code(name)


def _wrong_mesh(failure: Failure) -> Finding | None:
    """An argument that was placed on other devices than ``in_shardings`` says; the same devices in another layout are
    another matter."""
    wanted, _, given = failure.message.partition("arg sharding:")
    want, have = _device_total(wanted), _device_total(given)
    if want is None or have is None or want == have:
        return None
    expression = facts_of(failure)["expression"]
    tree = expression_of(expression) if expression else None
    only = ast.unparse(tree.args[0]) if isinstance(tree, ast.Call) and len(tree.args) == 1 else None
    subject = code(only) if only else "An argument"
    place = code(f"jax.device_put({only or 'x'}, sharding)")
    return _finding(
        "sharding.incompatible_devices",
        failure,
        f"{subject} is placed on {quantity(have, 'device')}, but `in_shardings` asks for {want}",
        "An array that was placed explicitly stays where it is; `in_shardings` does not move it.",
        f"Place it as the function expects: {place}, or do not place it at all.",
        {"names": [only] if only else [], "devices": [have, want]},
    )


def _device_total(text: str) -> int | None:
    if "SingleDeviceSharding" in text:
        return 1
    mesh = re.search(r"mesh=Mesh\(([^()]*)(?:\(|axis_types)", text)
    sizes = re.findall(r"'[^']+': (\d+)", mesh[1]) if mesh else []
    return math.prod(map(int, sizes)) if sizes else None


def _placed(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """``a: 0,1; b: 2`` as pairs."""
    pairs = [part.rpartition(": ") for part in text.split("; ") if part]
    return [(name, _numbers(ids)) for name, _, ids in pairs]


def _device_count(record: CellRecord, failure: Failure) -> Finding | None:
    wanted = _wanted(record, failure)
    if wanted is None:
        return None
    shape, need, have, what = wanted
    if need == have:
        return None
    platform = next((backend.platform for backend in record.backends if backend.platform), None)
    if shape:
        fitting = _fitting(shape, have)
        fix = f"Build the mesh from the devices that are there: {code(_tuple_text(fitting))} here."
    else:
        fix = "Take the number from `jax.device_count()`."
    if need > have and platform in (None, "cpu"):
        fix += (
            f" To try {need} devices on CPU, start Python with "
            f"`XLA_FLAGS=--xla_force_host_platform_device_count={need}`."
        )
    elif need < have:
        fix += f" To use fewer on purpose, pass {code(f'devices=jax.devices()[:{need}]')}."
    return _finding(
        "sharding.device_count",
        failure,
        f"{what} needs {quantity(need, 'device')}, and there {'is' if have == 1 else 'are'} {have}",
        "",
        fix,
        {"need": need, "have": have, "shape": list(shape)},
    )


def _wanted(record: CellRecord, failure: Failure) -> tuple[tuple[int, ...], int, int, str] | None:
    """Mesh shape (empty if it is none), devices needed, devices there, and what needs them."""
    facts = facts_of(failure)
    match = _DEVICES_WANTED.search(failure.message)
    if match is not None:
        if match["logical"]:
            return (), int(match["logical"]), int(match["logical_have"]), _PMAPPED
        shape = _numbers(match["shape"] or match["keras"])
        return (
            shape,
            math.prod(shape),
            int(match["have"] or match["keras_have"]),
            f"A mesh of shape {_shape_text(shape)}",
        )
    text = facts["expression"]
    counts = {backend.device_count for backend in record.backends if backend.device_count}
    split = _split(failure.message) if "mapped_by" in facts else None
    if split is not None:
        return (), split.size, split.parts, _PMAPPED
    match = _SQUEEZED.search(failure.message) if "mapped_by" in facts else None
    if match is not None and len(counts) == 1:
        have = next(iter(counts))
        return (), int(match["parts"]) * have, have, _PMAPPED
    match = _FLAT_RESHAPE.search(failure.message)
    if match is not None and ("devices(" in text or "device_list" in facts):
        shape, have = _numbers(match["shape"]), int(match["have"])
        if all(size > 0 for size in shape):
            return shape, math.prod(shape), have, f"A mesh of shape {_shape_text(shape)}"
        known = math.prod(size for size in shape if size > 0)
        return (), known, have, f"A mesh of shape {_shape_text(shape)}"
    if failure.type_name == "IndexError" and "index" in facts and ("devices(" in text or "device_list" in facts):
        have = next(iter(counts)) if len(counts) == 1 else None
        if have is not None and int(facts["index"]) >= have:
            return (), int(facts["index"]) + 1, have, code(text)
    return None


def _fitting(shape: tuple[int, ...], have: int) -> tuple[str, ...]:
    """The shape with its largest axis made to fit; where the others alone are too many, everything on that axis."""
    largest = max(range(len(shape)), key=lambda i: (shape[i], i))
    others = math.prod(size for i, size in enumerate(shape) if i != largest)
    if have % others:
        return tuple("jax.device_count()" if i == largest else "1" for i in range(len(shape)))
    count = "jax.device_count()" if others == 1 else f"jax.device_count() // {others}"
    return tuple(count if i == largest else str(size) for i, size in enumerate(shape))


def _tuple_text(parts: tuple[str, ...]) -> str:
    return f"({', '.join(parts)},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _shape_text(shape: tuple[int, ...]) -> str:
    return _tuple_text(tuple(map(str, shape)))


def _axes_text(axes: tuple[str, ...]) -> str:
    return " and ".join(f"'{name}'" for name in axes)


def _devices_text(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return f"device {ids[0]}"
    if len(ids) > 3 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        return f"devices {ids[0]} to {ids[-1]}"
    return f"devices {', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d+", text))
