"""KL(q‖p), which takes the prior's place in variational inference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense, Gaussian
from consilience.distributions.prior import Prior
from consilience.key import Key
from consilience.tree import Params


@dataclass(frozen=True, eq=False)
class Divergence:
    """KL(q‖p) as a prior over (means, log-variances).

    It is −log p(θ) for points, and for Gaussian weights ½ σ² Λ − ½ (1 + log 2πσ²) − log p(μ), with Λ the precision of
    the Gaussian prior p; weighed by `weight`.

    Attributes:
        prior: p
        mean: names and shapes of all means
        gaussian_leaves: names of those that are a Gaussian's
        precision: Λ, in the order of the log-variances
        weights: of every mean: `weight` where it is a Gaussian's, 1 where it is a point
        weight: of the divergence
        low: log-variances below act as this, and have no gradient
    """

    prior: Prior
    mean: Params
    gaussian_leaves: tuple[str, ...]
    precision: Tensor
    weights: Tensor
    weight: Tensor
    low: float

    def gradient(self, vector: Tensor) -> Tensor:
        """The gradient of the divergence, and of −log p(θ) for points.

        Args:
            vector: means and log-variances, flat

        Returns:
            The gradient, flat.
        """
        m, a = vector.split([len(self.weights), len(self.precision)])
        by_log_var = 0.5 * self.weight * (a.clamp(min=self.low).exp() * self.precision - 1) * (a >= self.low)
        by_mean = self.prior.gradient(m)
        if by_mean is None:
            return torch.cat([torch.zeros_like(m), by_log_var])
        return torch.cat([self.weights * by_mean, by_log_var])

    def log_density(self, params: Params) -> Tensor:
        """The points' log p(θ), and −KL(q‖p) by its weight.

        Returns:
            The sum, a scalar.
        """
        a = torch.cat([v.flatten() for k, v in params.items() if k not in self.mean]).clamp(min=self.low)
        inner = 0.5 * (1 + math.log(2 * math.pi) + a - a.exp() * self.precision).sum()
        whole = self.prior.log_density({k: params[k] for k in self.mean}) + inner
        points = {k: params[k] for k in self.mean if k not in self.gaussian_leaves}
        outside: Tensor | float = 0.0
        if points:
            outside = self.prior.log_density(points)
        return self.weight * whole + (1 - self.weight) * outside

    def gaussian(self, like: Params) -> Gaussian:
        """The prior itself as a Gaussian.

        Returns:
            Means and variances.
        """
        return self.prior.gaussian(like)

    def dense(self, like: Params) -> Dense:
        """The prior itself with a whole precision matrix.

        Returns:
            Mean and precision.
        """
        return self.prior.dense(like)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """Draw weights from the prior itself.

        Returns:
            Weights with a leading dimension n.
        """
        return self.prior.draw(key, n, like)


def divergence(prior: Prior, mean: Params, gaussian_leaves: Iterable[str], weight: Tensor, low: float) -> Divergence:
    """The divergence for these means, of which some leaves are Gaussian.

    Args:
        gaussian_leaves: names of the leaves that have variances
        weight: of the divergence, a scalar
        low: log-variances below act as this

    Returns:
        KL(q‖p) as a prior.
    """
    gaussian = {k: mean[k] for k in gaussian_leaves}
    precision = 1 / tree.ravel(prior.gaussian(gaussian).var)
    weight = weight.to(tree.ravel(mean))
    weights = {k: torch.ones_like(v) for k, v in mean.items()}
    for k in gaussian:
        weights[k] = weights[k] * weight
    return Divergence(prior, mean, tuple(gaussian), precision, tree.ravel(weights), weight, low)
