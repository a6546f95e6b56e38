"""What JAX decides a recompilation on, read from one call of a jitted function.

Nothing of the user's is kept: arrays give shape, dtype and sharding, static values a short text and a key.
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpumagic.backends.jax.equinox import unwrap as unwrap_equinox
from tpumagic.backends.jax.flax_nnx import module_structure
from tpumagic.backends.jax.structures import key_of, leaf_path, structure_of, text_of
from tpumagic.events import FunctionId, Leaf, Signature, SourceSite, StaticValue, Structure
from tpumagic.user_code import UserCode

_OPTIONS = (
    "donate_argnums", "donate_argnames", "static_argnums", "static_argnames", "keep_unused", "compiler_options_kvs",
    "in_shardings_leaves", "out_shardings_leaves", "backend", "device", "inline",
)  # fmt: skip


class Identities:
    """Numbers objects so that two of them compare as the same object also after one is gone and its ``id`` reused."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = 0

    def of(self, value: object) -> int | None:
        """The number of this object, None where it cannot be watched."""
        known = self._known.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        identity = id(value)

        def gone(reference: weakref.ref[Any], known: dict[int, tuple[weakref.ref[Any], int]] = self._known) -> None:
            if identity in known and known[identity][0] is reference:
                del known[identity]

        try:
            reference = weakref.ref(value, gone)
        except TypeError:
            return None
        self._next += 1
        self._known[identity] = (reference, self._next)
        return self._next

    def forget_dead(self) -> None:
        """Drop the numbers of objects that are gone."""
        self._known = {key: known for key, known in self._known.items() if known[0]() is not None}


class SignatureReader:
    """Reads calls. One per notebook, so that functions keep their identities from cell to cell; ``forget`` drops what
    holds on to the user's objects."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self.identities = Identities()
        self.wide: list[tuple[str, Any]] = []
        """64-bit host arrays among the arguments of the last call read: (path, array); the reader's user takes them."""
        self._shardings: dict[int, tuple[Any, str | None, tuple[int, ...]]] = {}
        self._trees: dict[Any, tuple[tuple[str, ...], tuple[tuple[str, Structure], ...]]] = {}
        self._parameters: dict[int, tuple[Any, list[inspect.Parameter]]] = {}
        self._contexts: dict[Any, tuple[tuple[str, str], ...]] = {}
        self._dtypes: dict[Any, str] = {}

    def forget(self) -> None:
        """Drop the caches that keep shardings, tree definitions and functions alive."""
        self._shardings.clear()
        self._trees.clear()
        self._parameters.clear()
        self._contexts.clear()
        self.identities.forget_dead()

    def read(
        self, fun: Any, options: Any, args: Sequence[Any], kwargs: Mapping[str, Any], site: SourceSite | None
    ) -> Signature:
        """The signature of ``jax.jit(fun, ...)(*args, **kwargs)``; ``options`` is JAX's own record of jit's arguments."""
        from jax._src import tree_util  # `import jax` would bring back what a cell has taken out of sys.modules

        call = unwrap_equinox(fun, args, lambda function: [p.name for p in self._parameters_of(function)])
        if call is not None:
            fun, args, kwargs, statics = call.function, tuple(call.args.values()), call.kwargs, call.statics
            static_positions: set[int] = set()
            static_names: set[str] = set()
        else:
            statics = ()
            count = len(args)
            static_positions = {
                i % count if i < 0 < count else i for i in _as_tuple(getattr(options, "static_argnums", ()))
            }
            static_names = set(_as_tuple(getattr(options, "static_argnames", ())))
        parameters = self._parameters_of(fun)
        names = list(call.args) if call is not None else _argument_names(parameters, len(args))
        statics += tuple(
            _static(names[i], args[i]) for i in range(len(args)) if i in static_positions or names[i] in static_names
        ) + tuple(_static(name, kwargs[name]) for name in sorted(static_names) if name in kwargs)  # fmt: skip
        traced_positions = [i for i in range(len(args)) if i not in static_positions and names[i] not in static_names]
        traced = (tuple(args[i] for i in traced_positions), {k: v for k, v in kwargs.items() if k not in static_names})
        leaves, tree = tree_util.tree_flatten(traced)
        paths, structure = self._tree(traced, tree, [names[i] for i in traced_positions], sorted(traced[1]))
        return Signature(
            function=self.function(fun),
            leaves=tuple(map(self.leaf, paths, leaves)),
            structure=structure,
            statics=statics,
            positional=tuple(names),
            keywords=tuple(sorted(kwargs)),
            context=self._context(),
            options=tuple((name, text_of(value, 200)) for name in _OPTIONS if (value := getattr(options, name, None)) not in (None, (), False)),
            transform=_transform(leaves),
            site=site,
        )  # fmt: skip

    def leaf(self, path: str, value: Any) -> Leaf:
        """One argument or result array; any object with a shape and a dtype, or a Python scalar."""
        # Other classes may answer anything, or fail: JAX asks them for a dtype, and nothing more is asked here.
        aval = getattr(value, "aval", None) if type(value).__module__.startswith("jax") else None
        if aval is not None:
            sharding, devices = self._sharding(value)
            dtype = aval.dtype
            return Leaf(
                path,
                tuple(aval.shape),
                self._dtype(dtype),
                bool(getattr(aval, "weak_type", False)),
                sharding,
                devices,
                getattr(value, "_committed", None),
                "device",
                math.prod(aval.shape) * dtype.itemsize if hasattr(dtype, "itemsize") else 0,
                self.identities.of(value),
            )
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.itemsize == 8 and value.dtype.kind in "iuf":
                self.wide.append((path, value))
            return Leaf(path, value.shape, str(value.dtype), False, None, (), None, "host", value.nbytes, self.identities.of(value) if value.shape else None)  # fmt: skip
        dtype = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}.get(
            type(value), str(getattr(value, "dtype", type(value).__name__))
        )
        return Leaf(path, tuple(getattr(value, "shape", ())), dtype, type(value) in (int, float, complex), None, (), None, "scalar", 0, None)  # fmt: skip

    def function(self, fun: Any) -> FunctionId:
        """Which function this is: its name, its code, where it is defined, what it closes over."""
        mapped = self._mapped(fun)
        raw = mapped or user_function(fun)
        code = getattr(raw, "__code__", None)
        name = str(getattr(mapped or fun, "__name__", None) or getattr(raw, "__name__", None) or type(raw).__name__)
        return FunctionId(
            name=name,
            code_key=f"{getattr(raw, '__qualname__', name)}:{_code_key(code) if code else type(raw).__qualname__}",
            identity=self.identities.of(fun) or id(fun),
            definition=self.definition(raw),
            closure=_closure(fun, raw, code),
            is_lambda=name == "<lambda>",
            wrapper=_wrapper(fun, raw),
        )

    def definition(self, raw: Any) -> SourceSite | None:
        """Where the user wrote this function; None if it is not the user's."""
        code = getattr(raw, "__code__", None)
        if code is None or not self._user_code.is_user(code.co_filename):
            return None
        return self._user_code.site(code.co_filename, code.co_firstlineno, code.co_name)

    def _mapped(self, fun: Any) -> Any:
        """The user's function that ``pmap`` has wrapped in several of its own; None for any other function."""
        if not str(getattr(fun, "__module__", "")).startswith("jax._src.pmap"):
            return None
        inside = [fun]
        for function in inside:  # grows while it is read
            code = getattr(function, "__code__", None)
            if code is not None and self._user_code.is_user(code.co_filename):
                return function
            if len(inside) > 32:
                return None
            held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
            inside += [
                value
                for value in (*held, getattr(function, "f", None))
                if callable(value) or hasattr(value, "f_transformed")
            ]
        return None

    def _parameters_of(self, fun: Any) -> list[inspect.Parameter]:
        known = self._parameters.get(id(fun))
        if known is None:
            try:
                parameters = list(inspect.signature(fun).parameters.values())
            except (TypeError, ValueError):
                parameters = []
            known = self._parameters[id(fun)] = (fun, parameters)
        return known[1]

    def _tree(
        self, traced: Any, tree: Any, names: list[str], keywords: list[str]
    ) -> tuple[tuple[str, ...], tuple[tuple[str, Structure], ...]]:
        from jax._src import tree_util

        key = (tree, tuple(names))
        known = self._trees.get(key)
        if known is None:
            keyed = tree_util.tree_flatten_with_path(traced)[0]
            paths: list[str] = []
            for path, _ in keyed:
                # path[0] tells positional or keyword, path[1] which one.
                first = path[1]
                name = names[first.idx] if path[0].idx == 0 else str(first.key)
                paths.append(leaf_path(name, tree_util.keystr(path[2:])))
            positional, keyword = tree.children()
            children = (*positional.children(), *keyword.children())
            structure: list[tuple[str, Structure]] = []
            done = 0
            for name, child in zip([*names, *keywords], children, strict=True):
                module = module_structure(child)
                if module is not None:
                    paths[done : done + child.num_leaves] = [
                        f"{name}.{key}" if not key.startswith("[") else name + key for key in module.keys
                    ]
                structure.append((name, module or structure_of(child)))
                done += child.num_leaves
            known = self._trees[key] = (tuple(paths), tuple(structure))
        return known

    def _context(self) -> tuple[tuple[str, str], ...]:
        """The settings JAX keys its caches on, by name where this version tells the names."""
        from jax._src import config

        try:
            values = config.trace_context()
            names = config.trace_context_names()  # type: ignore[attr-defined]
        except AttributeError:
            return _public_context()
        known = self._contexts.get(values)
        if known is None:
            texts = [str(v)[:120] if _is_mesh(v) else text_of(v, 120) for v in values]
            known = self._contexts[values] = tuple(zip(map(str, names), texts, strict=False))
        return known

    def _dtype(self, dtype: Any) -> str:
        known = self._dtypes.get(dtype)
        if known is None:
            known = self._dtypes[dtype] = str(dtype)
        return known

    def _sharding(self, value: Any) -> tuple[str | None, tuple[int, ...]]:
        sharding = getattr(value, "_sharding", None)
        if sharding is None:
            return None, ()
        known = self._shardings.get(id(sharding))
        if known is None:
            devices = tuple(sorted(device.id for device in sharding.device_set))
            known = self._shardings[id(sharding)] = (sharding, sharding_text(sharding), devices)
        return known[1], known[2]


def sharding_text(sharding: Any) -> str | None:
    """``P('d', None) over (d=4)``; None for an array on one device."""
    spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
    if spec is not None and mesh is not None:
        parts = ", ".join(repr(part) for part in spec)
        axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
        return f"P({parts}) over ({axes})"
    return None if len(sharding.device_set) == 1 else type(sharding).__name__


def user_function(fun: Any) -> Any:
    """The function inside partials, bound methods and decorators."""
    for _ in range(16):
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif getattr(fun, "__wrapped__", None) is not None:
            fun = fun.__wrapped__
        elif inspect.ismethod(fun):
            fun = fun.__func__
        elif not hasattr(fun, "__code__") and callable(fun) and hasattr(type(fun).__call__, "__code__"):
            return type(fun).__call__
        else:
            break
    return fun


def _wrapper(fun: Any, raw: Any) -> str | None:
    """What stands around the user's function: ``partial``, or JAX's own function for ``grad`` and its like."""
    if fun is raw:
        return None
    code = getattr(fun, "__code__", None)
    return str(getattr(code, "co_qualname", type(fun).__name__))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _argument_names(parameters: list[inspect.Parameter], count: int) -> list[str]:
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return [positional[i].name if i < len(positional) else f"{rest}[{i - len(positional)}]" for i in range(count)]


def _static(name: str, value: object) -> StaticValue:
    by_identity = type(value).__hash__ is object.__hash__ and type(value).__eq__ is object.__eq__
    return StaticValue(name, text_of(value), type(value).__name__, key_of(value), by_identity)


def _public_context() -> tuple[tuple[str, str], ...]:
    import jax

    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_default_device",
             "jax_numpy_rank_promotion", "jax_default_prng_impl", "jax_debug_nans", "jax_threefry_partitionable")  # fmt: skip
    return tuple((name, text_of(getattr(jax.config, name, None))) for name in names)


def _is_mesh(value: object) -> bool:
    return type(value).__name__ in ("Mesh", "AbstractMesh")


def _transform(leaves: list[Any]) -> str | None:
    """``JVP``, ``Batch``, ... if the call is under a transformation, else None."""
    for leaf in leaves:
        trace = getattr(leaf, "_trace", None)
        name = type(trace).__name__.removesuffix("Trace") if trace is not None else None
        # DynamicJaxpr is plain tracing (make_jaxpr, pmap): the function itself is not transformed.
        if name not in (None, "DynamicJaxpr"):
            return name
    return None


def _code_key(code: Any) -> int:
    constants = tuple(
        _code_key(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts if not isinstance(c, frozenset)
    )
    return hash((code.co_code, code.co_names, constants))


def _closure(fun: Any, raw: Any, code: Any) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    if isinstance(fun, functools.partial):
        pairs += [(f"argument {i}", _with_identity(v)) for i, v in enumerate(fun.args)]
        pairs += [(name, _with_identity(v)) for name, v in fun.keywords.items()]
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(raw, "__closure__", None) or (), strict=False):
        try:
            pairs.append((name, _with_identity(cell.cell_contents)))
        except ValueError:
            continue
    return tuple(pairs[:16])


def _with_identity(value: Any) -> str:
    """Plain values by their text; arrays by shape and dtype; others by their type."""
    held: Any = value
    known = type(value).__module__.partition(".")[0] in ("numpy", "jax", "jaxlib", "flax")
    if known and hasattr(held, "shape") and hasattr(held, "dtype"):
        return f"{held.dtype}[{','.join(map(str, held.shape))}]"
    return text_of(value)
