"""What Gaussian noise promises, in numbers: ε, δ and the noise that is needed for them.

A release of sums with Gaussian noise is decided by one number, μ = Δ/σ: how far one person can move the sums, in units
of the noise's SD. Telling two neighbouring data sets apart is then telling N(0, 1) from N(μ, 1), exactly.
Several releases without subsampling are one with μ = √Σ μᵢ² (Dong, Roth and Su 2022), whoever chose the later ones in
view of the earlier. Its (ε, δ) are those of Balle and Wang (2018):

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from consilience.errors import InputError

LEAST = 1e-9  # μ: noise so large that nothing is learned
MOST = 1e4  # μ: noise so small that nothing is hidden
TOLERANCE = 1e-12  # relative, of what is searched for


def check_budget(epsilon: float, delta: float, rows: int | None = None) -> None:
    """Refuse an (ε, δ) that promises nothing.

    Args:
        rows: How many rows or patients there are in all, where that is known.

    Raises:
        InputError: ε is not above 0, δ is not between 0 and 1, or δ is so large that whole rows may be published.
    """
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon={epsilon:g} is not a privacy budget: give a number above 0, for example 1.")
    if not 0 < delta < 1:
        raise InputError(f"delta={delta:g} is not a probability of failure: give a number above 0 and below 1/rows.")
    if rows is not None and delta * rows >= 1:
        raise InputError(
            f"delta={delta:g} would allow publishing one of the {rows:,} rows as it is: give less than "
            f"{1 / rows:.1g}, one over the number of rows."
        )


def compose(mus: Iterable[float]) -> float:
    """Put several releases together.

    Returns:
        μ of all of them.

    Example:
        >>> from consilience.privacy.dp.accountant import compose
        >>> compose([0.3, 0.4])
        0.5
    """
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def delta_of(epsilon: float, mu: float) -> float:
    """Find the δ that goes with an ε.

    Args:
        epsilon: ε ≥ 0.
        mu: μ = Δ/σ of all releases.

    Returns:
        The smallest δ; by logarithms, so that neither difference nor e^ε loses digits.

    Example:
        >>> from consilience.privacy.dp.accountant import delta_of
        >>> delta_of(1.0, 0.1) < delta_of(1.0, 1.0)
        True
    """
    from scipy.special import log_ndtr  # slow to import, and most commands have no use for it

    if mu <= 0:
        return 0.0
    upper = float(log_ndtr(-epsilon / mu + mu / 2))
    lower = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return max(0.0, -math.exp(upper) * math.expm1(min(lower - upper, 0.0)))


def epsilon_of(delta: float, mu: float) -> float:
    """Find the ε that goes with a δ.

    Args:
        delta: δ, between 0 and 1.
        mu: μ = Δ/σ of all releases.

    Returns:
        The smallest ε ≥ 0.

    Example:
        >>> from consilience.privacy.dp.accountant import epsilon_of, mu_of
        >>> round(epsilon_of(1e-5, mu_of(2.0, 1e-5)), 6)
        2.0
    """
    if mu <= 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    largest = mu * mu / 2 + mu * (1 + math.sqrt(2 * math.log(1 / delta)))  # Φ(−x) ≤ exp(−x²/2)
    return _root(lambda epsilon: _log_delta(epsilon, mu) - math.log(delta), 0.0, largest)


def mu_of(epsilon: float, delta: float) -> float:
    """Find the largest μ that keeps to (ε, δ).

    Returns:
        μ: what all releases together may spend.

    Raises:
        InputError: These promise nothing, or ask for more noise than numbers can hold.

    Example:
        >>> from consilience.privacy.dp.accountant import mu_of
        >>> round(mu_of(1.0, 1e-5), 3)
        0.268
    """
    check_budget(epsilon, delta)
    if delta_of(epsilon, LEAST) > delta:
        raise InputError(f"epsilon={epsilon:g}, delta={delta:g} leave room for noise alone: give a larger budget.")
    if delta_of(epsilon, MOST) <= delta:
        raise InputError(f"epsilon={epsilon:g}, delta={delta:g} hide nothing: give a smaller budget.")
    found = _root(
        lambda log_mu: _log_delta(epsilon, math.exp(log_mu)) - math.log(delta), math.log(LEAST), math.log(MOST)
    )
    return math.exp(found) * (1 - 1e-9)  # on the safe side of the search's tolerance


def sigma_of(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Find the noise that one release needs for (ε, δ).

    Args:
        sensitivity: Δ, the most that one row or patient moves the sums, as a Euclidean length.

    Returns:
        The noise's standard deviation.

    Example:
        >>> from consilience.privacy.dp.accountant import sigma_of
        >>> round(sigma_of(1.0, 1e-5), 2)
        3.73
    """
    return sensitivity / mu_of(epsilon, delta)


def _log_delta(epsilon: float, mu: float) -> float:
    return math.log(max(delta_of(epsilon, mu), 1e-300))


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(f, low, high, xtol=TOLERANCE, rtol=TOLERANCE))
