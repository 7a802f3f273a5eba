"""Point estimates: stochastic gradient descent and Adam on U/n."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.inference.augmentation import Augment
from consilience.inference.chain import chain, draw_epochs
from consilience.inference.kernels import Optimise
from consilience.inference.optimisers import AdamSteps, Descent, Optimiser
from consilience.inference.schedules import Schedule, constant
from consilience.messages import Client
from consilience.task import Task, decay


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if asked.

    Attributes:
        rate: step size on the mean loss
        momentum: share of the last step that goes on
        epochs: passes over the client's rows
        batch: rows a step
        schedule: factor of the rate over a client's training
        weight_decay: λ of (λ/2)‖θ‖², added to the mean loss
        decay: factor of the rate over the rounds
        fewest: passes are drawn from fewest … epochs for every client and round; None: always epochs
        augment: changes every batch's inputs, for example CropAndFlip()
        shuffle: whether every pass has an order of its own; otherwise all have that of the rows

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> method = co.methods.FedAvg(inference=co.SGD(rate=0.1, epochs=2))
        >>> co.run(method, problem, rounds=2).metrics["accuracy"] > 0.7
        False
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.05
    momentum: float = 0.9
    epochs: int = 10
    batch: int = 50
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decay: Schedule = constant
    fewest: int | None = None
    augment: Augment | None = None
    shuffle: bool = field(default=True, metadata={"added": True})

    def abridge(self) -> SGD:
        """Pass over the rows once; see `consilience.method.settings.abridge`."""
        return dataclasses.replace(self, epochs=self.fewest or 1)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        """Descend on U/n.

        Returns:
            Where the descent ends.

        Raises:
            InputError: if `fewest` is not within 1 … `epochs`.
            Diverged: if the weights are not finite.
        """
        return fit_point(self, Descent(self.rate, self.momentum), task, start, client)

    def steps(self, client: Client) -> Tensor:
        """How many steps a client takes.

        Returns:
            The count.
        """
        rows = (client.data.w > 0).sum()
        epochs = draw_epochs(client, self.fewest, self.epochs)
        steps_an_epoch = (rows + self.batch - 1) // self.batch
        if epochs is None:
            return self.epochs * steps_an_epoch
        return epochs * steps_an_epoch

    def length(self, client: Client) -> Tensor:
        """How far those steps go along a gradient of 1: the sum of their rates; momentum widens it by 1 / (1 − m).

        Args:
            client: the rows, the key and the progress over the rounds
        """
        steps = self.steps(client)
        rate = self.rate * self.decay(client.progress) / (1 - self.momentum)
        if not tree.under_vmap():
            count = int(steps)
            return torch.as_tensor(rate * sum(float(self.schedule(i / count)) for i in range(count)))
        turn = torch.arange(self.epochs * math.ceil(len(client.data.w) / self.batch), device=steps.device).double()
        factors = torch.as_tensor(self.schedule((turn / steps).clamp(max=1.0)))
        return torch.as_tensor(rate * torch.where(turn < steps, factors, 0.0).sum())


@dataclass(frozen=True)
class Adam:
    """Adam; its two averages are forgotten between rounds.

    Attributes:
        rate: step size
        epochs: passes over the client's rows
        batch: rows a step
        beta1: memory of gradients
        beta2: memory of squared gradients
        schedule: factor of the rate over a client's training
        weight_decay: λ of (λ/2)‖θ‖², added to the mean loss
        decay: factor of the rate over the rounds
        fewest: passes are drawn from fewest … epochs for every client and round; None: always epochs
        augment: changes every batch's inputs, for example CropAndFlip()
        shuffle: whether every pass has an order of its own; otherwise all have that of the rows

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> method = co.methods.FedAvg(inference=co.Adam(rate=0.05, epochs=2))
        >>> co.run(method, problem, rounds=2).metrics["accuracy"] > 0.7
        True
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 1e-3
    epochs: int = 10
    batch: int = 50
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decay: Schedule = constant
    fewest: int | None = None
    augment: Augment | None = None
    shuffle: bool = field(default=True, metadata={"added": True})

    def abridge(self) -> Adam:
        """Pass over the rows once; see `consilience.method.settings.abridge`."""
        return dataclasses.replace(self, epochs=self.fewest or 1)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        """Optimise U/n.

        Returns:
            Where the steps end.

        Raises:
            InputError: if `fewest` is not within 1 … `epochs`.
            Diverged: if the weights are not finite.
        """
        return fit_point(self, AdamSteps(self.rate, self.beta1, self.beta2), task, start, client)


def fit_point(settings: SGD | Adam, optimiser: Optimiser, task: Task, start: Posterior, client: Client) -> Point:
    """Run an optimiser with the settings that SGD and Adam share.

    Args:
        settings: epochs, batch, schedules, weight decay and augmentation

    Returns:
        Where the optimiser ends.

    Raises:
        InputError: if `fewest` is not within 1 … `epochs`.
        Diverged: if the weights are not finite.
    """
    if settings.weight_decay:
        task = task.tilted(decay(settings.weight_decay))
    kernel = Optimise(optimiser, settings.schedule, settings.decay(client.progress))
    trace = chain(
        task,
        start,
        client,
        kernel,
        settings.epochs,
        settings.batch,
        client_epochs=draw_epochs(client, settings.fewest, settings.epochs),
        augment=settings.augment,
        shuffle=settings.shuffle,
    )
    return Point(tree.unravel(trace.vector, centre(start, task.like).params))
