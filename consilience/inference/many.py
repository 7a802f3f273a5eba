"""Many chains on one target: side by side where a step is mostly overhead, one after another for convolutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from consilience.data.data import Data
from consilience.slope import slope_of
from consilience.task import Task
from consilience.tree import Params


def side_by_side(task: Task) -> bool:
    """Whether several sets of weights are worth one vmap, which makes convolutions slower."""
    return not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


def each(task: Task, f: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """f of every row [M, …]."""
    if side_by_side(task):
        return torch.func.vmap(f)(vectors)
    return torch.stack([f(vector).clone() for vector in vectors])


def slopes_of(task: Task, like: Params, size: Tensor) -> Callable[[Tensor, Data], Tensor]:
    """∇(U/n) for many sets of weights [M, P] on the same rows."""
    if not side_by_side(task):
        slope = slope_of(task, like, size)
        return lambda vectors, rows: each(task, lambda vector: slope(vector, rows), vectors)
    return lambda vectors, rows: each(task, lambda vector: slope_of(task, like, size)(vector, rows), vectors)
