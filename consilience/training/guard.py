"""Whether training exploded: weights can stay finite while the loss they give is far above the one training began with.

Where the noise of a regression is learned, one step that is too long makes residuals large, the next makes the noise
immense, and there the weights stay, since immense noise explains anything and leaves no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.task import Task, mean_nll
from consilience.tree import Params

NATS = 0.5  # a row above the start, and above predicting 0: there training ends only if its steps are too long
ROWS = 8192  # passed at a time


def ends_above_start(task: Task, like: Params, start: Tensor, ends: Sequence[Tensor], data: Data) -> Tensor | None:
    """Compare the mean loss after training with the one before it and with that of predicting 0.

    Args:
        task: The target, of which the network and the likelihood count.
        like: Names and shapes of the weights.
        start: The weights before training, flat.
        ends: The weights after training, or samples, flat.
        data: The client's rows.

    Returns:
        Whether one of the ends is far above both, a scalar; None where the likelihood has no trivial loss, as for
        classes, whose gradients are bounded.
    """
    likelihood = task.likelihood
    if "trivial_nll" not in vars(type(likelihood)):
        return None
    trivial: Tensor = likelihood.trivial_nll(data.y, data.w)  # type: ignore[attr-defined]
    worst = torch.stack([_loss(task, like, end, data) for end in ends]).amax(0)  # NaN stays NaN
    above = ~(worst <= trivial + NATS)
    if not bool(tree.below(above).any()):
        return above
    return above & ~(worst <= _loss(task, like, start, data) + NATS)


def _loss(task: Task, like: Params, vector: Tensor, data: Data) -> Tensor:
    """The mean negative log-likelihood of all rows."""
    params = tree.unravel(vector, like)
    losses = [
        task.likelihood.nll(task.outputs(params, x), y, params)
        for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True)
    ]
    return mean_nll(torch.cat(losses), data.w)
