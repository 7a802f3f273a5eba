"""SWAG with a diagonal covariance.  Maddox et al., NeurIPS 2019, §3.2 (SWAG-Diagonal)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from consilience import tree
from consilience.errors import InputError
from consilience.parties import Client
from consilience.posterior import Gaussian, Posterior, centre
from consilience.task import Task
from consilience.training.chain import Optimise, chain, keep_after_burn_in
from consilience.training.optimisers import Descent
from consilience.training.schedules import constant


@dataclass(frozen=True)
class SWAG:
    """Momentum SGD at a constant rate; the weights at the ends of epochs give a mean and variances E[θ²] − E[θ]².

    How wide it comes out depends on rate, batch and momentum as much as on the posterior.
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.05  # step size on the mean loss
    momentum: float = 0.9
    epochs: int = 30  # passes over the client's rows
    burn: int = 10  # epochs before the first snapshot
    every: int = 1  # epochs between snapshots
    batch: int = 50  # rows a step
    floor: float = -20.0  # smallest log σ²

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian:
        kept = keep_after_burn_in(self.epochs, self.burn, self.every)
        if len(kept) < 2:
            raise InputError("SWAG needs at least two snapshots: raise epochs or lower burn.")
        kernel = Optimise(Descent(self.rate, self.momentum), constant)
        trace = chain(task, start, client, kernel, self.epochs, self.batch, kept)
        like, vectors = centre(start, task.like).params, torch.stack(trace.samples)
        var = tree.unravel(vectors.var(0, correction=0).clamp(min=torch.tensor(self.floor).exp()), like)
        return Gaussian(tree.unravel(vectors.mean(0), like), {k: var[k] for k in task.uncertain})
