"""Rules that make pooled draws of the sites' draws, all in unconstrained space."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.kernel_densities import multiply_kernels, multiply_semiparametric
from consilience.distributions.posterior import Dense, Natural, Samples, draw, natural
from consilience.distributions.prior import Flat
from consilience.draws.affine import barycentre, consensus, transport
from consilience.draws.importance import resample, smooth
from consilience.draws.priors import Prior
from consilience.draws.warped import Warped, fit_warped
from consilience.glm.hierarchy import populations, stack
from consilience.key import Key

LEAST = 1e-3  # of the pool's precision that a site's own share is taken to have, in every direction
SWEEPS = 200  # of a chain of kernel densities
FREEDOM = 7.0  # of the Student's t that proposals are from
WIDER = 1.15  # its scale against the Gaussian's
TIMES = 10  # proposals a draw
SPREAD = 100.0  # equal weights, and ten a number, that proposals are moved by; weights are tempered until there are
WORTHLESS = 20.0  # equal weights: fewer are no posterior
PARTS = 4  # of draws, each left out once
WALKERS, WALK = 500, 60  # chains over τ, and sweeps of each


@dataclass(frozen=True)
class Factors:
    """What the sites sent, in unconstrained space.

    Attributes:
        names: The sites.
        draws: Of each [S, d]; None for one that sent moments.
        gaussians: Their moments.
        prior: What all have in them.
        spare: Powers of the prior that the product of the sites' posteriors has too many.
    """

    names: tuple[str, ...]
    draws: tuple[Tensor | None, ...]
    gaussians: tuple[Dense, ...]
    prior: Prior
    spare: float

    @property
    def width(self) -> int:
        """How many unconstrained numbers there are."""
        return len(self.gaussians[0].mean)

    @cached_property
    def raw(self) -> Natural:
        """The product of the sites' Gaussians over the prior that was counted too often, definite or not."""
        known = [natural(g) for g in self.gaussians]
        precision = torch.stack([n.precision for n in known]).sum(0)
        linear = torch.stack([n.linear for n in known]).sum(0)
        centre = at = torch.linalg.solve(precision, linear)
        found = Natural(linear, precision)
        for _ in range(20):  # the prior is expanded where the pool is
            prior = self.prior.natural(at)
            found = Natural(linear - self.spare * prior.linear, precision - self.spare * prior.precision)
            moved = _kept_proper(found, precision, centre).mean
            if self.prior.gaussian is not None or float((moved - at).abs().max()) < 1e-9:
                break
            at = moved
        return found

    @cached_property
    def product(self) -> Dense:
        """The pooled Gaussian; directions that nothing is known of are kept proper."""
        known = [natural(g) for g in self.gaussians]
        whole = torch.stack([n.precision for n in known]).sum(0)
        centre = torch.linalg.solve(whole, torch.stack([n.linear for n in known]).sum(0))
        return _kept_proper(self.raw, whole, centre)

    @cached_property
    def known(self) -> Natural:
        """The prior as a Gaussian, near the pool."""
        return self.prior.natural(self.product.mean)

    def without(self, power: float) -> list[Dense]:
        """Take a power of the prior out of each site's Gaussian."""
        found = []
        for g in self.gaussians:
            own = natural(g)
            left = Natural(own.linear - power * self.known.linear, own.precision - power * self.known.precision)
            found.append(_kept_proper(left, self.product.precision / len(self.names), self.product.mean))
        return found

    @cached_property
    def shares(self) -> tuple[list[Tensor], list[Dense]]:
        """The sites' draws and Gaussians without what they have of the prior too much, so that they only multiply."""
        gaussians = self.without(self.spare / len(self.names))
        moved = []
        for x, g, share in zip(self.draws, self.gaussians, gaussians, strict=True):
            assert x is not None
            moved.append(transport(x, g, share))
        return moved, gaussians


class Made(NamedTuple):
    """What a rule makes.

    Attributes:
        draws: [S, d].
        k: k̂, where importance weights were used.
        effective: How many equal weights theirs are worth.
        error: The Monte Carlo error of the pooled means that the sites' draws bring with them, in pooled SDs [d].
        away: How many SDs the pool is from what each site sent.
        tau: Draws of how much sites differ [S, d], where the rule finds that.
        newcomer: Draws of a new site's parameters [S, d], likewise.
    """

    draws: Tensor
    k: float | None = None
    effective: float | None = None
    error: Tensor | None = None
    away: tuple[float, ...] | None = None
    tau: Tensor | None = None
    newcomer: Tensor | None = None


Rule = Callable[[Factors, int, Key], Made]


def gaussian(factors: Factors, count: int, key: Key) -> Made:
    """Multiply Gaussians: the parametric product."""
    return Made(_drawn(factors.product, count, key))


def average(factors: Factors, count: int, key: Key) -> Made:
    """Average one draw of each site, weighted by precisions: consensus Monte Carlo."""
    draws, gaussians = factors.shares
    shuffled = [x[key.fold(k).permutation(len(x))] for k, x in enumerate(draws)]
    return Made(_choose(consensus(shuffled, gaussians), count, key.fold(-2)))


def kernel(factors: Factors, count: int, key: Key) -> Made:
    """Multiply kernel densities, in coordinates in which the pooled Gaussian is N(0, I)."""
    draws, _ = factors.shares
    lower = torch.linalg.cholesky(factors.product.precision)
    white = [Samples({"z": (x - factors.product.mean) @ lower}) for x in draws]
    z = multiply_kernels(white, Flat().gaussian({"z": white[0].params["z"][0]}), count, SWEEPS, key)
    return Made(factors.product.mean + torch.linalg.solve_triangular(lower, z, upper=False, left=False))


def semiparametric(factors: Factors, count: int, key: Key) -> Made:
    """Multiply Gaussians that kernel densities correct."""
    draws, gaussians = factors.shares
    return Made(multiply_semiparametric(draws, gaussians, factors.product, count, SWEEPS, key))


def wasserstein(factors: Factors, count: int, key: Key) -> Made:
    """Find the Wasserstein barycentre of posteriors that each stand for all rows."""
    draws, gaussians = factors.shares
    return Made(_choose(barycentre(draws, gaussians), count, key))


def mixture(factors: Factors, count: int, key: Key) -> Made:
    """Put the sites' draws side by side, each site with the same weight."""
    each = -(-count // len(factors.names))
    parts = [_choose(x, each, key.fold(k)) for k, x in enumerate(factors.draws) if x is not None]
    return Made(_choose(torch.cat(parts), count, key.fold(-2)))


def reweighted(factors: Factors, count: int, key: Key) -> Made:
    """Weight draws near the Gaussian product by the product of densities that follow the sites' skewness."""
    fitted = [fit_warped(x) for x in factors.draws if x is not None]

    def target(u: Tensor) -> Tensor:
        known = factors.prior.density(u)
        logs = sum((f.log(u) for f in fitted), -factors.spare * known)
        return torch.where(torch.isfinite(known), logs, -math.inf)

    made = weigh(target, factors.product, count, key)
    centre = made.draws.mean(0)
    away = tuple(f.distance(centre) for f in fitted)
    return made._replace(error=_error(factors, fitted, made.draws), away=away)


def _error(factors: Factors, fitted: Sequence[Warped], u: Tensor) -> Tensor:
    """The pooled means' Monte Carlo error, in pooled SDs: from pools that leave out a part of each site's draws."""
    whole = torch.stack([f.log(u) for f in fitted]).sum(0)
    means = []
    for part in range(PARTS):
        others = [f.without(x, part, PARTS) for f, x in zip(fitted, factors.draws, strict=True) if x is not None]
        weights = torch.softmax(torch.stack([f.log(u) for f in others]).sum(0) - whole, 0)
        means.append(weights @ u)
    spread: Tensor = ((PARTS - 1) * torch.stack(means).var(0, correction=0)).sqrt()
    return spread / u.std(0)


def weigh(target: Callable[[Tensor], Tensor], start: Dense, count: int, key: Key, looks: int = 6) -> Made:
    """Draw from a density by importance weights about a Gaussian, which follows the weights a few times.

    Args:
        target: Log-density of rows [S, d], up to a constant.
        count: How many draws to make.
        looks: How often the Gaussian is moved to where the weight is, at most.

    Returns:
        The draws; where a handful of proposals has all the weight, those of the Gaussian, with a k̂ that says so.
    """
    about = start
    for look in range(looks):
        u, density = propose(about, TIMES * count, key.fold(look))
        weights = smooth(target(u) - density)
        if (weights.k < 0.3 and weights.effective > count) or look == looks - 1:
            break
        about = moments_of(u, _tempered(weights.logs, max(SPREAD, 10.0 * u.shape[1])))
    if not weights.effective >= WORTHLESS:
        return Made(_drawn(start, count, key.fold(-2)), math.inf, weights.effective)
    return Made(u[resample(weights.logs, count, key.fold(-2))], weights.k, weights.effective)


def _tempered(logs: Tensor, fewest: float) -> Tensor:
    """Weights to the largest power, at most 1, with which as many equal ones are worth as much."""
    power = 1.0
    while power > 1e-3:
        taken = torch.log_softmax(power * logs, 0)
        if float(1 / (2 * taken).exp().sum()) >= fewest:
            break
        power *= 0.7
    return taken


def propose(about: Dense, count: int, key: Key) -> tuple[Tensor, Tensor]:
    """Draw from a Student's t a little wider than a Gaussian, so that weights stay bounded.

    Returns:
        The draws [S, d], and their log-density up to a constant [S].
    """
    d = len(about.mean)
    z = _drawn(Dense(torch.zeros_like(about.mean), about.precision), count, key.fold(0))
    generator = key.fold(1).generator()
    shape = torch.full((count,), FREEDOM / 2, dtype=z.dtype)
    chi = 2 * torch._standard_gamma(shape, generator) / FREEDOM
    away = WIDER * z / chi.sqrt().unsqueeze(1)
    square = ((away @ about.precision) * away).sum(1) / WIDER**2
    return about.mean + away, -(FREEDOM + d) / 2 * torch.log1p(square / FREEDOM)


def moments_of(u: Tensor, logs: Tensor) -> Dense:
    """Fit a Gaussian to weighted rows."""
    w = logs.exp()
    mean = w @ u
    away = u - mean
    var = (away * w.unsqueeze(1)).mT @ away
    floor = 1e-10 * var.diagonal().clamp(min=1e-12)
    return Dense(mean, torch.linalg.inv(var + torch.diag(floor)))


def hierarchical(factors: Factors, count: int, key: Key, tau: float | None = None) -> Made:
    """Let sites differ: θₖ ~ N(μ, T), T diagonal with its own τ for each number; draws are of μ.

    τ is averaged over, by Metropolis within Gibbs over log τ on p(D | T), from which μ is integrated out.
    """
    own = factors.without(1.0)
    precision, linear = stack([natural(g) for g in own])
    prior = factors.known
    scale = _scales(factors, tau)
    spread = torch.linalg.eigvalsh(prior.precision)
    if float(spread.min()) < 0:
        prior = Natural(prior.linear * 0, prior.precision * 0)
    tiny = 1e-9 * factors.product.precision.diagonal()
    prior = Natural(prior.linear, prior.precision + torch.diag(tiny))

    def height(logs: Tensor) -> Tensor:
        found = populations(precision, linear, (2 * logs).exp(), prior)
        return found.log_evidence + (logs - 0.5 * (logs.exp() / scale) ** 2).sum(1)

    walkers = min(WALKERS, count)
    d = factors.width
    logs = scale.log() + key.fold(0).normal((walkers, d), scale) - 1
    now = height(logs)
    kept = []
    sweeps = WALK + -(-count // walkers)
    for sweep in range(sweeps):
        for j in range(d):
            own_key = key.fold(1).fold(sweep * d + j)
            step = torch.zeros_like(logs)
            wide = 0.7
            if sweep % 2:
                wide = 2.0
            step[:, j] = wide * own_key.fold(0).normal((walkers,), scale)
            other = height(logs + step)
            better = own_key.fold(1).uniform(walkers, scale).log() < other - now
            logs = torch.where(better.unsqueeze(1), logs + step, logs)
            now = torch.where(better, other, now)
        if sweep >= WALK:
            kept.append(logs)
    taken = torch.cat(kept)[:count]
    found = populations(precision, linear, (2 * taken).exp(), prior)
    lower = torch.linalg.cholesky(found.var)
    noise = key.fold(2).normal((len(taken), d), scale)
    mean = found.mean[..., 0] + (lower @ noise.unsqueeze(-1))[..., 0]
    newcomer = mean + taken.exp() * key.fold(3).normal((len(taken), d), scale)
    return Made(mean, tau=taken.exp(), newcomer=newcomer)


def _scales(factors: Factors, tau: float | None) -> Tensor:
    """The scale of each τ's half-normal prior: what was given, or twice how much the sites' estimates differ."""
    if tau is not None:
        return torch.full((factors.width,), tau, dtype=torch.float64)
    own = factors.without(1.0)
    means = torch.stack([g.mean for g in own])
    within = torch.stack([torch.linalg.inv(g.precision).diagonal() for g in own])
    return 2 * torch.maximum(means.var(0), within.median(0).values).sqrt()


RULES: dict[str, Rule] = {
    "gaussian": gaussian,
    "consensus": average,
    "semiparametric": semiparametric,
    "kernel": kernel,
    "barycentre": wasserstein,
    "mixture": mixture,
    "reweighted": reweighted,
    "hierarchical": hierarchical,
}
BY_MOMENTS = ("gaussian", "hierarchical")  # rules that need no draws of a site


def _kept_proper(known: Natural, beside: Tensor, centre: Tensor) -> Dense:
    """Write a Gaussian by its mean; in directions that it says nothing of, it is wide and about a centre."""
    lower = torch.linalg.cholesky(beside)
    back = torch.linalg.inv(lower)
    values, vectors = torch.linalg.eigh(back @ known.precision @ back.mT)
    kept = values.clamp(min=LEAST)
    place = torch.where(values < LEAST, vectors.mT @ (lower.mT @ centre), (vectors.mT @ (back @ known.linear)) / kept)
    half = lower @ vectors
    return Dense(back.mT @ (vectors @ place), (half * kept) @ half.mT)


def least_share(precision: Tensor, beside: Tensor) -> tuple[float, Tensor]:
    """Find the direction in which a precision is the smallest part of another.

    Returns:
        The part, which may be negative, and the direction in units of the other's deviations [d].
    """
    back = torch.linalg.inv(torch.linalg.cholesky(beside))
    values, vectors = torch.linalg.eigh(back @ precision @ back.mT)
    return float(values[0]), back.mT @ vectors[:, 0] * beside.diagonal().sqrt()


def _drawn(g: Dense, count: int, key: Key) -> Tensor:
    return draw(g, key, count, {"u": g.mean}).params["u"]


def _choose(rows: Tensor, count: int, key: Key) -> Tensor:
    """Rows by chance, none twice before all were taken."""
    times = math.ceil(count / len(rows))
    order = torch.cat([key.fold(i).permutation(len(rows)) for i in range(times)])
    return rows[order[:count]]


def rows_of(sites: Sequence[Tensor | None]) -> int:
    """The draws of the site that has fewest."""
    return min((len(x) for x in sites if x is not None), default=0)
