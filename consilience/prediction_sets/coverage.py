"""Exact coverage of thresholds that were found from the rows of several sites.

Scores of exchangeable rows are as good as uniform: the ℓ-th smallest of n lies below u with probability
I_u(ℓ, n − ℓ + 1), the regularised incomplete beta function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used

Array = np.ndarray[Any, Any]
NODES = 256  # of the quadrature
CANDIDATES = 48  # levels of the sites' own quantiles that are tried
CONFIDENCE = 0.95  # with which a bound given the calibration rows holds
ROUNDING = 1e-12  # of probabilities
SLACK = 1e-9  # of an integral, which may come out that much below a level that it reaches


class Ranks(NamedTuple):
    """A quantile of quantiles: the server takes the k-th smallest of what the sites send.

    Attributes:
        own: Which of its scores each site sends, from the smallest, from 1 on.
        k: Which of these the server takes.
        coverage: What that covers on average, exactly.
    """

    own: tuple[int, ...]
    k: int
    coverage: float


def rank(level: float, rows: int, extra: int = 1) -> int:
    """Return ⌈level · (rows + extra)⌉, without the rounding of binary numbers.

    Args:
        rows: How many scores there are.
        extra: 1 for one exchangeable group; the number of sites for a mixture of them.

    Returns:
        Which score is the threshold, from the smallest, from 1 on; above `rows` where there are too few.
    """
    return math.ceil(Fraction(repr(float(level))) * (rows + extra))


def fewest_rows(level: float) -> int:
    """Return the fewest rows from which a finite threshold can be found: n ≥ 1/α − 1.

    Args:
        level: The coverage wanted, 1 − α.
    """
    share = Fraction(repr(float(level)))
    return math.ceil(share / (1 - share))


def quantile_coverage(own: Sequence[int], sizes: Sequence[int], k: int) -> float:
    """Compute the coverage of a quantile of quantiles: ∫₀¹ P(Σⱼ Bernoulli(I_u(ℓⱼ, nⱼ − ℓⱼ + 1)) ≤ k − 1) du.

    Args:
        own: Which of its scores each site sends.
        sizes: How many scores each site has.
        k: Which of these the server takes.

    Returns:
        The probability that a new row, exchangeable with all, scores at most the threshold.
    """
    low = _level_below(own, sizes, k, 1 - ROUNDING)
    high = _level_below(own, sizes, k, ROUNDING)
    u, weights = _quadrature(low, high)
    return float(low + weights @ _at_most(_below(own, sizes, u))[:, k - 1])


def quantile_tail(own: Sequence[int], sizes: Sequence[int], k: int, u: float) -> float:
    """Compute the probability, over calibration rows, that a quantile of quantiles covers less than u.

    Args:
        own: Which of its scores each site sends.
        sizes: How many scores each site has.
        k: Which of these the server takes.

    Returns:
        P(Σⱼ Bernoulli(I_u(ℓⱼ, nⱼ − ℓⱼ + 1)) ≥ k).
    """
    return float(1 - _at_most(_below(own, sizes, np.array([u])))[0, k - 1])


def quantile_least(own: Sequence[int], sizes: Sequence[int], k: int, confidence: float = CONFIDENCE) -> float:
    """Return the coverage that a quantile of quantiles reaches with some confidence over calibration rows.

    Args:
        own: Which of its scores each site sends.
        sizes: How many scores each site has.
        k: Which of these the server takes.
    """
    return _level_below(own, sizes, k, confidence)


def choose_k(own: Sequence[int], sizes: Sequence[int], level: float) -> Ranks:
    """Choose which of the sites' quantiles is the threshold, where they have been sent.

    Args:
        own: Which of its scores each site sent.
        sizes: How many scores each site has.

    Returns:
        The smallest k that reaches it. The largest always does where every ℓ ≥ level · (n + 1).
    """
    u, weights = _quadrature(0.0, 1.0)
    rough = weights @ _at_most(_below(own, sizes, u))[:, :-1]
    k = min(int(np.searchsorted(rough, level - 1e-3)) + 1, len(sizes))
    while k > 1 and quantile_coverage(own, sizes, k - 1) >= level - SLACK:
        k -= 1
    covered = quantile_coverage(own, sizes, k)
    while covered < level - SLACK and k < len(sizes):
        k += 1
        covered = quantile_coverage(own, sizes, k)
    return Ranks(tuple(own), k, covered)


def choose_ranks(sizes: Sequence[int], level: float) -> Ranks:
    """Choose what the sites send and what the server takes, so that as little as possible is covered beyond a level.

    Args:
        sizes: How many scores each site has; each at least `fewest_rows`.

    Returns:
        The ranks with the smallest coverage that is not below the level, of the sites' quantiles at one level q each,
        ⌈q (nⱼ + 1)⌉.
    """
    usual = tuple(rank(level, n) for n in sizes)
    best = choose_k(usual, sizes, level)
    for own in _candidates(sizes, level):
        found = choose_k(own, sizes, level)
        if level - SLACK <= found.coverage < best.coverage:
            best = found
    return best


def _candidates(sizes: Sequence[int], level: float) -> list[tuple[int, ...]]:
    """Ranks at levels q around the level wanted; few where sites are many, as each costs their square."""
    count = max(min(CANDIDATES, 40_000 // len(sizes) ** 2), 1)
    width = 2.5 * math.sqrt(level * (1 - level) / min(sizes))  # where the server's k goes from the first to the last
    levels = np.clip(np.linspace(level - width, level + width, count), 0, 1)
    ranks = [tuple(min(max(math.ceil(q * (n + 1)), 1), n) for n in sizes) for q in levels]
    return list(dict.fromkeys(ranks))


def beta_least(rank: int, rows: int, confidence: float = CONFIDENCE) -> float:
    """Return the coverage that an order statistic reaches with some confidence over calibration rows.

    Args:
        rank: Which score is the threshold, from the smallest.

    Returns:
        The quantile of Beta(rank, rows − rank + 1), by which the coverage of exchangeable rows is distributed.
    """
    return float(scipy.special.betaincinv(rank, rows - rank + 1, 1 - confidence))


def binomial_interval(hits: int, rows: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the exact interval of a probability (Clopper and Pearson 1934).

    Args:
        hits: How often it happened.
        rows: How often it might have.

    Returns:
        Its ends; 0 and 1 without rows.
    """
    half = (1 - confidence) / 2
    low = 0.0
    high = 1.0
    if hits > 0:
        low = float(scipy.special.betaincinv(hits, rows - hits + 1, half))
    if hits < rows:
        high = float(scipy.special.betaincinv(hits + 1, rows - hits, 1 - half))
    return low, high


def _below(own: Sequence[int], sizes: Sequence[int], u: Array) -> Array:
    """I_u(ℓⱼ, nⱼ − ℓⱼ + 1) for every u and site."""
    ranks = np.asarray(own, dtype=float)
    rows = np.asarray(sizes, dtype=float)
    found: Array = scipy.special.betainc(ranks, rows - ranks + 1, u[:, None])
    return found


def _at_most(probabilities: Array) -> Array:
    """The distribution function of a Poisson-binomial: at most 0, 1, …, m of m events, for every line."""
    lines, events = probabilities.shape
    mass = np.zeros((lines, events + 1))
    mass[:, 0] = 1
    for j in range(events):
        p = probabilities[:, j : j + 1]
        mass[:, 1 : j + 2] = mass[:, 1 : j + 2] * (1 - p) + mass[:, : j + 1] * p
        mass[:, :1] *= 1 - p
    found: Array = np.minimum(mass.cumsum(1), 1)
    return found


def _level_below(own: Sequence[int], sizes: Sequence[int], k: int, probability: float) -> float:
    """The u that the threshold exceeds with a probability; that probability falls with u."""
    exceeds = lambda u: float(_at_most(_below(own, sizes, np.array([u])))[0, k - 1]) - probability
    return float(scipy.optimize.brentq(exceeds, 0.0, 1.0, xtol=1e-13))


def _quadrature(low: float, high: float) -> tuple[Array, Array]:
    """Nodes and weights between two ends (Gauss and Legendre)."""
    nodes, weights = scipy.special.roots_legendre(NODES)
    half = (high - low) / 2
    return low + half * (nodes + 1), half * weights
