"""Point estimates: stochastic gradient descent and Adam on U/n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.parties import Client
from consilience.posterior import Point, Posterior, centre
from consilience.task import Task, decay
from consilience.training.augmentation import Augment
from consilience.training.chain import Optimise, chain, draw_epochs
from consilience.training.optimisers import AdamSteps, Descent, Optimiser
from consilience.training.schedules import Schedule, constant


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if asked."""

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.05  # step size on the mean loss
    momentum: float = 0.9
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step
    schedule: Schedule = constant  # factor of the rate over a client's training
    weight_decay: float = 0.0  # λ of (λ/2)‖θ‖², added to the mean loss
    decay: Schedule = constant  # factor of the rate over the rounds
    fewest: int | None = None  # passes are drawn from fewest … epochs for every client and round; None: always epochs
    augment: Augment | None = None  # changes every batch's inputs, for example CropAndFlip()

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        return fit_point(self, Descent(self.rate, self.momentum), task, start, client)

    def steps(self, client: Client) -> Tensor:
        """How many steps a client takes."""
        rows = (client.data.w > 0).sum()
        own = draw_epochs(client, self.fewest, self.epochs)
        return (self.epochs if own is None else own) * ((rows + self.batch - 1) // self.batch)

    def length(self, client: Client) -> Tensor:
        """How far those steps go along a gradient of 1: the sum of their rates; momentum widens it by 1 / (1 − m)."""
        steps, each = self.steps(client), self.rate * self.decay(client.progress) / (1 - self.momentum)
        if not tree.under_vmap():
            n = int(steps)
            return torch.as_tensor(each * sum(float(self.schedule(i / n)) for i in range(n)))
        turn = torch.arange(self.epochs * math.ceil(len(client.data.w) / self.batch), device=steps.device).double()
        factors = torch.as_tensor(self.schedule((turn / steps).clamp(max=1.0)))
        return torch.as_tensor(each * torch.where(turn < steps, factors, 0.0).sum())


@dataclass(frozen=True)
class Adam:
    """Adam; its two averages are forgotten between rounds."""

    moves_statistics: ClassVar[bool] = True

    rate: float = 1e-3  # step size
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = constant  # factor of the rate over a client's training
    weight_decay: float = 0.0  # λ of (λ/2)‖θ‖², added to the mean loss
    decay: Schedule = constant  # factor of the rate over the rounds
    fewest: int | None = None  # passes are drawn from fewest … epochs for every client and round; None: always epochs
    augment: Augment | None = None  # changes every batch's inputs, for example CropAndFlip()

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        return fit_point(self, AdamSteps(self.rate, self.beta1, self.beta2), task, start, client)


def fit_point(settings: SGD | Adam, optimiser: Optimiser, task: Task, start: Posterior, client: Client) -> Point:
    """Where the optimiser ends."""
    if settings.weight_decay:
        task = task.tilted(decay(settings.weight_decay))
    kernel = Optimise(optimiser, settings.schedule, settings.decay(client.progress))
    client_epochs = draw_epochs(client, settings.fewest, settings.epochs)
    passes = settings.epochs, settings.batch
    trace = chain(task, start, client, kernel, *passes, client_epochs=client_epochs, augment=settings.augment)
    return Point(tree.unravel(trace.vector, centre(start, task.like).params))
