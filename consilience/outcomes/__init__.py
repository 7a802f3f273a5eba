"""Targets that are neither classes nor plain numbers: counts, and times to an event that may be censored.

`counts` and `survival` hold their distributions, `poisson` and `cox` their likelihoods, and `curves` the sums on a grid
of times from which Kaplan and Meier's curve and Breslow's baseline are made.
"""

from __future__ import annotations

from consilience.outcomes.counts import Counts
from consilience.outcomes.cox import Cox
from consilience.outcomes.curves import Curve, TimeSums, baseline, curve, even_times, merge, sum_times
from consilience.outcomes.poisson import Poisson
from consilience.outcomes.survival import Survival

__all__ = [
    "Counts",
    "Cox",
    "Curve",
    "Poisson",
    "Survival",
    "TimeSums",
    "baseline",
    "curve",
    "even_times",
    "merge",
    "sum_times",
]
