"""All scores of predictive distributions on labelled rows, each with an interval over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution
from consilience.metrics.binning import (
    adaptive,
    align,
    blocks,
    classwise,
    gaps,
    gaps_if_calibrated,
    labels_if_calibrated,
    once,
    top_label,
)
from consilience.metrics.calibration import Estimate, recalibrate
from consilience.metrics.single import each, table

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
    "deviance": -1,
    "concordance": 1,
    "ibs": -1,
}
Interval: TypeAlias = tuple[float, float]

VIEWS = {"ece": top_label, "ece_adaptive": adaptive, "ece_classwise": classwise}


def scores(p: Distribution, y: Tensor) -> dict[str, float]:
    """Compute every score.

    Returns:
        The scores by name; one that is undefined on these rows is left out.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> p = Normal(torch.zeros(4), torch.zeros(4), torch.ones(4))
        >>> sorted(co.metrics.scores(p, torch.zeros(4)))
        ['coverage50', 'coverage80', 'coverage95', 'crps', 'nll', 'rmse', 'sharpness']
    """
    p, y = align(p, y)
    values = each(table(p), p, y, once(y))
    if isinstance(p, Categorical):
        errors = {name: gaps(views(p), y, once(y)) for name, views in VIEWS.items()}
        values |= {name: error for name, (error, _) in errors.items()}
        values["ece_debiased"] = errors["ece"][1]
        values |= {name: torch.tensor(e.value, dtype=torch.float64) for name, e in recalibration(p, y).items()}
    return {name: float(value) for name, value in values.items() if not bool(value.isnan())}


def intervals(p: Distribution, y: Tensor, resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Compute 95 % intervals of the scores over the rows: percentiles of a bootstrap.

    Calibration intercept and slope have Wald intervals. Calibration errors, which resampling biases upwards, have the
    interval of `_gap_interval`; `ece` and `ece_debiased` share it, as they estimate one quantity.

    Args:
        resamples: How many times the rows are drawn with replacement.

    Returns:
        The intervals by the scores' names.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2]]).expand(10, 2).log())
        >>> low, high = co.metrics.intervals(p, torch.arange(10) % 2, resamples=50)["accuracy"]
        >>> low < 0.5 < high
        True
    """
    if not isinstance(p, Categorical):
        numbers, y = align(p, y)
        return _percentiles(
            _bootstrap(lambda counts: each(table(numbers), numbers, y, counts), len(y), resamples, seed)
        )
    rows, y = align(p, y)
    views = {name: make(rows) for name, make in VIEWS.items()}

    def score_resamples(counts: Tensor) -> dict[str, Tensor]:
        return each(table(rows), rows, y, counts) | {name: gaps(v, y, counts)[1] for name, v in views.items()}

    ends = _percentiles(_bootstrap(score_resamples, len(y), resamples, seed))
    calibrated = _collect(
        {name: gaps_if_calibrated(v, labels) for name, v in views.items()}
        for labels in labels_if_calibrated(rows, 200, seed)
    )
    for name, v in views.items():
        error, debiased = (float(value) for value in gaps(v, y, once(y)))
        ends[name] = _gap_interval(error, debiased, ends[name], calibrated[name])
    ends["ece_debiased"] = ends["ece"]
    for name in views:  # a debiased error can be negative, and no other is
        ends[name] = (max(ends[name][0], 0.0), ends[name][1])
    return ends | {name: (e.low, e.high) for name, e in recalibration(rows, y).items()}


def recalibration(p: Categorical, y: Tensor) -> dict[str, Estimate]:
    """Fit the calibration intercept and slope of a binary model.

    Args:
        p: A distribution of N rows, aligned.

    Returns:
        Those that exist, by name; none for more classes.
    """
    if p.log_probs.shape[1] != 2:
        return {}
    fit = recalibrate((p.log_probs[:, 1] - p.log_probs[:, 0]).numpy(), y.numpy().astype(float))
    estimates = zip(("calibration_intercept", "calibration_slope"), fit, strict=True)
    return {name: estimate for name, estimate in estimates if estimate is not None}


def _gap_interval(error: float, debiased: float, resampled: Interval, calibrated: Tensor) -> Interval:
    """The interval of a calibration error.

    In the bootstrap's world the truth is `error`, and the debiased errors of resamples miss it as `debiased` misses the
    truth here: the interval is pivotal around `debiased`. It reaches down to 0 unless fewer than 2.5 % of calibrated
    data sets show as large an error, and it holds both estimates. In simulations of 50 to 2000 rows it holds the truth
    in 88 to 98 % of cases; percentiles of the debiased error do so in about 4 % when the model is calibrated.
    """
    low = error + debiased - resampled[1]
    high = error + debiased - resampled[0]
    if error <= float(calibrated.quantile(0.975)):
        low = 0.0
    return min(max(low, 0.0), debiased), max(high, error)


def _bootstrap(score: Callable[[Tensor], dict[str, Tensor]], rows: int, resamples: int, seed: int) -> dict[str, Tensor]:
    """The scores of data sets drawn from the rows with replacement."""
    generator = torch.Generator().manual_seed(seed)

    def draw_counts(size: int) -> Tensor:
        indices = torch.randint(rows, (rows, size), generator=generator)
        zeros = torch.zeros(rows, size, dtype=torch.float64)
        return zeros.scatter_add_(0, indices, torch.ones_like(zeros))

    return _collect(score(draw_counts(size)) for size in blocks(rows, resamples))


def _collect(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the blocks of every score."""
    blocks_of_scores = list(parts)
    return {name: torch.cat([block[name] for block in blocks_of_scores]) for name in blocks_of_scores[0]}


def _percentiles(draws: dict[str, Tensor]) -> dict[str, Interval]:
    """The central 95 % of the draws that are defined; order statistics, so that an infinite draw stays infinite."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    quantiles = {name: torch.nanquantile(v, ends, interpolation="nearest").tolist() for name, v in draws.items()}
    return {name: (low, high) for name, (low, high) in quantiles.items() if not math.isnan(low)}
