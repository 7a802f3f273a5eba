"""Values as named tensors and JSON, and back: what may be stored, and what may cross the wire.

Only classes on an allow-list are rebuilt. Rows (`Data`) and what a party sees are not on it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from consilience import method, payload, posterior
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.coreset import Learned
from consilience.inference.unrolled import Lessons
from consilience.pooling.ensembles import Ensembled
from consilience.privacy.exposure import Nearness
from consilience.tree import Tree

# What may move or be stored for every method. A method adds the named tuples that its own file defines and those it
# `carries`.
TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        posterior.Point,
        posterior.Samples,
        posterior.Gaussian,
        posterior.Dense,
        posterior.Natural,
        payload.Coreset,
        Nearness,
        payload.Logits,
        method.State,
        method.Pooled,
        method.Stepped,
        Ensembled,
        Learned,
        Lessons,
    )
}


def encode(value: Tree) -> tuple[dict[str, Tensor], str]:
    """Take a tree apart into tensors and an outline.

    Args:
        value: Tensors, plain values, dicts, tuples and named tuples of these.

    Returns:
        The tensors by their paths in the tree, and a JSON outline from which `decode` rebuilds it.

    Raises:
        TypeError: Something in the tree is of another kind.
    """
    tensors: dict[str, Tensor] = {}

    def outline(node: Tree, path: str) -> Any:
        if isinstance(node, Tensor):
            tensors[path] = node.detach().clone().contiguous()  # no two names may share memory
            return {"tensor": path}
        if isinstance(node, dict):
            return {"dict": [[key, outline(child, f"{path}.{key}")] for key, child in node.items()]}
        if isinstance(node, tuple):
            names = getattr(node, "_fields", range(len(node)))
            children = [outline(child, f"{path}.{name}") for name, child in zip(names, node, strict=True)]
            return {"type": type(node).__name__, "items": children}
        if node is None or isinstance(node, (bool, int, float, str)):
            return {"value": node}
        raise TypeError(f"{type(node).__name__} at {path} cannot be stored")

    return tensors, json.dumps(outline(value, "tree"), ensure_ascii=False)


def decode(tensors: Mapping[str, Tensor], outline: str, types: Mapping[str, type]) -> Tree:
    """Rebuild the tree that `encode` took apart.

    Args:
        tensors: The tensors by their paths.
        outline: The JSON outline.
        types: The named tuples that may be built, by name; see `types_of`.

    Returns:
        The tree.

    Raises:
        InputError: The outline names a type that is not in `types`.
    """

    def build(node: Any) -> Tree:
        if "tensor" in node:
            return tensors[node["tensor"]]
        if "dict" in node:
            return {key: build(child) for key, child in node["dict"]}
        if "type" in node:
            items = [build(child) for child in node["items"]]
            if node["type"] == "tuple":
                return tuple(items)
            if node["type"] not in types:
                raise InputError(f"The file holds a '{node['type']}', which this method does not know.")
            return types[node["type"]](*items)
        return node["value"]

    return build(json.loads(outline))


def types_of(owner: method.Method) -> dict[str, type]:
    """List what may cross the wire for a method.

    These are the common types, the named tuples that the method's own file defines, those it `carries`, and the same of
    its inner method. What a file merely imports, such as `Data`, is not among them.

    Args:
        owner: The method.

    Returns:
        The types by name.
    """
    types = dict(TYPES)
    inner = getattr(owner, "inner", None)
    if inner is not None:
        types = types_of(inner)
    module = sys.modules[type(owner).__module__]
    for kind in vars(module).values():
        if _is_named_tuple(kind) and kind.__module__ == module.__name__:
            types[kind.__name__] = kind
    for kind in owner.carries:
        types[kind.__name__] = kind
    return types


def kept_types_of(owner: method.Method) -> dict[str, type]:
    """List what a site may keep for itself between rounds: what may cross the wire, and rows.

    Args:
        owner: The method.

    Returns:
        The types by name.
    """
    return {**types_of(owner), "Data": Data}


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
