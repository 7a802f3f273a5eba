"""Values as named tensors and JSON, and back: what may be stored, and what may cross the wire.

Only classes on an allow-list are rebuilt. Rows (`Data`) and what a party sees are not on it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from consilience import method
from consilience.aggregation.ensembles import Ensembled
from consilience.data.sites import Data
from consilience.distributions import payload, posterior
from consilience.errors import InputError
from consilience.inference.coreset import Learned
from consilience.inference.unrolled import Lessons
from consilience.privacy.disclosure.exposure import Nearness
from consilience.privacy.secure_aggregation.masks import Masked
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
        Masked,
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
        types: The named tuples that may be built, by name; see `types_of`.

    Raises:
        InputError: The outline names a type that is not in `types`.
        ValueError: The outline is not one that `encode` writes, or does not fit the tensors.
    """
    used: set[str] = set()

    def build(node: Any) -> Tree:
        ((kind, content), *rest) = node.items()
        if kind == "tensor" and not rest:
            used.add(content)
            return tensors[content]
        if kind == "dict" and not rest:
            children = {_check_name(name): build(child) for name, child in content}
            if len(children) != len(content):
                raise ValueError("a name stands twice")
            return children
        if kind == "type" and len(rest) == 1:
            items = tuple(build(child) for child in node["items"])
            if content == "tuple":
                return items
            if content not in types:
                raise InputError(f"The file holds a '{content}', which this method does not know.")
            return types[content](*items)
        if kind == "value" and not rest and (content is None or isinstance(content, (bool, int, float, str))):
            return content
        raise ValueError(f"'{kind}' is not a part of an outline")

    try:
        value = build(json.loads(outline))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the outline is not one of a tree, or does not fit the tensors") from error
    if used != set(tensors):
        raise ValueError("there are tensors that the outline does not name")
    return value


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Hash a text and tensors: every name, type, shape and byte.

    Args:
        text: What is written beside the tensors.
        tensors: The tensors by name.

    Returns:
        SHA-256, in hexadecimal digits.
    """
    hashed = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():  # an empty one that came over a network may have strides of 0, and no view as bytes
            flat = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)  # one number can have any stride
            hashed.update(flat.view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def types_of(owner: method.Method) -> dict[str, type]:
    """List what may cross the wire for a method.

    These are the common types, the named tuples that the method's own file defines, the `types` of its `about`, and
    the same of its inner method. What a file merely imports, such as `Data`, is not among them.

    Returns:
        The types by name.
    """
    types = dict(TYPES)
    if owner.inner is not None:
        types = types_of(owner.inner)
    module = sys.modules[type(owner).__module__]
    for kind in vars(module).values():
        if _is_named_tuple(kind) and kind.__module__ == module.__name__:
            types[kind.__name__] = kind
    for kind in owner.about.types:
        types[kind.__name__] = kind
    return types


def kept_types_of(owner: method.Method) -> dict[str, type]:
    """List what a site may keep for itself between rounds: what may cross the wire, and rows.

    Returns:
        The types by name.
    """
    return {**types_of(owner), "Data": Data}


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _check_name(name: Any) -> str:
    """The name of a dict's entry, which is a text: names of mixed types could not be sorted."""
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name")
    name.encode()  # an error for half of a surrogate pair, which could not be written again
    return name
