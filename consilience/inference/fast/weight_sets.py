"""One function of many sets of weights: side by side where a step is mostly overhead, in turn for convolutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from consilience.data.sites import Data
from consilience.inference.gradient import Gradient, gradient_of
from consilience.task import Task
from consilience.tree import Params


def suits_vmap(task: Task) -> bool:
    """Whether several sets of weights are worth one vmap, which makes convolutions slower.

    Args:
        task: whose network is asked about

    Returns:
        Whether the network has no convolution.
    """
    return not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


def map_weights(task: Task, f: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """F of every set of weights.

    Args:
        task: whose network `f` runs
        f: of one flat vector [P]
        vectors: the sets of weights [M, P]

    Returns:
        The values, stacked [M, …].
    """
    if suits_vmap(task):
        return torch.func.vmap(f)(vectors)
    return torch.stack([f(vector).clone() for vector in vectors])


def gradients_of(task: Task, like: Params, size: Tensor) -> Callable[[Tensor, Data], Tensor]:
    """∇(U/n) for many sets of weights on the same rows.

    Args:
        size: n, the client's number of examples

    Returns:
        A function of the sets of weights [M, P] and of rows, with values [M, P].
    """
    cache: list[Gradient] = []  # filled by the first call, which knows whether a vmap is running

    def gradient(vector: Tensor, rows: Data) -> Tensor:
        if not cache:
            cache.append(gradient_of(task, like, size))
        return cache[0](vector, rows).clone()  # the next call may overwrite it

    return lambda vectors, rows: map_weights(task, lambda vector: gradient(vector, rows), vectors)
