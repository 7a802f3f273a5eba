"""Stochastic weight averaging.  Izmailov et al., UAI 2018; the cyclical steps of Chen and Chao, ICLR 2021, §5.1."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.inference.augmentation import Augment
from consilience.inference.chain import chain
from consilience.inference.kernels import At
from consilience.inference.optimisers import Descent
from consilience.messages import Client
from consilience.models.batchnorm import BatchNorm
from consilience.task import Task
from consilience.tree import Params, Tree


@dataclass(frozen=True)
class SWA:
    """Momentum SGD whose step falls from `rate` to `low` in every cycle; weights at the cycles' ends are averaged.

    Until `begin` steps are done the step stays at `rate` and nothing is averaged; if no cycle ends, the last weights
    stand. Batch normalisation's statistics, which belong to no average of weights, are then taken anew from the rows.

    Attributes:
        rate: step size at the start of a cycle
        low: step size at its end
        begin: steps before averaging begins
        every: steps a cycle
        momentum: share of the last step that goes on
        epochs: passes over the rows
        batch: rows a step
        augment: changes every batch's inputs, for example CropAndFlip()

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> inference = co.inference.SWA(epochs=3, begin=1, every=1, batch=20)
        >>> co.run(co.methods.FedAvg(inference=inference), problem, rounds=1).report["rounds"]
        1
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 1e-3
    low: float = 4e-4
    begin: int = 250
    every: int = 25
    momentum: float = 0.9
    epochs: int = 20
    batch: int = 100
    augment: Augment | None = None

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        """Average the weights at the ends of the cycles.

        Returns:
            The average, with running statistics of its own.

        Raises:
            Diverged: if the weights are not finite.
        """
        trace = chain(task, start, client, self, self.epochs, self.batch, augment=self.augment)
        _, _, mean, count = trace.state
        vector = torch.where(count > 0, mean, trace.vector)
        params = tree.unravel(vector, centre(start, task.like).params)
        return Point(refresh_statistics(task, params, client.data, self.batch))

    def init(self, vector: Tensor) -> Tree:
        """Velocity, steps done, average and how many weights are in it, before the first step.

        Args:
            vector: the first weights, flat

        Returns:
            Zeros.
        """
        zero = torch.zeros((), dtype=vector.dtype)
        return Descent(momentum=self.momentum).init(vector), zero, torch.zeros_like(vector), zero

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Step with momentum at the rate of this place in the cycle; at its end, add to the average.

        Args:
            gradient: ∇(U/n) on this step's batch
            state: velocity, steps done, average, count

        Returns:
            The new weights and state.
        """
        velocity, step, mean, count = state
        step = step + 1
        averaging = step > self.begin
        phase = (step - self.begin - 1) % self.every / max(self.every - 1, 1)
        rate = torch.where(averaging, self.rate - (self.rate - self.low) * phase, torch.full_like(phase, self.rate))
        new, velocity = Descent(momentum=self.momentum).step(vector, gradient, velocity, rate)
        ends = averaging & ((step - self.begin) % self.every == 0)
        count = count + ends.to(count)
        mean = torch.where(ends, mean + (new - mean) / count.clamp(min=1), mean)
        return new, (velocity, step, mean, count)


@torch.no_grad()
def refresh_statistics(task: Task, params: Params, data: Data, batch: int) -> Params:
    """The same weights with the running statistics of these rows: the mean over batches, counted by their rows.

    Args:
        task: whose network has the statistics
        batch: rows at a time

    Returns:
        The weights, as they are where the network has no running statistics.
    """
    if not task.statistics:
        return params
    model = copy.deepcopy(task.model).train()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BatchNorm)}
    for layer in layers.values():
        layer.momentum = 1.0  # what is left after a batch is that batch's own
    total = {k: torch.zeros_like(params[k]) for k in task.statistics}
    for leaves in zip(*(leaf.split(batch) for leaf in data), strict=True):
        rows = Data(*leaves)
        inside = {k: v.clone() for k, v in params.items() if not k.startswith("likelihood.")}
        inside |= {f"{name}.rows".lstrip("."): rows.w for name in layers}
        functional_call(model, inside, (rows.x,))  # leaves the batch's statistics in `inside`
        total = {k: v + (rows.w > 0).sum() * inside[k] for k, v in total.items()}
    means = {k: v / (data.w > 0).sum() for k, v in total.items()}
    return params | means
