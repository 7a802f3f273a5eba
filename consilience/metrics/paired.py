"""Differences between two rows of a table, paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from consilience.errors import InputError

SEEDS = 6  # with five the smallest two-sided p is 2/2⁵ = 0.0625
_ENUMERATED = 2**13  # sign patterns listed when ties rule out the tabulated distribution


class Difference(NamedTuple):
    """The mean of a − b with its 95 % t interval, the number of pairs, and the two-sided Wilcoxon signed-rank p."""

    mean: float
    low: float
    high: float
    n: int
    p: float


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """a − b over paired seeds; one pair alone says nothing: the interval is the whole line and p is 1."""
    if len(a) != len(b) or not a:
        raise InputError(
            f"Paired differences need the same seeds on both sides; there are {len(a)} and {len(b)} scores."
        )
    # Equal differences of scores such as 0.9 − 0.8 and 0.8 − 0.7 are equal again after rounding, and share a rank.
    d = np.round(np.asarray(a, dtype=float) - np.asarray(b, dtype=float), 12)
    if not np.isfinite(d).all():
        raise InputError("Paired differences need finite scores; leave out the score that is infinite or undefined.")
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


def _signed_rank(d: np.ndarray) -> float:
    """Exact for up to 50 distinct |d|, or 13 with ties; the normal approximation beyond."""
    if len(d) == 0:
        return 1.0
    tied = len(np.unique(np.abs(d))) < len(d)
    method = stats.PermutationMethod(n_resamples=_ENUMERATED) if tied and 2 ** len(d) <= _ENUMERATED else "auto"
    return float(stats.wilcoxon(d, method=method).pvalue)
