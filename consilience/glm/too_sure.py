"""Where one round of Gaussians about classes is known to be too sure, by what a server sees."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense
from consilience.errors import SiteWarning
from consilience.glm.derivatives import pack
from consilience.glm.linear_model import classes_of, layer_of, weight_prior
from consilience.messages import Received
from consilience.models.maps import learns_last_layer
from consilience.task import Task

FEW = 10.0  # rows for each weight of an output, the median of the sites: below that intervals may be too narrow
STRONG_EFFECTS = (
    "Sites are small for their effects (about {rows:.1f} rows for each coefficient, log-odds of SD "
    "{size:.1f}): intervals from one round are too narrow there. Those for 95 % held {covered} in simulations with 20 "
    "sites of 25 rows and three such effects. Use glm, which needs no Gaussian of a site, or larger sites."
)
ONE_CLASS = (
    "its rows are of one class, or nearly: as one Gaussian they count for too little in the intercept. With 60 such "
    "rows beside 400 others it was -0.28 where all rows in one place have -0.49 ± 0.11. Use glm, whose rounds give the "
    "intercept of all rows, or leave this site's intercept unread."
)


class Known(NamedTuple):
    """What simulations said of a method's intervals where sites have few rows.

    Attributes:
        strong: The SD of log-odds from which they were too narrow.
        covered: How often those for 95 % held the truth, and of which log odds ratios.
    """

    strong: float
    covered: str


def warn_of_strong_effects(task: Task, replies: Sequence[Received], mean: Tensor, known: Known) -> None:
    """Warn of intervals that are known to be too narrow: few rows a site, and strong effects.

    Columns are taken to be on one scale, so that the size of coefficients says how far log-odds vary.

    Args:
        replies: What the sites sent; nothing is said where their rows are not known one by one.
        mean: The pooled weights, in the order of the task's.
        known: What simulations said of the method.
    """
    sizes = [float(reply.size) for reply in replies]
    if not learns_last_layer(task.model) or classes_of(task) is None or len(sizes) < 2 or min(sizes) <= 0:
        return
    layer = layer_of(task)
    weights = {name: leaf.double() for name, leaf in tree.unravel(mean[: _count(task)], layer).items()}
    slopes = torch.cat([leaf for leaf in weights.values() if leaf.ndim > 1], 1)
    rows = statistics.median(sizes) / pack(weights).shape[1]
    size = float(torch.pdist(slopes).max())  # the two classes whose log-odds vary most
    if rows < FEW and size > known.strong:
        warnings.warn(STRONG_EFFECTS.format(rows=rows, size=size, covered=known.covered), stacklevel=3)


def warn_of_one_class(task: Task, replies: Sequence[Received]) -> None:
    """Warn, by name, of sites whose rows are of one class: their likelihood has no mode, and no Gaussian is like it.

    Of rows of class c alone the gradient of its intercept, Σ(1 − p), is above the curvature, Σ p(1 − p); and at a mode
    the prior balances it. Of rows of several classes the curvature is far above.

    Args:
        replies: The sites' posteriors; nothing is said of sums of several.
    """
    if not learns_last_layer(task.model) or classes_of(task) is None or len(replies) < 2:
        return
    count = _count(task)
    prior = weight_prior(task)
    places = torch.cat([part.flatten() for part in _by_name(task) if part.ndim == 1])
    for reply in replies:
        said = reply.payload
        if not isinstance(said, Dense) or len(said.mean) != count or not len(places):
            continue
        known = prior.precision.diagonal()[places]
        push = known * (said.mean.double() - prior.mean)[places]
        bend = said.precision.double().diagonal()[places] - known
        if bool((push >= bend).any()) and float(push.max()) > math.sqrt(torch.finfo(said.mean.dtype).eps):
            warnings.warn(SiteWarning(reply.client, ONE_CLASS), stacklevel=3)


def _count(task: Task) -> int:
    return sum(leaf.numel() for leaf in layer_of(task).values())


def _by_name(task: Task) -> list[Tensor]:
    """Where each of the layer's weights stands among all."""
    return [*tree.unravel(torch.arange(_count(task)), layer_of(task)).values()]
