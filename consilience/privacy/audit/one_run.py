"""Whether what left tells who was in.  Steinke, Nasr and Jagielski, NeurIPS 2023, Privacy auditing with one run.

Each of m canaries is in or out by a fair coin of its own. Whoever sees what left guesses some of the coins. Under
(ε, δ)-differential privacy not many more than a share of e^ε / (1 + e^ε) of the guesses can be right (their theorem
5.2), so many right guesses refute an ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.key import Key

SHARES = (0.9, 0.3, 0.1)  # of the coins that are guessed, the surest first; chosen before anything is seen
CONFIDENCE = 0.95
MOST = 50.0  # where the search for ε ends
NEAR = 1e-4  # of ε, to which it is found, from below
FEWEST = 20  # coins: of fewer, all guessed right, little follows


class Bound(NamedTuple):
    """What an audit shows: no mechanism with a smaller ε would be guessed so well.

    Attributes:
        epsilon: The lower bound on ε; 0 where nothing was shown.
        delta: The δ that it is for.
        confidence: How seldom, at most, a bound lies above the true ε: in 1 − confidence of all audits.
        canaries: m, how many coins there were.
        guesses: How many of them were guessed.
        correct: How many of the guesses were right.
        ceiling: The bound if all m coins had been guessed right: more cannot be shown with so many.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    ceiling: float

    def refutes(self, epsilon: float) -> bool:
        """Say whether a claim is refuted.

        Args:
            epsilon: The claimed ε, at this bound's δ.

        Returns:
            Whether the bound lies above it.
        """
        return self.epsilon > epsilon


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How probable so many right guesses are, at most, under (ε, δ)-differential privacy.

    With B ~ Binomial(guesses, e^ε / (1 + e^ε)) and v right guesses, at most

        P[B ≥ v] + 2 m δ max over i = 1 … v of P[v − i ≤ B < v] / i.

    Args:
        canaries: m, the number of coins.
        guesses: How many were guessed, decided before the coins were seen.
        correct: v, how many guesses were right.
        epsilon: ε of the claim.
        delta: δ of the claim.

    Returns:
        The bound on the probability, at most 1.

    Raises:
        InputError: The counts or the claim make no sense.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(f"{correct} of {guesses} guesses about {canaries} canaries: each must be at most the next.")
    if not (epsilon >= 0 and 0 <= delta < 1):
        raise InputError(f"epsilon={epsilon:g}, delta={delta:g}: give epsilon of at least 0, and delta within 0 … 1.")
    share = scipy.special.expit(epsilon)
    tail = float(scipy.stats.binom.sf(correct - 1, guesses, share))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    i = np.arange(1, correct + 1)
    below = np.cumsum(scipy.stats.binom.pmf(correct - i, guesses, share))  # P[v − i ≤ B < v]
    return min(tail + 2 * canaries * delta * float((below / i).max()), 1.0)


@lru_cache(maxsize=1024)
def lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest ε that so many right guesses refute.

    Args:
        canaries: The number of coins.
        guesses: How many were guessed.
        correct: How many guesses were right.
        delta: δ of the claim.
        confidence: One less the largest probability at which a claim counts as refuted.

    Returns:
        ε, 0 where not even 0 is refuted.

    Example:
        >>> from consilience.privacy.audit.one_run import lower_bound
        >>> round(lower_bound(1000, 100, 100, delta=1e-5), 1), lower_bound(1000, 100, 50, delta=1e-5)
        (3.5, 0.0)
    """
    if p_value(canaries, guesses, correct, 0.0, delta) >= 1 - confidence:
        return 0.0
    low, high = 0.0, MOST
    while high - low > NEAR:
        middle = (low + high) / 2
        if p_value(canaries, guesses, correct, middle, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def flip(count: int, key: Key) -> Tensor:
    """Flip a fair coin for every canary.

    Args:
        key: The randomness, of which what is audited must know nothing.

    Returns:
        Whether each is in [m].
    """
    return key.uniform(count) < 0.5


def guess(scores: Tensor, share: float) -> Tensor:
    """Guess those with the highest scores in, those with the lowest out, and abstain in the middle.

    Args:
        scores: How much speaks for each being in [m].
        share: Of the canaries, how many are guessed.

    Returns:
        1 for in, −1 for out, 0 for an abstention [m].
    """
    each = max(1, round(share * len(scores) / 2))
    order = scores.argsort(stable=True)
    guesses = torch.zeros(len(scores), dtype=torch.int64)
    guesses[order[:each]] = -1
    guesses[order[-each:]] = 1
    return guesses


def bound(
    scores: Tensor,
    included: Tensor,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    shares: Sequence[float] = SHARES,
) -> Bound:
    """Bound ε from below by guesses about who was in.

    Several shares of the coins are guessed and the best counts; each is held to its part of the allowed error, so that
    the confidence holds for the best of them.

    Args:
        scores: How much speaks for each being in [m], computed without the coins.
        included: The coins [m].
        delta: δ of the claim.
        shares: How many of the coins are guessed, the surest first.

    Returns:
        The best bound.

    Raises:
        InputError: There are too few canaries, or the scores are not finite.
    """
    count = len(scores)
    if count < FEWEST:
        raise InputError(f"{count} canaries show nothing, however well they are guessed: use at least {FEWEST}.")
    if not bool(torch.isfinite(scores).all()):
        raise InputError("The scores of the canaries are not finite: what left is not a model to be audited.")
    each = 1 - (1 - confidence) / len(shares)
    signs = torch.where(included.bool(), 1, -1)
    found = []
    for share in shares:
        guesses = guess(scores, share)
        made = int((guesses != 0).sum())
        correct = int((guesses == signs).sum())
        epsilon = lower_bound(count, made, correct, delta, each)
        found.append(Bound(epsilon, delta, confidence, count, made, correct, 0.0))
    best = max(found, key=lambda b: (b.epsilon, b.guesses))
    return best._replace(ceiling=max(lower_bound(count, b.guesses, b.guesses, delta, each) for b in found))
