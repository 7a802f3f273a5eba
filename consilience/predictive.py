"""From inputs to an output distribution, closed under pooling.

The rules work on distributions at given inputs, not on the functions behind them, so that nothing is evaluated twice
while a weight is being fitted. Everything is done in log space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.models.softmax import log_softmax


class Categorical(NamedTuple):
    log_probs: Tensor  # [N, C]

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()


class Normal(NamedTuple):
    mean: Tensor  # [N] or [N, D], of the latent function
    var: Tensor  # variance of the latent function; [N, D, D] for full covariances between the D outputs
    noise: Tensor  # variance of the observation noise; pooled on its own and added once

    @property
    def full(self) -> bool:
        return self.var.ndim == self.mean.ndim + 1

    @property
    def total(self) -> Tensor:
        """The variance of an observation, output by output."""
        return (self.var.diagonal(dim1=-2, dim2=-1) if self.full else self.var) + self.noise


Distribution: TypeAlias = Categorical | Normal
Predictive: TypeAlias = Callable[[Tensor], Distribution]
Powers: TypeAlias = Callable[[Sequence[Distribution], Distribution], Tensor]


def mixture(parts: Sequence[Distribution], weights: Tensor) -> Distribution:
    """Σₖ wₖ pₖ; for Normals the one Normal with the mixture's mean and variance."""
    w = weights / weights.sum()
    if isinstance(parts[0], Categorical):
        logs = torch.stack([p.log_probs for p in parts if isinstance(p, Categorical)])
        return Categorical(torch.logsumexp(logs + w.to(logs).log().reshape(-1, 1, 1), 0))
    normals = [p for p in parts if isinstance(p, Normal)]
    mean, noise = _dot(w, [p.mean for p in normals]), _dot(w, [p.noise for p in normals])
    return Normal(mean, _dot(w, [p.var + _square(p.mean - mean, p.full) for p in normals]), noise)


def product(
    parts: Sequence[Distribution], prior: Distribution, weights: Tensor | None = None, powers: Tensor | None = None
) -> Distribution:
    """Πₖ pₖ^βₖ · prior^(1 − Σβₖ), renormalised, with βₖ = 1 unless `powers` [K, N] say otherwise.

    `weights` only average the observation noise.
    """
    if isinstance(prior, Categorical):
        logs = torch.stack([p.log_probs for p in parts if isinstance(p, Categorical)])
        b = (torch.ones(len(parts), 1) if powers is None else powers).to(logs).unsqueeze(-1)
        return Categorical(log_softmax((b * logs).sum(0) + (1 - b.sum(0)) * prior.log_probs))
    normals = [p for p in parts if isinstance(p, Normal)]
    b = (torch.ones(len(parts), 1) if powers is None else powers).to(prior.mean)
    if prior.full:
        return _full_product(normals, prior, weights, b)
    b = b.unsqueeze(-1) if prior.mean.ndim > 1 else b
    w = torch.ones(len(parts)) if weights is None else weights
    own = torch.stack([1 / p.var for p in normals])
    rest = 1 - b.sum(0)
    precision = positive((b * own).sum(0) + rest / prior.var, 1e-3 / prior.var)
    linear = (b * own * torch.stack([p.mean for p in normals])).sum(0) + rest * prior.mean / prior.var
    return Normal(linear / precision, 1 / precision, _dot(w / w.sum(), [p.noise for p in normals]))


def _full_product(parts: Sequence[Normal], prior: Normal, weights: Tensor | None, powers: Tensor) -> Normal:
    """Hasan 2023, eq. 3.4–3.5: Σ⁻¹ = Σₖ Σₖ⁻¹ − (K−1) Σₚ⁻¹, μ = Σ(Σₖ Σₖ⁻¹ μₖ − (K−1) Σₚ⁻¹ μₚ); with powers βₖ for 1."""
    w, b = torch.ones(len(parts)) if weights is None else weights, powers[..., None, None]
    own = b * torch.linalg.inv(torch.stack([p.var for p in parts]))
    known = torch.linalg.inv(prior.var)
    rest = (1 - b.sum(0)) * known
    precision = own.sum(0) + rest
    linear = _times(own, torch.stack([p.mean for p in parts])).sum(0) + _times(rest, prior.mean)
    values, vectors = torch.linalg.eigh(precision)  # clamped along its own axes where it is not positive
    values = positive(values, 1e-3 * torch.linalg.eigvalsh(known)[..., :1].expand_as(values))
    var = vectors @ torch.diag_embed(1 / values) @ vectors.mT
    return Normal(_times(var, linear), var, _dot(w / w.sum(), [p.noise for p in parts]))


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _square(gap: Tensor, full: bool) -> Tensor:
    return gap.unsqueeze(-1) * gap.unsqueeze(-2) if full else gap**2


def shared(parts: Sequence[Distribution], prior: Distribution) -> Tensor:
    """βₖ = 1/K: the generalised product of experts (Cao and Fleet 2014), as sure as its experts are on average."""
    return torch.full((len(parts), 1), 1 / len(parts))


def robust(parts: Sequence[Distribution], prior: Distribution) -> Tensor:
    """βₖ(x): the entropy that client k's data took from the prior's (robust BCM, Deisenroth and Ng 2015)."""
    return torch.stack([(entropy(prior) - entropy(p)).clamp(min=0) for p in parts])


def entropy(p: Distribution) -> Tensor:
    """In nats, for every row; of the latent function for a Normal."""
    if isinstance(p, Categorical):
        return -(p.probs * p.log_probs).sum(-1)
    if p.full:
        return 0.5 * torch.logdet(2 * math.pi * math.e * p.var)
    each = 0.5 * (2 * math.pi * math.e * p.var).log()
    return each.flatten(1).sum(-1) if each.ndim > 1 else each


def logarithmic(parts: Sequence[Distribution], weights: Tensor) -> Distribution:
    """Πₖ pₖ^wₖ, renormalised: for single models, the average of their logits. For Normals, their mixture."""
    logs = [p.log_probs for p in parts if isinstance(p, Categorical)]
    if not logs:
        return mixture(parts, weights)
    return Categorical(log_softmax(_dot(weights / weights.sum(), logs)))


def geometric(beta: float, p: Distribution, q: Distribution) -> Distribution:
    """p^β q^(1−β), renormalised."""
    if isinstance(p, Categorical):
        assert isinstance(q, Categorical)
        return Categorical(log_softmax(beta * p.log_probs + (1 - beta) * q.log_probs))
    assert isinstance(q, Normal)
    if p.full:
        a, c = beta * torch.linalg.inv(p.var), (1 - beta) * torch.linalg.inv(q.var)
        both = torch.linalg.inv(a + c)
        return Normal(_times(both, _times(a, p.mean) + _times(c, q.mean)), both, beta * p.noise + (1 - beta) * q.noise)
    precision = beta / p.var + (1 - beta) / q.var
    mean = (beta * p.mean / p.var + (1 - beta) * q.mean / q.var) / precision
    return Normal(mean, 1 / precision, beta * p.noise + (1 - beta) * q.noise)


def tempered(p: Distribution, t: float) -> Distribution:
    """p^(1/t), renormalised: t > 1 is less sure. For a Normal the observation's variance is multiplied by t."""
    if isinstance(p, Categorical):
        return Categorical(log_softmax(p.log_probs / t))
    return Normal(p.mean, p.var * t, p.noise * t)


def observation_log_prob(p: Normal) -> Normal:
    """Count the noise as part of the function, as the papers' pools do."""
    return Normal(p.mean, p.var + p.noise, torch.zeros_like(p.var))


def log_prob(p: Distribution, y: Tensor) -> Tensor:
    """log p(y) for every row."""
    if isinstance(p, Categorical):
        return p.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
    y = y.reshape(p.mean.shape)  # [N, 1] is [N]: against each other they would make all pairs
    if p.full:
        covariance = p.var + torch.diag_embed(p.noise.expand_as(p.mean))
        density: Tensor = torch.distributions.MultivariateNormal(p.mean, covariance).log_prob(y)
        return density
    per_output = -0.5 * ((y - p.mean) ** 2 / p.total + p.total.log() + math.log(2 * math.pi))
    return per_output.flatten(1).sum(-1) if per_output.ndim > 1 else per_output


def score(p: Distribution, y: Tensor) -> float:
    """The mean log-probability of y."""
    return float(log_prob(p, y).mean())


def maximise(f: Callable[[float], float], low: float, high: float) -> float:
    """The maximiser of a one-dimensional unimodal function on [low, high], ends included."""
    minimise = scipy.optimize.minimize_scalar
    found = minimise(lambda b: -f(float(b)), bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return max((float(found.x), low, high), key=f)


def temperature(p: Distribution, y: Tensor) -> float:
    """The most probable t for `tempered(p, t)` given the rows y, under log t ~ N(0, 1).

    Without that prior, a few rows that are all right would make any model infinitely sure.
    """
    q, n = precise(p), len(y)
    objective = lambda log_t: score(tempered(q, math.exp(log_t)), y) - 0.5 * log_t**2 / n
    return math.exp(maximise(objective, -math.log(50), math.log(50)))


def precise(p: Distribution) -> Distribution:
    """In double precision, so that a search over one scalar is not lost in rounding."""
    return Categorical(p.log_probs.double()) if isinstance(p, Categorical) else Normal(*(leaf.double() for leaf in p))


def positive(precision: Tensor, floor: Tensor) -> Tensor:
    """The precision, clamped where it is not positive; how often is said in a warning."""
    bad = int((precision <= 0).sum())
    if bad:
        warnings.warn(
            f"A product of Normals had a precision ≤ 0 at {bad} of {precision.numel()} places; clamped.", stacklevel=3
        )
    return torch.where(precision > 0, precision, floor)


def _dot(w: Tensor, values: Sequence[Tensor]) -> Tensor:
    stacked = torch.stack(list(values))
    return torch.einsum("k,k...->...", w.to(stacked), stacked)
