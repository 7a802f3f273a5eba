"""Differences between two rows of a table, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are used

from consilience.errors import InputError

SEEDS = 6  # with five the smallest two-sided p is 2/2⁵ = 0.0625


class Difference(NamedTuple):
    """The difference a − b over pairs.

    Attributes:
        mean: Its mean.
        low: The lower end of the mean's 95 % t interval.
        high: The upper end.
        n: How many pairs there are.
        p: The two-sided p of Wilcoxon's signed-rank test.
    """

    mean: float
    low: float
    high: float
    n: int
    p: float


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare scores over paired seeds; one pair alone says nothing: the interval is the whole line and p is 1.

    Args:
        a: One score a seed.
        b: Scores of the same seeds, in the same order.

    Returns:
        The difference a − b.

    Raises:
        InputError: If seeds are missing, or scores are not finite.
    """
    if len(a) != len(b) or len(a) == 0:
        raise InputError(
            f"Paired differences need the same seeds on both sides; there are {len(a)} and {len(b)} scores."
        )
    x = np.asarray(a, dtype=float)
    y = np.asarray(b, dtype=float)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("Paired differences need finite scores; leave out the score that is infinite or undefined.")
    d = np.round(x - y, 12)  # so that 0.9 − 0.8 and 0.8 − 0.7 are equal again, and share a rank
    n = len(d)
    mean = float(d.mean())
    half = math.inf
    if n > 1:
        half = float(scipy.stats.t.ppf(0.975, n - 1)) * float(d.std(ddof=1)) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n, _signed_rank(d[d != 0]))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's method.

    Args:
        ps: The p values.

    Returns:
        The adjusted ones, in the same order.
    """
    adjusted = [0.0] * len(ps)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = running
    return adjusted


def arrow(d: Difference, p_adjusted: float, better: int) -> str:
    """Mark a difference that chance hardly explains.

    Args:
        d: The difference.
        p_adjusted: Its p, adjusted for the number of differences.
        better: +1 where higher is better, −1 where lower is, 0 for neither.

    Returns:
        ↑ for better and ↓ for worse, twice below 1 %; nothing above 5 %, below six seeds, or where neither is better.
    """
    if d.n < SEEDS or p_adjusted >= 0.05 or better * d.mean == 0:
        return ""
    mark = "↓"
    if better * d.mean > 0:
        mark = "↑"
    if p_adjusted < 0.01:
        return mark + mark
    return mark


def _signed_rank(d: npt.NDArray[np.float64]) -> float:
    """The exact two-sided p of Wilcoxon's test, ties included: every pattern of signs is equally likely."""
    ranks = np.rint(2 * scipy.stats.rankdata(np.abs(d))).astype(int)  # doubled, so that mid-ranks are integers
    chance = np.ones(1)  # of every sum of positive ranks
    for rank in ranks:
        chance = (np.pad(chance, (0, rank)) + np.pad(chance, (rank, 0))) / 2
    off_centre = np.abs(2 * np.arange(len(chance)) - ranks.sum())
    return min(1.0, float(chance[off_centre >= off_centre[ranks[d > 0].sum()]].sum()))
