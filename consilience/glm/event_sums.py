"""Derivatives of counts and of times to an event that add up over sites.

B [1, K] is the one row of weights of a log-rate or a log-hazard. A site's derivatives by a partial likelihood are those
of its own risk sets, so their sum over sites is that of the likelihood stratified by site.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.cox import order_times
from consilience.distributions.poisson import read_counts
from consilience.glm.derivatives import Derivatives, Quadratic, Search, newton_step, sum_up, triangle, with_one
from consilience.glm.sums import in_chunks

HALF = 0.5  # added to counts before their logarithm is taken, for a first guess of their rates


def differentiate_counts(
    features: Callable[[Tensor], Tensor], data: Data, weights: Tensor | None, bias: bool = True
) -> Derivatives:
    """Add up the derivatives of a Poisson with a logarithmic link, a chunk of rows at a time.

    Args:
        features: From rows to φ without its leading 1.
        data: The rows; padding has weight 0.
        weights: B [1, K]; None for the first round, where each rate is guessed from the row's own count.
        bias: Whether the layer has one; looked at in the first round.

    Returns:
        The sums. Of the first round, the loss is that at B = 0 and the others are those of the least squares whose
        solution is the first step of iteratively reweighted least squares.
    """
    totals = sum_up([_differentiate_counts(features(part.x), part, weights, bias) for part in in_chunks(data)])
    return totals._replace(curvature=triangle(totals.curvature))


def _differentiate_counts(phi: Tensor, part: Data, weights: Tensor | None, bias: bool) -> Derivatives:
    w = part.w.double()
    count, log_exposure = read_counts(part.y, w)
    if weights is None:
        phi = phi.double()
        if bias:
            phi = torch.cat([torch.ones_like(phi[:, :1]), phi], 1)
        guess = count + HALF
        log_rate = guess.log()
        slope = -guess * (log_rate - log_exposure + (count - guess) / guess)  # of the least squares, at 0
        rate = guess
        rate_at_zero = log_exposure.exp()
        loss = rate_at_zero - count * log_exposure + torch.lgamma(count + 1)
    else:
        phi = with_one(phi, weights)
        log_rate = (phi @ weights.mT).squeeze(1) + log_exposure
        rate = log_rate.exp()
        slope = rate - count
        loss = rate - count * log_rate + torch.lgamma(count + 1)
    return Derivatives((w * loss).sum(), ((w * slope).unsqueeze(0) @ phi), phi.mT @ ((w * rate).unsqueeze(1) * phi))


def differentiate_times(features: Callable[[Tensor], Tensor], data: Data, weights: Tensor | None) -> Derivatives:
    """Compute the derivatives of a site's log partial likelihood, with Efron's ties.

    The sums over risk sets are turned around: row j adds hⱼ φⱼφⱼᵀ once, times what its hazard counted in all risk sets.

    Args:
        features: From rows to φ.
        data: All rows of the site.
        weights: B [1, D]; None for 0.

    Returns:
        Its value, gradient and Hessian, negated.
    """
    phi = torch.cat([features(part.x).double() for part in in_chunks(data)])
    if weights is None:
        weights = phi.new_zeros(1, phi.shape[1])
    order = order_times(data.y.double() * (data.w > 0).double().unsqueeze(1))
    phi = phi[order.rows]
    event = order.event
    log_hazard = (phi @ weights.mT).squeeze(1)
    shift = log_hazard.max()
    hazard = (log_hazard - shift).exp()

    def sum_ties(values: Tensor) -> Tensor:
        return torch.zeros_like(values).index_add(0, order.first, values)[order.first]

    share = order.share
    column = share.unsqueeze(1)
    pull = hazard.unsqueeze(1) * phi
    at_risk = hazard.cumsum(0)[order.last] - share * sum_ties(event * hazard)  # s₀ of every event
    means = pull.cumsum(0)[order.last] - column * sum_ties(event.unsqueeze(1) * pull)
    means = means / at_risk.unsqueeze(1)  # s₁ / s₀
    inverse = event / at_risk
    later = inverse.flip(0).cumsum(0).flip(0)  # over events no later than a row: rows are in descending order
    counted = later[order.first] - event * sum_ties(share * inverse)
    loss = (event * (at_risk.log() + shift - log_hazard)).sum()
    gradient = (event.unsqueeze(1) * (means - phi)).sum(0, keepdim=True)
    hessian = phi.mT @ ((counted * hazard).unsqueeze(1) * phi) - (event.unsqueeze(1) * means).mT @ means
    return Derivatives(loss, gradient, triangle((hessian + hessian.mT) / 2))


def weigh_at_risk(phi: Tensor, data: Data, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Find how much each row counts in the derivatives of a partial likelihood, whose ties are Breslow's here.

    Args:
        phi: φ of all rows of the site [N, D].
        weights: B [1, D]; None for 0.

    Returns:
        Its hazard, times what it counted in all risk sets: the weight of φφᵀ [N]; and that less its event, of φ [N].
    """
    order = order_times(data.y.double() * (data.w > 0).double().unsqueeze(1))
    hazard = torch.ones(len(phi), dtype=torch.float64)
    if weights is not None:
        log_hazard = (phi.double()[order.rows] @ weights.mT).squeeze(1)
        hazard = (log_hazard - log_hazard.max()).exp()
    inverse = order.event / hazard.cumsum(0)[order.last]
    counted = hazard * inverse.flip(0).cumsum(0).flip(0)[order.first]
    own = torch.zeros_like(counted).index_copy(0, order.rows, counted)
    return own, own - data.y[:, 1].double()


def begin_search(totals: Derivatives, prior: Quadratic, size: Tensor) -> Search:
    """Start at B = 0 with the derivatives of the first round.

    Args:
        totals: The sums of all sites.
        size: How many rows there are.
    """
    zero = torch.zeros_like(prior.mean)
    gradient = totals.gradient + prior.gradient(zero)
    value = totals.loss + prior.value(zero)
    nothing = zero.new_zeros(0)
    none = zero.new_zeros(0, *zero.shape)
    search = Search(
        zero, value, gradient, totals.curvature, zero, gradient.norm(), size, nothing, nothing, none, none
    )  # fmt: skip
    return search._replace(step=newton_step(search, prior))
