"""A task as JSON, and back: its network's layers from an allow-list, prior, likelihood, and the scale of the rows.

No name in a file is ever imported. A network with layers of its own has no blueprint, and is handed in when loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from consilience.data.sites import Sites
from consilience.errors import InputError
from consilience.formats.settings import describe, restore
from consilience.models import MODELS
from consilience.models.batchnorm import BatchNorm
from consilience.models.controlled import control
from consilience.models.mobilenet import Inverted
from consilience.models.resnet import Residual
from consilience.models.seeded import Dropout
from consilience.task import Task

Json: TypeAlias = Mapping[str, Any]

# A layer's type and the arguments that build it again, which are its attributes of the same names.
LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Conv1d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine"),
    BatchNorm: ("channels", "eps", "momentum", "affine"),
    Dropout: ("p", "channels"),
    Residual: ("body", "stride", "extra"),
    Inverted: ("body", "carries"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "ceil_mode"),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.LeakyReLU: ("negative_slope",),
    nn.ELU: ("alpha",),
    nn.GELU: ("approximate",),
    nn.Softplus: ("beta", "threshold"),
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Softsign, nn.Tanh), ()),
}
KEPT = ("name", "split", "target_shift", "target_scale", "public")  # of the sites, as they are
NAMES = ("names", "class_names", "feature_names")
SCALES = ("feature_shift", "feature_scale")
NAMED = {kind.__name__: kind for kind in LAYERS}


def network(module: nn.Module) -> Any:
    """The layers of a network; None where one of them is not known here."""
    if type(module) is nn.Sequential:
        inner = {name: network(child) for name, child in module.named_children()}
        return None if None in inner.values() else {"Sequential": inner}
    if type(module) not in LAYERS:
        return None
    given = {name: getattr(module, name) for name in LAYERS[type(module)]}
    inner = {k: network(v) for k, v in given.items() if isinstance(v, nn.Module)}
    if None in inner.values():
        return None
    return {type(module).__name__: {k: v is not None if k == "bias" else inner.get(k, v) for k, v in given.items()}}


def built(layers: Json) -> nn.Module:
    """The inverse of `network`; a layer that is not on the list is refused."""
    ((name, given),) = layers.items()
    if name == "Sequential":
        made = nn.Sequential()
        for inner, child in given.items():
            made.add_module(inner, built(child))
        return made
    if name not in NAMED or not set(given) <= set(LAYERS[NAMED[name]]):
        raise InputError(f"The file holds a layer '{name}' that is not known here; hand the task in with task=.")
    whole = {k: built(v) if isinstance(v, dict) else tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return NAMED[name](**whole)


def blueprint(task: Task, sites: Sites) -> dict[str, Any]:
    """What it takes to predict again: everything about the task and the rows but the rows."""
    dtype = next((p.dtype for p in task.model.parameters()), torch.float32)
    return {
        "network": network(task.model),
        "dtype": str(dtype).removeprefix("torch."),
        "prior": describe(task.prior),
        "likelihood": describe(task.likelihood),
        "draws": task.draws,
        **{name: getattr(sites, name) for name in ("classes", "features", *KEPT, *NAMES)},
        **{name: None if (t := getattr(sites, name)) is None else t.tolist() for name in SCALES},
    }


def task_from(plan: Json, model: str = "") -> Task:
    """A task from its blueprint; a network without one may have a name of ours."""
    if plan["network"] is None and model not in MODELS:
        raise InputError(
            "The network has layers of its own, which a folder does not hold: hand the task in, "
            "co.load(folder, task=task)."
        )
    bare = built(plan["network"]) if plan["network"] else MODELS[model](plan["features"], plan["classes"])
    moved = control(bare).to(getattr(torch, plan["dtype"]))
    return Task(moved, restore(plan["likelihood"]), restore(plan["prior"]), draws=plan["draws"])


def sites_from(plan: Json) -> Sites:
    """The sites of a blueprint: their names and scales, and no rows."""
    kept: dict[str, Any] = {name: plan[name] for name in ("classes", *KEPT)}
    kept["features"] = plan["features"] if isinstance(plan["features"], int) else tuple(plan["features"])
    kept |= {name: None if plan[name] is None else tuple(plan[name]) for name in NAMES}
    kept |= {name: None if plan[name] is None else torch.tensor(plan[name], dtype=torch.float64) for name in SCALES}
    return Sites(train=(), test=(), validation=None, inputs=None, calibration=None, **kept)
