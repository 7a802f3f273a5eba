"""Settings and values as JSON, with names from an allow-list: what resume, studies and other machines rebuild from."""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from consilience import inference, likelihood, method, payload, posterior, predictive, prior
from consilience.data.sites import Data
from consilience.errors import InputError, unknown_name
from consilience.inference.coreset import BPCfKL, Learned
from consilience.inference.hmc import HMC
from consilience.inference.unrolled import Distillation, Lessons
from consilience.methods import METHODS
from consilience.pooling import distil, merging
from consilience.pooling import ensembles as ensemble
from consilience.privacy import exposure
from consilience.training import optimisers as optim
from consilience.tree import Tree

T = TypeVar("T")

# What may be named in a setting: dataclasses and plain functions.
KNOWN: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        *(inference.SGD, inference.Adam, inference.SWA, inference.SGLD, inference.CyclicalSGHMC),
        *(inference.constant, inference.cosine, inference.stepwise, inference.CropAndFlip),
        *(distil.Distil, distil.at_random, distil.at_client, distil.at_average),
        *(optim.Descent, optim.AdamSteps, optim.Yogi, predictive.shared, predictive.robust),
        *(posterior.moments, posterior.dense_moments),
        *(ensemble.Ensemble, ensemble.GaussianModels, ensemble.DirichletModels),
        *(HMC, BPCfKL, Distillation),
        inference.Newton,
        *(inference.MeanField, inference.Laplace, inference.SWAG, inference.ggn, inference.fisher),
        *(merging.eaa, merging.gaa, merging.aalv, merging.ppa, merging.cf),
    )
}
# What else a task is made of.
PROBLEM = (likelihood.Softmax, likelihood.GaussianNoise, likelihood.Heteroscedastic, prior.Isotropic, prior.Flat)
# What may move or be stored, class by class; rows (Data) and what a party sees are not among them. A method adds the
# named tuples that its own file defines and those it `carries`.
TYPES: dict[str, type] = {
    t.__name__: t
    for t in (
        posterior.Point,
        posterior.Samples,
        posterior.Gaussian,
        posterior.Dense,
        posterior.Natural,
        payload.Coreset,
        exposure.Nearness,
        payload.Logits,
        method.State,
        method.Pooled,
        method.Stepped,
        ensemble.Ensembled,
        Learned,
        Lessons,
    )
}


def describe(value: Any) -> Any:
    """A frozen dataclass as nested JSON: its type's name and its fields; functions by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [describe(v) for v in value]
    return value.__name__ if callable(value) else value


def restore(value: Any) -> Any:
    """The inverse of `describe`; a type that is neither a method nor known here is refused."""
    if isinstance(value, dict):
        kinds: dict[Any, Any] = {**KNOWN, **{kind.__name__: kind for kind in (*METHODS.values(), *PROBLEM)}}
        name = value.get("type")
        if name not in kinds:
            raise InputError(f"'{name}' is not known here: hand the method in with method=, or the task with task=.")
        fields = {f.name for f in dataclasses.fields(kinds[name])}
        if not set(value) <= {"type", *fields}:
            raise InputError(f"'{name}' has other settings than here: it was saved by another version.")
        return kinds[name](**{k: restore(v) for k, v in value.items() if k != "type"})
    if isinstance(value, list):
        return tuple(restore(v) for v in value)
    return KNOWN[value] if isinstance(value, str) and value in KNOWN else value


def configure(settings: T, changes: Sequence[str]) -> T:
    """Apply `field=value` and `field.inner=value` texts to a frozen dataclass.

    What a method does not have is set in the method it goes around: `inference.epochs=5` of FedBE is its inner one's.
    """
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"`{change}` is not a setting; write field=value, for example inference.epochs=20.")
        settings = _replaced(settings, path.strip().split("."), text.strip(), change)
    return settings


def _replaced(settings: T, path: list[str], text: str, change: str) -> T:
    fields = [f.name for f in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else []
    if path[0] not in fields and "inner" in fields and hasattr(settings.inner, path[0]):  # type: ignore[attr-defined]
        path = ["inner", *path]
    if path[0] not in fields:
        raise unknown_name(f"setting of {type(settings).__name__}", path[0], fields or ["none"])
    old = getattr(settings, path[0])
    new = _parsed(text, old, change) if len(path) == 1 else _replaced(old, path[1:], text, change)
    return dataclasses.replace(settings, **{path[0]: new})  # type: ignore[type-var]


def _parsed(text: str, old: Any, change: str) -> Any:
    """The value a text stands for, of the same kind as the one it replaces."""
    if isinstance(old, method.Method):
        if text not in METHODS:
            raise unknown_name("method", text, METHODS)
        return METHODS[text]()
    if text in KNOWN:
        return KNOWN[text]() if isinstance(KNOWN[text], type) else KNOWN[text]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if old is not None and value is not None and type(value) is not type(old):
        kind = f"one of {', '.join(sorted(KNOWN))}" if callable(old) else f"of type {type(old).__name__}"
        raise InputError(f"In `{change}` the value should be {kind}.")
    return value


def encode(value: Tree) -> tuple[dict[str, Tensor], str]:
    """A tree as named tensors and a JSON outline that rebuilds it."""
    tensors: dict[str, Tensor] = {}

    def outline(node: Tree, path: str) -> Any:
        if isinstance(node, Tensor):
            tensors[path] = node.detach().clone().contiguous()  # no two names may share memory
            return {"tensor": path}
        if isinstance(node, dict):
            return {"dict": [[key, outline(child, f"{path}.{key}")] for key, child in node.items()]}
        if isinstance(node, tuple):
            names = getattr(node, "_fields", range(len(node)))
            children = [outline(child, f"{path}.{n}") for n, child in zip(names, node, strict=True)]
            return {"type": type(node).__name__, "items": children}
        if node is None or isinstance(node, (bool, int, float, str)):
            return {"value": node}
        raise TypeError(f"{type(node).__name__} at {path} cannot be stored")

    return tensors, json.dumps(outline(value, "tree"), ensure_ascii=False)


def decode(tensors: Mapping[str, Tensor], outline: str, types: Mapping[str, type]) -> Tree:
    """The inverse of `encode`; a type that is not in `types` is refused."""

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
    """What may cross the wire for a method: the common types, the named tuples its own file defines, those it carries,
    and the same of its inner method. What a file merely imports, such as `Data`, is not among them."""
    module = sys.modules[type(owner).__module__]
    defined = [t for t in vars(module).values() if _is_named_tuple(t) and t.__module__ == module.__name__]
    inner = getattr(owner, "inner", None)
    inherited = TYPES if inner is None else types_of(inner)
    return {**inherited, **{t.__name__: t for t in (*defined, *owner.carries)}}


def kept_types_of(owner: method.Method) -> dict[str, type]:
    """What a site may keep for itself between rounds: what may cross, and rows."""
    return {**types_of(owner), "Data": Data}


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
