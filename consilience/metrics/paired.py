"""Differences between two rows of a table, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are used

from consilience.errors import InputError

SKEWED = 1.0  # skewness that 8 % of tens of Normals reach, 61 % of tens of lognormals, and all with one far outlier
SEEDS = 6  # with five the smallest two-sided p is 2/2⁵ = 0.0625


class Difference(NamedTuple):
    """The difference a − b over pairs.

    Attributes:
        mean: Its mean.
        low: The lower end of the mean's 95 % t interval.
        high: The upper end.
        n: How many pairs there are.
        p: Two-sided, of Wilcoxon's signed-rank test; of the t interval where splits overlap.
        median: Its median.
        negative: In how many pairs a is smaller.
        skewed: Whether they lean to one side, so that the interval of the mean covers less often than it says.
    """

    mean: float
    low: float
    high: float
    n: int
    p: float
    median: float = math.nan
    negative: int = 0
    skewed: bool = False


def difference(a: Sequence[float], b: Sequence[float], overlap: float = 0.0) -> Difference:
    """Compare scores over paired seeds; one pair alone says nothing: the interval is the whole line and p is 1.

    Seeds that split one table anew share most of their rows, so that their scores are not independent, and the variance
    of their mean is not s²/n. Nadeau and Bengio (Machine Learning 2003) estimate it by s² (1/n + test rows / training
    rows); intervals and p then come from that.

    Args:
        a: One score a seed.
        b: Scores of the same seeds, in the same order.
        overlap: Test rows / training rows, where every seed splits the same table anew; 0 where the test rows are the
            same for all seeds or new for each.

    Returns:
        The difference a − b.

    Raises:
        InputError: If seeds are missing, or scores are not finite.

    Example:
        >>> import consilience as co
        >>> found = co.metrics.difference([0.31, 0.35, 0.33], [0.36, 0.41, 0.40])
        >>> round(found.mean, 3)
        -0.06
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
        error = float(d.std(ddof=1)) * math.sqrt(1 / n + overlap)
        half = float(scipy.special.stdtrit(n - 1, 0.975)) * error
    if n > 1 and overlap:
        p = _student(mean, error, n)
    else:
        p = _signed_rank(d[d != 0])
    median = float(np.median(d))
    return Difference(mean, mean - half, mean + half, n, p, median, int((d < 0).sum()), _is_skewed(d))


def _student(mean: float, error: float, n: int) -> float:
    """The two-sided p of a mean with its standard error."""
    if error == 0:
        return float(mean == 0)
    return 2 * float(scipy.special.stdtr(n - 1, -abs(mean) / error))


def _is_skewed(d: npt.NDArray[np.float64]) -> bool:
    """Whether the differences lean to one side: a long tail, or one run that diverged."""
    away = d - d.mean()
    var = float((away**2).mean())
    return len(d) > 2 and float(np.ptp(d)) > 0 and abs(float((away**3).mean())) > SKEWED * var**1.5


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's method.

    Returns:
        The adjusted ones, in the same order.

    Example:
        >>> import consilience as co
        >>> co.metrics.holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
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
