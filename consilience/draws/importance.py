"""Importance weights that say whether they can be believed.  Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 2024."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.key import Key

DOUBTFUL = 0.7  # k̂ from which means and variances of a few thousand draws are not to be believed
FEWEST = 5  # weights in a tail that a shape can be estimated from


class Smoothed(NamedTuple):
    """Weights whose largest were smoothed.

    Attributes:
        logs: Their logarithms [S]; the weights sum to 1.
        k: k̂, the shape of the tail; a mean exists below 1 and a variance below ½.
    """

    logs: Tensor
    k: float

    @property
    def effective(self) -> float:
        """How many equal weights are worth as much."""
        return float(1 / (2 * self.logs).exp().sum())


def smooth(logs: Tensor) -> Smoothed:
    """Replace the largest weights by the quantiles of a generalised Pareto distribution fitted to them.

    Args:
        logs: Logarithms of weights up to a constant [S].
    """
    logs = logs.double() - logs.double().max()
    count = len(logs)
    tail = min(count // 5, math.ceil(3 * math.sqrt(count)))
    k = math.inf
    if tail >= FEWEST:
        order = logs.argsort()
        largest = order[-tail:]
        cut = max(float(logs[order[-tail - 1]]), math.log(torch.finfo(torch.float64).tiny))
        beyond = logs[largest].exp() - math.exp(cut)
        k = -math.inf
        if float(beyond[-1]) > 1e-12:  # else the weights are equal
            k, scale = fit_pareto(beyond.clamp(min=0))
            if math.isfinite(k):
                at = (torch.arange(tail).double() + 0.5) / tail
                smoothed = (_quantile(at, k, scale) + math.exp(cut)).log()
                logs = logs.clone()
                logs[largest] = smoothed.clamp(max=0)
    return Smoothed(logs - torch.logsumexp(logs, 0), k)


def fit_pareto(x: Tensor) -> tuple[float, float]:
    """Fit a generalised Pareto distribution.  Zhang and Stephens, Technometrics 2009.

    Args:
        x: Excesses, the smallest first.

    Returns:
        Its shape, drawn a little towards ½, and its scale.
    """
    n = len(x)
    m = 30 + int(math.sqrt(n))
    quarter = float(x[int(n / 4 + 0.5) - 1].clamp(min=1e-300))
    inverse = 1 - (m / (torch.arange(m).double() + 0.5)).sqrt()
    inverse = inverse / (3 * quarter) + 1 / x[-1]
    shapes = torch.log1p(-inverse.unsqueeze(1) * x).mean(1)
    heights = n * ((-inverse / shapes).log() - shapes - 1)
    weights = torch.softmax(heights.nan_to_num(-math.inf), 0)
    best = float((inverse * weights).sum())
    k = float(torch.log1p(-best * x).mean())
    scale = -k / best
    return (n * k + 5) / (n + 10), scale


def _quantile(p: Tensor, k: float, scale: float) -> Tensor:
    if abs(k) < 1e-12:
        return -scale * torch.log1p(-p)
    return scale * torch.expm1(-k * torch.log1p(-p)) / k


def resample(logs: Tensor, count: int, key: Key) -> Tensor:
    """Choose rows by their weights, each as often as its weight says, but for a fraction (systematic sampling).

    Args:
        logs: Logarithms of weights that sum to 1 [S].

    Returns:
        Row numbers in a random order [count].
    """
    start = key.fold(0).uniform(1, logs)
    places = (torch.arange(count).to(logs) + start) / count
    rows = torch.searchsorted(logs.exp().cumsum(0), places).clamp(max=len(logs) - 1)
    return rows[key.fold(1).permutation(count)]
