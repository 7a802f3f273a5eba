"""Stochastic gradient Langevin dynamics.  Welling and Teh, ICML 2011.  On the full batch: unadjusted Langevin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from consilience.distributions.posterior import Posterior, Samples
from consilience.inference.chain import keep_after_burn_in, sample
from consilience.inference.kernels import At
from consilience.inference.optimisers import descend
from consilience.messages import Client
from consilience.task import Task
from consilience.tree import Tree


@dataclass(frozen=True)
class SGLD:
    """θ ← θ − ε ∇U/n + √(2εT/n)·ξ: samples exp(−U/T) as ε → 0.

    For U/n with curvature h the stationary variance is T/(nh) · 1/(1 − εh/2). The default's 60 epochs of small steps
    are a snapshot ensemble: on a network of three units its predictions have 0.28 of the posterior's deviation, and
    0.93 with 3000 epochs at a rate of 0.1.

    Attributes:
        rate: ε, on the mean loss
        epochs: passes over the client's rows
        burn: epochs thrown away
        every: epochs between samples
        batch: rows a step
        temperature: 1: the posterior; 0: optimisation

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.Mixture(inference=co.SGLD(epochs=20, burn=10, every=5)), problem)
        >>> len(result.replies[0].payload.params["0.bias"])
        2
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.02
    epochs: int = 60
    burn: int = 30
    every: int = 5
    batch: int = 50
    temperature: float = 1.0

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        """Sample exp(−U/T).

        Returns:
            The samples, one an interval after burning.

        Raises:
            InputError: if no sample is kept.
            Diverged: if the weights are not finite.
        """
        sample_at = keep_after_burn_in(self.epochs, self.burn, self.every)
        return sample(task, start, client, self, self.epochs, self.batch, sample_at)

    def init(self, vector: Tensor) -> Tree:
        """Nothing: Langevin dynamics have no memory.

        Args:
            vector: the first weights, flat

        Returns:
            The empty state.
        """
        return ()

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Step along the gradient and add noise.

        Args:
            gradient: ∇(U/n) on this step's batch
            state: empty

        Returns:
            The new weights and the empty state.
        """
        new = descend(vector, gradient, self.rate, at.overwrite)
        if self.temperature:
            new += at.noise(vector).mul_((2 * self.rate * self.temperature / at.size).sqrt())
        return new, ()
