"""What many noisy steps on random batches promise, by themselves and beside releases with Gaussian noise.

The accountant is Google's dp-accounting.

Every row is in a step's batch with the same probability, by a coin of its own (Poisson sampling); neighbouring data
sets differ by one row, added or removed. Privacy loss distributions are composed numerically, each error on the safe
side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

from consilience.errors import InputError
from consilience.privacy.dp.accountant import epsilon_of

INTERVAL = 1e-3  # of privacy loss, to which distributions are rounded upwards
LEAST = 0.3  # noise multiplier: with less, a single step may tell e^5 and more
MOST = 1e4
NEAR = 2e-3  # relative, to which a noise multiplier is found, from above


class Steps(NamedTuple):
    """Noisy steps on random batches.

    Attributes:
        noise_multiplier: The noise's deviation, in units of the clipping norm.
        share: The probability with which a row is in a step's batch.
        number: How many there are.
    """

    noise_multiplier: float
    share: float
    number: int


def add_steps(several: Iterable[Steps]) -> tuple[Steps, ...]:
    """Put steps together.

    Args:
        several: Steps of any kind.

    Returns:
        As many of each kind as there are in all, in a fixed order.
    """
    counts: Counter[tuple[float, float]] = Counter()
    for steps in several:
        counts[steps.noise_multiplier, steps.share] += steps.number
    return tuple(Steps(*kind, number) for kind, number in sorted(counts.items()))


def _library() -> tuple[ModuleType, ModuleType]:
    """Import dp-accounting, which is an extra."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError as error:
        raise InputError("Private training needs an accountant: run `pip install 'consilience[privacy]'`.") from error
    return dp_accounting, pld


def epsilon_of_steps(noise_multiplier: float, delta: float, share: float, steps: int) -> float:
    """Find the ε of so many steps.

    Args:
        noise_multiplier: The noise's deviation, in units of the clipping norm.
        share: The probability with which a row is in a step's batch.

    Returns:
        ε, rounded upwards; ∞ where there is next to no noise.

    Raises:
        InputError: dp-accounting is not installed.
    """
    return epsilon_of_all(delta, 0.0, (Steps(noise_multiplier, share, steps),))


@lru_cache(maxsize=4096)
def epsilon_of_all(delta: float, mu: float, steps: tuple[Steps, ...]) -> float:
    """Find the ε of releases with Gaussian noise and of steps, all together.

    Args:
        mu: μ of the releases; 0: there are none.
        steps: The steps, of every kind.

    Returns:
        ε: without steps exactly, with them rounded upwards; ∞ where there is next to no noise.

    Raises:
        InputError: There are steps, and dp-accounting is not installed.
    """
    if math.isinf(mu) or any(kind.noise_multiplier < LEAST for kind in steps):
        return math.inf
    if not steps:
        return epsilon_of(delta, mu)
    events, pld = _library()
    accountant = pld.PLDAccountant(value_discretization_interval=INTERVAL)
    if mu > 0:
        accountant.compose(events.GaussianDpEvent(1 / mu))
    for kind in steps:
        step = events.GaussianDpEvent(kind.noise_multiplier)
        if kind.share < 1:
            step = events.PoissonSampledDpEvent(kind.share, step)
        accountant.compose(step, kind.number)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, share: float, steps: int) -> float:
    """Find the noise that so many steps need for (ε, δ).

    Args:
        share: The probability with which a row is in a step's batch.

    Returns:
        The noise's deviation, in units of the clipping norm: as small as keeps to ε, and a trifle more.

    Raises:
        InputError: dp-accounting is not installed, or no noise keeps to so small a budget.

    Example:
        >>> from consilience.privacy.dp.subsampled import noise_for
        >>> noise_for(1.0, 1e-5, share=0.1, steps=100) > noise_for(4.0, 1e-5, share=0.1, steps=100)
        True
    """
    low, high = 0.0, 1.0
    while epsilon_of_steps(high, delta, share, steps) > epsilon:
        low, high = high, 2 * high
        if high > MOST:
            raise InputError(
                f"epsilon={epsilon:g}, delta={delta:g} leave room for noise alone: give a larger budget, or "
                "fewer steps."
            )
    if low == 0.0:
        low = LEAST
        if epsilon_of_steps(low, delta, share, steps) <= epsilon:
            return low
    while high > (1 + NEAR) * low:
        middle = (low + high) / 2
        if epsilon_of_steps(middle, delta, share, steps) > epsilon:
            low = middle
        else:
            high = middle
    return high
