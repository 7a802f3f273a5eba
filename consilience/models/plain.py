"""Plain multilayer perceptrons: what `mlp` builds, and most tables are given to. Their passes need no module calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from consilience.models.controlled import has_hooks
from consilience.tree import Params


class Perceptron(NamedTuple):
    """Linear layers with ReLU between them, perhaps after a Flatten.

    Attributes:
        weights: The names of the layers' weights, first layer first.
        biases: The names of their biases.
        flat: Whether inputs are flattened first.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    flat: bool

    def passed(self, params: Params, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run the network.

        Args:
            x: Inputs [N, …].

        Returns:
            The inputs of every layer, and the outputs.
        """
        if self.flat:
            x = x.flatten(1)
        inputs = [x]
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inputs.append(linear(inputs[-1], params[w], params[b]).relu_())
        return inputs, linear(inputs[-1], params[self.weights[-1]], params[self.biases[-1]])

    def passed_together(self, params: Params, x: Tensor) -> Tensor:
        """Run the network with many sets of weights at once.

        Args:
            params: Weights by name, each leaf [S, …].
            x: Inputs [N, …].

        Returns:
            The outputs [S, N, C]; equal to one pass after another, but for rounding.
        """
        if self.flat:
            x = x.flatten(1)
        first = params[self.weights[0]]
        bias = params[self.biases[0]]
        out: Tensor = linear(x, first.flatten(0, 1), bias.flatten()).unflatten(-1, first.shape[:2]).transpose(0, 1)
        for w, b in zip(self.weights[1:], self.biases[1:], strict=True):
            out = torch.baddbmm(params[b].unsqueeze(1), out.relu(), params[w].mT)
        return out

    def numbers(self, params: Params, rows: int) -> int:
        """Count what the widest layer holds while `passed_together` runs.

        Args:
            params: Weights by name, each leaf [S, …].
            rows: How many inputs there are.

        Returns:
            S · N · its width.
        """
        return rows * max(params[bias].numel() for bias in self.biases)


def perceptron(model: nn.Module) -> Perceptron | None:
    """Read a network as a plain perceptron.

    Returns:
        The names of its weights; None if it is anything else, or somebody listens to its passes.
    """
    if type(model) is not nn.Sequential or has_hooks(model):
        return None
    return perceptron_of(list(model._modules.items()))  # as they are called; named_children has a layer only once


def perceptron_of(children: Sequence[tuple[str, nn.Module | None]]) -> Perceptron | None:
    """Read a chain of layers as a plain perceptron.

    Args:
        children: The layers as they are called, by name.

    Returns:
        The names of its weights; None if it is anything else.
    """
    flat = bool(children) and _flattens(children[0][1])
    if flat:
        children = children[1:]
    kinds = [type(layer) for _, layer in children]
    if kinds != [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
        return None
    layers = {name: layer for name, layer in children[::2] if isinstance(layer, nn.Linear)}
    parts = [part for layer in layers.values() for part in (layer.weight, layer.bias)]
    if any(part is None for part in parts) or len({id(part) for part in parts}) < len(parts):
        return None  # without a bias, or with weights that layers share
    names = list(layers)
    return Perceptron(tuple(f"{name}.weight" for name in names), tuple(f"{name}.bias" for name in names), flat)


def _flattens(layer: nn.Module | None) -> bool:
    """Whether a layer is a Flatten of all dimensions but the first."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
