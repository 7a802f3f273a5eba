"""Point estimates: stochastic gradient descent and Adam on U/n."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from consilience import tree
from consilience.inference.chain import Optimise, chain
from consilience.inference.schedule import Schedule, constant
from consilience.optim import AdamSteps, Descent
from consilience.parties import Client
from consilience.posterior import Point, Posterior, centre
from consilience.task import Task


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if asked."""

    rate: float = 0.05  # step size on the mean loss
    momentum: float = 0.9
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step
    schedule: Schedule = constant  # factor of the rate over the run

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        kernel = Optimise(Descent(self.rate, self.momentum), self.schedule)
        trace = chain(task, start, client, kernel, self.epochs, self.batch)
        return Point(tree.unravel(trace.vector, centre(start, task.like).params))

    def steps(self, client: Client) -> Tensor:
        """How many steps a client takes."""
        rows = (client.data.w > 0).sum()
        return self.epochs * ((rows + self.batch - 1) // self.batch)


@dataclass(frozen=True)
class Adam:
    """Adam; its two averages are forgotten between rounds."""

    rate: float = 1e-3  # step size
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = constant  # factor of the rate over the run

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        kernel = Optimise(AdamSteps(self.rate, self.beta1, self.beta2), self.schedule)
        trace = chain(task, start, client, kernel, self.epochs, self.batch)
        return Point(tree.unravel(trace.vector, centre(start, task.like).params))
