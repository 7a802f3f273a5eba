"""Mixed models of numbers: what a site's sums say about its weights, and the noise by the marginal likelihood.

With a flat prior and no penalty on τ, `fit_variances` is REML, as `statsmodels` and `lme4` have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.likelihood import FARTHEST
from consilience.distributions.posterior import Natural
from consilience.glm.derivatives import Quadratic, pack
from consilience.glm.hierarchy import population_of, stack
from consilience.glm.sums import Sums, add, square_matrix
from consilience.tree import Params

STEPS = 200  # of an optimiser over two or three numbers
POLISHING = 3  # Newton steps at its end
CLOSE = 1e-2  # how far such a step may go, in logarithms
FLAT = 1e-8  # of the largest curvature, added so that a variance at its end, where nothing curves, stays there
TELLING = 1e12  # times what is known of a weight before its rows: a search that goes beyond it has rounding alone


class Variances(NamedTuple):
    """The variances of a mixed model.

    Attributes:
        tau: The sites' standard deviations, for each group of weights [G].
        log_noise: The log-variance of an observation.
        log_evidence: The marginal likelihood there, up to a constant.
    """

    tau: Tensor
    log_noise: Tensor
    log_evidence: Tensor


def groups_of(layer: Params) -> Tensor:
    """Tell intercepts from slopes.

    Args:
        layer: Names and shapes of a linear layer's weights.

    Returns:
        0 for an intercept and 1 for a slope, in the order of `tree.ravel` [P]; 0 for all where there is no intercept.
    """
    groups = tree.ravel({name: torch.full_like(leaf, float(leaf.ndim > 1)) for name, leaf in layer.items()}).long()
    return groups - groups.min()


def factor_of(sums: Sums, layer: Params, log_noise: Tensor) -> Natural:
    """Write what a site's rows say about its weights.

    Args:
        sums: Over the site's rows.
        layer: Names and shapes of the linear layer's weights.
        log_noise: The log-variance of an observation.

    Returns:
        Σ yφ/σ² and Σ φφᵀ/σ², in the order of `tree.ravel`.
    """
    count = sum(leaf.numel() for leaf in layer.values())
    places = pack(tree.unravel(torch.arange(count), layer))
    outputs, width = places.shape
    skip = sums.features - width
    gram = square_matrix(sums.gram.double(), sums.features)[skip:, skip:]
    order = places.long().flatten().argsort()
    matrix = torch.block_diag(*[gram] * outputs)[order][:, order]
    linear = sums.cross.double()[:, skip:].flatten()[order]
    return Natural(linear / log_noise.exp(), matrix / log_noise.exp())


def log_evidence(
    factors: tuple[Tensor, Tensor], totals: Sums, var: Tensor, log_noise: Tensor, prior: Natural
) -> Tensor:
    """Evaluate how well variances explain the sites' numbers.

    Args:
        factors: Σ φφᵀ [K, P, P] and Σ yφ [K, P, 1] of the sites.
        totals: The sums over all sites.
        var: The diagonal of T [P].
        log_noise: The log-variance of an observation.
        prior: What is believed of μ before.

    Returns:
        log p(y | T, σ²), up to a constant.
    """
    noise = log_noise.exp()
    precision, linear = factors
    found = population_of(precision / noise, linear / noise, var, prior)
    numbers = totals.counts.sum() * len(totals.cross)
    return found.log_evidence - 0.5 * (numbers * log_noise + totals.square.sum() / noise)


def fit_variances(
    sums: Sequence[Sums],
    layer: Params,
    prior: Natural,
    scale: Tensor | None = None,
    noise_prior: Quadratic | None = None,
) -> Variances:
    """Maximise the marginal likelihood over the sites' variances and the noise.

    Args:
        layer: Names and shapes of the linear layer's weights.
        prior: What is believed of μ before.
        scale: The standard deviation of the half-normal prior of each τ [G]; None: no penalty, as in REML.
        noise_prior: That over the log-noise, if any.
    """
    groups = groups_of(layer)
    totals = add(sums)
    unit = torch.zeros((), dtype=torch.float64)
    factors = stack([factor_of(part, layer, unit) for part in sums])  # once: the noise divides them all alike
    mean_square = totals.square.sum() / (totals.counts.sum() * len(totals.cross))
    first = [torch.tensor(math.log(0.3), dtype=torch.float64)] * (int(groups.max()) + 1)
    start = torch.stack([*first, mean_square.clamp(min=1e-12).log() - 1])

    most = math.log(TELLING) - factors[0].diagonal(dim1=1, dim2=2).sum(1).max().clamp(min=1e-300).log()

    def objective(numbers: Tensor) -> Tensor:
        log_noise = numbers[-1].clamp(-FARTHEST, FARTHEST)
        taus = numbers[:-1].minimum((most + log_noise) / 2).clamp(min=-FARTHEST / 2).exp()
        value = log_evidence(factors, totals, (taus**2)[groups], log_noise, prior)
        if scale is not None:
            value = value - 0.5 * ((taus / scale.double()) ** 2).sum()
        if noise_prior is not None:
            value = value - noise_prior.value(numbers[-1])
        return -value

    found = _minimise(objective, start)
    return Variances(found[:-1].exp(), found[-1].clamp(-FARTHEST, FARTHEST), -objective(found))


def _minimise(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """A quasi-Newton search, then Newton's steps: a search by values ends at the square root of rounding."""
    numbers = start.detach().clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [numbers], max_iter=STEPS, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimiser.zero_grad()
        loss = objective(numbers)
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        optimiser.step(closure)
    found = numbers.detach()
    for _ in range(POLISHING):
        gradient, hessian = _derivatives(objective, found)
        flat = FLAT * hessian.diagonal().abs().max() * torch.eye(len(found), dtype=found.dtype)
        root, failed = torch.linalg.cholesky_ex(hessian + flat)
        if failed:
            break
        step = torch.cholesky_solve(gradient.unsqueeze(1), root).squeeze(1)
        if float(step.norm()) > CLOSE:  # not near a minimum: the search has said what it can
            break
        found = found - step
    return found


def _derivatives(objective: Callable[[Tensor], Tensor], place: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian, a line at a time: for two or three numbers in a third of the time of a `vmap`."""
    numbers = place.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(objective(numbers), numbers, create_graph=True)
        lines = [torch.autograd.grad(part, numbers, retain_graph=True)[0] for part in gradient]
    return gradient.detach(), torch.stack(lines)
