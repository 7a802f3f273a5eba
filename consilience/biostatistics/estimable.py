"""Which effects rows tell: what a statistician finds as NA, or beside a warning of probabilities of 0 or 1."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense

KNOWN = 1e-6  # of a contrast's length that may lie where a site's rows say nothing
FIRM = 0.08  # of a prior's variance, below which rows tell an effect: separation leaves more up to log-odds of 11
WIDEST = 4.0  # variance of a prior that counts as so wide: after few rounds separation is not where a wider one ends
WHY = (
    "The rows that were fitted on say nothing of it: a column or level that no row has, that is constant (for hazards, "
    "at each site), that depends on others, or that separates the outcomes."
)


def is_informed(rows: Tensor, information: Tensor) -> Tensor:
    """Say which combinations of weights a likelihood says something of.

    Weights are brought to one scale first, so that a column in small units is not taken for one that says nothing.

    Args:
        rows: The combinations [E, P].
        information: The likelihood's precision [P, P].

    Returns:
        The answers [E].
    """
    rounding = max(KNOWN, 1000 * torch.finfo(information.dtype).eps)
    information = information.double()
    own = information.diagonal()
    present = own > KNOWN * own.max().clamp(min=1e-300)
    scale = torch.where(present, own, 1.0).sqrt()
    scaled = (information + information.T) / 2 / (scale.unsqueeze(1) * scale)
    scaled = scaled * (present.unsqueeze(1) & present)
    values, vectors = torch.linalg.eigh(scaled)
    wanted = rows / scale
    seen = wanted @ vectors[:, values > rounding * values.max().clamp(min=1e-300)]
    known: Tensor = wanted.norm(dim=1) - seen.norm(dim=1) <= rounding * wanted.norm(dim=1)
    return known


def without_constants(rows: Tensor, places: Tensor, information: Tensor) -> Tensor:
    """Take intercepts where columns that are the same in all rows are left out, as R does: they are in the intercept.

    Args:
        rows: The intercepts as combinations of the weights [E, P].
        places: Where the outputs' weights stand, their bias last [C, D + 1].
        information: The likelihood's precision [P, P].

    Returns:
        The combinations at these columns' own value.
    """
    rounding = max(KNOWN, 1000 * torch.finfo(information.dtype).eps)
    information = information.double()
    rows = rows.clone()
    for bias, weights in zip(places[:, -1], places[:, :-1], strict=True):
        level = information[bias, weights] / information[bias, bias].clamp(min=1e-300)
        varies = information[weights, weights] - level**2 * information[bias, bias]
        constant = varies <= rounding * information[weights, weights]
        rows[:, weights] = torch.where(constant, level * rows[:, bias].unsqueeze(1), rows[:, weights])
    return rows


def is_firm(rows: Tensor, pooled: Dense, prior: Dense) -> Tensor:
    """Say which effects all rows tell together, though no site may: a level with one outcome here, the other there.

    Where outcomes are separated, a part 1/(1 + t) of the prior's variance is left, t the log-odds that are reached.

    Args:
        rows: The effects as combinations of the weights [E, P].
        pooled: The Gaussian of all sites together; a learned log-noise comes last.

    Returns:
        The answers [E].
    """
    count = rows.shape[1]
    before = (rows**2 / prior.precision.diagonal().double().clamp(min=1 / WIDEST)).sum(1)
    wide = torch.nn.functional.pad(rows, (0, len(pooled.mean) - count))
    covariance = torch.linalg.solve(pooled.precision, wide.T)[:count]
    firm: Tensor = (rows.T * covariance).sum(0) < FIRM * before
    return firm
