"""Whether probabilities mean at every site what they say: reliability, recalibration and coverage, site by site."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution
from consilience.distributions.survival import Survival
from consilience.metrics.binning import align
from consilience.metrics.calibration import Bin, Coverage, coverage_curve, outcome_reliability, reliability
from consilience.metrics.scores import recalibration

MOST_SITES = 64  # beyond these a report is about all sites together
BINS = 10


class Calibration(NamedTuple):
    """The calibration of what was predicted for one site's rows.

    Attributes:
        reliability: The bins of its reliability diagram: of P(outcome) for two classes, of the confidence for more.
        coverage: The coverage of its predictive intervals, for numbers.
        intervals: Of intercept and slope, for two classes.
    """

    reliability: Sequence[Bin] = ()
    coverage: Sequence[Coverage] = ()
    intervals: Mapping[str, Sequence[float | None]] | None = None


def calibration_by_site(predictions: Sequence[Distribution], y: Tensor) -> list[Calibration]:
    """Tabulate the calibration of what was predicted for each site's rows.

    Args:
        predictions: For each site, what is predicted for its own rows.
        y: The truth of all of them, one site's rows after another's.

    Returns:
        Each site's calibration; empty for a site without rows, for survival, or where there are very many sites.
    """
    sizes = [len(p[0]) for p in predictions]
    if len(sizes) > MOST_SITES:
        return [Calibration() for _ in sizes]
    ends = itertools.accumulate(sizes)
    rows = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [site_calibration(p, y[own]) for p, own in zip(predictions, rows, strict=True)]


def site_calibration(p: Distribution, y: Tensor) -> Calibration:
    """Tabulate the calibration of what was predicted for one site's rows."""
    if len(y) == 0 or isinstance(p, Survival):
        return Calibration()
    if not isinstance(p, Categorical):
        return Calibration(coverage=coverage_curve(p, y))
    if p.log_probs.shape[1] != 2:
        return Calibration(reliability(p, y, BINS))
    fitted = recalibration(*align(p, y))
    intervals = {name: [estimate.low, estimate.high] for name, estimate in fitted.items()}
    return Calibration(outcome_reliability(p, y, BINS), intervals=intervals)
