"""Rules that merge the clients' Gaussians into one, weight by weight.  Özer et al. 2022, eq. 4–8.

Each rule maps one slice of weights: means and variances [K, …] and the clients' shares [K] → mean, variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.key import Key
from consilience.posterior import Dense, Gaussian, Posterior, Samples, moments
from consilience.tree import Params

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

SLICE = 2**15  # weights merged at a time: a slice of all clients stays in the processor's cache
LOWEST, HIGHEST = math.exp(-8), math.exp(8)  # where the released program clamps σ²


def eaa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Empirical arithmetic aggregation, eq. 4: the average variance."""
    return dot(w, m), dot(w, v)


def gaa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussian arithmetic aggregation, eq. 5: the variance of Σ wₖ θₖ for independent θₖ."""
    return dot(w, m), dot(w**2, v)


def aalv(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Arithmetic aggregation with log-variance, eq. 6: FedAvg on (μ, log σ²)."""
    return dot(w, m), dot(w, v.log()).exp()


def ppa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Population pooling, the limit of eq. 7 for an infinite population: the moments of the mixture Σ wₖ N(μₖ, σₖ²)."""
    mean = dot(w, m)
    return mean, dot(w, v + (m - mean) ** 2)


def cf(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Conflation, eq. 8: the density ∝ Πₖ N(θ; μₖ, σₖ²)^(wₖ / max w), whose precision is Σ (wₖ / max w) / σₖ²."""
    precision = dot(w, 1 / v)
    return dot(w, m / v) / precision, w.max() / precision


def population(key: Key, size: int) -> Rule:
    """Eq. 7 itself: round(N wₖ) draws from client k, pooled; the mean and variance of all N.

    Of a client's draws only their mean and their sum of squares matter, which are a normal and an independent
    χ²; those two are drawn, so the population has the paper's distribution at a fraction of its cost.
    """
    generator = key.generator()

    def rule(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        n = (size * w).round().clamp(min=1).reshape(-1, *[1] * (m.ndim - 1))
        centre = m + (v / n).sqrt() * torch.randn(m.shape, generator=generator, dtype=m.dtype)
        half = ((n - 1) / 2).clamp(min=torch.finfo(m.dtype).tiny).expand_as(m).contiguous()
        within = 2 * v * torch._standard_gamma(half, generator)
        mean = (n * centre).sum(0) / n.sum()
        return mean, (within + n * (centre - mean) ** 2).sum(0) / n.sum()

    return rule


@dataclass(frozen=True)
class Released:
    """A rule as the released program has it: log σ² clamped to [−8, 8] before it enters.

    EAA and GAA add client after client, and the sum so far is clamped before the next is added: with equal variances
    at the lower end, K = 10 multiplies them by 1.9 (EAA) and 1.09 (GAA) where eq. 4 and 5 give 1 and 0.1. AALV
    averages what it is sent.
    """

    rule: Rule

    def __call__(self, m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        if self.rule is aalv:
            return aalv(m, v, w)
        v = v.clamp(LOWEST, HIGHEST)
        if self.rule not in (eaa, gaa):
            return self.rule(m, v, w)
        shares = w if self.rule is eaa else w**2
        total = shares[0] * v[0]
        for share, var in zip(shares[1:], v[1:], strict=True):
            total = total.clamp(LOWEST, HIGHEST) + share * var
        return dot(w, m), total


def clamp(posterior: Posterior) -> Posterior:
    """How the released program predicts: with variances no smaller than e⁻⁸."""
    if not isinstance(posterior, Gaussian):
        return posterior
    return Gaussian(posterior.mean, {k: v.clamp(LOWEST, HIGHEST) for k, v in posterior.var.items()})


def dot(w: Tensor, values: Tensor) -> Tensor:
    """Σₖ wₖ valuesₖ."""
    total: Tensor = torch.tensordot(w, values, dims=1)
    return total


def merge(gaussians: Sequence[Gaussian], weights: Tensor, rule: Rule, sites: Sequence[int] | None = None) -> Gaussian:
    """One Gaussian from many; leaves that are points are averaged.

    Slices of weights are merged one after another, so that little more memory is needed than the clients' own.
    """
    named = range(len(gaussians)) if sites is None else sites
    same_leaves(gaussians, named)
    w = weights / weights.sum()
    mean: Params = {}
    var: Params = {}
    for name, like in gaussians[0].mean.items():
        ms = [g.mean[name].reshape(-1) for g in gaussians]
        share, made = w.to(like), torch.empty_like(ms[0])
        spread = torch.empty_like(ms[0]) if name in gaussians[0].var else None
        vs = [g.var[name].reshape(-1) for g in gaussians] if spread is not None else []
        for at in range(0, len(made), SLICE):
            part = slice(at, at + SLICE)
            m = torch.stack([each[part] for each in ms])
            if spread is None:
                made[part] = dot(share, m)
                continue
            v = torch.stack([each[part] for each in vs])
            if not bool((v > 0).all()):
                k = named[int((~(v > 0)).any(1).int().argmax())]
                raise InputError(f"Site {k} sent a variance of '{name}' that is not above 0: leave it out or refit it.")
            made[part], spread[part] = rule(m, v, share)
        mean[name] = made.reshape(like.shape)
        if spread is not None:
            var[name] = spread.reshape(like.shape)
    return Gaussian(mean, var)


def same_leaves(gaussians: Sequence[Gaussian], sites: Sequence[int]) -> None:
    """Refuse clients whose networks differ, and clients for whom every weight is a point."""
    shapes = [
        [{k: tuple(leaf.shape) for k, leaf in part.items()} for part in (gaussian.mean, gaussian.var)]
        for gaussian in gaussians
    ]
    for k, own in zip(sites, shapes, strict=True):
        if own != shapes[0]:
            names = {n for a, b in zip(own, shapes[0], strict=True) for n, _ in a.items() ^ b.items()}
            raise InputError(
                f"Site {k} and site {sites[0]} differ in '{min(names)}': give all sites the same network and the same "
                "Bayesian layers."
            )
    if not gaussians[0].var:
        raise InputError("Every weight is a point, so there is no variance to merge: make a layer Bayesian, or FedAvg.")


def as_gaussian(posterior: Posterior, uncertain: Collection[str]) -> Gaussian:
    """A Gaussian as it is, samples by their moments with variances for the `uncertain` leaves; nothing else has any."""
    match posterior:
        case Gaussian():
            return posterior
        case Samples():
            mean, var = moments(posterior)
            return Gaussian(mean, {k: v for k, v in var.items() if k in uncertain})
        case Dense():
            raise InputError("Rules merge weight by weight: use an inference with diagonal variances.")
    raise InputError("The inference gives single weights and no variances: use MeanField, Laplace, SWAG or a sampler.")


def spread(gaussian: Gaussian) -> float:
    """The norm of all standard deviations, the degree of spread of Table 4; points have none."""
    return math.sqrt(sum(float(v.double().sum()) for v in gaussian.var.values()))
