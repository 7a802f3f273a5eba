"""Many chains on one target: side by side where a step is mostly overhead, one after another for convolutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.task import Task
from consilience.training.gradient import Gradient, gradient_of
from consilience.tree import Params


def side_by_side(task: Task) -> bool:
    """Whether several sets of weights are worth one vmap, which makes convolutions slower."""
    return not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


def each(task: Task, f: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """f of every row [M, …]."""
    if side_by_side(task):
        return torch.func.vmap(f)(vectors)
    return torch.stack([f(vector).clone() for vector in vectors])


def gradients_of(task: Task, like: Params, size: Tensor) -> Callable[[Tensor, Data], Tensor]:
    """∇(U/n) for many sets of weights [M, P] on the same rows."""
    built: list[Gradient] = []  # by the first call, which knows whether a vmap is running

    def gradient(vector: Tensor, rows: Data) -> Tensor:
        if not built:
            built.append(gradient_of(task, like, size))
        return built[0](vector, rows)

    return lambda vectors, rows: each(task, lambda vector: gradient(vector, rows), vectors)


def check_exact(task: Task, who: str) -> None:
    """Refuse networks whose training pass is not the function they predict with."""
    if task.statistics or any(hasattr(layer, "seed") for layer in task.model.modules()):
        raise InputError(
            f"{who} needs a network that says the same in training and in prediction: without dropout, and with "
            "GroupNorm or LayerNorm instead of batch normalisation."
        )
