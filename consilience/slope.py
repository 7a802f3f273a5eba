"""The slope of U/n, which every chain steps along: as fast as bare torch for one client, `torch.func` under vmap.

The prior and the usual tilts know their slopes in closed form; only the likelihood goes through autograd.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.data.data import Data
from consilience.task import Task, gradient, mean_nll
from consilience.tree import Params

Slope: TypeAlias = Callable[[Tensor, Data], Tensor]  # weights as one vector, a batch → ∇(U/n) as one vector


def slope_of(task: Task, like: Params, size: Tensor) -> Slope:
    """The slope for a client with `size` examples; what it returns may be overwritten by the next call."""
    likelihood = _functional(task, like) if tree.vectorised() else _private_copy(task, like)

    def slope(vector: Tensor, batch: Data) -> Tensor:
        found = likelihood(vector, batch)
        prior = task.prior.slope(vector)
        if prior is not None:
            found = found + prior / size
        for tilt in task.tilts:
            closed = getattr(tilt, "slope", None)
            found = found + (closed(vector) if closed else gradient(lambda v, t=tilt: t(tree.unravel(v, like)), vector))  # type: ignore[misc]
        return found

    return slope


def _functional(task: Task, like: Params) -> Slope:
    """Under vmap the network's weights must be passed in."""

    def loss(vector: Tensor, batch: Data) -> Tensor:
        params = tree.unravel(vector, like)
        return mean_nll(task.likelihood.nll(task.outputs(params, batch.x), batch.y, params), batch.w)

    return lambda vector, batch: gradient(lambda v: loss(v, batch), vector)


def _private_copy(task: Task, like: Params) -> Slope:
    """For one client: a copy of the network whose weights and gradients are views of two flat vectors.

    A step is then a plain forward and backward pass, whatever the network, and no other thread sees the copy.
    """
    model, theta = copy.deepcopy(task.model), tree.ravel(like).clone()
    slope = torch.zeros_like(theta)
    weights, slopes = tree.unravel(theta, like), tree.unravel(slope, like)
    own: Params = dict(model.named_parameters())
    for name, view in weights.items():
        leaf = own.get(name, view.detach())
        leaf.data, leaf.grad = view, None
        leaf.requires_grad_().grad = slopes[name]
        own[name] = leaf

    def bare(vector: Tensor, batch: Data) -> Tensor:
        theta.copy_(vector)
        slope.zero_()
        with torch.enable_grad():
            mean_nll(task.likelihood.nll(model(batch.x), batch.y, own), batch.w).backward()
        return slope

    return bare
