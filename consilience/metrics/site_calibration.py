"""Whether probabilities mean at every site what they say: reliability, recalibration and coverage, site by site."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution
from consilience.distributions.survival import Survival
from consilience.metrics.binning import align
from consilience.metrics.calibration import Bin, Coverage, coverage_curve, outcome_reliability, reliability
from consilience.metrics.scores import recalibration

MOST_SITES = 64  # beyond these a report is about all sites together
BINS = 10


def calibration_by_site(predictions: Sequence[Distribution], y: Tensor) -> list[dict[str, Any]]:
    """Tabulate the calibration of what was predicted for each site's rows.

    Args:
        predictions: For each site, what is predicted for its own rows.
        y: The truth of all of them, one site's rows after another's.

    Returns:
        For each site, by the names of `run.json`: the bins of its reliability diagram (of P(outcome) for two classes,
        of the confidence for more) and the intervals of intercept and slope, or the coverage of its predictive
        intervals.
        Nothing for a site without rows, for survival, or where there are very many sites.
    """
    sizes = [len(p[0]) for p in predictions]
    if len(sizes) > MOST_SITES:
        return [{} for _ in sizes]
    ends = itertools.accumulate(sizes)
    rows = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [site_calibration(p, y[own]) for p, own in zip(predictions, rows, strict=True)]


def site_calibration(p: Distribution, y: Tensor) -> dict[str, Any]:
    """Tabulate the calibration of what was predicted for one site's rows.

    Returns:
        Values by the names of `run.json`.
    """
    if len(y) == 0 or isinstance(p, Survival):
        return {}
    if not isinstance(p, Categorical):
        return {"coverage": [level_json(c) for c in coverage_curve(p, y)]}
    if p.log_probs.shape[1] != 2:
        return {"reliability": [bin_json(b) for b in reliability(p, y, BINS)]}
    fitted = recalibration(*align(p, y))
    return {
        "reliability": [bin_json(b) for b in outcome_reliability(p, y, BINS)],
        "intervals": {name: [estimate.low, estimate.high] for name, estimate in fitted.items()},
    }


def bin_json(b: Bin) -> dict[str, Any]:
    """Write a bin of a reliability diagram as JSON.

    Returns:
        Its fields, with a list in place of a tuple.
    """
    interval = None
    if b.interval is not None:
        interval = list(b.interval)
    return {**b._asdict(), "interval": interval}


def level_json(c: Coverage) -> dict[str, Any]:
    """Write the coverage at one level as JSON.

    Returns:
        Its fields, with a list in place of a tuple.
    """
    return {**c._asdict(), "interval": list(c.interval)}
