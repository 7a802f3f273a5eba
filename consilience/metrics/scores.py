"""Scores of predictive distributions on labelled rows, each with an interval over the rows.

Every score is written once, as a function of how often each row counts: once each for the score itself, multinomial
counts for the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from consilience.metrics.calibration import (
    Estimate,
    View,
    adaptive,
    aligned,
    blocks,
    classwise,
    covered,
    gaps,
    gaps_if_calibrated,
    intercept_and_slope,
    labels_if_calibrated,
    top_label,
)
from consilience.predictive import Categorical, Distribution, Normal, log_prob

BETTER: dict[str, int] = {  # +1 higher is better, −1 lower, 0 neither
    "accuracy": 1,
    "balanced_accuracy": 1,
    "auroc": 1,
    "nll": -1,
    "brier": -1,
    "ece": -1,
    "ece_debiased": -1,
    "ece_adaptive": -1,
    "ece_classwise": -1,
    "calibration_intercept": 0,
    "calibration_slope": 0,
    "rmse": -1,
    "crps": -1,
    "coverage50": 0,
    "coverage80": 0,
    "coverage95": 0,
    "sharpness": 0,
}
PROPER = ("nll", "brier", "crps")

_CALIBRATED_DRAWS = 200


def scores(p: Distribution, y: Tensor) -> dict[str, float]:
    """Every score by its name; one that is undefined on these rows is left out."""
    once = torch.ones(len(y), 1, dtype=torch.float64)
    if isinstance(p, Normal):
        found = _normal(*aligned(p, y), once)
    else:
        p, y = aligned(p, y)
        found = _categorical(p, y, once) | _calibration(p, y, once)
        found |= {name: torch.tensor([e.value]) for name, e in _recalibration(p, y).items()}
    return {name: float(value) for name, value in found.items() if not bool(value.isnan())}


def intervals(p: Distribution, y: Tensor, resamples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """95 % intervals of the scores over the rows: percentiles of a bootstrap.

    Exceptions: calibration intercept and slope have Wald intervals. A resample's calibration error is biased upwards,
    so those intervals are the debiased error ∓ the bootstrap quantiles of its own error, reach down to 0 when a
    calibrated model would often show as much, and hold the estimates; `ece` and `ece_debiased` share one, as they
    estimate the same quantity.
    """
    if isinstance(p, Normal):
        p, y = aligned(p, y)
        draws = _collected([_normal(p, y, counts) for counts in _resampled(len(y), resamples, seed)])
        return {name: _percentiles(values) for name, values in draws.items() if not bool(values.isnan().all())}
    p, y = aligned(p, y)
    parts = [_categorical(p, y, c) | _calibration(p, y, c) for c in _resampled(len(y), resamples, seed)]
    draws = _collected(parts)
    estimates = _calibration(p, y, torch.ones(len(y), 1, dtype=torch.float64))
    calibrated = _collected([_calibrated(p, labels) for labels in labels_if_calibrated(p, _CALIBRATED_DRAWS, seed)])
    found = {}
    for name in calibrated:
        debiased = f"{name}_debiased"
        found[name] = _gap_interval(
            float(estimates[name]), float(estimates[debiased]), draws.pop(debiased), calibrated[name]
        )
        del draws[name]
    found["ece_debiased"] = found["ece"]
    found |= {name: _percentiles(values) for name, values in draws.items() if name in BETTER and not _undefined(values)}
    return found | {name: (e.low, e.high) for name, e in _recalibration(p, y).items()}
