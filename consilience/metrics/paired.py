"""Differences between two rows of a table, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from consilience.errors import InputError

SEEDS = 6  # with five the smallest two-sided p is 2/2⁵ = 0.0625


class Difference(NamedTuple):
    """The mean of a − b with its 95 % t interval, the number of pairs, and the two-sided Wilcoxon signed-rank p."""

    mean: float
    low: float
    high: float
    n: int
    p: float


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """a − b over paired seeds; one pair alone says nothing: the interval is the whole line and p is 1."""
    if len(a) != len(b) or len(a) == 0:
        raise InputError(
            f"Paired differences need the same seeds on both sides; there are {len(a)} and {len(b)} scores."
        )
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("Paired differences need finite scores; leave out the score that is infinite or undefined.")
    d = np.round(x - y, 12)  # so that 0.9 − 0.8 and 0.8 − 0.7 are equal again, and share a rank
    n, mean = len(d), float(d.mean())
    half = float(stats.t.ppf(0.975, n - 1)) * float(d.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Difference(mean, mean - half, mean + half, n, _signed_rank(d[d != 0]))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    adjusted, running = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = running
    return adjusted


def arrow(d: Difference, p_adjusted: float, better: int) -> str:
    """↑ for better and ↓ for worse, twice below 1 %; nothing above 5 %, below six seeds, or where neither is better."""
    if d.n < SEEDS or p_adjusted >= 0.05 or better * d.mean == 0:
        return ""
    return ("↑" if better * d.mean > 0 else "↓") * (2 if p_adjusted < 0.01 else 1)


def _signed_rank(d: npt.NDArray[np.float64]) -> float:
    """The exact two-sided p of Wilcoxon's test, ties included: every pattern of signs is equally likely."""
    ranks = np.rint(2 * stats.rankdata(np.abs(d))).astype(int)  # doubled, so that mid-ranks are integers
    chance = np.ones(1)  # of every sum of positive ranks
    for rank in ranks:
        chance = (np.pad(chance, (0, rank)) + np.pad(chance, (rank, 0))) / 2
    off_centre = np.abs(2 * np.arange(len(chance)) - ranks.sum())
    return min(1.0, float(chance[off_centre >= off_centre[ranks[d > 0].sum()]].sum()))
