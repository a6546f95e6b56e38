"""After the cell: the programs it ran, as neutral data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tpumagic.backends.jax.arrays import reachable_from
from tpumagic.backends.jax.collectives import Communication, communication
from tpumagic.backends.jax.graphs import graph_of
from tpumagic.backends.jax.reachable import Reach
from tpumagic.backends.jax.recording import RawProgram
from tpumagic.events import Constant, Leaf, Program, ProgramMemory, SourceSite, Stack
from tpumagic.graph import Graph
from tpumagic.user_code import UserCode

OPERATIONS = 200_000
"""Of all programs of a cell together: about a second of reading."""
_NAMED_CONSTANT_BYTES = 65_536
_WITH_MEMORY = 200
"""Programs whose memory figures are asked for, the slowest to compile first: 40 us each, more for many arguments."""


@dataclass(eq=False)
class Freezer:
    """Turns RawPrograms into Programs. namespace: the user's variables, to name constants; read, not kept. memories:
    figures of executables already asked, which do not change."""

    user_code: UserCode
    namespace: Mapping[str, object]
    memories: MutableMapping[Any, ProgramMemory | None] = field(
        default_factory=WeakKeyDictionary[Any, "ProgramMemory | None"]
    )
    operations_left: int = OPERATIONS

    def freeze(self, raws: list[RawProgram]) -> tuple[Program, ...]:
        """All programs in order of their first use."""
        measured = set(map(id, sorted(raws, key=lambda raw: -sum(c.seconds for c in raw.compiles))[:_WITH_MEMORY]))
        stack_of = stack_reader(self.user_code)
        return tuple(self._program(raw, stack_of, id(raw) in measured) for raw in raws)

    def _program(self, raw: RawProgram, stack_of: Any, with_memory: bool) -> Program:
        graph = self._graph(raw, stack_of)
        inputs = self._inputs(raw)
        devices = _devices(raw)
        between = self._communication(raw, graph) if len(devices) > 1 else Communication()
        return Program(
            name=raw.name,
            kind=raw.kind,  # type: ignore[arg-type]
            stack=raw.stack,
            definition=raw.definition,
            thread=raw.thread,
            signature=raw.signature,
            compiles=tuple(raw.compiles),
            calls=tuple(raw.calls),
            inputs=inputs,
            outputs=_outputs(raw),
            donated=tuple(i for i in raw.donated if i < len(inputs)),
            constants=tuple(self._constants(raw, stack_of)),
            memory=self._memory(raw) if with_memory else None,
            graph=graph,
            devices=devices,
            collectives=between.collectives,
            partitioned=between.partitioned,
        )

    def _graph(self, raw: RawProgram, stack_of: Any) -> Graph | None:
        if raw.jaxpr is None or self.operations_left <= 0:
            return None
        try:
            graph = graph_of(raw.jaxpr, stack_of, self.operations_left)
        except Exception:  # an unknown kind of jaxpr costs this program's graph, not the report
            return None
        self.operations_left -= sum(1 for _ in graph.walk()) if raw.kind != "eager" else len(graph.operations)
        return graph

    def _memory(self, raw: RawProgram) -> ProgramMemory | None:
        # Of JAX's two objects for it only the outer can be watched; one that was just compiled ahead of time has none.
        if raw.executable is None:
            return _memory(raw.loaded)
        if raw.executable not in self.memories:
            self.memories[raw.executable] = _memory(raw.loaded)
        return self.memories[raw.executable]

    def _communication(self, raw: RawProgram, graph: Graph | None) -> Communication:
        try:
            text = str(raw.loaded.hlo_modules()[0].to_string())
        except Exception:  # some plug-ins keep their program to themselves
            return Communication()
        return communication(text, graph, self.user_code.user_site)

    def _inputs(self, raw: RawProgram) -> tuple[Leaf, ...]:
        avals = getattr(raw.jaxpr, "in_avals", ())
        if raw.signature is not None and len(raw.signature.leaves) == len(avals):
            return raw.signature.leaves
        return tuple(_leaf(f"argument {i}", aval) for i, aval in enumerate(avals))

    def _constants(self, raw: RawProgram, stack_of: Any) -> Iterator[Constant]:
        if raw.kind == "eager" or raw.jaxpr is None:
            return
        closure = dict(raw.signature.function.closure) if raw.signature is not None else {}
        seen: set[int] = set()
        for value, source_info in _captured(raw.jaxpr):
            size = int(getattr(value, "nbytes", 0))
            if size < _NAMED_CONSTANT_BYTES or id(value) in seen:
                continue
            seen.add(id(value))
            stack = stack_of(source_info) if source_info is not None else ()
            site: SourceSite | None = stack[-1] if stack else None
            yield Constant(self._name(value, closure), tuple(value.shape), str(value.dtype), size, site)

    @cached_property
    def _reachable(self) -> Reach:
        return reachable_from(self.namespace)

    def _name(self, value: Any, closure: Mapping[str, str]) -> str | None:
        """The user's variable for a captured array: the very object (``model.layers[0].weight`` as well), else the
        only array of that shape."""
        alike: list[str] = []
        variables: list[tuple[str, Any]] = list(self.namespace.items())
        for name, held in variables:
            if held is value and not name.startswith("_"):
                return name
            if name.startswith("_") or not issubclass(type(held), (np.ndarray, type(value))):
                continue
            if held.shape == value.shape:
                alike.append(name)
        if paths := self._reachable.names(id(value)):
            return paths[0]
        text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
        captured = [name for name, described in closure.items() if described == text]
        candidates = captured or alike
        return candidates[0] if len(candidates) == 1 else None


def stack_reader(user_code: UserCode) -> Callable[[Any], Stack]:
    """Reads the user's stack from a ``source_info`` of JAX's, each traceback once."""
    stacks: dict[Any, Stack] = {}

    def stack_of(source_info: Any) -> Stack:
        traceback = getattr(source_info, "traceback", None)
        found = stacks.get(traceback)
        if found is None:
            found = stacks[traceback] = _stack(traceback, user_code)
        return found

    return stack_of


def _stack(traceback: Any, user_code: UserCode) -> Stack:
    if traceback is None:
        return ()
    sites = [
        user_code.site(frame.file_name, frame.line_num, frame.function_name.rsplit(".", 1)[-1])
        for frame in traceback.frames
        if user_code.is_user(frame.file_name)
    ]
    return tuple(reversed(sites[:16]))


def _captured(jaxpr: Any, source_info: Any = None) -> Iterator[tuple[Any, Any]]:
    """Arrays written into a program, each with the source of its first use."""
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    constants = dict(zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False))
    for equation in opened.eqns:
        for atom in equation.invars:
            held = getattr(atom, "val", None)
            if held is None and constants:
                held = constants.pop(atom, None) if not hasattr(atom, "val") else None
            if held is not None and getattr(held, "nbytes", 0) >= _NAMED_CONSTANT_BYTES:
                yield held, _first_use(equation, atom)
        for parameter in equation.params.values():
            if hasattr(getattr(parameter, "jaxpr", parameter), "eqns"):
                yield from _captured(parameter, equation.source_info)
    for held in constants.values():
        yield held, source_info


def _first_use(equation: Any, atom: Any) -> Any:
    """Inside a nested function the line that uses the array, not the line that calls the function."""
    body = equation.params.get("jaxpr")
    opened = getattr(body, "jaxpr", body)
    if not hasattr(opened, "eqns") or len(opened.invars) != len(equation.invars):
        return equation.source_info
    inner = opened.invars[[a is atom for a in equation.invars].index(True)]
    for nested in opened.eqns:
        if any(a is inner for a in nested.invars):
            return _first_use(nested, inner)
    return equation.source_info


def _leaf(path: str, aval: Any) -> Leaf:
    shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
    size = int(getattr(aval, "size", 0)) * int(getattr(dtype, "itemsize", 0) or 0)
    return Leaf(path, shape, str(dtype), bool(getattr(aval, "weak_type", False)), bytes=size)


def _outputs(raw: RawProgram) -> tuple[Leaf, ...]:
    avals = raw.out_avals or tuple(getattr(raw.jaxpr, "out_avals", ()))
    return tuple(
        _leaf(f"result {i}" if len(avals) > 1 else "result", aval) for i, aval in enumerate(avals) if aval is not None
    )


def _devices(raw: RawProgram) -> tuple[int, ...]:
    try:
        return tuple(sorted(device.id for device in raw.loaded.local_devices()))
    except Exception:
        return ()


def _memory(loaded: Any) -> ProgramMemory | None:
    try:
        stats = loaded.get_compiled_memory_stats()
    except Exception:
        return None
    peak = getattr(stats, "peak_memory_in_bytes", None)
    return ProgramMemory(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        peak_bytes=peak or None,
    )
