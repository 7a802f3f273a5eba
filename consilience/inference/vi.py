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
from consilience.errors import unknown_name
from consilience.key import Key
from consilience.models.variational import log_variances, variational
from consilience.parties import Client
from consilience.posterior import Dense, Gaussian, Point, Posterior, centre
from consilience.prior import Prior
from consilience.task import Task, Tilt, decay
from consilience.training.chain import At, Optimise, chain
from consilience.training.optimisers import AdamSteps, Optimiser
from consilience.training.schedules import Schedule, constant
from consilience.tree import Params, Tree

VARIANTS = ("printed", "ozer2022")


@dataclass(frozen=True)
class MeanField:
    """Maximise E_q[log p(D|θ)] − KL(q‖p) over q = N(μ, σ²), a variance for every weight of the Bayesian layers.

    The other weights are points at their most probable value. `variant="ozer2022"` is the released program: log σ²
    starts at −9 and acts as −8 wherever it is smaller, where it has no gradient either, so that it stays there.
    """

    moves_statistics: ClassVar[bool] = True

    optimiser: Optimiser = AdamSteps(rate=5e-3)  # of means and log-variances alike
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step
    layers: str = "linear"  # which are Bayesian: 'linear', 'all' or names with commas between
    kl: float = 1.0  # weight of the KL divergence; below 1 the posterior is cold
    warm_up: float = 0.0  # the share of the rounds over which that weight grows from 0
    start: float = -6.0  # log σ² before the first round
    floor: float = -20.0  # smallest log σ²; how many are there is in the report
    weight_decay: float = 0.0  # λ of (λ/2)‖·‖² on means and log-variances, added to the mean loss
    schedule: Schedule = constant  # factor of the rate over a client's training
    variant: str = "printed"  # or 'ozer2022'

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian:
        if self.variant not in VARIANTS:
            raise unknown_name("variant", self.variant, VARIANTS)
        released = self.variant == "ozer2022"
        first, low = (-9.0, -8.0) if released else (self.start, self.floor)
        form = variational(task.model, self.layers, first, low, biases=not released)
        names, mean = log_variances(form), centre(start, task.like).params
        known = start.var if isinstance(start, Gaussian) else {}
        log_var = {k: known[k].log() if k in known else torch.full_like(mean[k], first) for k in names}
        log_var = log_var if released else {k: v.clamp(min=low) for k, v in log_var.items()}
        begin = {**mean, **{names[k]: v for k, v in log_var.items()}}
        share = (client.progress / self.warm_up).clamp(max=1) if self.warm_up else torch.ones(())
        elbo = dataclasses.replace(
            task,
            model=form,
            prior=divergence(task.prior, mean, names, self.kl * share, low),
            tilts=(
                *(OnMeans(tilt, mean) for tilt in task.tilts),
                *([decay(self.weight_decay)] * bool(self.weight_decay)),
            ),
        )
        kernel = Bounded(Optimise(self.optimiser, self.schedule), _numbers(mean), -math.inf if released else low)
        found = tree.unravel(chain(elbo, Point(begin), client, kernel, self.epochs, self.batch).vector, begin)
        return Gaussian({k: found[k] for k in mean}, {k: found[names[k]].exp() for k in names})

    def uncertain(self, task: Task) -> tuple[str, ...]:
        """The weights that get a variance."""
        return tuple(log_variances(variational(task.model, self.layers, biases=self.variant == "printed")))


@dataclass(frozen=True, eq=False)
class Divergence:
    """KL(q‖p) as a prior over (means, log-variances): −log p(θ) for points, and for Gaussian weights

    ½ σ² Λ − ½ (1 + log 2πσ²) − log p(μ), with Λ the precision of the Gaussian prior p; weighed by `weight`.
    """

    prior: Prior
    mean: Params  # names and shapes of all means
    gaussian_leaves: tuple[str, ...]
    precision: Tensor  # Λ, in the order of the log-variances
    weights: Tensor  # of every mean: `weight` where it is a Gaussian's, 1 where it is a point
    weight: Tensor
    low: float  # log-variances below act as this, and have no gradient

    def gradient(self, vector: Tensor) -> Tensor:
        m, a = vector.split([len(self.weights), len(self.precision)])
        pull = self.prior.gradient(m)
        narrow = 0.5 * self.weight * (a.clamp(min=self.low).exp() * self.precision - 1) * (a >= self.low)
        return torch.cat([torch.zeros_like(m) if pull is None else self.weights * pull, narrow])

    def log_density(self, params: Params) -> Tensor:
        """The points' log p(θ), and −KL(q‖p) by its weight."""
        a = torch.cat([v.flatten() for k, v in params.items() if k not in self.mean]).clamp(min=self.low)
        inner = 0.5 * (1 + math.log(2 * math.pi) + a - a.exp() * self.precision).sum()
        points = {k: params[k] for k in self.mean if k not in self.gaussian_leaves}
        whole = self.prior.log_density({k: params[k] for k in self.mean}) + inner
        outside = self.prior.log_density(points) if points else 0.0
        return self.weight * whole + (1 - self.weight) * outside

    def gaussian(self, like: Params) -> Gaussian:
        return self.prior.gaussian(like)

    def dense(self, like: Params) -> Dense:
        return self.prior.dense(like)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        return self.prior.draw(key, n, like)


def divergence(prior: Prior, mean: Params, gaussian_leaves: Iterable[str], weight: Tensor, low: float) -> Divergence:
    """The divergence for these means, of which some leaves are Gaussian."""
    own = {k: mean[k] for k in gaussian_leaves}
    share = weight.to(tree.ravel(mean))
    weights = tree.ravel({k: torch.ones_like(v) * (share if k in own else 1.0) for k, v in mean.items()})
    return Divergence(prior, mean, tuple(own), 1 / tree.ravel(prior.gaussian(own).var), weights, share, low)


@dataclass(frozen=True, eq=False)
class OnMeans:
    """A tilt of the weights, taken at their means."""

    tilt: Tilt
    mean: Params

    def __call__(self, params: Params) -> Tensor:
        return self.tilt({k: params[k] for k in self.mean})


@dataclass(frozen=True)
class Bounded:
    """A kernel whose numbers from `at` on are held above `low`."""

    kernel: Optimise
    at: int
    low: float

    def init(self, vector: Tensor) -> Tree:
        return self.kernel.init(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        new, state = self.kernel.step(vector, gradient, state, at)
        if self.low == -math.inf:
            return new, state
        return torch.cat([new[: self.at], new[self.at :].clamp(min=self.low)]), state


def _numbers(params: Params) -> int:
    return sum(p.numel() for p in params.values())
