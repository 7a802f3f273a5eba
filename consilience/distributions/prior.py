"""What is believed about the weights before any data; fixed, and the same at every client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense, Gaussian, Natural, draw
from consilience.key import Key
from consilience.tree import Params

WIDE = 1e12  # the variance that stands for none preferred


class Prior(Protocol):
    """A density over the weights, and its forms that inference needs."""

    def log_density(self, params: Params) -> Tensor:
        """Evaluate the log-density.

        Returns:
            log p(θ), a scalar.
        """

    def gradient(self, vector: Tensor) -> Tensor | None:
        """Evaluate the gradient that optimisers step along.

        Args:
            vector: The weights as one vector [P].

        Returns:
            −∇ log p(θ) [P]; None where it is 0.
        """

    def gaussian(self, like: Params) -> Gaussian:
        """Write the prior as a diagonal Gaussian.

        Args:
            like: Names and shapes of the weights.

        Returns:
            The Gaussian over these weights.
        """

    def dense(self, like: Params) -> Dense:
        """Write the prior as a Gaussian with its full precision matrix, for small models.

        Args:
            like: Names and shapes of the weights.

        Returns:
            The Gaussian over these weights.
        """

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """Draw weights.

        Args:
            like: Names and shapes of the weights.

        Returns:
            Leaves [n, …].
        """


@dataclass(frozen=True)
class Isotropic:
    """N(0, var·I).

    Attributes:
        var: The variance of every weight.

    Example:
        >>> import consilience as co
        >>> from consilience.distributions.prior import Isotropic
        >>> co.classification(co.models.linear(2, 2), prior=Isotropic(0.1)).prior
        Isotropic(var=0.1)
    """

    var: float = 1.0

    def log_density(self, params: Params) -> Tensor:
        """Evaluate log p(θ); see `Prior.log_density`."""
        theta = tree.ravel(params)
        return -0.5 * (theta @ theta / self.var + theta.numel() * math.log(2 * math.pi * self.var))

    def gradient(self, vector: Tensor) -> Tensor | None:
        """Evaluate −∇ log p(θ); see `Prior.gradient`."""
        return vector / self.var

    def gaussian(self, like: Params) -> Gaussian:
        """Write the prior as a diagonal Gaussian; see `Prior.gaussian`."""
        return Gaussian(tree.zeros_like(like), {k: torch.full_like(v, self.var) for k, v in like.items()})

    def dense(self, like: Params) -> Dense:
        """Write the prior as a dense Gaussian; see `Prior.dense`."""
        theta = tree.ravel(like)
        return Dense(torch.zeros_like(theta), torch.eye(theta.numel()).to(theta) / self.var)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """Draw weights; see `Prior.draw`."""
        return draw(self.gaussian(like), key, n).params


@dataclass(frozen=True)
class Flat:
    """Nothing is preferred: for distillation, where the teacher is all there is, or where a tilt is the prior.

    Example:
        >>> import consilience as co
        >>> from consilience.distributions.prior import Flat
        >>> co.classification(co.models.linear(2, 2), prior=Flat()).prior
        Flat()
    """

    def log_density(self, params: Params) -> Tensor:
        """Return 0."""
        return tree.leaves(params)[0].new_zeros(())

    def gradient(self, vector: Tensor) -> Tensor | None:
        """Return None: the gradient is 0."""
        return None

    def gaussian(self, like: Params) -> Gaussian:
        """Return a Gaussian so wide that it prefers nothing; see `Prior.gaussian`."""
        return Isotropic(WIDE).gaussian(like)

    def dense(self, like: Params) -> Dense:
        """Return a dense Gaussian so wide that it prefers nothing; see `Prior.dense`."""
        return Isotropic(WIDE).dense(like)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """Refuse to draw.

        Raises:
            TypeError: Always; no distribution is flat over all numbers.
        """
        raise TypeError("a flat prior cannot be drawn from")


@dataclass(frozen=True, eq=False)
class Believed:
    """What others believe, as a prior: PVI's cavity. Where precisions are negative it is no density, yet a target.

    Attributes:
        belief: Natural parameters, dense or for the uncertain leaves.
        like: All weights, in their order.
        rest: The prior of the weights that the belief says nothing about.
    """

    belief: Natural
    like: Params
    rest: Prior

    def log_density(self, params: Params) -> Tensor:
        """Evaluate the log of the belief, up to a constant; see `Prior.log_density`."""
        linear, precision = self.belief
        if isinstance(precision, Tensor):
            theta = tree.ravel(params)
            return cast(Tensor, theta @ linear.to(theta) - 0.5 * theta @ precision.to(theta) @ theta)
        others = {k: v for k, v in params.items() if k not in precision}
        uncertain = {k: v for k, v in params.items() if k in precision}
        total = sum(((linear[k] - 0.5 * precision[k] * v) * v).sum() for k, v in uncertain.items())
        if others:
            total = total + self.rest.log_density(others)
        return cast(Tensor, total)

    def gradient(self, vector: Tensor) -> Tensor | None:
        """Evaluate the belief's negative gradient; see `Prior.gradient`."""
        linear, precision = self.belief
        if isinstance(precision, Tensor):
            return cast(Tensor, precision.to(vector) @ vector - linear.to(vector))
        rest = self.rest.gradient(vector)
        if rest is None:
            rest = torch.zeros_like(vector)
        gradients = tree.unravel(rest, self.like)
        params = tree.unravel(vector, self.like)
        for k, p in precision.items():
            gradients[k] = p * params[k] - linear[k]
        return tree.ravel(gradients)

    def gaussian(self, like: Params) -> Gaussian:
        """Write belief and rest as one diagonal Gaussian; see `Prior.gaussian`."""
        linear, precision = self.belief
        rest = self.rest.gaussian(like)
        mean = dict(rest.mean)
        var = dict(rest.var)
        for k in mean.keys() & precision.keys():
            mean[k] = linear[k] / precision[k]
            var[k] = 1 / precision[k]
        return Gaussian(mean, var)

    def dense(self, like: Params) -> Dense:
        """Write a dense belief as a Gaussian; see `Prior.dense`."""
        linear, precision = self.belief
        return Dense(torch.linalg.solve(precision, linear), precision)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """Draw from the Gaussian of belief and rest; see `Prior.draw`."""
        return draw(self.gaussian(like), key, n).params
