"""``nnx.jit`` passes a module as a flat list of arrays and a definition of its graph; this gives the names back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpumagic.backends.jax.structures import leaf_structure, text_of
from tpumagic.events import Structure

_MAX_STATIC_FIELDS = 400


def module_structure(tree: Any) -> Structure | None:
    """The Structure of a module's pytree definition: kind is the module's class, keys the paths of its arrays
    (``layers[0].kernel``), aux its static fields by path. None if this is no such definition or not read well."""
    node = tree.node_data()
    if node is None or node[0].__name__ != "NodeStates" or not node[0].__module__.startswith("flax."):
        return None
    try:
        graph_node = tree.children()[0].node_data()
        definition = graph_node[1]
        if not hasattr(definition, "nodes"):
            definition = graph_node[1][0]
        arrays: list[str] = []
        statics: list[tuple[str, str]] = []
        nodes, attributes = iter(definition.nodes), iter(definition.attributes)
        for path, static in _walk("", nodes, attributes):
            if static is None:
                arrays.append(path)
            elif len(statics) < _MAX_STATIC_FIELDS and not path.rsplit(".", 1)[-1].startswith("_"):
                statics.append((path, text_of(getattr(static, "value", static))))
        kind = definition.nodes[0].type.__name__
    except (AttributeError, IndexError, StopIteration, TypeError):
        return None
    if len(arrays) != tree.num_leaves:
        return None
    return Structure(kind, tuple(arrays), tuple(statics), tuple(leaf_structure() for _ in arrays))


def _walk(path: str, nodes: Iterator[Any], attributes: Iterator[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """(path, None) for every array and (path, static) for every static field, in the order of flax's flat list."""
    node = next(nodes)
    kind = type(node).__name__
    if kind == "VariableDef":
        yield path, None
    if kind != "NodeDef":
        return
    for _ in range(node.num_attributes):
        key, attribute = next(attributes)
        child = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
        what = type(attribute).__name__
        if what == "NodeAttr":
            yield from _walk(child, nodes, attributes)
        elif what == "Static":
            yield child, attribute
        else:
            yield child, None
