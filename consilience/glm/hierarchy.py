"""Partial pooling: sites whose weights differ, θₖ ~ N(μ, T), from the Gaussians that their rows say about them.

A site's rows say exp(⟨hₖ, θₖ⟩ − ½ θₖᵀΛₖθₖ), a `Natural` with the prior taken out. With T diagonal and R = √T,

    Aₖ = (T⁻¹ + Λₖ)⁻¹ = R (I + RΛₖR)⁻¹ R        what is known of θₖ where μ is
    Bₖ = AₖT⁻¹ = I − AₖΛₖ                        how much of μ is in it
    Q  = Λ₀ + Σₖ ΛₖBₖ,  q = h₀ + Σₖ Bₖᵀhₖ        of μ: N(Q⁻¹q, Q⁻¹), the prior being N(Λ₀⁻¹h₀, Λ₀⁻¹)
    log p(D | T) = −½ Σₖ log|I + RΛₖR| + ½ Σₖ hₖᵀAₖhₖ − ½ log|Q| + ½ qᵀQ⁻¹q + a constant

None of it divides by T: T = 0 is the product, and T → ∞ each site alone. Everything is in double precision. `linear` is
[P], or [P, M] for M regressions that share Λₖ and T. Few sites say little about T, so it is averaged over, on a grid
with a half-normal prior, rather than estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense, Natural

NODES = 9  # of a grid, for each variance
LOWEST, HIGHEST = 0.01, 12.0  # of τ, in units of its prior's scale: where a first look is taken
BELOW, ABOVE = 4.5, 3.0  # standard deviations of log τ from its mean that a finer grid spans: it is skewed
ZOOMS = 5  # finer grids, at most
TOGETHER = 2**21  # numbers of Λ that several nodes of a grid are computed from together
NEGLIGIBLE = 1e-7  # weight of a node, below which it is not looked at
FINE = 4001  # places at which a density between nodes is looked at
PAIRS = 8  # of sites that stand for all that could be
FAR = 10.0  # log-density by which it falls beyond the nodes until it is left out


class Hierarchy(NamedTuple):
    """What all sites say about their like: a grid of variances T, and μ at each. It predicts for a newcomer.

    Attributes:
        weights: p(T | D) at each node of the grid [J].
        var: The diagonal of T at each node [J, P].
        mean: E(μ | T, D) at each node [J, P] or [J, P, M].
        spread: Cov(μ | T, D), averaged over the nodes [P, P].
    """

    weights: Tensor
    var: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def centre(self) -> Tensor:
        """E(μ | D) [P] or [P, M]."""
        centre: Tensor = torch.tensordot(self.weights, self.mean, dims=1)
        return centre

    @property
    def typical(self) -> Tensor:
        """E(T | D), its diagonal [P]."""
        return self.weights @ self.var


class Population(NamedTuple):
    """What all sites say about μ, where T is known.

    Attributes:
        mean: E(μ | T, D) [P] or [P, M].
        var: Cov(μ | T, D) [P, P].
        log_evidence: log p(D | T), up to a constant that does not depend on T.
    """

    mean: Tensor
    var: Tensor
    log_evidence: Tensor


class Belief(NamedTuple):
    """A Gaussian by its moments.

    Attributes:
        mean: [P] or [P, M].
        var: The covariance [P, P]; of M regressions, that of each, averaged.
    """

    mean: Tensor
    var: Tensor


def divide(posterior: Dense, prior: Dense) -> Natural:
    """Take the prior out of a posterior.

    Args:
        posterior: p(θ | Dₖ), a Gaussian.
        prior: p(θ).

    Returns:
        What the rows say, hₖ and Λₖ, in double precision.
    """
    whole = posterior.precision.double()
    known = prior.precision.double()
    linear = whole @ posterior.mean.double() - known @ prior.mean.double()
    precision = whole - known
    return Natural(linear, (precision + precision.mT) / 2)


def population(factors: Sequence[Natural], var: Tensor, prior: Natural) -> Population:
    """Find what all sites say about μ, and how well T explains that they differ.

    Args:
        factors: What each site's rows say.
        var: The diagonal of T [P], zeros allowed.
        prior: What is believed of μ before.

    Returns:
        μ and the marginal likelihood of T. With a flat prior it is the one that REML maximises.
    """
    precision, linear = stack(factors)
    return population_of(precision, linear, var, prior)


def population_of(precision: Tensor, linear: Tensor, var: Tensor, prior: Natural) -> Population:
    """Find the same from factors that are stacked already, as a search for T does many times.

    Args:
        precision: Λ [K, P, P].
        linear: h [K, P, M].
        var: The diagonal of T [P], zeros allowed.
        prior: What is believed of μ before.

    Returns:
        μ and the marginal likelihood of T.
    """
    found = populations(precision, linear, var.double().unsqueeze(0), prior)
    return Population(found.mean[0].reshape(prior.linear.shape), found.var[0], found.log_evidence[0])


def stack(factors: Sequence[Natural]) -> tuple[Tensor, Tensor]:
    """Put what the sites' rows say side by side.

    Args:
        factors: What each site's rows say.

    Returns:
        Λ [K, P, P] and h [K, P, M], in double precision.
    """
    precision = torch.stack([factor.precision.double() for factor in factors])
    linear = torch.stack([factor.linear.double() for factor in factors])
    return precision, linear.reshape(*linear.shape[:2], -1)


def populations(precision: Tensor, linear: Tensor, var: Tensor, prior: Natural) -> Population:
    """Find the same at several T together.

    Args:
        precision: Λ [K, P, P].
        linear: h [K, P, M].
        var: The diagonals of T [J, P], zeros allowed.
        prior: What is believed of μ before.

    Returns:
        μ and the marginal likelihood of each T; everything has a leading J.
    """
    root = var.sqrt().unsqueeze(1).unsqueeze(-1)
    lower = _lower(precision, root)
    seen = torch.linalg.solve_triangular(lower, root * precision, upper=False)  # L⁻¹RΛ
    heard = torch.linalg.solve_triangular(lower, root * linear, upper=False)  # L⁻¹Rh
    whole = prior.precision.double() + (precision - seen.mT @ seen).sum(1)
    start = prior.linear.double().reshape(var.shape[-1], -1)
    right = start + (linear - seen.mT @ heard).sum(1)
    factor = torch.linalg.cholesky(whole)
    mean = torch.cholesky_solve(right, factor)
    logs = _log_diagonal(lower).sum(1) + _log_diagonal(factor)
    squares = (heard**2).sum((1, 2, 3)) + (right * mean).sum((1, 2))
    return Population(mean, torch.cholesky_inverse(factor), 0.5 * squares - linear.shape[-1] * logs)


def _lower(precision: Tensor, root: Tensor) -> Tensor:
    """The Cholesky factor of I + RΛR, for R as columns [..., P, 1]."""
    inner = root * precision * root.mT
    lower: Tensor = torch.linalg.cholesky(inner + torch.eye(root.shape[-2], dtype=inner.dtype, device=inner.device))
    return lower


def _log_diagonal(lower: Tensor) -> Tensor:
    """Half of the log-determinant."""
    return lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def at_one(factors: Sequence[Natural], prior: Natural, var: Tensor) -> Hierarchy:
    """Pool with a known T.

    Args:
        factors: What each site's rows say.
        prior: What is believed of μ before.
        var: The diagonal of T [P].

    Returns:
        The hierarchy, whose grid is one node.
    """
    found = population(factors, var, prior)
    return Hierarchy(torch.ones(1, dtype=torch.float64), var.double().unsqueeze(0), found.mean.unsqueeze(0), found.var)


def pool(
    factors: Sequence[Natural],
    prior: Natural,
    groups: Tensor,
    scale: Tensor,
    nodes: int = NODES,
) -> Hierarchy:
    """Average over T on a grid: one variance for each group of weights.

    A first grid looks at all τ that the prior makes plausible; the next lies where the posterior is. Finer ones follow
    where many sites know it well.

    Args:
        factors: What each site's rows say.
        prior: What is believed of μ before.
        groups: Which variance a weight has: 0, 1, … [P].
        scale: The standard deviation of the half-normal prior of each τ [G].
        nodes: Of the grid, for each variance.
    """
    precision, linear = stack(factors)
    scale = scale.double()

    def at(logs: Tensor) -> Iterator[Population]:
        for part in (2 * logs).exp()[:, groups].split(max(1, TOGETHER // precision.numel())):
            yield populations(precision, linear, part, prior)

    axes = [torch.linspace(math.log(LOWEST), math.log(HIGHEST), nodes, dtype=torch.float64) + s.log() for s in scale]
    logs, weights, mean = _look(axes, scale, at)
    for _ in range(ZOOMS):
        axes = [_zoom(logs[:, g], weights, axis) for g, axis in enumerate(axes)]
        logs, weights, mean = _look(axes, scale, at)
        if all(_deviation(logs[:, g], weights) > 0.8 * (axis[1] - axis[0]) for g, axis in enumerate(axes)):
            break
    kept = weights > NEGLIGIBLE
    variances = torch.cat([found.var for found in at(logs[kept])])
    spread = torch.tensordot(weights[kept] / weights[kept].sum(), variances, dims=1)
    return Hierarchy(weights, (2 * logs).exp()[:, groups], mean.reshape(-1, *prior.linear.shape), spread)


def _look(
    axes: Sequence[Tensor], scale: Tensor, at: Callable[[Tensor], Iterator[Population]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Log τ at the nodes [J, G], their weights [J] and means [J, P, M]; spacing is even in log τ."""
    logs = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    found = [(part.mean, part.log_evidence) for part in at(logs)]
    mean, evidence = (torch.cat(parts) for parts in zip(*found, strict=True))
    prior = (logs - 0.5 * (logs.exp() / scale) ** 2).sum(1)
    return logs, torch.softmax(evidence + prior, 0), mean


def _zoom(logs: Tensor, weights: Tensor, axis: Tensor) -> Tensor:
    """A narrower axis, over the part of log τ that has weight."""
    mean = (weights * logs).sum()
    deviation = torch.maximum(_deviation(logs, weights), 0.25 * (axis[1] - axis[0]))
    return torch.linspace(
        float(mean - BELOW * deviation), float(mean + ABOVE * deviation), len(axis), dtype=torch.float64
    )


def _deviation(logs: Tensor, weights: Tensor) -> Tensor:
    """The standard deviation of log τ over the nodes."""
    mean = (weights * logs).sum()
    return (weights * (logs - mean) ** 2).sum().sqrt()


def site_posterior(hierarchy: Hierarchy, factor: Natural) -> Belief:
    """Find what is known of one site's weights: computed at home, from what all sites share and its own rows.

    Args:
        factor: What this site's rows say, which are among them.

    Returns:
        The mixture over T of N(Aₖhₖ + Bₖμ, Aₖ + BₖVBₖᵀ), by its moments.
    """
    precision, linear = stack([factor])
    weights, var, mean = _nodes(hierarchy)
    size = max(1, TOGETHER // precision.numel())
    within = torch.zeros_like(hierarchy.spread)
    means = []
    for w, v, m in zip(weights.split(size), var.split(size), mean.split(size), strict=True):
        found = _at_nodes(precision[0], linear[0], v, m, hierarchy.spread)
        means.append(found.mean)
        within = within + torch.tensordot(w, found.var, dims=1)
    return _mix(weights, torch.cat(means), within, hierarchy.mean.shape[1:])


def _nodes(hierarchy: Hierarchy) -> tuple[Tensor, Tensor, Tensor]:
    """The weights [J], T [J, P] and μ [J, P, M] of the nodes that matter; weights sum to 1."""
    kept = hierarchy.weights > NEGLIGIBLE
    weights = hierarchy.weights[kept] / hierarchy.weights[kept].sum()
    return weights, hierarchy.var[kept], hierarchy.mean[kept].reshape(len(weights), hierarchy.var.shape[1], -1)


def _at_nodes(precision: Tensor, linear: Tensor, var: Tensor, mean: Tensor, spread: Tensor) -> Belief:
    """The site's posterior at several T, with a leading J."""
    root = var.sqrt()
    half = torch.linalg.solve_triangular(_lower(precision, root.unsqueeze(-1)), torch.diag_embed(root), upper=False)
    own = half.mT @ half  # A
    share = torch.eye(root.shape[-1], dtype=own.dtype, device=own.device) - own @ precision  # B
    return Belief(own @ linear + share @ mean, own + share @ spread @ share.mT)


def mean_site(hierarchy: Hierarchy) -> Belief:
    """Say what is known of μ, the mean of the sites' weights: a mixed model's fixed effects.

    Returns:
        The mixture over T of N(E(μ | T, D), V), by its moments.
    """
    weights, _, mean = _nodes(hierarchy)
    return _mix(weights, mean, hierarchy.spread, hierarchy.mean.shape[1:])


def newcomer(hierarchy: Hierarchy) -> Belief:
    """Say what is known of the weights of a site that took no part.

    Returns:
        The mixture over T of N(μ, T + V), by its moments.
    """
    weights, var, mean = _nodes(hierarchy)
    return _mix(weights, mean, torch.diag(weights @ var) + hierarchy.spread, hierarchy.mean.shape[1:])


def likely_sites(hierarchy: Hierarchy) -> tuple[Tensor, Tensor]:
    """Draw the weights of sites that could be, where μ is as expected: pairs about it, each with its opposite.

    With no more weights than pairs they are orthogonal, so that their covariance is E(T | D) exactly.

    Returns:
        The weights [2 · pairs, P], and what is not known of each: the covariance of μ [P, P].
    """
    common = mean_site(hierarchy)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(PAIRS, len(common.mean), generator=generator, dtype=torch.float64)
    if drawn.shape[1] <= PAIRS:
        drawn = torch.linalg.qr(drawn)[0] * math.sqrt(PAIRS)
    away = drawn * hierarchy.typical.sqrt()
    return common.mean + torch.cat([away, -away]), common.var


def _mix(weights: Tensor, means: Tensor, within: Tensor, shape: torch.Size) -> Belief:
    """The moments of a mixture, of the components' means [J, P, M] and their mean covariance [P, P]."""
    mean: Tensor = torch.tensordot(weights, means, dims=1)
    away = (means - mean) * weights.sqrt().reshape(-1, 1, 1)
    var = within + torch.einsum("jpm,jqm->pq", away, away) / means.shape[-1]
    return Belief(mean.reshape(shape), (var + var.mT) / 2)


def deviations(hierarchy: Hierarchy, levels: Sequence[float] = (0.025, 0.5, 0.975)) -> Tensor:
    """Summarise how much sites differ in each weight.

    Args:
        levels: Which quantiles of τ = √T.

    Returns:
        The quantiles of p(τ | D), interpolated between the nodes of the grid [levels, P].
    """
    columns, places = hierarchy.var.sqrt().unique(dim=1, return_inverse=True)
    found = [_quantiles(column, hierarchy.weights, levels) for column in columns.unbind(1)]
    return torch.stack(found, 1)[:, places]


def _quantiles(taus: Tensor, weights: Tensor, levels: Sequence[float]) -> Tensor:
    """Quantiles of one τ. Its log-density in u = log τ is a cubic spline through the nodes.

    Below them it is u + c τ², as p(D | T) is even in τ; above them a line.
    """
    from scipy.interpolate import CubicSpline  # here, because it takes a while to import

    logs, places = taus.clamp(min=1e-150).log().mul(1e9).round().div(1e9).unique(return_inverse=True)
    mass = torch.zeros(len(logs), dtype=weights.dtype).index_add_(0, places, weights)
    kept = mass > NEGLIGIBLE * mass.max()
    nodes, height = logs[kept], mass[kept].log()
    if len(nodes) < 4:  # T is given, or known as well as one node is from the next
        steps = mass.cumsum(0) / mass.sum()
        read: Tensor = logs.exp()[torch.searchsorted(steps, torch.tensor(levels, dtype=steps.dtype) - 1e-12)]
        return read
    spline = CubicSpline(nodes.numpy(), height.numpy())
    fall = min(float(spline(nodes[-1], 1)), -1.0)
    fine = torch.linspace(float(nodes[0]) - FAR, float(nodes[-1]) - FAR / fall, FINE, dtype=torch.float64)
    inside = torch.from_numpy(spline(fine.clamp(nodes[0], nodes[-1]).numpy()))
    under = (fine - nodes[0]).clamp(max=0)
    above = (fine - nodes[-1]).clamp(min=0)
    bend = (float(spline(nodes[0], 1)) - 1) / 2
    density = (inside + under + bend * ((2 * under).exp() - 1) + fall * above - height.max()).exp()
    below = torch.cumulative_trapezoid(density, dim=0)
    wanted = torch.tensor(levels, dtype=torch.float64) * below[-1]
    right = torch.searchsorted(below, wanted).clamp(1, len(below) - 1)
    share = (wanted - below[right - 1]) / (below[right] - below[right - 1])
    quantiles: Tensor = (fine[right] + share * (fine[1] - fine[0])).exp()
    return quantiles


def i_squared(factors: Sequence[Natural], var: Tensor) -> Tensor:
    """Compute which part of the variance between sites' estimates is more than chance (Higgins and Thompson 2002).

    Args:
        factors: What each site's rows say; every site must know every weight by itself.
        var: The diagonal of T [P].

    Returns:
        τ²/(τ² + s²) for each weight [P], s² the typical variance of an estimate.
    """
    within = torch.stack([torch.linalg.inv(factor.precision.double()).diagonal() for factor in factors])
    w = 1 / within
    typical = (len(factors) - 1) * w.sum(0) / (w.sum(0) ** 2 - (w**2).sum(0))
    return var / (var + typical)


def as_dense(belief: Belief) -> Dense:
    """Write a belief by its precision.

    Args:
        belief: Moments, with a mean [P].

    Returns:
        The Gaussian.
    """
    return Dense(belief.mean, torch.cholesky_inverse(torch.linalg.cholesky(belief.var)))
