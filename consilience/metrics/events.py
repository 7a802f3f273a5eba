"""Scores of counts and of times to an event, each a function of how often each row counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.curves import log_log_interval, sum_times
from consilience.distributions.survival import Survival
from consilience.metrics.calibration import inside

Score: TypeAlias = Callable[[Any, Tensor, Tensor], Tensor]  # distribution, labels, counts [N, B] → score [B]
PAIRS = 4_000_000  # of rows that are compared at a time
GROUPS = 5  # of rows by their predicted risk


class RiskGroup(NamedTuple):
    """Rows with similar predicted risks by a horizon.

    Attributes:
        rows: How many there are.
        predicted: The mean predicted risk of an event by then.
        observed: The share that had one, by Kaplan and Meier.
        interval: Its 95 % interval.
    """

    rows: int
    predicted: float
    observed: float
    interval: tuple[float, float]


def mean_over(values: Tensor, counts: Tensor) -> Tensor:
    """Average over the rows drawn; an infinite row counts only where it was drawn.

    Args:
        values: Of every row [N].
        counts: How many times row i is there in resample b [N, B].

    Returns:
        The means [B].
    """
    infinite = values.isinf()
    mean = values.masked_fill(infinite, 0) @ counts / counts.sum(0)
    return torch.where(infinite.double() @ counts > 0, math.inf, mean)


def concordance(p: Survival, y: Tensor, counts: Tensor) -> Tensor:
    """Compute Harrell's C: of two rows of which one is known to have its event first, how often its risk is larger.

    Args:
        p: Predictions of N rows.
        y: Times and events [N, 2].
        counts: How many times row i is there in resample b [N, B].

    Returns:
        The share of such pairs, equal risks counted half [B]; NaN where there is none.
    """
    time, event = y.unbind(1)
    risk = p.risk.double()
    seen = event.nonzero().flatten()
    pairs = torch.zeros(counts.shape[1], dtype=torch.float64)
    won = torch.zeros_like(pairs)
    for part in seen.split(max(1, PAIRS // max(len(y), 1))):
        own = time[part].unsqueeze(1)
        longer = ((time > own) | ((time == own) & (event == 0))).double()
        own_risk = risk[part].unsqueeze(1)
        right = (own_risk > risk).double() + 0.5 * (own_risk == risk).double()
        pairs += (counts[part] * (longer @ counts)).sum(0)
        won += (counts[part] * ((longer * right) @ counts)).sum(0)
    return won / pairs


def brier_curve(p: Survival, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the Brier score of every row at every time of the grid.

    Rows that were censored before a time are left out, and those like them count for them: weights are the inverse of
    the chance to be still seen, by Kaplan and Meier (Graf et al. 1999).

    Args:
        p: Predictions of N rows, on a baseline.
        y: Times and events [N, 2].

    Returns:
        The times at which somebody is still seen [M], and scores [N, M].
    """
    time, event = y.double().unbind(1)
    order = torch.unique(time)
    flipped = torch.stack([time, 1 - event], 1)
    at = sum_times(flipped, order)
    seen = (1 - at.events / at.at_risk.clamp(min=1)).cumprod(0)  # the chance not to be censored up to and with a time
    seen = torch.cat([torch.ones(1, dtype=torch.float64), seen])
    grid = p.times[0].double()
    inside = grid < time.max()
    grid = grid[inside]
    curves = p.curves[:, inside]
    before = seen[torch.searchsorted(order, time.contiguous())].clamp(min=1e-12)  # just before the row's own time
    by_then = seen[torch.searchsorted(order, grid, right=True)].clamp(min=1e-12)
    had = (time.unsqueeze(1) <= grid) * event.unsqueeze(1)
    alive = (time.unsqueeze(1) > grid).double()
    scores = had * curves**2 / before.unsqueeze(1) + alive * (1 - curves) ** 2 / by_then
    return grid, scores


def integrated_brier(p: Survival, y: Tensor, counts: Tensor) -> Tensor:
    """Average the Brier score over the grid's times.

    Args:
        p: Predictions of N rows, on a baseline.
        y: Times and events [N, 2].
        counts: How many times row i is there in resample b [N, B].

    Returns:
        The trapezoidal mean from the grid's first time to its last [B]; NaN without a baseline.
    """
    nothing = torch.full((counts.shape[1],), torch.nan, dtype=torch.float64)
    if not p.times.shape[1]:
        return nothing
    grid, scores = brier_curve(p, y)
    if not len(grid):
        return nothing
    means = scores.mT @ counts / counts.sum(0)
    if len(grid) == 1:
        return means[0]
    area: Tensor = torch.trapezoid(means, grid, dim=0)
    return area / (grid[-1] - grid[0])


def risk_groups(p: Survival, y: Tensor, horizon: float, groups: int = GROUPS) -> tuple[float, list[RiskGroup]]:
    """Hold predicted risks against what was seen by a horizon, in groups of equal size by their risk.

    Args:
        p: Predictions of N rows, on a baseline.
        y: Times and events [N, 2].
        horizon: The time; the grid's nearest is taken.

    Returns:
        The grid's time, and the groups, from the lowest risk up.
    """
    place = int((p.times[0].double() - horizon).abs().argmin())
    at = float(p.times[0, place])
    risk = 1 - p.curves[:, place]
    found = []
    for part in risk.argsort(stable=True).tensor_split(min(groups, len(risk))):
        survival, low, high = observed_survival(y[part], at)
        mean = float(risk[part].mean())
        found.append(RiskGroup(len(part), mean, 1 - survival, (1 - high, 1 - low)))
    return at, found


def observed_survival(y: Tensor, at: float) -> tuple[float, float, float]:
    """Estimate by Kaplan and Meier how many have had no event by a time.

    Args:
        y: Times and events [N, 2].

    Returns:
        The share and the ends of its 95 % interval.
    """
    times = torch.unique(y[y[:, 0] <= at, 0].double())
    if not len(times):
        return 1.0, 1.0, 1.0
    sums = sum_times(y.double(), times)
    at_risk = sums.at_risk.clamp(min=1)
    survival = (1 - sums.events / at_risk).cumprod(0)
    variance = (sums.events / (at_risk * (at_risk - sums.events).clamp(min=1e-12))).cumsum(0)
    low, high = log_log_interval(survival, variance)
    return float(survival[-1]), float(low[-1]), float(high[-1])


def _nll(p: Counts | Survival, y: Tensor, counts: Tensor) -> Tensor:
    return mean_over(-p.log_prob(y), counts)


def _rmse(p: Counts, y: Tensor, counts: Tensor) -> Tensor:
    return mean_over((y - p.mean) ** 2, counts).sqrt()


def _deviance(p: Counts, y: Tensor, counts: Tensor) -> Tensor:
    """Twice what a Poisson with the predicted mean lacks of one with the count itself as its mean."""
    mean = p.mean.clamp(min=1e-12)
    return mean_over(2 * (torch.special.xlogy(y, y / mean) - (y - mean)), counts)


def _coverage(level: float) -> Score:
    return lambda p, y, counts: mean_over(inside(p, y, level), counts)


OF_COUNTS: dict[str, Score] = {
    "rmse": _rmse,
    "nll": _nll,
    "deviance": _deviance,
    "coverage50": _coverage(0.5),
    "coverage80": _coverage(0.8),
    "coverage95": _coverage(0.95),
}
OF_TIMES: dict[str, Score] = {"concordance": concordance, "nll": _nll, "ibs": integrated_brier}
