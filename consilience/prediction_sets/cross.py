"""Prediction sets from folds: every row trains, and every row calibrates the model that was fitted without its fold.

CV+ (Barber et al. 2021; for classes Romano, Sesia and Candès 2020), with scores sᵢ of the n rows by the models of the
F folds without them, and α the miss rate:

    classes     y is in the set where  Σᵢ 1{sᵢ < s₋f₍ᵢ₎(x, y)} < (1 − α)(n + 1)
    numbers     from the ⌊α(n + 1)⌋-th smallest of μ₋f₍ᵢ₎(x) − σ₋f₍ᵢ₎(x) sᵢ to the ⌈(1 − α)(n + 1)⌉-th of μ + σ s

Covered are at least 1 − 2α − min{2(1 − 1/F)/(n/F + 1), (1 − F/n)/(F + 1)} of rows like all others; 1 − α is usual, and
not promised. Scores are counted on a grid, fold by fold, so that tables of sites add up; rounding up enlarges sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.prediction_sets.coverage import rank
from consilience.prediction_sets.nonconformity import Score, class_scores, mean_and_deviation

ROWS = 64  # of which intervals are found at once: each has as many ends as there are cells


class CrossGuarantee(NamedTuple):
    """What folds promise, and what their sets are found from.

    Attributes:
        level: 1 − α, what is usually covered; see `promised` for what always is.
        score: Which score.
        edges: The grid [G].
        tables: Counts of the scores of each fold's rows by the model without them [F, G + 1].
    """

    level: float
    score: Score
    edges: Tensor
    tables: Tensor

    @property
    def rows(self) -> int:
        """How many rows there are in all folds."""
        return int(self.tables.sum())

    @property
    def promised(self) -> float:
        """The share of rows that is covered for certain, on average over all rows; at least 0."""
        folds = len(self.tables)
        n = self.rows
        lost = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
        return max(1 - 2 * (1 - self.level) - lost, 0.0)

    def __str__(self) -> str:
        return (
            f"At least {100 * self.promised:.1f} % of rows are covered, if all sites' rows, and the new ones, are "
            f"alike; usually it is about {100 * self.level:g} %, which is not promised."
        )


def check_folds(level: float, rows: int, folds: int) -> None:
    """Refuse folds from which nothing can be promised.

    Args:
        level: 1 − α.

    Raises:
        InputError: It is not a level, or there are too few rows or folds.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not between 0 and 1: write for example 0.9.")
    if not 2 <= folds <= rows:
        raise InputError(f"folds={folds}: write a number from 2 to the number of rows, {rows:,}.")
    if rank(level, rows) > rows:
        raise InputError(f"{rows:,} rows are too few for sets of {100 * level:g} %: lower the level.")


def cross_sets(guarantee: CrossGuarantee, models: Sequence[Categorical], u: Tensor) -> Tensor:
    """Find the classes that a row may be of.

    Args:
        guarantee: What the folds counted.
        models: What the model of each fold predicts for N rows.
        u: A uniform number for each row [N], for scores with a random part.

    Returns:
        Whether each class is in the set [N, C].
    """
    below = torch.cat([torch.zeros(len(guarantee.tables), 1, dtype=torch.int64), guarantee.tables.cumsum(1)], 1)
    smaller = torch.zeros(models[0].log_probs.shape, dtype=torch.int64)
    for counts, p in zip(below, models, strict=True):
        edges_below = torch.searchsorted(guarantee.edges, class_scores(guarantee.score, p, u))
        smaller += counts[edges_below]
    return smaller < rank(guarantee.level, guarantee.rows)  # whole numbers: below ⌈q⌉ just where they are below q


def cross_intervals(guarantee: CrossGuarantee, models: Sequence[Normal]) -> tuple[Tensor, Tensor]:
    """Find the interval that a row's number lies in.

    Args:
        guarantee: What the folds counted.
        models: What the model of each fold predicts for N rows, on the scale that the network sees.

    Returns:
        The lower and the upper end [N] in float64.
    """
    steps = torch.cat([guarantee.edges, torch.tensor([math.inf], dtype=torch.float64)])
    used = guarantee.tables.sum(0) > 0
    weights = guarantee.tables[:, used].flatten()
    upper = rank(guarantee.level, guarantee.rows)
    pairs = [mean_and_deviation(p) for p in models]
    means = torch.stack([mean for mean, _ in pairs], 1)  # [N, F]
    reaches = torch.stack([deviation for _, deviation in pairs], 1).unsqueeze(2) * steps[used]
    ends = []
    for sign in (-1, 1):  # the lower end is the upper one of −y
        parts = [
            _weighted_rank((sign * mean.unsqueeze(2) + reach).flatten(1), weights, upper)
            for mean, reach in zip(means.split(ROWS), reaches.split(ROWS), strict=True)
        ]
        ends.append(sign * torch.cat(parts))
    return ends[0], ends[1]


def _weighted_rank(values: Tensor, weights: Tensor, place: int) -> Tensor:
    """The smallest value of each line [N, M] up to which weights [M] add up to a place."""
    ordered, order = values.sort(1)
    enough = weights[order].cumsum(1) >= place
    first = enough.int().argmax(1, keepdim=True)
    return ordered.gather(1, first).squeeze(1)
