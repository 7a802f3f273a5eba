"""Mean-field variational inference.  Blundell et al., ICML 2015; Özer et al. 2022, eq. 2–3.

The target is the negative ELBO over means and log-variances together: the likelihood's noise lies in the Bayesian
layers, the KL divergence from the prior takes the prior's place. The loop is the one every optimiser runs in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Gaussian, Point, Posterior, centre
from consilience.errors import unknown_name
from consilience.inference.chain import chain
from consilience.inference.divergence import divergence
from consilience.inference.kernels import At, Optimise
from consilience.inference.optimisers import AdamSteps, Optimiser
from consilience.inference.schedules import Schedule, constant
from consilience.messages import Client
from consilience.models.variational import log_variances, variational
from consilience.task import Task, Tilt, decay
from consilience.tree import Params, Tree

VARIANTS = ("printed", "ozer2022")


@dataclass(frozen=True)
class MeanField:
    """Maximise E_q[log p(D|θ)] − KL(q‖p) over q = N(μ, σ²), a variance for every weight of the Bayesian layers.

    The other weights are points at their most probable value. `variant="ozer2022"` is the released program: log σ²
    starts at −9 and acts as −8 wherever it is smaller, where it has no gradient either, so that it stays there.

    Attributes:
        optimiser: of means and log-variances alike
        epochs: passes over the client's rows
        batch: rows a step
        layers: which are Bayesian: 'linear', 'all' or names with commas between
        kl: weight of the KL divergence; below 1 the posterior is cold
        warm_up: the share of the rounds over which that weight grows from 0
        start: log σ² before the first round
        floor: smallest log σ²; how many are there is in the report
        weight_decay: λ of (λ/2)‖·‖² on means and log-variances, added to the mean loss
        schedule: factor of the rate over a client's training
        variant: 'printed' or 'ozer2022'

    Example:
        >>> import consilience as co
        >>> network = co.models.variational(co.models.mlp(2, 2, hidden=(5,)))
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model=network)
        >>> method = co.methods.VariationalAveraging(inference=co.MeanField(epochs=2))
        >>> co.run(method, problem, rounds=1).report["rounds"]
        1
    """

    moves_statistics: ClassVar[bool] = True

    optimiser: Optimiser = AdamSteps(rate=5e-3)
    epochs: int = 10
    batch: int = 50
    layers: str = "linear"
    kl: float = 1.0
    warm_up: float = 0.0
    start: float = -6.0
    floor: float = -20.0
    weight_decay: float = 0.0
    schedule: Schedule = constant
    variant: str = "printed"

    @property
    def narrowest(self) -> float:
        """The smallest variance that rows need not explain: the first, or the floor where the KL divergence is cut."""
        if self.kl < 1 or self.warm_up:
            return math.exp(self.floor)
        if self.variant == "ozer2022":
            return math.exp(-9.0)
        return math.exp(self.start)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian:
        """Maximise the ELBO.

        Args:
            start: means to begin at, and variances where it is a Gaussian

        Returns:
            The Gaussian, with variances for the weights of the Bayesian layers.

        Raises:
            InputError: if the variant or a layer is unknown.
            Diverged: if the weights are not finite.
        """
        if self.variant not in VARIANTS:
            raise unknown_name("variant", self.variant, VARIANTS)
        first = self.start
        low = self.floor
        bound = low
        released = self.variant == "ozer2022"
        if released:
            first = -9.0
            low = -8.0
            bound = -math.inf
        model = variational(task.model, self.layers, first, low, biases=not released)
        names = log_variances(model)
        mean = centre(start, task.like).params
        log_var = _first_log_var(start, mean, names, first)
        if not released:
            log_var = {k: v.clamp(min=low) for k, v in log_var.items()}
        begin = mean | {names[k]: v for k, v in log_var.items()}
        prior = divergence(task.prior, mean, names, self.kl * self._warmth(client), low)
        elbo = dataclasses.replace(task, model=model, prior=prior, tilts=self._tilts(task, mean))
        kernel = Clamp(Optimise(self.optimiser, self.schedule), _count(mean), bound)
        trace = chain(elbo, Point(begin), client, kernel, self.epochs, self.batch)
        end = tree.unravel(trace.vector, begin)
        return Gaussian({k: end[k] for k in mean}, {k: end[names[k]].exp() for k in names})

    def uncertain(self, task: Task) -> tuple[str, ...]:
        """The weights that get a variance.

        Args:
            task: whose network is asked about

        Returns:
            Their names.
        """
        return tuple(log_variances(variational(task.model, self.layers, biases=self.variant == "printed")))

    def _warmth(self, client: Client) -> Tensor:
        """The share of the divergence's weight that counts by now."""
        if not self.warm_up:
            return torch.ones(())
        return (client.progress / self.warm_up).clamp(max=1)

    def _tilts(self, task: Task, mean: Params) -> tuple[Tilt, ...]:
        """The task's own tilts at the means, and weight decay."""
        tilts: list[Tilt] = [OnMeans(tilt, mean) for tilt in task.tilts]
        if self.weight_decay:
            tilts.append(decay(self.weight_decay))
        return tuple(tilts)


@dataclass(frozen=True, eq=False)
class OnMeans:
    """A tilt of the weights, taken at their means.

    Attributes:
        tilt: of the weights
        mean: names of the means
    """

    tilt: Tilt
    mean: Params

    def __call__(self, params: Params) -> Tensor:
        """The tilt at the means.

        Returns:
            A scalar, in units of the mean loss.
        """
        return self.tilt({k: params[k] for k in self.mean})


@dataclass(frozen=True)
class Clamp:
    """A kernel whose numbers from `at` on stay above `low`.

    Attributes:
        kernel: takes the steps
        at: the first number that is bounded
        low: the bound; −∞: none
    """

    kernel: Optimise
    at: int
    low: float

    def init(self, vector: Tensor) -> Tree:
        """The kernel's state before the first step.

        Args:
            vector: the first means and log-variances, flat
        """
        return self.kernel.init(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Take the kernel's step, then raise what is below the bound.

        Args:
            vector: means and log-variances, flat
            gradient: of the negative ELBO / n on this step's batch

        Returns:
            The new numbers and state.
        """
        new, state = self.kernel.step(vector, gradient, state, at)
        if self.low == -math.inf:
            return new, state
        return torch.cat([new[: self.at], new[self.at :].clamp(min=self.low)]), state


def _first_log_var(start: Posterior, mean: Params, names: Iterable[str], first: float) -> Params:
    """Log σ² where a chain begins: the start's own, or `first` where it has none."""
    log_var = {k: torch.full_like(mean[k], first) for k in names}
    if isinstance(start, Gaussian):
        log_var |= {k: start.var[k].log() for k in log_var if k in start.var}
    return log_var


def _count(params: Params) -> int:
    return sum(p.numel() for p in params.values())
