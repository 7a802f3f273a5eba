"""How much the same effect differs between sites: random-effects meta-analysis of one number a site.

DerSimonian and Laird 1986; I² after Higgins and Thompson 2002; the interval for a newcomer after Higgins et al. 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple


class Heterogeneity(NamedTuple):
    """What the sites' own estimates of one effect say together.

    Attributes:
        sites: How many there are.
        mean: The mean of the sites' effects, each site weighted by 1 / (its variance + τ²).
        error: The standard error of the mean.
        tau: τ, the deviation of the sites' effects about their mean.
        i2: I², the share of the estimates' variation that is no chance.
        q: Cochran's Q.
        q_p: How probable so large a Q is where all sites have the same effect.
        newcomer_low: The interval in which the effect at a new site is expected; None with fewer than three sites.
        newcomer_high: See `newcomer_low`.
    """

    sites: int
    mean: float
    error: float
    tau: float
    i2: float
    q: float
    q_p: float
    newcomer_low: float | None
    newcomer_high: float | None

    def at(self, level: float) -> Heterogeneity:
        """Give the interval for a newcomer another level.

        Args:
            level: Between 0 and 1.

        Returns:
            The same with that interval.
        """
        if self.sites < 3:
            return self
        from scipy.special import stdtrit  # here, because it takes a while to import

        wide = float(stdtrit(self.sites - 2, 0.5 + level / 2)) * math.hypot(self.tau, self.error)
        return self._replace(newcomer_low=self.mean - wide, newcomer_high=self.mean + wide)


def combine(estimates: Sequence[float], errors: Sequence[float], level: float = 0.95) -> Heterogeneity | None:
    """Compare the sites' estimates of one effect.

    Args:
        level: Of the interval for a newcomer.

    Returns:
        What they say together; None with fewer than two sites.

    Example:
        >>> from consilience.biostatistics.heterogeneity import combine
        >>> found = combine([0.2, 0.4, 0.3], [0.1, 0.1, 0.1])
        >>> round(found.mean, 3), round(found.tau, 3)
        (0.3, 0.0)
    """
    from scipy.special import chdtrc

    count = len(estimates)
    if count < 2:
        return None
    weights = [error**-2 for error in errors]
    total = sum(weights)
    fixed = sum(w * y for w, y in zip(weights, estimates, strict=True)) / total
    q = sum(w * (y - fixed) ** 2 for w, y in zip(weights, estimates, strict=True))
    free = count - 1
    spare = total - sum(w**2 for w in weights) / total
    tau2 = 0.0
    if spare > 0:
        tau2 = max(0.0, (q - free) / spare)
    weights = [1 / (error**2 + tau2) for error in errors]
    mean = sum(w * y for w, y in zip(weights, estimates, strict=True)) / sum(weights)
    error = sum(weights) ** -0.5
    i2 = 0.0
    if q > free:
        i2 = (q - free) / q
    found = Heterogeneity(count, mean, error, math.sqrt(tau2), i2, q, float(chdtrc(free, q)), None, None)
    return found.at(level)


def reach(error: float, level: float, freedom: float | None = None) -> float:
    """Find half the width of an interval.

    Args:
        freedom: Degrees of freedom of Student's t, where the error is estimated with them; None: a normal interval.

    Returns:
        The distance from the estimate to either end.
    """
    if freedom is None:
        return NormalDist().inv_cdf(0.5 + level / 2) * error
    from scipy.special import stdtrit  # here, because it takes a while to import

    return float(stdtrit(freedom, 0.5 + level / 2)) * error
