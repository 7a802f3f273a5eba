"""Stochastic gradient Langevin dynamics.  Welling and Teh, ICML 2011.  On the full batch: unadjusted Langevin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from consilience.parties import Client
from consilience.posterior import Posterior, Samples
from consilience.task import Task
from consilience.training.chain import At, keep_after_burn_in, sample
from consilience.training.optimisers import descend
from consilience.tree import Tree


@dataclass(frozen=True)
class SGLD:
    """θ ← θ − ε ∇U/n + √(2εT/n)·ξ: samples exp(−U/T) as ε → 0.

    For U/n with curvature h the stationary variance is T/(nh) · 1/(1 − εh/2).
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.02  # ε, on the mean loss
    epochs: int = 60  # passes over the client's rows
    burn: int = 30  # epochs thrown away
    every: int = 5  # epochs between samples
    batch: int = 50  # rows a step
    temperature: float = 1.0  # 1: the posterior; 0: optimisation

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        kept = keep_after_burn_in(self.epochs, self.burn, self.every)
        return sample(task, start, client, self, self.epochs, self.batch, kept)

    def init(self, vector: Tensor) -> Tree:
        return ()

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        new = descend(vector, gradient, self.rate, at.overwrite)
        if self.temperature:
            new += at.noise(vector).mul_((2 * self.rate * self.temperature / at.size).sqrt())
        return new, ()
