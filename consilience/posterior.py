"""What can be known about the weights: a point, samples, a diagonal or a dense Gaussian; how such posteriors combine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.key import Key
from consilience.tree import Params


class Point(NamedTuple):
    params: Params


class Samples(NamedTuple):
    params: Params  # each leaf [S, …]


class Gaussian(NamedTuple):
    mean: Params
    var: Params  # diagonal; leaves absent from var are points


class Dense(NamedTuple):
    mean: Tensor  # [P], in the order of `tree.ravel`
    precision: Tensor  # [P, P]; small models only


Posterior: TypeAlias = Point | Samples | Gaussian | Dense
P = TypeVar("P", Point, Samples, Gaussian, Dense)
G = TypeVar("G", Gaussian, Dense)


def average(posteriors: Sequence[P], weights: Tensor) -> P:
    """Σ wₖ θₖ / Σ wₖ, leaf by leaf."""
    return cast(P, tree.mean(posteriors, weights))


def multiply(factors: Sequence[G], prior: G) -> G:
    """Πₖ p(θ | Dₖ) / p(θ)^(K−1), renormalised: precisions and precision-weighted means add, the prior's is taken out."""
    spare = len(factors) - 1
    if isinstance(prior, Dense):
        dense = cast(Sequence[Dense], factors)
        precision = sum((f.precision for f in dense), -spare * prior.precision)
        linear = sum((f.precision @ f.mean for f in dense), -spare * (prior.precision @ prior.mean))
        return cast(G, Dense(torch.linalg.solve(precision, linear), precision))
    diagonal, p = cast(Sequence[Gaussian], factors), cast(Gaussian, prior)
    var = {k: 1 / sum((1 / f.var[k] for f in diagonal), -spare / v) for k, v in p.var.items()}
    mean = {
        k: var[k] * sum((f.mean[k] / f.var[k] for f in diagonal), -spare * p.mean[k] / p.var[k])
        if k in var
        else sum(f.mean[k] for f in diagonal) / len(diagonal)
        for k in p.mean
    }
    return cast(G, Gaussian(cast(Params, mean), var))


def moments(samples: Samples) -> Gaussian:
    """The diagonal Gaussian with the samples' mean and (unbiased) variance."""
    return Gaussian(
        {k: v.mean(0) for k, v in samples.params.items()}, {k: v.var(0) for k, v in samples.params.items()}
    )


def draw(gaussian: Gaussian | Dense, key: Key, n: int, like: Params | None = None) -> Samples:
    """n samples; a dense Gaussian needs `like` for the leaves' names and shapes."""
    if isinstance(gaussian, Dense):
        assert like is not None, "a dense Gaussian is unravelled by names: pass like="
        lower = torch.linalg.cholesky(gaussian.precision)
        noise = key.normal((n, gaussian.mean.numel()), gaussian.mean)
        flat = gaussian.mean + torch.linalg.solve_triangular(lower.mT, noise.mT, upper=True).mT
        return Samples(tree.unravel(flat, like))
    mean = tree.ravel(gaussian.mean)
    var = tree.ravel({k: gaussian.var.get(k, torch.zeros_like(m)) for k, m in gaussian.mean.items()})
    return Samples(tree.unravel(mean + var.sqrt() * key.normal((n, mean.numel()), mean), gaussian.mean))


def centre(posterior: Posterior, like: Params | None = None) -> Point:
    """One set of weights in the middle: the point itself, the samples' mean, the Gaussian's mean."""
    match posterior:
        case Point():
            return posterior
        case Samples(params):
            return Point({k: v.mean(0) for k, v in params.items()})
        case Gaussian(mean, _):
            return Point(mean)
        case Dense(mean, _):
            assert like is not None
            return Point(tree.unravel(mean, like))


def members(posterior: Posterior, key: Key, draws: int, like: Params) -> list[Params]:
    """The sets of weights that stand for a posterior; Gaussians are drawn from."""
    match posterior:
        case Point(params):
            return [params]
        case Samples(params):
            count = next(iter(params.values())).shape[0]
            return cast(list[Params], tree.unstack(params, count))
        case Gaussian() | Dense():
            return members(draw(posterior, key, draws, like), key, draws, like)
