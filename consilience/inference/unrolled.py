"""Dataset distillation through unrolled training.  Wang et al. 2018; Zhou et al. 2020, Distilled one-shot FL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.inference.coreset import initial, starts
from consilience.parties import Client
from consilience.progress import track
from consilience.task import Task, grad, mean_nll
from consilience.training.gradient import check_exact
from consilience.training.optimisers import AdamSteps, Descent
from consilience.tree import Params


class Lessons(NamedTuple):
    """Pseudo-rows in the order in which they are to be trained on."""

    x: Tensor  # [steps, batch, …]
    y: Tensor
    rates: Tensor  # [steps]


@dataclass(frozen=True)
class Distillation:
    """Learn pseudo-rows, and a rate for each step on them, that bring one given start to weights good for the data.

        for each update
    1       θ ← the start;  for each epoch, for each step s:  θ ← θ − ηₛ ∇ℓ(θ; xₛ, yₛ)
    2       step x, y and η along the gradient of ℓ(θ; the client's rows), through all of line 1
    """

    steps: int = 20  # pseudo-batches
    batch: int = 10  # pseudo-rows in each
    epochs: int = 1  # passes over the pseudo-batches
    updates: int = 50
    rate: float = 0.01  # η at first
    rate_x: float = 0.1  # step of the inputs, with momentum 0.9
    rate_y: float = 0.1  # step of a regression's targets, with momentum 0.9
    rate_rate: float = 0.0  # step of η, by Adam
    spread: float = 1.0  # deviation of the first inputs around the data's mean

    def __call__(self, task: Task, seed: Tensor, client: Client) -> Lessons:
        check_exact(task, "Distillation")
        like, data = task.like, client.data
        start = starts(task, seed, 1)[0]
        first = initial(task, data, self.steps * self.batch, self.spread, client.key)
        shape = (self.steps, self.batch)
        whole = Lessons(
            first.x.unflatten(0, shape),
            first.y.unflatten(0, shape),
            torch.full_like(data.w, self.rate)[:1].expand(self.steps),
        )
        leaves = [leaf for leaf in whole if leaf.is_floating_point()]
        steps = [self.rate_x, *([self.rate_y] if whole.y.is_floating_point() else [])]

        def rebuilt(vector: Tensor) -> Lessons:
            parts = iter(
                v.reshape(p.shape) for v, p in zip(vector.split([p.numel() for p in leaves]), leaves, strict=True)
            )
            return Lessons(*(next(parts) if leaf.is_floating_point() else leaf for leaf in whole))

        def outcome(vector: Tensor) -> Tensor:
            params = tree.unravel(train_on_lessons(task, like, start, rebuilt(vector), self.epochs), like)
            return mean_nll(task.likelihood.nll(task.outputs(params, data.x), data.y, params), data.w)

        vector = torch.cat([leaf.flatten() for leaf in leaves])
        cut = vector.numel() - self.steps
        rate = torch.cat([torch.full((p.numel(),), r).to(vector) for p, r in zip(leaves[:-1], steps, strict=True)])
        rows, rates = Descent(1.0, 0.9), AdamSteps(self.rate_rate)
        moving, tuning = rows.init(vector[:cut]), rates.init(vector[cut:])
        for _ in track(range(self.updates), "update"):
            gradient = torch.nan_to_num(grad(outcome, vector), nan=0.0, posinf=0.0, neginf=0.0)
            moved, moving = rows.step(vector[:cut], rate * gradient[:cut], moving, 1.0)
            tuned, tuning = rates.step(vector[cut:], gradient[cut:], tuning, self.rate_rate)
            vector = torch.cat([moved, tuned.clamp(min=0.0)])
        return rebuilt(vector)


def train_on_lessons(
    task: Task, like: Params, start: Tensor, lessons: Lessons, epochs: int, w: Tensor | None = None
) -> Tensor:
    """Weights after the lessons, differentiable in them; `w` counts the rows of a batch."""

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        params = tree.unravel(theta, like)
        each = task.likelihood.nll(task.outputs(params, x), y, params)
        return mean_nll(each, torch.ones_like(each) if w is None else w)

    theta = start
    for _ in range(epochs):
        for x, y, rate in zip(*lessons, strict=True):
            theta = theta - rate * torch.func.grad(loss)(theta, x, y)
    return theta


def join_lessons(every: list[Lessons], weights: Tensor) -> tuple[Lessons, Tensor]:
    """All clients' lessons step by step, with the mean rate, and how much each row of a batch counts."""
    x, y = (torch.cat([getattr(lessons, name) for lessons in every], dim=1) for name in ("x", "y"))
    rates = torch.stack([lessons.rates for lessons in every])
    w = torch.cat([share.to(x).expand(lessons.x.shape[1]) for lessons, share in zip(every, weights, strict=True)])
    return Lessons(x, y, (weights.to(rates).unsqueeze(1) * rates).sum(0)), w


def rows_of(lessons: Lessons) -> Data:
    """All pseudo-rows, for pictures."""
    return Data.of(lessons.x.flatten(0, 1), lessons.y.flatten(0, 1))
