"""What can be known: posteriors over weights, predictive distributions, priors, likelihoods, penalties.

`posterior`, `predictive` and `payload` hold what moves; `prior`, `likelihood` and `penalties` what a task is made of.
`counts` and `survival` are distributions of targets that are neither classes nor plain numbers, `poisson` and `cox`
their likelihoods, and `curves` the sums on a grid of times behind Kaplan and Meier's curve and Breslow's baseline.
"""

from __future__ import annotations

from consilience.distributions.counts import Counts
from consilience.distributions.cox import Cox
from consilience.distributions.curves import Curve, TimeSums, baseline, curve, even_times, merge, sum_times
from consilience.distributions.poisson import Poisson
from consilience.distributions.survival import Survival

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
