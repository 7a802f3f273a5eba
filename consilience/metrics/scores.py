"""Scores of predictive distributions on labelled rows, each with an interval over the rows.

Every score is written once, as a function of how often each row counts: once each for the score itself, multinomial
counts for the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from consilience.metrics.calibration import (
    Estimate,
    adaptive,
    align,
    blocks,
    classwise,
    coverage,
    gaps,
    gaps_if_calibrated,
    intercept_and_slope,
    labels_if_calibrated,
    once,
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
Interval: TypeAlias = tuple[float, float]

_VIEWS = {"ece": top_label, "ece_adaptive": adaptive, "ece_classwise": classwise}
_COVERAGE = {"coverage50": 0.5, "coverage80": 0.8, "coverage95": 0.95}


def scores(p: Distribution, y: Tensor) -> dict[str, float]:
    """Every score by its name; one that is undefined on these rows is left out."""
    if isinstance(p, Normal):
        found = _normal(*align(p, y), once(y))
    else:
        p, y = align(p, y)
        found = _categorical(p, y, once(y))
        errors = {name: gaps(views(p), y, once(y)) for name, views in _VIEWS.items()}
        found |= {name: error for name, (error, _) in errors.items()} | {"ece_debiased": errors["ece"][1]}
        found |= {name: torch.tensor(e.value, dtype=torch.float64) for name, e in _recalibration(p, y).items()}
    return {name: float(value) for name, value in found.items() if not bool(value.isnan())}


def intervals(p: Distribution, y: Tensor, resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """95 % intervals of the scores over the rows: percentiles of a bootstrap.

    Calibration intercept and slope have Wald intervals. Calibration errors, which resampling biases upwards, have the
    interval of `_gap_interval`; `ece` and `ece_debiased` share it, as they estimate one quantity.
    """
    if isinstance(p, Normal):
        normal, y = align(p, y)
        return _percentiles(_bootstrap(lambda counts: _normal(normal, y, counts), len(y), resamples, seed))
    rows, y = align(p, y)
    views = {name: make(rows) for name, make in _VIEWS.items()}

    def resampled(counts: Tensor) -> dict[str, Tensor]:
        return _categorical(rows, y, counts) | {name: gaps(v, y, counts)[1] for name, v in views.items()}

    found = _percentiles(_bootstrap(resampled, len(y), resamples, seed))
    calibrated = _collected(
        {name: gaps_if_calibrated(v, labels) for name, v in views.items()}
        for labels in labels_if_calibrated(rows, 200, seed)
    )
    for name, v in views.items():
        error, debiased = (float(value) for value in gaps(v, y, once(y)))
        found[name] = _gap_interval(error, debiased, found[name], calibrated[name])
    found["ece_debiased"] = found["ece"]
    return found | {name: (e.low, e.high) for name, e in _recalibration(rows, y).items()}


def auroc(score: Tensor, positive: Tensor, counts: Tensor) -> Tensor:
    """The chance [B] that a positive row scores above a negative one, ties counted half; NaN without both kinds."""
    negatives, order = score[~positive].sort()
    below = torch.cat([torch.zeros_like(counts[:1]), counts[~positive][order].cumsum(0)])
    under, upto = (torch.searchsorted(negatives, score[positive], right=right) for right in (False, True))
    won = (counts[positive] * (below[under] + below[upto])).sum(0) / 2
    return won / (counts[positive].sum(0) * below[-1])


def _categorical(p: Categorical, y: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """The scores [B] when row i is there counts[i, b] times; calibration errors apart."""
    classes = p.log_probs.shape[1]
    hit = (p.log_probs.argmax(-1) == y).double()
    truth = torch.nn.functional.one_hot(y, classes).double()
    recall = ((truth * hit.unsqueeze(1)).T @ counts) / (truth.T @ counts)
    ranked = [1] if classes == 2 else range(classes)
    return {
        "accuracy": _mean(hit, counts),
        "balanced_accuracy": recall.nanmean(0),
        "nll": _mean(-log_prob(p, y), counts),
        "brier": _mean(((p.probs - truth) ** 2).sum(-1), counts),
        "auroc": torch.stack([auroc(_against_rest(p, c), y == c, counts) for c in ranked]).nanmean(0),
    }


def _normal(p: Normal, y: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """The scores [B] when row i is there counts[i, b] times; a row's outputs are averaged, in `nll` summed."""
    sd = p.total.sqrt()
    z = (y - p.mean) / sd
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    crps = sd * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return {
        "rmse": _mean(_per_row((y - p.mean) ** 2), counts).sqrt(),
        "nll": _mean(-log_prob(p, y), counts),
        "crps": _mean(_per_row(crps), counts),
        **{name: _mean(coverage(p, y, level), counts) for name, level in _COVERAGE.items()},
        "sharpness": _mean(_per_row(sd), counts),
    }


def _recalibration(p: Categorical, y: Tensor) -> dict[str, Estimate]:
    if p.log_probs.shape[1] != 2:
        return {}
    named = zip(("calibration_intercept", "calibration_slope"), intercept_and_slope(p, y), strict=True)
    return {name: estimate for name, estimate in named if estimate is not None}


def _gap_interval(error: float, debiased: float, resampled: Interval, calibrated: Tensor) -> Interval:
    """The interval of a calibration error.

    In the bootstrap's world the truth is `error`, and the debiased errors of resamples miss it as `debiased` misses the
    truth here: the interval is pivotal around `debiased`. It reaches down to 0 unless fewer than 2.5 % of calibrated
    data sets show as large an error, and it holds both estimates. In simulations of 50 to 2000 rows it holds the truth
    in 88 to 98 % of cases; percentiles of the debiased error do so in about 4 % when the model is calibrated.
    """
    low, high = error + debiased - resampled[1], error + debiased - resampled[0]
    if error <= float(calibrated.quantile(0.975)):
        low = 0.0
    return min(max(low, 0.0), debiased), max(high, error)


def _bootstrap(score: Callable[[Tensor], dict[str, Tensor]], rows: int, resamples: int, seed: int) -> dict[str, Tensor]:
    """The scores of data sets drawn from the rows with replacement."""
    generator = torch.Generator().manual_seed(seed)

    def counts(size: int) -> Tensor:
        drawn = torch.randint(rows, (rows, size), generator=generator)
        zeros = torch.zeros(rows, size, dtype=torch.float64)
        return zeros.scatter_add_(0, drawn, torch.ones_like(zeros))

    return _collected(score(counts(size)) for size in blocks(rows, resamples))


def _collected(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    listed = list(parts)
    return {name: torch.cat([part[name] for part in listed]) for name in listed[0]}


def _percentiles(draws: dict[str, Tensor]) -> dict[str, Interval]:
    """The central 95 % of the draws that are defined; order statistics, so that an infinite draw stays infinite."""
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    found = {name: torch.nanquantile(v, ends, interpolation="nearest").tolist() for name, v in draws.items()}
    return {name: (low, high) for name, (low, high) in found.items() if not math.isnan(low)}


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean [B] over the rows drawn; an infinite row counts only where it was drawn."""
    infinite = values.isinf()
    mean = values.masked_fill(infinite, 0) @ counts / counts.sum(0)
    return torch.where(infinite.double() @ counts > 0, math.inf, mean)


def _against_rest(p: Categorical, c: int) -> Tensor:
    """log p_c − log(1 − p_c), which ranks like p_c and does not saturate near 1."""
    rest = torch.cat([p.log_probs[:, :c], p.log_probs[:, c + 1 :]], 1)
    return p.log_probs[:, c] - rest.logsumexp(1)


def _per_row(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(1)
