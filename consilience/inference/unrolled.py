"""Dataset distillation through unrolled training.  Wang et al. 2018; Zhou et al. 2020, Distilled one-shot FL."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.inference.gradient import check_exact
from consilience.inference.optimisers import AdamSteps, Descent
from consilience.inference.pseudo_rows import initial, starts
from consilience.messages import Client
from consilience.progress import track
from consilience.task import Task, grad, mean_nll
from consilience.tree import Params


class Lessons(NamedTuple):
    """Pseudo-rows in the order in which they are to be trained on.

    Attributes:
        x: inputs [steps, batch, …]
        y: labels or targets [steps, batch, …]
        rates: η of every step [steps]
    """

    x: Tensor
    y: Tensor
    rates: Tensor


@dataclass(frozen=True)
class Distillation:
    """Learn pseudo-rows, and a rate for each step on them, that bring one given start to weights good for the data.

        for each update
    1       θ ← the start;  for each epoch, for each step s:  θ ← θ − ηₛ ∇ℓ(θ; xₛ, yₛ)
    2       step x, y and η along the gradient of ℓ(θ; the client's rows), through all of line 1

    Attributes:
        steps: number of pseudo-batches
        batch: pseudo-rows in each
        epochs: passes over the pseudo-batches
        updates: updates of the pseudo-rows
        rate: η at first
        rate_x: step of the inputs, with momentum 0.9
        rate_y: step of a regression's targets, with momentum 0.9
        rate_rate: step of η, by Adam
        spread: deviation of the first inputs around the data's mean
    """

    steps: int = 20
    batch: int = 10
    epochs: int = 1
    updates: int = 50
    rate: float = 0.01
    rate_x: float = 0.1
    rate_y: float = 0.1
    rate_rate: float = 0.0
    spread: float = 1.0

    def abridge(self) -> Distillation:
        """Make one update; see `consilience.method.settings.abridge`."""
        return dataclasses.replace(self, epochs=1, updates=1)

    def __call__(self, task: Task, seed: Tensor, client: Client) -> Lessons:
        """Learn the lessons.

        Args:
            task: the target, of which the network and the likelihood count
            seed: the same at every client, so that all start at the same weights

        Returns:
            Pseudo-rows and a rate for each step.

        Raises:
            InputError: if the network draws in training.
        """
        check_exact(task, "Distillation")
        like = task.like
        data = client.data
        start = starts(task, seed, 1)[0]
        first = self.first_lessons(task, client)
        leaves = [leaf for leaf in first if leaf.is_floating_point()]
        row_rates = [self.rate_x]
        if first.y.is_floating_point():
            row_rates.append(self.rate_y)

        def outcome(vector: Tensor) -> Tensor:
            lessons = _rebuild(vector, first)
            params = tree.unravel(train_on_lessons(task, like, start, lessons, self.epochs), like)
            return mean_nll(task.likelihood.nll(task.outputs(params, data.x), data.y, params), data.w)

        vector = torch.cat([leaf.flatten() for leaf in leaves])
        cut = vector.numel() - self.steps
        rate = torch.cat([torch.full((p.numel(),), r).to(vector) for p, r in zip(leaves[:-1], row_rates, strict=True)])
        descent = Descent(1.0, 0.9)
        adam = AdamSteps(self.rate_rate)
        velocity = descent.init(vector[:cut])
        moments = adam.init(vector[cut:])
        for _ in track(range(self.updates), "update"):
            gradient = torch.nan_to_num(grad(outcome, vector), nan=0.0, posinf=0.0, neginf=0.0)
            rows, velocity = descent.step(vector[:cut], rate * gradient[:cut], velocity, 1.0)
            rates, moments = adam.step(vector[cut:], gradient[cut:], moments, self.rate_rate)
            vector = torch.cat([rows, rates.clamp(min=0.0)])
        return _rebuild(vector, first)

    def first_lessons(self, task: Task, client: Client) -> Lessons:
        """Lessons before the first update.

        Args:
            task: which says how many classes there are

        Returns:
            Pseudo-rows around the mean of the client's, all at the first rate.
        """
        coreset = initial(task, client.data, self.steps * self.batch, self.spread, client.key)
        shape = (self.steps, self.batch)
        rates = torch.full_like(client.data.w, self.rate)[:1].expand(self.steps)
        return Lessons(coreset.x.unflatten(0, shape), coreset.y.unflatten(0, shape), rates)


def _rebuild(vector: Tensor, like: Lessons) -> Lessons:
    """Lessons from one vector of all that is learned; labels are not."""
    leaves = [leaf for leaf in like if leaf.is_floating_point()]
    parts = vector.split([leaf.numel() for leaf in leaves])
    values = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    if not like.y.is_floating_point():
        values.insert(1, like.y)
    return Lessons(*values)


def train_on_lessons(
    task: Task, like: Params, start: Tensor, lessons: Lessons, epochs: int, w: Tensor | None = None
) -> Tensor:
    """Weights after the lessons, differentiable in them.

    Args:
        task: the network and the likelihood
        start: the weights before, flat
        epochs: passes over the lessons
        w: how much each row of a batch counts; None: all alike

    Returns:
        The weights, flat.
    """

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        params = tree.unravel(theta, like)
        nll = task.likelihood.nll(task.outputs(params, x), y, params)
        if w is None:
            return mean_nll(nll, torch.ones_like(nll))
        return mean_nll(nll, w)

    theta = start
    for _ in range(epochs):
        for x, y, rate in zip(*lessons, strict=True):
            theta = theta - rate * torch.func.grad(loss)(theta, x, y)
    return theta


def join_lessons(every: list[Lessons], weights: Tensor) -> tuple[Lessons, Tensor]:
    """Join all clients' lessons step by step.

    Args:
        weights: nₖ / n of each client

    Returns:
        The lessons, with the mean rate, and how much each row of a batch counts.
    """
    x = torch.cat([lessons.x for lessons in every], dim=1)
    y = torch.cat([lessons.y for lessons in every], dim=1)
    rates = torch.stack([lessons.rates for lessons in every])
    w = torch.cat([share.to(x).expand(lessons.x.shape[1]) for lessons, share in zip(every, weights, strict=True)])
    return Lessons(x, y, (weights.to(rates).unsqueeze(1) * rates).sum(0)), w


def rows_of(lessons: Lessons) -> Data:
    """All pseudo-rows, for pictures.

    Args:
        lessons: in steps and batches

    Returns:
        The rows, one after another.
    """
    return Data.of(lessons.x.flatten(0, 1), lessons.y.flatten(0, 1))
