"""What many noisy steps on random batches promise: the accountant of DP-SGD, which is Google's dp-accounting.

Every row is in a step's batch with the same probability, by a coin of its own (Poisson sampling); neighbouring data
sets differ by one row, added or removed. Privacy loss distributions are composed numerically, each error on the safe
side.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType

from consilience.errors import InputError

INTERVAL = 1e-3  # of privacy loss, to which distributions are rounded upwards
LEAST = 0.3  # noise multiplier: with less, a single step may tell e^5 and more
MOST = 1e4
NEAR = 2e-3  # relative, to which a noise multiplier is found, from above


def _library() -> tuple[ModuleType, ModuleType]:
    """Import dp-accounting, which is an extra."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError as error:
        raise InputError("Private training needs an accountant: run `pip install 'consilience[privacy]'`.") from error
    return dp_accounting, pld


@lru_cache(maxsize=4096)
def epsilon_of_steps(noise_multiplier: float, delta: float, share: float, steps: int) -> float:
    """Find the ε of so many steps.

    Args:
        noise_multiplier: The noise's deviation, in units of the clipping norm.
        delta: δ.
        share: The probability with which a row is in a step's batch.
        steps: How many steps there are in all.

    Returns:
        ε, rounded upwards; ∞ where there is next to no noise.

    Raises:
        InputError: dp-accounting is not installed.
    """
    if noise_multiplier < LEAST:
        return math.inf
    events, pld = _library()
    step = events.GaussianDpEvent(noise_multiplier)
    if share < 1:
        step = events.PoissonSampledDpEvent(share, step)
    accountant = pld.PLDAccountant(value_discretization_interval=INTERVAL)
    accountant.compose(step, steps)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, share: float, steps: int) -> float:
    """Find the noise that so many steps need for (ε, δ).

    Args:
        epsilon: ε.
        delta: δ.
        share: The probability with which a row is in a step's batch.
        steps: How many steps there are in all.

    Returns:
        The noise's deviation, in units of the clipping norm: as small as keeps to ε, and a trifle more.

    Raises:
        InputError: dp-accounting is not installed, or no noise keeps to so small a budget.
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
