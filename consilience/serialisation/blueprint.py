"""A task as JSON, and back: its network's layers from an allow-list, prior, likelihood, and the scale of the rows.

No name in a file is ever imported. A network with layers of its own has no blueprint: its task is passed when loading.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from consilience.data.encoding import Encoding
from consilience.data.sites import Sites
from consilience.errors import InputError, refuse_damage
from consilience.models.batchnorm import BatchNorm
from consilience.models.bounded import Bounded
from consilience.models.controlled import control
from consilience.models.convolutions import Convolutions
from consilience.models.frozen import Frozen, count_constants
from consilience.models.hats import Hats
from consilience.models.maps import RandomFourier, RandomReLU
from consilience.models.mobilenet import Inverted
from consilience.models.resnet import Residual
from consilience.models.seeded import Dropout
from consilience.serialisation.settings import LIKELIHOODS, PRIORS, describe, restore
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
    RandomReLU: ("inputs", "outputs", "seed"),
    RandomFourier: ("inputs", "outputs", "scale", "seed"),
    Hats: ("inputs", "outputs", "knots", "scale", "seed"),
    Convolutions: ("shape", "outputs", "seed"),
    Frozen: ("body", "numbers", "sha256"),
    Bounded: ("length", "groups"),
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
# What is kept of the sites: plain values, tuples of names, and tensors.
PLAIN = ("name", "split", "target_shift", "target_scale", "public")
NAMES = ("names", "class_names", "feature_names")
SCALES = ("feature_shift", "feature_scale")
LAYER_OF = {kind.__name__: kind for kind in LAYERS}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
MOST_DRAWS = 100_000  # members that stand for a Gaussian
MOST_CONSTANTS = 1 << 28  # of feature maps: a gigabyte
DAMAGED = "The task in the file is damaged: restore it from a copy, or pass your own as task=."


def describe_network(module: nn.Module) -> Any:
    """Write a network's layers as JSON.

    Returns:
        Each layer's type with the arguments that build it again; None where a layer is not in `LAYERS`.
    """
    if type(module) is nn.Sequential:
        children = {name: describe_network(child) for name, child in module.named_children()}
        if None in children.values():
            return None
        return {"Sequential": children}
    if type(module) not in LAYERS:
        return None
    arguments = {}
    for name in LAYERS[type(module)]:
        value = getattr(module, name)
        if name == "bias":
            value = value is not None
        elif isinstance(value, nn.Module):
            value = describe_network(value)
            if value is None:
                return None
        arguments[name] = value
    return {type(module).__name__: arguments}


def build_network(layers: Json) -> nn.Module:
    """Build the network that `describe_network` wrote.

    Returns:
        The network, its weights freshly drawn.

    Raises:
        InputError: A layer, or one of its arguments, is not in `LAYERS`.
    """
    ((name, arguments),) = layers.items()
    if name == "Sequential":
        network = nn.Sequential()
        for child, described in arguments.items():
            network.add_module(child, build_network(described))
        return network
    if name not in LAYER_OF or not set(arguments) <= set(LAYERS[LAYER_OF[name]]):
        raise InputError(f"The file holds a layer '{name}' that is not known here: pass your own task as task=.")
    return LAYER_OF[name](**{key: _build_argument(value) for key, value in arguments.items()})


def blueprint(task: Task, sites: Sites) -> dict[str, Any]:
    """Write down what it takes to predict again: everything about the task and the rows but the rows.

    Args:
        task: Network, prior and likelihood.
        sites: Names and scales of the rows it was trained on.

    Returns:
        JSON from which `task_from` and `sites_from` rebuild both.
    """
    dtype = next((p.dtype for p in task.model.parameters()), torch.float32)
    plan: dict[str, Any] = {
        "network": describe_network(task.model),
        "dtype": str(dtype).removeprefix("torch."),
        "prior": describe(task.prior),
        "likelihood": describe(task.likelihood),
        "draws": task.draws,
    }
    for name in ("classes", "features", *PLAIN, *NAMES):
        plan[name] = getattr(sites, name)
    if sites.outcome:
        plan["outcome"] = sites.outcome
    if sites.holds_tokens:
        plan["tokens"] = True
    for name in SCALES:
        scale = getattr(sites, name)
        plan[name] = None if scale is None else scale.tolist()
    if sites.columns is not None:
        plan["columns"] = [dataclasses.asdict(column) for column in sites.columns]
    return plan


def task_from(plan: Json, most_parameters: int) -> Task:
    """Build a task from its blueprint.

    Args:
        plan: What `blueprint` wrote.
        most_parameters: How many the network can have: a damaged file may claim any number.

    Returns:
        The task, its network's weights freshly drawn.

    Raises:
        InputError: The network has layers of its own, which a blueprint does not hold, or the blueprint is damaged.
    """
    with refuse_damage(DAMAGED):
        return _build_task(plan, most_parameters)


def _build_task(plan: Json, most_parameters: int) -> Task:
    if plan["network"] is None:
        raise InputError(
            "The network has layers of its own, which a folder does not hold: pass the task, "
            "`co.load(folder, task=task)`."
        )
    likelihood = restore(plan["likelihood"])
    prior = restore(plan["prior"])
    draws = plan["draws"]
    if not isinstance(likelihood, LIKELIHOODS) or not isinstance(prior, PRIORS) or type(draws) is not int:
        raise InputError(DAMAGED)
    if not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"The task in the file predicts with {draws} draws, and 1 to {MOST_DRAWS:,} can be: {DAMAGED}")
    with torch.device("meta"):  # where nothing is allocated
        outline = build_network(plan["network"])
    parameters = sum(p.numel() for p in outline.parameters())
    if parameters > most_parameters:
        raise InputError(f"The file names a network of {parameters:,} weights, more than its state holds. {DAMAGED}")
    constants = count_constants(outline)
    if constants > MOST_CONSTANTS:
        raise InputError(f"The file names feature maps of {constants:,} numbers, more than fit into memory. {DAMAGED}")
    network = control(build_network(plan["network"])).to(DTYPES[plan["dtype"]])
    return Task(network, likelihood, prior, draws=draws)


def sites_from(plan: Json) -> Sites:
    """Build the sites of a blueprint: their names and scales, and no rows.

    Args:
        plan: What `blueprint` wrote.

    Returns:
        Sites without rows.

    Raises:
        InputError: The blueprint is damaged.
    """
    with refuse_damage(DAMAGED):
        return _build_sites(plan)


def _build_sites(plan: Json) -> Sites:
    fields: dict[str, Any] = {name: plan[name] for name in ("classes", *PLAIN)}
    fields["features"] = plan["features"]
    if not isinstance(plan["features"], int):
        fields["features"] = tuple(plan["features"])
    fields["outcome"] = str(plan.get("outcome", ""))
    fields["tokens"] = bool(plan.get("tokens", False))
    for name in NAMES:
        fields[name] = None if plan[name] is None else tuple(plan[name])
    for name in SCALES:
        fields[name] = None if plan[name] is None else torch.tensor(plan[name], dtype=torch.float64)
    if plan.get("columns") is not None:
        fields["columns"] = tuple(_build_encoding(column) for column in plan["columns"])
    return Sites(train=(), test=(), validation=None, inputs=None, calibration=None, **fields)


def _build_encoding(value: Json) -> Encoding:
    """How a column is read; what has another type is refused as damaged."""
    lists = {name: value[name] for name in ("categories", "unknown", "same") if value[name] is not None}
    texts = [*lists.get("categories", ()), *lists["unknown"], *(text for pair in lists["same"] for text in pair)]
    if not all(isinstance(text, str) for text in (value["name"], *texts)):
        raise TypeError("columns")
    categories = None
    if "categories" in lists:
        categories = tuple(lists["categories"])
    same = tuple((spelling, category) for spelling, category in lists["same"])
    fill = float(value["fill"])
    span = None
    if value.get("range") is not None:  # runs saved before ranges were enforced have none
        low, high = value["range"]
        span = (float(low), float(high))
    since = str(value.get("since", ""))
    return Encoding(value["name"], categories, bool(value["marked"]), fill, tuple(lists["unknown"]), same, span, since)


def _build_argument(value: Any) -> Any:
    if isinstance(value, dict):
        return build_network(value)
    if isinstance(value, list):
        return tuple(value)
    return value
