"""Distributions over global models, fitted to the clients' models, and who is in an ensemble of them.

Chen and Chao, ICLR 2021, eq. 4–7 and Table 3.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.data.splits.split import dirichlet_draws
from consilience.distributions.posterior import Gaussian, Point, Samples, average, draw
from consilience.errors import InputError
from consilience.key import Key
from consilience.tree import Params

FLOOR = 1e-5  # the smallest running variance of a sampled model; BatchNorm divides by its root


class ModelDistribution(Protocol):
    """A distribution over global models, fitted to the clients'."""

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples:
        """Fit the distribution and draw from it.

        Args:
            weights: Their weights nₖ/n [K].
            n: How many models are drawn.

        Returns:
            n draws of a global model.
        """


@dataclass(frozen=True)
class GaussianModels:
    """Every weight by itself, from the Gaussian with the clients' weighted mean and variance (eq. 5).

    Attributes:
        scale: Of the SD that is drawn with; the released program has 0.1.

    Raises:
        InputError: If scale is below 0.

    Example:
        >>> import consilience as co
        >>> co.aggregation.Ensemble(co.aggregation.GaussianModels(scale=0.1)).models
        GaussianModels(scale=0.1)
    """

    scale: float = field(default=1.0, metadata={"added": True})

    def __post_init__(self) -> None:
        if not self.scale >= 0:
            raise InputError(f"scale={self.scale}: a factor of an SD is at least 0; eq. 5 has scale=1.")

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples:
        """Fit the Gaussian and draw from it; see `ModelDistribution.__call__`."""
        fitted = gaussian(points, weights)
        narrowed = {name: var * self.scale**2 for name, var in fitted.var.items()}
        return Samples(floor_var(draw(Gaussian(fitted.mean, narrowed), key, n).params))


@dataclass(frozen=True)
class DirichletModels:
    """Convex combinations of the clients' models, with shares drawn from a Dirichlet distribution (eq. 7).

    Attributes:
        alpha: Large: near the average; small: near single clients.

    Raises:
        InputError: If alpha is not above 0.

    Example:
        >>> import consilience as co
        >>> co.aggregation.Ensemble(co.aggregation.DirichletModels(alpha=0.5)).models
        DirichletModels(alpha=0.5)
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise InputError(f"alpha={self.alpha}: a Dirichlet distribution needs a number above 0; try alpha=1.")

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples:
        """Draw shares and average by them; see `ModelDistribution.__call__`."""
        shares = dirichlet_shares(self.alpha, weights, key, n)
        return Samples(tree.stack([average(points, row).params for row in shares]))


@dataclass(frozen=True)
class Ensemble:
    """Which models predict together, each with the same weight: samples S, the average A, the clients' own C.

    Attributes:
        models: What is fitted to the clients' models and drawn from.
        samples: How many are drawn; 0 for none.
        average: Whether the average is in.
        clients: Whether the clients' models are in.

    Raises:
        InputError: If nothing is in.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> method = co.methods.FedBE(ensemble=co.aggregation.Ensemble(samples=5))
        >>> co.run(method, problem, rounds=1).report["rounds"]
        1
    """

    models: ModelDistribution = GaussianModels()
    samples: int = 10
    average: bool = True
    clients: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1 and not self.average and not self.clients:
            raise InputError("An ensemble needs members: give samples above 0, average=True or clients=True.")

    def __call__(self, points: Sequence[Point], weights: Tensor, centre: Point, key: Key) -> Samples:
        """Gather the members.

        Args:
            weights: Their weights nₖ/n [K].

        Returns:
            The members, stacked; the average alone where one client's model is all there is.
        """
        if len(points) < 2:
            warnings.warn("Only one client replied: there is no ensemble, the average stands alone.", stacklevel=2)
            return Samples(tree.stack([centre.params]))
        members: list[Params] = []
        if self.samples > 0:
            members.append(self.models(points, weights, key, self.samples).params)
        if self.average:
            members.append(tree.stack([centre.params]))
        if self.clients:
            members.append(tree.stack([point.params for point in points]))
        return Samples(tree.concatenate(members))


class Ensembled(NamedTuple):
    """What the server knows of an ensemble between rounds.

    Attributes:
        posterior: The student; without distillation, the average.
        inner: The state of the method inside, from which the next round starts.
        posteriors: The ensemble.
        weights: Its weight, 1.
    """

    posterior: Point
    inner: Any
    posteriors: tuple[Samples, ...]
    weights: Tensor

    @staticmethod
    def of(inner: Any, members: Samples) -> Ensembled:
        """Make the state of a round without a student.

        Args:
            inner: The state of the method inside.

        Returns:
            The state, with the inner method's posterior for its own.
        """
        return Ensembled(inner.posterior, inner, (members,), torch.ones(1))

    def taught(self, student: Point, goes_back: bool) -> Ensembled:
        """Take the student for the model.

        Args:
            goes_back: Whether it has the clients' shape, so that the next round starts from it.

        Returns:
            The state with the student.
        """
        inner = self.inner
        if goes_back:
            inner = inner._replace(posterior=student)
        return self._replace(posterior=student, inner=inner)


def gaussian(points: Sequence[Point], weights: Tensor) -> Gaussian:
    """Fit a Gaussian to the clients' models, weight by weight (eq. 5).

    Args:
        points: The clients' models θₖ.
        weights: Their weights [K].

    Returns:
        The Gaussian with μ = Σₖ wₖ θₖ and σ² = Σₖ wₖ (θₖ − μ)².
    """
    mean = average(points, weights).params
    squares = [Point({k: (v - mean[k]) ** 2 for k, v in point.params.items()}) for point in points]
    return Gaussian(mean, average(squares, weights).params)


def dirichlet_shares(alpha: float, weights: Tensor, key: Key, n: int) -> Tensor:
    """Draw the clients' shares (eq. 6).

    Args:
        alpha: The concentration of the Dirichlet distribution.
        weights: The clients' weights nₖ/n [K].

    Returns:
        γₖ nₖ / Σᵢ γᵢ nᵢ with γ ~ Dirichlet(α, …, α): n rows on the simplex [n, K].
    """
    products = dirichlet_draws(alpha, (n, len(weights)), key) * weights
    return products / products.sum(-1, keepdim=True)


def floor_var(params: Params) -> Params:
    """Keep sampled running variances of BatchNorm positive; a warning says how many were not.

    Args:
        params: Sampled weights, running statistics among them.

    Returns:
        The same with running variances of at least `FLOOR`.
    """
    running = {k: v for k, v in params.items() if k.endswith("running_var")}
    low = sum(int((v < FLOOR).sum()) for v in running.values())
    if low:
        total = sum(v.numel() for v in running.values())
        warnings.warn(f"{low} of {total} sampled running variances were below {FLOOR:g}; floored.", stacklevel=3)
    return {**params, **{k: v.clamp(min=FLOOR) for k, v in running.items()}}
