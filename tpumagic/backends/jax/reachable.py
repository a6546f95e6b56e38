"""Which arrays can be reached from named values, and by which paths: ``params['w']``, ``model.layers[0].kernel.value``.

Nothing of the user's is executed: no property, no ``__getattr__``, no ``__repr__``, no iterator of a class of theirs.
Dictionaries, lists, tuples and deques are read by their own C methods, objects by their instance dictionary and slots.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Literal

_MAX_DEPTH = 16
_MAX_CHILDREN = 100_000
_MAX_ELEMENTS = 500_000
_MAX_OBJECTS = 20_000
_MAX_NAMES = 8
_MAX_NAME_LENGTH = 120

_WITHOUT_ARRAYS = frozenset(
    {"IPython", "PIL", "_io", "ast", "asyncio", "concurrent", "datetime", "decimal", "enum", "inspect", "io",
     "ipykernel", "ipywidgets", "jax", "jaxlib", "keras_hub", "logging", "matplotlib", "multiprocessing", "numpy",
     "pandas", "pathlib", "plotly", "re", "scipy", "seaborn", "sklearn", "socket", "subprocess", "tensorflow",
     "threading", "torch", "torchvision", "tpumagic", "traitlets", "typing", "weakref", "zmq"}
)  # fmt: skip
"""Packages whose own objects are not looked into: they hold no JAX arrays, but may be large."""

Kind = Literal["nothing", "array", "key", "dict", "sequence", "namedtuple", "object"]
Step = Literal["item", "attribute", "same"]
"""How a child hangs on its parent: ``parent[key]``, ``parent.key``, or written as the parent with the key's text."""
Child = tuple[Step, object, object]
"""How, under which key, and the child itself."""


class Reach:
    """Walks in the order in which roots are added; an object reached before keeps its first path.

    array_type, tracer_type: the framework's own; a tracer is no array. found: ids of the arrays that were reached.
    kept: the arrays themselves by their ids, filled if ``keep``.
    """

    def __init__(self, array_type: type, tracer_type: type, *, keep: bool = False) -> None:
        self._array_type = array_type
        self._tracer_type = tracer_type
        self._types: dict[type, _TypeReader] = {}
        self._seen: set[int] = set()
        # One tuple per object and no more: garbage collection makes a large notebook pay for every container.
        self._nodes: list[tuple[int, Step, object]] = []
        self._more: dict[int, list[int]] = {}
        self._elements = _MAX_ELEMENTS
        self._objects = _MAX_OBJECTS
        self._new: list[int] = []
        self._keep = keep
        self.found: dict[int, int] = {}
        self.kept: dict[int, Any] = {}

    def add(self, roots: Iterable[tuple[str, object]]) -> list[int]:
        """Walk from these values, breadth first, so that short paths are found before long ones. Gives the ids of the
        arrays that were not found before."""
        self._new = []
        queue: deque[tuple[object, int, int]] = deque()
        for name, value in roots:
            self._visit(value, -1, "same", name, 0, queue)
        while queue:
            value, node, depth = queue.popleft()
            for how, key, child in self._types[type(value)].children(value):
                self._visit(child, node, how, key, depth, queue)
            if self._elements <= 0 or self._objects <= 0:
                break
        return self._new

    def names(self, identity: int) -> tuple[str, ...]:
        """The paths to an array by its id, shortest first; empty if none was found."""
        if identity not in self.found:
            return ()
        return tuple(dict.fromkeys(map(self._text, (self.found[identity], *self._more.get(identity, ())))))

    def _visit(
        self, value: object, parent: int, how: Step, key: object, depth: int, queue: deque[tuple[object, int, int]]
    ) -> None:
        cls = type(value)
        reader = self._types.get(cls) or self._classify(cls)
        self._elements -= 1
        kind = reader.kind
        if kind == "nothing":
            return
        if kind == "array":
            self._note(value, parent, how, key)
            return
        if id(value) in self._seen or depth >= _MAX_DEPTH:
            return
        if kind == "key":
            base = reader.attribute(value, "_base_array")
            if base is not None:
                self._note(base, parent, how, key)
            return
        self._seen.add(id(value))
        self._objects -= 1
        self._nodes.append((parent, how, key))
        queue.append((value, len(self._nodes) - 1, depth + 1))

    def _note(self, array: object, parent: int, how: Step, key: object) -> None:
        identity = id(array)
        if identity in self.found:
            more = self._more.setdefault(identity, [])
            if len(more) >= _MAX_NAMES - 1:
                return
            more.append(len(self._nodes))
        else:
            self.found[identity] = len(self._nodes)
            self._new.append(identity)
            if self._keep:
                self.kept[identity] = array
        self._nodes.append((parent, how, key))

    def _classify(self, cls: type) -> _TypeReader:
        reader = self._types[cls] = _TypeReader(cls, self._kind(cls), self._types)
        return reader

    def _kind(self, cls: type) -> Kind:
        if issubclass(cls, self._tracer_type):
            return "nothing"
        names = {base.__name__ for base in cls.__mro__}
        if "PRNGKeyArray" in names:
            return "key"
        if issubclass(cls, self._array_type):
            return "array"
        if issubclass(cls, dict):
            return "dict"
        if issubclass(cls, tuple) and isinstance(cls.__dict__.get("_fields"), tuple):
            return "namedtuple"
        if issubclass(cls, (list, tuple, deque)):
            return "sequence"
        if issubclass(cls, type) or cls.__module__ == "builtins":
            return "nothing"
        if str(cls.__module__).partition(".")[0] in _WITHOUT_ARRAYS:
            return "nothing"
        return "object"

    def _text(self, node: int) -> str:
        steps: list[str] = []
        while node >= 0:
            node, how, key = self._nodes[node]
            steps.append(_step_text(how, key))
        text = "".join(reversed(steps))
        return text if len(text) <= _MAX_NAME_LENGTH else text[: _MAX_NAME_LENGTH - 1] + "…"


class _TypeReader:
    """How the children of an instance of one class are read."""

    def __init__(self, cls: type, kind: Kind, types: Mapping[type, _TypeReader]) -> None:
        self.kind = kind
        self._types = types
        self._fields: tuple[str, ...] = cls.__dict__["_fields"] if kind == "namedtuple" else ()
        self._dictionary: GetSetDescriptorType | None = None
        self._slots: list[tuple[str, MemberDescriptorType]] = []
        self._is_mapping = any(base.__name__ == "Mapping" for base in cls.__mro__)
        self._is_sequence = any(base.__name__ == "Sequence" for base in cls.__mro__)
        self._iterate: Any = next((base.__iter__ for base in (list, tuple, deque) if issubclass(cls, base)), None)
        if kind not in ("object", "key", "dict", "sequence"):
            return
        for base in cls.__mro__:
            for name, attribute in base.__dict__.items():
                if isinstance(attribute, MemberDescriptorType) and base.__module__ != "builtins":
                    self._slots.append((name, attribute))
                elif name == "__dict__" and isinstance(attribute, GetSetDescriptorType):
                    self._dictionary = self._dictionary or attribute

    def children(self, value: Any) -> Iterable[Child]:
        """The parts that may hold arrays, each with how it is reached."""
        if self.kind == "namedtuple":
            return (("attribute", name, part) for name, part in zip(self._fields, tuple.__iter__(value), strict=False))
        if self.kind == "object":
            return self._attributes(value)
        keys: Iterable[object] = itertools.count()
        if self.kind == "dict":
            keys = list(itertools.islice(dict.keys(value), _MAX_CHILDREN))
            parts: list[object] = list(itertools.islice(dict.values(value), _MAX_CHILDREN))
        else:
            parts = list(itertools.islice(self._iterate(value), _MAX_CHILDREN))
        own = self._attributes(value) if self._dictionary is not None else []
        # A list of a million numbers is known to hold no array by its types alone.
        useful = {cls for cls in set(map(type, parts)) if cls not in self._types or self._types[cls].kind != "nothing"}
        if not useful:
            return own
        return self._items(zip(keys, parts, strict=False), useful, own)

    def _items(self, pairs: Iterable[tuple[object, object]], useful: set[type], own: list[Child]) -> Iterator[Child]:
        for key, part in pairs:
            if type(part) in useful:
                yield "item", key, part
        yield from own

    def attribute(self, value: object, name: str) -> object:
        """An instance attribute as stored; None if it is not there."""
        return next((part for _, key, part in self._attributes(value) if key == name), None)

    def _attributes(self, value: Any) -> list[Child]:
        stored: dict[str, object] = {}
        if self._dictionary is not None:
            found = self._dictionary.__get__(value)
            if type(found) is dict:
                stored.update(found)
        for name, descriptor in self._slots:
            try:
                stored.setdefault(name, descriptor.__get__(value))
            except AttributeError:  # an empty slot
                continue
        return [(*self._step(name, part), part) for name, part in stored.items()]

    def _step(self, name: object, part: object) -> tuple[Step, object]:
        """As the user would write it: what a mapping keeps inside is reached through the mapping itself."""
        if self._is_mapping and type(part) is dict:
            return ("same", "")
        if self._is_sequence and isinstance(name, str) and name.isdigit():
            return ("item", int(name))
        if name in ("raw_value", "_raw_value"):
            return ("attribute", "value")
        return ("attribute", name)


def _step_text(how: Step, key: object) -> str:
    if how == "same":
        return str(key)
    if how == "attribute":
        return f".{key}"
    return f"[{_key_text(key)}]"


def _key_text(key: object) -> str:
    """Keys of the user's own classes have a ``__repr__`` of theirs, which is not called."""
    if type(key) in (str, int, float, bool, bytes, type(None)):
        text = repr(key)
        return text if len(text) <= 40 else text[:37] + "…" + text[-1]
    if type(key) is tuple and len(key) <= 4:
        return ", ".join(map(_key_text, key))
    return "…"
