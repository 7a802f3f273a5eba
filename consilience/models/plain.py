"""Plain multilayer perceptrons: what `mlp` builds, and most tables are given to. Their passes need no module calls."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import linear

from consilience.models.controlled import has_hooks
from consilience.tree import Params


class Perceptron(NamedTuple):
    """Linear layers with ReLU between them, perhaps after a Flatten."""

    weights: tuple[str, ...]  # their names, first layer first
    biases: tuple[str, ...]
    flat: bool  # whether inputs are flattened first

    def passed(self, params: Params, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What each layer is given, and the outputs."""
        given = [x.flatten(1) if self.flat else x]
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            given.append(linear(given[-1], params[w], params[b]).relu_())
        return given, linear(given[-1], params[self.weights[-1]], params[self.biases[-1]])


def perceptron(model: nn.Module) -> Perceptron | None:
    """A network as a plain perceptron; None if it is anything else, or somebody listens to its passes."""
    if type(model) is not nn.Sequential or has_hooks(model):
        return None
    named = list(model._modules.items())  # as they are called; named_children leaves a layer out the second time
    first = named[0][1] if named else None
    flat = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
    named = named[1:] if flat else named
    kinds = [type(layer) for _, layer in named]
    if kinds != [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
        return None
    layers = {name: layer for name, layer in named[::2] if isinstance(layer, nn.Linear)}
    held = [part for layer in layers.values() for part in (layer.weight, layer.bias)]
    if any(part is None for part in held) or len({id(part) for part in held}) < len(held):
        return None  # without a bias, or with weights that layers share
    names = list(layers)
    return Perceptron(tuple(f"{name}.weight" for name in names), tuple(f"{name}.bias" for name in names), flat)
