"""Layers whose weights are Gaussian: a mean and a log-variance each, trained by local reparameterisation.

Kingma, Salimans and Welling, NeurIPS 2015: not the weights but the outputs are drawn, from the Gaussian that the
weights imply. In evaluation mode such a layer is the plain one with its weights as they are given, so that weights
drawn from a posterior predict through it too. The noise comes from the layer's `seed`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from consilience.errors import InputError, unknown_name
from consilience.models.seeded import normals, seed_draws

LOG_VAR = "_log_var"  # a weight's log-variance is named for it
TINY = 1e-16  # keeps the gradient of √ finite where every input is 0
KINDS = {"linear": (nn.Linear,), "all": (nn.Linear, nn.Conv2d)}


class BayesianLinear(nn.Linear):
    """A linear layer with Gaussian weights."""

    seed: Tensor
    low: float  # log-variances act as if they were no smaller, and have no gradient below

    def forward(self, x: Tensor) -> Tensor:
        mean = linear(x, self.weight, self.bias)
        if not self.training:
            return mean
        return _drawn(self, mean, linear(x**2, *_variances(self)))

    def reset_parameters(self) -> None:
        nn.Linear.reset_parameters(self)
        _reset(self)


class BayesianConv2d(nn.Conv2d):
    """A convolution with Gaussian kernels; its outputs are drawn one by one, as if no two shared a kernel."""

    seed: Tensor
    low: float

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self._conv_forward(x, self.weight, self.bias)
        if not self.training:
            return mean
        return _drawn(self, mean, self._conv_forward(x**2, *_variances(self)))

    def reset_parameters(self) -> None:
        nn.Conv2d.reset_parameters(self)
        _reset(self)


Bayesian = (BayesianLinear, BayesianConv2d)


def variational(
    model: nn.Module,
    layers: str | Sequence[str] = "linear",
    start: float = -9.0,
    low: float = -20.0,
    biases: bool = True,
) -> nn.Module:
    """A copy of a network with some of its layers Bayesian; names and weights stay.

    `layers` is 'linear', 'all' (convolutions too) or the names of layers, in a list or with commas between. `start` is
    the first log-variance, `low` the smallest one that acts; without `biases` only weights are Gaussian. A network
    that has Bayesian layers already keeps those it has.
    """
    made = copy.deepcopy(model)
    if not any(isinstance(layer, Bayesian) for layer in made.modules()):
        for name in _chosen(made, layers):
            owner, _, attribute = name.rpartition(".")
            new = _bayesian(made.get_submodule(name), start, biases)
            if not name:
                made = new
            else:
                setattr(made.get_submodule(owner), attribute, new)
    for layer in made.modules():
        if isinstance(layer, Bayesian):
            layer.low = low
    return made.train(model.training)


def log_variances(model: nn.Module) -> dict[str, str]:
    """The names of all Gaussian weights, each with the name of its log-variance."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Bayesian):
            for own in ("weight", "bias"):
                if own + LOG_VAR in layer._parameters:
                    path = f"{name}.{own}" if name else own
                    found[path] = path + LOG_VAR
    return found


def _chosen(model: nn.Module, layers: str | Sequence[str]) -> list[str]:
    possible = {name: layer for name, layer in model.named_modules() if type(layer) in KINDS["all"]}
    if isinstance(layers, str) and layers in KINDS:
        names = [name for name, layer in possible.items() if isinstance(layer, KINDS[layers])]
        if not names:
            raise InputError(f"The network has no layer of the kind '{layers}' to make Bayesian: choose other layers.")
        return names
    names = [part.strip() for part in layers.split(",")] if isinstance(layers, str) else list(layers)
    for name in names:
        if name not in possible:
            raise unknown_name("linear or convolutional layer", name, possible)
    if not names:
        raise InputError("Name at least one layer to make Bayesian.")
    return names


def _bayesian(layer: nn.Module, start: float, biases: bool) -> nn.Module:
    """The same layer with log-variances beside its weights; buffers, hooks and the device stay with the weights."""
    new: Any = copy.copy(layer)
    new.__class__ = BayesianConv2d if isinstance(layer, nn.Conv2d) else BayesianLinear
    new._parameters, new._buffers = dict(layer._parameters), dict(layer._buffers)
    new.start = start
    for name in ("weight", "bias") if biases else ("weight",):
        own = layer._parameters.get(name)
        if own is not None:
            new.register_parameter(name + LOG_VAR, nn.Parameter(torch.full_like(own, start)))
    seed_draws(new)
    return cast(nn.Module, new)


def _variances(layer: Any) -> tuple[Tensor, Tensor | None]:
    log_vars = (layer._parameters.get(name + LOG_VAR) for name in ("weight", "bias"))
    weight, bias = (None if v is None else v.clamp(min=layer.low).exp() for v in log_vars)
    assert weight is not None
    return weight, bias


def _drawn(layer: Any, mean: Tensor, var: Tensor) -> Tensor:
    return mean + (var + TINY).sqrt() * normals(layer.seed, mean.shape, mean)


def _reset(layer: Any) -> None:
    for name, leaf in layer._parameters.items():
        if name.endswith(LOG_VAR):
            nn.init.constant_(leaf, layer.start)
