"""Whether training exploded: weights can stay finite while the loss they give is far above the one training began with.

Where the noise of a regression is learned, one step that is too long makes residuals large, the next makes the noise
immense, and there the weights stay, since immense noise explains anything and leaves no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import LOG_NOISE, SMALLEST, GaussianNoise, Heteroscedastic
from consilience.distributions.poisson import Poisson, read_counts
from consilience.task import Task, mean_nll
from consilience.tree import Params

ABOVE = 0.5  # nats a row, or of a log-variance: training ends so far above its start only if its steps are too long
ROWS = 8192  # passed at a time


def find_explosion(task: Task, like: Params, start: Tensor, ends: Sequence[Tensor], data: Data) -> Tensor | None:
    """Say whether training ended where no descent does.

    That is with a mean loss above the one before training and above that of predicting 0 (of counts, their mean), or
    with a learned noise above the one before training and above the targets' own variance around 0.

    Args:
        task: The target, of which the network and the likelihood count.
        like: Names and shapes of the weights.
        start: The weights before training, flat.
        ends: The weights after training, or samples, flat.

    Returns:
        Whether one of the ends is there, a scalar; None for classes, whose gradients are bounded.
    """
    if isinstance(task.likelihood, Poisson):
        loss = torch.stack([_loss(task, like, end, data) for end in ends]).amax(0)
        usual = torch.maximum(_constant_rate_loss(data), _loss(task, like, start, data))
        return ~(loss <= usual + ABOVE)
    if type(task.likelihood) not in (GaussianNoise, Heteroscedastic):
        return None
    log_var = _log_variances(data)
    loss = torch.stack([_loss(task, like, end, data) for end in ends]).amax(0)  # NaN stays NaN
    trivial = 0.5 * (1 + math.log(2 * math.pi) + log_var).sum()
    if isinstance(task.likelihood, GaussianNoise) and task.likelihood.noise is not None:
        trivial = _loss(task, like, torch.zeros_like(start), data)
    exploded = ~(loss <= trivial + ABOVE)
    if bool(tree.below(exploded).any()):
        exploded = exploded & ~(loss <= _loss(task, like, start, data) + ABOVE)
    if LOG_NOISE in like:
        noise = torch.stack([tree.unravel(end, like)[LOG_NOISE] for end in ends]).amax()
        usual = torch.maximum(tree.unravel(start, like)[LOG_NOISE].amax(), log_var.amax())
        exploded = exploded | ~(noise <= usual + ABOVE)
    return exploded


def _constant_rate_loss(data: Data) -> Tensor:
    """The mean negative log-likelihood of counts that all have one rate, the best."""
    count, log_exposure = read_counts(data.y, data.w)
    rate = (data.w @ count) / (data.w @ log_exposure.exp()).clamp(min=1e-12)
    constant = rate.clamp(min=SMALLEST).log().expand_as(count)
    return mean_nll(Poisson().nll(constant, data.y, {}), data.w)


def _log_variances(data: Data) -> Tensor:
    """Of each target, around 0."""
    squares = (data.y * data.y).reshape(len(data.y), -1)
    return ((data.w @ squares) / data.w.sum().clamp(min=1e-12)).clamp(min=SMALLEST).log()


def _loss(task: Task, like: Params, vector: Tensor, data: Data) -> Tensor:
    """The mean negative log-likelihood of all rows."""
    params = tree.unravel(vector, like)
    losses = [
        task.likelihood.nll(task.outputs(params, x), y, params)
        for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True)
    ]
    return mean_nll(torch.cat(losses), data.w)
