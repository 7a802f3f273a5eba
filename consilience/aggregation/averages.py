"""Rules in place of the weighted mean: a noise pooled as a variance, and rules that no single client decides.

The latter are the coordinate-wise median and trimmed mean of weights (Yin et al., ICML 2018), and a cap on what one
client claims to know. They do not look at sizes: a client that lies about its weights can lie about its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.likelihood import LOG_NOISE, bound
from consilience.distributions.posterior import Dense, Gaussian, P, Point, average

Average: TypeAlias = Callable[[Sequence[Any], Tensor], Any]

TRIM = 0.2  # share of the clients that is cut at either end, at least one


def pooled_variance(posteriors: Sequence[P], weights: Tensor) -> P:
    """Average weights, and the learned noise as the variance it is: σ² = Σ wₖ σₖ², the pooled variance of statistics.

    `average` takes the mean of log σₖ², and so the geometric mean of the variances: a few sites that fit their own rows
    closely make it far too small for everyone's. What sites do not know, how far their models are from each other's
    rows, this leaves out too.

    Args:
        posteriors: One a client; points have a noise that is learned, where the task learns one.
        weights: One number a client [K]; normalised here.

    Returns:
        The average, with this noise where one is learned.
    """
    mean = average(posteriors, weights)
    if not isinstance(mean, Point) or LOG_NOISE not in mean.params:
        return mean
    logs = torch.stack([bound(posterior.params[LOG_NOISE]) for posterior in posteriors if isinstance(posterior, Point)])
    shares = (weights / weights.sum()).to(logs)
    noise = torch.logsumexp(logs + shares.log().unsqueeze(-1), 0)
    return Point({**mean.params, LOG_NOISE: noise})


def median(posteriors: Sequence[P], weights: Tensor) -> P:
    """Take the median of every weight; fewer than half of the clients cannot move it beyond the others.

    Args:
        posteriors: One a client, of one kind.
        weights: Not looked at: every client counts the same.

    Returns:
        The medians, leaf by leaf.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.posterior import Point
        >>> sites = [Point({"w": torch.tensor([w])}) for w in (1.0, 2.0, 900.0)]
        >>> co.aggregation.median(sites, torch.ones(3) / 3).params["w"].item()
        2.0
    """

    def middle(*leaves: Tensor) -> Tensor:
        values = torch.stack(leaves).sort(0).values
        return (values[(len(leaves) - 1) // 2] + values[len(leaves) // 2]) / 2

    return cast(P, tree.map(middle, *posteriors))


def trimmed(posteriors: Sequence[P], weights: Tensor) -> P:
    """Average every weight without the highest and the lowest fifth of the clients, at least one at either end.

    Args:
        posteriors: One a client, of one kind; of one or two nothing is cut.
        weights: Not looked at: every client counts the same.

    Returns:
        The trimmed means, leaf by leaf.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.posterior import Point
        >>> sites = [Point({"w": torch.tensor([w])}) for w in (-900.0, 1.0, 3.0, 5.0, 900.0)]
        >>> round(co.aggregation.trimmed(sites, torch.ones(5) / 5).params["w"].item(), 3)
        3.0
    """
    count = len(posteriors)
    cut = 0
    if count > 2:
        cut = max(1, int(TRIM * count))

    def mean(*leaves: Tensor) -> Tensor:
        return torch.stack(leaves).sort(0).values[cut : count - cut].mean(0)

    return cast(P, tree.map(mean, *posteriors))


def cap_evidence(factors: Sequence[Any], prior: Gaussian | Dense, most: float) -> list[Any]:
    """Let no client claim to know more than some times what the median client claims.

    What a client's data add to the prior's precision is what it claims to know, measured by its trace. A claim that is
    too large is tempered: the likelihood p(Dₖ | θ) is raised to the power that brings it down to the cap.

    Args:
        factors: The clients' posteriors p(θ | Dₖ), each with the prior in it.
        prior: p(θ), of the same kind.
        most: How many times the median client's claim is allowed.

    Returns:
        The posteriors, those within the cap as they are.
    """
    claims = torch.stack([_claim(factor, prior) for factor in factors])
    ordered = claims.sort().values
    cap = most * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    capped = []
    for factor, claim in zip(factors, claims, strict=True):
        power = 1.0
        if claim > cap > 0:
            power = float(cap / claim)
        capped.append(_temper(factor, prior, power))
    return capped


def _claim(factor: Any, prior: Any) -> Tensor:
    """The trace of what data added to the prior's precision."""
    if isinstance(factor, Dense):
        added: Tensor = factor.precision - prior.precision
        return added.diagonal().double().sum()
    parts = [(1 / var - 1 / prior.var[name]).double().sum() for name, var in factor.var.items() if name in prior.var]
    return torch.stack(parts).sum()


def _temper(factor: Any, prior: Any, power: float) -> Any:
    """p(θ) p(Dₖ | θ)^power, by what adds when densities multiply."""
    if power == 1:
        return factor
    if isinstance(factor, Dense):
        precision = power * factor.precision + (1 - power) * prior.precision
        linear = power * factor.precision @ factor.mean + (1 - power) * prior.precision @ prior.mean
        return Dense(torch.linalg.solve(precision, linear), precision)
    mean = dict(factor.mean)
    var = dict(factor.var)
    for name in factor.var.keys() & prior.var.keys():
        own = power / factor.var[name]
        rest = (1 - power) / prior.var[name]
        var[name] = 1 / (own + rest)
        mean[name] = var[name] * (own * factor.mean[name] + rest * prior.mean[name])
    return Gaussian(mean, var)
