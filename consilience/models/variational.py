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
    """A linear layer with Gaussian weights.

    Attributes:
        seed: Of the noise, handed over by every training step.
        low: Log-variances act as if they were no smaller, and have no gradient below.
    """

    seed: Tensor
    low: float

    def forward(self, x: Tensor) -> Tensor:
        """Draw the outputs while training; apply the weights as they are otherwise.

        Args:
            x: Inputs [N, features].
        """
        mean = linear(x, self.weight, self.bias)
        if not self.training:
            return mean
        return _draw_outputs(self, mean, linear(x**2, *_variances(self)))

    def reset_parameters(self) -> None:
        """Start afresh, log-variances at their `start`."""
        nn.Linear.reset_parameters(self)
        _reset(self)


class BayesianConv2d(nn.Conv2d):
    """A convolution with Gaussian kernels; its outputs are drawn one by one, as if no two shared a kernel.

    Attributes:
        seed: Of the noise, handed over by every training step.
        low: Log-variances act as if they were no smaller, and have no gradient below.
    """

    seed: Tensor
    low: float

    def forward(self, x: Tensor) -> Tensor:
        """Draw the outputs while training; apply the kernels as they are otherwise.

        Args:
            x: Inputs [N, C, H, W].
        """
        mean: Tensor = self._conv_forward(x, self.weight, self.bias)
        if not self.training:
            return mean
        return _draw_outputs(self, mean, self._conv_forward(x**2, *_variances(self)))

    def reset_parameters(self) -> None:
        """Start afresh, log-variances at their `start`."""
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
    """Copy a network and make some of its layers Bayesian; names and weights stay.

    Args:
        model: Any network; one that has Bayesian layers already keeps those it has.
        layers: 'linear', 'all' (convolutions too) or the names of layers, in a list or with commas between.
        low: The smallest log-variance that acts.
        biases: Whether biases are Gaussian too.

    Raises:
        InputError: If there is no such layer.

    Example:
        >>> import consilience as co
        >>> network = co.models.variational(co.models.mlp(2, 2, hidden=(10,)))
        >>> [type(layer).__name__ for layer in network if list(layer.parameters())]
        ['BayesianLinear', 'BayesianLinear']
    """
    clone = copy.deepcopy(model)
    if not any(isinstance(layer, Bayesian) for layer in clone.modules()):
        for name in _choose_layers(clone, layers):
            owner, _, attribute = name.rpartition(".")
            new = _bayesian(clone.get_submodule(name), start, biases)
            if not name:
                clone = new
            else:
                setattr(clone.get_submodule(owner), attribute, new)
    for layer in clone.modules():
        if isinstance(layer, Bayesian):
            layer.low = low
    return clone.train(model.training)


def log_variances(model: nn.Module) -> dict[str, str]:
    """List the Gaussian weights of a network.

    Args:
        model: A network with Bayesian layers.

    Returns:
        Their names, each with the name of its log-variance.
    """
    names = {}
    for prefix, layer in model.named_modules():
        if isinstance(layer, Bayesian):
            for name, _ in layer.named_parameters(prefix, recurse=False):
                if name.endswith(LOG_VAR):
                    names[name.removesuffix(LOG_VAR)] = name
    return names


def _choose_layers(model: nn.Module, layers: str | Sequence[str]) -> list[str]:
    """The names of the layers to make Bayesian."""
    possible = {name: layer for name, layer in model.named_modules() if type(layer) in KINDS["all"]}
    if isinstance(layers, str) and layers in KINDS:
        names = [name for name, layer in possible.items() if isinstance(layer, KINDS[layers])]
        if not names:
            raise InputError(f"The network has no layer of the kind '{layers}' to make Bayesian: choose other layers.")
        return names
    if isinstance(layers, str):
        layers = layers.split(",")
    names = [name.strip() for name in layers]
    for name in names:
        if name not in possible:
            raise unknown_name("linear or convolutional layer", name, possible)
    if not names:
        raise InputError("Name at least one layer to make Bayesian.")
    return names


def _bayesian(layer: nn.Module, start: float, biases: bool) -> nn.Module:
    """The same layer with log-variances beside its weights; buffers, hooks and the device stay with the weights."""
    new: Any = copy.copy(layer)
    new.__class__ = BayesianLinear
    if isinstance(layer, nn.Conv2d):
        new.__class__ = BayesianConv2d
    new._parameters = dict(layer._parameters)
    new._buffers = dict(layer._buffers)
    new.start = start
    names = ["weight"]
    if biases:
        names.append("bias")
    for name in names:
        mean = layer._parameters.get(name)
        if mean is not None:
            new.register_parameter(name + LOG_VAR, nn.Parameter(torch.full_like(mean, start)))
    seed_draws(new)
    return cast(nn.Module, new)


def _variances(layer: Any) -> tuple[Tensor, Tensor | None]:
    """The variances of a layer's weights and, if they are Gaussian, of its biases."""
    parameters = layer._parameters
    weight = parameters["weight" + LOG_VAR].clamp(min=layer.low).exp()
    bias = parameters.get("bias" + LOG_VAR)
    if bias is None:
        return weight, None
    return weight, bias.clamp(min=layer.low).exp()


def _draw_outputs(layer: Any, mean: Tensor, var: Tensor) -> Tensor:
    """Draw from N(mean, var)."""
    return mean + (var + TINY).sqrt() * normals(layer.seed, mean.shape, mean)


def _reset(layer: Any) -> None:
    """Set a layer's log-variances to their `start`."""
    for name, leaf in layer._parameters.items():
        if name.endswith(LOG_VAR):
            nn.init.constant_(leaf, layer.start)
