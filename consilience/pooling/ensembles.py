"""Distributions over global models, fitted to the clients' models, and who is in an ensemble of them.

Chen and Chao, ICLR 2021, eq. 4–7 and Table 3.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.key import Key
from consilience.posterior import Gaussian, Point, Samples, average, draw
from consilience.splits.split import dirichlet_draws
from consilience.tree import Params

FLOOR = 1e-5  # the smallest running variance of a sampled model; BatchNorm divides by its root


class ModelDistribution(Protocol):
    """The clients' models and their weights nₖ/n → n draws of a global model."""

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples: ...


@dataclass(frozen=True)
class GaussianModels:
    """Every weight by itself, from the Gaussian with the clients' weighted mean and variance (eq. 5)."""

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples:
        return Samples(floor_var(draw(gaussian(points, weights), key, n).params))


@dataclass(frozen=True)
class DirichletModels:
    """Convex combinations of the clients' models, with shares drawn from a Dirichlet distribution (eq. 7)."""

    alpha: float = 1.0  # large: near the average; small: near single clients

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise InputError(f"alpha={self.alpha} cannot be used: a Dirichlet distribution needs one above 0, try 1.")

    def __call__(self, points: Sequence[Point], weights: Tensor, key: Key, n: int) -> Samples:
        shares = dirichlet_shares(self.alpha, weights, key, n)
        return Samples(tree.stack([average(points, row).params for row in shares]))


@dataclass(frozen=True)
class Ensemble:
    """Which models predict together, each with the same weight: samples S, the average A, the clients' own C."""

    models: ModelDistribution = GaussianModels()  # what is fitted to the clients' models and drawn from
    samples: int = 10  # how many are drawn; 0 for none
    average: bool = True  # is the average in?
    clients: bool = True  # are the clients' models in?

    def __post_init__(self) -> None:
        if self.samples < 1 and not self.average and not self.clients:
            raise InputError("An ensemble needs members: give samples above 0, average=true or clients=true.")

    def __call__(self, points: Sequence[Point], weights: Tensor, centre: Point, key: Key) -> Samples:
        """The members, stacked; the average alone where one client's model is all there is."""
        if len(points) < 2:
            warnings.warn("Only one client replied: there is no ensemble, the average stands alone.", stacklevel=2)
            return Samples(tree.stack([centre.params]))
        parts = [self.models(points, weights, key, self.samples).params] if self.samples > 0 else []
        own = [point.params for point in (*[centre] * self.average, *(points if self.clients else ()))]
        return Samples(tree.concatenate([*parts, *([tree.stack(own)] if own else [])]))


class Ensembled(NamedTuple):
    """What the server knows of an ensemble between rounds."""

    posterior: Point  # the student; without distillation, the average
    inner: Any  # the state of the method inside, from which the next round starts
    posteriors: tuple[Samples, ...]  # the ensemble
    weights: Tensor

    @staticmethod
    def of(inner: Any, members: Samples) -> Ensembled:
        return Ensembled(inner.posterior, inner, (members,), torch.ones(1))

    def taught(self, student: Point, goes_back: bool) -> Ensembled:
        """With the student for its model; it goes back to the clients if it has their shape."""
        return self._replace(
            posterior=student, inner=self.inner._replace(posterior=student) if goes_back else self.inner
        )


def gaussian(points: Sequence[Point], weights: Tensor) -> Gaussian:
    """μ = Σₖ wₖ θₖ and σ² = Σₖ wₖ (θₖ − μ)², weight by weight (eq. 5)."""
    mean = average(points, weights).params
    squares = [Point({k: (v - mean[k]) ** 2 for k, v in point.params.items()}) for point in points]
    return Gaussian(mean, average(squares, weights).params)


def dirichlet_shares(alpha: float, weights: Tensor, key: Key, n: int) -> Tensor:
    """γₖ nₖ / Σᵢ γᵢ nᵢ with γ ~ Dirichlet(α, …, α): n rows on the simplex [n, K] (eq. 6)."""
    counted = dirichlet_draws(alpha, (n, len(weights)), key) * weights
    return counted / counted.sum(-1, keepdim=True)


def floor_var(params: Params) -> Params:
    """Sampled running variances of BatchNorm kept positive; how many were not is said in a warning."""
    running = {k: v for k, v in params.items() if k.endswith("running_var")}
    low = sum(int((v < FLOOR).sum()) for v in running.values())
    if low:
        total = sum(v.numel() for v in running.values())
        warnings.warn(f"{low} of {total} sampled running variances were below {FLOOR:g}; floored.", stacklevel=3)
    return {**params, **{k: v.clamp(min=FLOOR) for k, v in running.items()}}
