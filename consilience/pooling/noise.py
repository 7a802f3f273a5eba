"""The observation noise of a model whose weights are an average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience.likelihood import LOG_NOISE, bound
from consilience.posterior import P, Point, average


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
