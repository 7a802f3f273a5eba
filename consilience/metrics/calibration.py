"""Whether probabilities mean what they say: reliability, calibration errors, recalibration, coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.disk.typed import Rows, Share
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.metrics.binning import (
    BINS,
    View,
    adaptive,
    align,
    classwise,
    gaps,
    gaps_if_calibrated,
    labels_if_calibrated,
    once,
    top_label,
)

Z95 = 1.959963984540054  # Φ⁻¹(0.975)
Array: TypeAlias = npt.NDArray[np.float64]


class Bin(NamedTuple):
    """The rows whose top-label confidence lies in (low, high].

    Attributes:
        low: The bin's lower edge, not in it.
        high: Its upper edge, in it.
        count: How many rows.
        confidence: Their mean confidence; None without rows.
        accuracy: The share predicted rightly; None without rows.
        interval: Wilson's 95 % interval of the accuracy; None without rows.
    """

    low: Share
    high: Share
    count: Rows  # type: ignore[assignment]  # hides tuple.count
    confidence: Share | None
    accuracy: Share | None
    interval: Sequence[float] | None


class Coverage(NamedTuple):
    """How often central intervals of one level hold the target.

    Attributes:
        level: What the intervals promise.
        observed: The share that holds the target; None where it is withheld.
        interval: Wilson's 95 % interval of that share.
    """

    level: Share
    observed: Share | None
    interval: Sequence[float] | None


class Estimate(NamedTuple):
    """A value with its 95 % interval.

    Attributes:
        value: The estimate.
        low: The interval's lower end.
        high: Its upper end.
    """

    value: float
    low: float
    high: float


def ece(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """Compute the expected calibration error.

    Args:
        bins: How many, of equal width.

    Returns:
        The mean gap between top-label confidence and accuracy.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2]]).expand(5, 2).log())
        >>> round(co.metrics.ece(p, torch.tensor([0, 0, 0, 0, 1])), 3)
        0.0
    """
    p, y = align(p, y)
    return float(gaps(top_label(p, bins), y, once(y))[0])


def ece_debiased(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """Compute the calibration error less its estimated bias.

    Args:
        bins: How many, of equal width.

    Returns:
        The error; slightly negative values are possible.
    """
    p, y = align(p, y)
    return float(gaps(top_label(p, bins), y, once(y))[1])


def ece_adaptive(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """Compute the calibration error over bins of equal mass.

    Returns:
        The mean gap between top-label confidence and accuracy.
    """
    p, y = align(p, y)
    return float(gaps(adaptive(p, bins), y, once(y))[0])


def ece_classwise(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """Compute the calibration error of each class's probability, averaged over the classes.

    Args:
        bins: How many, of equal width.

    Returns:
        The mean gap between probability and frequency.
    """
    p, y = align(p, y)
    return float(gaps(classwise(p, bins), y, once(y))[0])


def expected_ece_if_calibrated(p: Categorical, bins: int = BINS, seed: int = 0, draws: int = 200) -> float:
    """Estimate the calibration error that a perfectly calibrated model would show on so many rows.

    Args:
        p: A distribution of N rows, whose confidences the model has.
        bins: How many, of equal width.
        draws: How many sets of labels are drawn from the model.

    Returns:
        The mean error over these draws.
    """
    p, _ = align(p, torch.zeros(len(p.log_probs)))
    views = top_label(p, bins)
    errors = [gaps_if_calibrated(views, labels) for labels in labels_if_calibrated(p, draws, seed)]
    return float(torch.cat(errors).mean())


def reliability(p: Categorical, y: Tensor, bins: int = BINS) -> list[Bin]:
    """Tabulate the reliability diagram.

    Args:
        bins: How many, of equal width.

    Returns:
        The bins, from the lowest confidence up.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2]]).expand(5, 2).log())
        >>> bins = co.metrics.reliability(p, torch.tensor([0, 0, 0, 0, 1]))
        >>> [(bin.count, round(bin.accuracy, 2)) for bin in bins if bin.count]
        [(5, 0.8)]
    """
    p, y = align(p, y)
    (view,) = top_label(p, bins)
    return _tabulate(view, y)


def outcome_reliability(p: Categorical, y: Tensor, bins: int = 10) -> list[Bin]:
    """Tabulate how often the outcome happens against its predicted probability.

    Args:
        p: A distribution of N rows over two classes, of which the second is the outcome.
        bins: How many, of equal width.

    Returns:
        The bins, from the lowest probability up: `confidence` is the mean P(outcome), `accuracy` the share of rows with

    Raises:
        InputError: If there are more classes than two.
    """
    p, y = align(p, y)
    if p.log_probs.shape[1] != 2:
        raise InputError("Reliability of an outcome is for two classes; use reliability for more.")
    return _tabulate(classwise(p, bins)[1], y)


def _tabulate(view: View, y: Tensor) -> list[Bin]:
    """The bins of a view, each with its mean confidence and its share of rows with the label."""
    bins = len(view.edges) + 1
    where = torch.bucketize(view.confidence, view.edges)
    hit = y == view.label
    diagram = []
    for i in range(bins):
        rows = where == i
        n = int(rows.sum())
        low = i / bins
        high = (i + 1) / bins
        if n == 0:
            diagram.append(Bin(low, high, 0, None, None, None))
        else:
            accuracy = float(hit[rows].double().mean())
            diagram.append(Bin(low, high, n, float(view.confidence[rows].mean()), accuracy, wilson(accuracy, n)))
    return diagram


def merge_small_bins(bins: Sequence[Bin], smallest: int) -> list[Bin]:
    """Merge neighbouring bins until no small count can be told from them.

    Every bin that is left has at least `smallest` rows with the label and as many without. None is left out, so that
    nothing can be found by subtraction either.

    Args:
        bins: The bins, from the lowest confidence up.
        smallest: The smallest count that may be shown.

    Returns:
        The merged bins; none where the rows together have too few with the label or without.
    """
    merged: list[Bin] = []
    waiting: list[Bin] = []
    for b in bins:
        waiting.append(b)
        if _fewest(waiting) >= smallest:
            merged.append(join_bins(waiting))
            waiting = []
    if not merged:
        return []
    merged[-1] = join_bins([merged[-1], *waiting])
    return merged


def join_bins(bins: Sequence[Bin]) -> Bin:
    """Join neighbouring bins into one.

    Args:
        bins: The bins, from the lowest confidence up.

    Returns:
        One bin with all their rows.
    """
    rows = sum(b.count for b in bins)
    if not rows:
        return Bin(bins[0].low, bins[-1].high, 0, None, None, None)
    confidence = sum(b.count * (b.confidence or 0.0) for b in bins) / rows
    accuracy = sum(b.count * (b.accuracy or 0.0) for b in bins) / rows
    return Bin(bins[0].low, bins[-1].high, rows, confidence, accuracy, wilson(accuracy, rows))


def _fewest(bins: Sequence[Bin]) -> int:
    """The rows with the label or those without, whichever are fewer."""
    hits = sum(round(b.count * (b.accuracy or 0.0)) for b in bins)
    rows = sum(b.count for b in bins)
    return min(hits, rows - hits)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of a proportion.

    Returns:
        Its ends, between 0 and 1.

    Example:
        >>> import consilience as co
        >>> [round(end, 3) for end in co.metrics.wilson(0.9, 100)]
        [0.826, 0.945]
    """
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def intercept_and_slope(p: Categorical, y: Tensor) -> tuple[Estimate | None, Estimate | None]:
    """Recalibrate a binary model by logistic regression: 0 and 1 when calibrated, with Wald 95 % intervals.

    The intercept is fitted with the slope held at 1 (calibration in the large), the slope with a free intercept.

    Args:
        p: A distribution of N rows over two classes.

    Returns:
        Intercept and slope; None where no finite value exists: one class alone, infinite or huge logits, classes that
        the model separates.

    Raises:
        InputError: If there are more classes than two.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> share = torch.tensor([0.2, 0.8]).repeat(50)
        >>> p = Categorical(torch.stack([1 - share, share], 1).log())
        >>> y = torch.cat([torch.tensor([0, 1]).repeat(40), torch.tensor([1, 0]).repeat(10)])
        >>> intercept, slope = co.metrics.intercept_and_slope(p, y)
        >>> round(slope.value, 2)
        1.0
    """
    p, y = align(p, y)
    if p.log_probs.shape[1] != 2:
        raise InputError("Calibration intercept and slope are for two classes; use ece_classwise for more.")
    return recalibrate((p.log_probs[:, 1] - p.log_probs[:, 0]).numpy(), y.numpy().astype(float))


def recalibrate(x: Array, label: Array) -> tuple[Estimate | None, Estimate | None]:
    """Fit a logistic regression on a binary model's log-odds.

    Args:
        x: Log-odds of N rows.
        label: Their labels, 0 or 1.

    Returns:
        Intercept and slope, as `intercept_and_slope` gives them.
    """
    if label.mean() in {0, 1} or not (np.abs(x) <= 1e15).all():  # beyond, adding 1 is lost in the last digit
        return None, None
    intercept = _logistic_intercept(x, label)
    ones = x[label == 1]
    zeros = x[label == 0]
    if zeros.max() <= ones.min() or ones.max() <= zeros.min():
        return intercept, None
    spread = float(x.std())
    slope, var = _logistic_slope((x - x.mean()) / spread, label)
    return intercept, _wald(slope / spread, var / spread**2)


def coverage_curve(p: Normal | Counts, y: Tensor, levels: Sequence[float] = (0.5, 0.8, 0.95)) -> list[Coverage]:
    """Compute how often central intervals hold the target, level by level.

    Args:
        p: A distribution of N rows; outputs of one row count as one observation.
        levels: What the intervals promise.
    """
    p, y = align(p, y)
    curve = []
    for level in levels:
        observed = float(inside(p, y, level).mean())
        curve.append(Coverage(level, observed, wilson(observed, len(y))))
    return curve


def coverage(p: Normal | Counts, y: Tensor, level: float = 0.95) -> float:
    """Compute how often the central interval of one level holds the target.

    Args:
        level: What the interval promises.

    Returns:
        The share of targets that lie within.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> p = Normal(torch.zeros(4), torch.zeros(4), torch.ones(4))
        >>> co.metrics.coverage(p, torch.tensor([0.0, 1.0, -1.0, 3.0]), level=0.95)
        0.75
    """
    p, y = align(p, y)
    return float(inside(p, y, level).mean())


def inside(p: Normal | Counts, y: Tensor, level: float) -> Tensor:
    """Say whether the central interval holds the target, row by row.

    Args:
        p: A distribution of N rows, aligned.
        level: What the interval promises.

    Returns:
        1 or 0 [N]; a share when a row has several outputs.
    """
    if isinstance(p, Counts):
        low, high = p.interval(level)
        return ((y >= low) & (y <= high)).double()
    reach = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    within: Tensor = ((y - p.mean).abs() <= reach * p.total.sqrt()).double()
    return within.reshape(len(y), -1).mean(1)


def _logistic_intercept(x: Array, y: Array) -> Estimate:
    """The intercept of a logistic regression whose slope is 1."""
    expit = scipy.special.expit
    middle = scipy.special.logit(y.mean())
    low = middle - x.max() - 1  # all fitted below the rate
    high = middle - x.min() + 1  # all above
    intercept = float(scipy.optimize.brentq(lambda a: float((expit(a + x) - y).sum()), low, high, xtol=1e-12))
    probs = expit(intercept + x)
    return _wald(intercept, 1 / max(float((probs * (1 - probs)).sum()), 1e-300))


def _logistic_slope(x: Array, y: Array) -> tuple[float, float]:
    """The slope of a logistic regression and its variance: Newton's method, halving steps that overshoot."""
    design = np.stack([np.ones_like(x), x], 1)
    b = np.zeros(2)

    def loss(b: Array) -> float:
        return float(np.logaddexp(0, design @ b).sum() - y @ design @ b)

    least = loss(b)
    for _ in range(100):
        probs = scipy.special.expit(design @ b)
        precision = (design.T * (probs * (1 - probs))) @ design
        step = np.linalg.solve(precision, design.T @ (y - probs))
        while np.abs(step).max() > 1e-10 and (value := loss(b + step)) > least:
            step = step / 2
        b = b + step
        if np.abs(step).max() <= 1e-10:
            break
        least = value
    return float(b[1]), float(np.linalg.inv(precision)[1, 1])


def _wald(value: float, var: float) -> Estimate:
    """A value with its Wald 95 % interval."""
    return Estimate(value, value - Z95 * math.sqrt(var), value + Z95 * math.sqrt(var))
