"""SWAG with a diagonal covariance.  Maddox et al., NeurIPS 2019, §3.2 (SWAG-Diagonal)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from consilience import tree
from consilience.distributions.posterior import Gaussian, Posterior, centre
from consilience.errors import InputError
from consilience.inference.chain import chain, keep_after_burn_in
from consilience.inference.kernels import Optimise
from consilience.inference.optimisers import Descent
from consilience.inference.schedules import constant
from consilience.messages import Client
from consilience.task import Task


@dataclass(frozen=True)
class SWAG:
    """Momentum SGD at a constant rate; the weights at the ends of epochs give a mean and variances E[θ²] − E[θ]².

    How wide it comes out depends on rate, batch and momentum as much as on the posterior.

    Attributes:
        rate: step size on the mean loss
        momentum: share of the last step that goes on
        epochs: passes over the client's rows
        burn: epochs before the first snapshot
        every: epochs between snapshots
        batch: rows a step
        floor: smallest log σ²

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.Mixture(inference=co.SWAG(epochs=6, burn=3)), problem)
        >>> type(result.replies[0].payload).__name__
        'Gaussian'
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.05
    momentum: float = 0.9
    epochs: int = 30
    burn: int = 10
    every: int = 1
    batch: int = 50
    floor: float = -20.0

    @property
    def narrowest(self) -> float:
        """The smallest variance that it can give: that of a weight which did not move."""
        return math.exp(self.floor)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian:
        """Take the moments of the snapshots.

        Returns:
            A Gaussian with a variance for every weight of the network.

        Raises:
            InputError: if there are fewer than two snapshots.
            Diverged: if the weights are not finite.
        """
        sample_at = keep_after_burn_in(self.epochs, self.burn, self.every)
        if len(sample_at) < 2:
            raise InputError("SWAG needs at least two snapshots: raise epochs, or lower burn or every.")
        kernel = Optimise(Descent(self.rate, self.momentum), constant)
        trace = chain(task, start, client, kernel, self.epochs, self.batch, sample_at)
        like = centre(start, task.like).params
        vectors = torch.stack(trace.samples)
        mean = tree.unravel(vectors.mean(0), like)
        var = tree.unravel(vectors.var(0, correction=0).clamp(min=torch.tensor(self.floor).exp()), like)
        return Gaussian(mean, {k: var[k] for k in task.uncertain})
