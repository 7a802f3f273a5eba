"""Whether probabilities mean what they say: reliability, calibration errors, recalibration, coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.errors import Diverged, InputError
from consilience.predictive import Categorical, Normal

BINS = 15
Z95 = 1.959963984540054  # Φ⁻¹(0.975)
_BLOCK = 2_000_000  # numbers in one block of resamples: 16 MB
Array: TypeAlias = npt.NDArray[np.float64]
D = TypeVar("D", Categorical, Normal)


class Bin(NamedTuple):
    """The rows whose top-label confidence lies in (low, high]; None where there are no rows."""

    low: float
    high: float
    count: int  # type: ignore[assignment]  # hides tuple.count
    confidence: float | None
    accuracy: float | None
    interval: tuple[float, float] | None  # Wilson 95 % interval of the accuracy


class Coverage(NamedTuple):
    level: float
    observed: float
    interval: tuple[float, float]  # Wilson 95 % interval of the observed coverage


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


class View(NamedTuple):
    """One way to ask for calibration: the confidence that each row has this label, and inner bin edges."""

    confidence: Tensor  # [N]
    label: Tensor  # [N]
    edges: Tensor  # [M − 1]


def align(p: D, y: Tensor) -> tuple[D, Tensor]:
    """The distribution and its labels in double precision on the CPU; what cannot be scored is refused."""
    first = p[0]
    if len(y) != len(first) or len(y) == 0:
        raise InputError(f"There are {len(first)} predictions and {len(y)} labels; give one label for each row.")
    if any(bool(part.isnan().any()) for part in p):
        raise Diverged("The predictions contain NaN; lower the learning rate or the temperature and run again.")
    y = y.detach().cpu()
    if isinstance(p, Categorical):
        y, classes = y.reshape(-1).long(), first.shape[-1]
        if len(y) != len(first) or bool(((y < 0) | (y >= classes)).any()):
            raise InputError(f"Labels for {classes} classes are one integer from 0 to {classes - 1} for each row.")
        return Categorical(first.detach().cpu().double()), y
    mean, var, noise = (part.detach().cpu().double() for part in p)
    made = Normal(mean, var if p.full else var.broadcast_to(mean.shape), noise.broadcast_to(mean.shape))
    if y.numel() != mean.numel():
        raise InputError(f"Targets of shape {list(y.shape)} do not fit means of shape {list(mean.shape)}.")
    if not bool((made.total > 0).all()):
        raise InputError("A predictive variance is not positive; give the likelihood an observation noise above 0.")
    return made, y.double().reshape(mean.shape)


def top_label(p: Categorical, bins: int = BINS) -> list[View]:
    """The predicted class in bins of equal width."""
    confidence, label = p.probs.max(-1)
    return [View(confidence, label, torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1])]


def adaptive(p: Categorical, bins: int = BINS) -> list[View]:
    """The predicted class in bins of equal mass; equal confidences share a bin, so the order of rows is irrelevant."""
    (view,) = top_label(p, bins)
    return [view._replace(edges=torch.quantile(view.confidence, view.edges))]


def classwise(p: Categorical, bins: int = BINS) -> list[View]:
    """Every class in bins of equal width."""
    (top,) = top_label(p, bins)
    return [View(c, torch.full_like(top.label, k), top.edges) for k, c in enumerate(p.probs.T.contiguous())]


def gaps(views: Sequence[View], y: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The calibration error and its debiased form [B] when row i is there counts[i, b] times; the mean over views.

    Debiased: Kumar, Liang & Ma, NeurIPS 2019. Each bin's |confidence − accuracy| loses what it would gain on average if
    its accuracy were drawn from N(accuracy, accuracy (1 − accuracy) / n): the mean of a folded normal, less the gap.
    """
    plain, debiased = torch.zeros(2, counts.shape[1], dtype=torch.float64)
    for view in views:
        members, hit = _members(view), (y == view.label).double()
        n = members @ counts
        per_row = 1 / n.clamp(min=1)  # an empty bin's sums are zero
        accuracy = ((members * hit) @ counts) * per_row
        gap, share = (((members * (view.confidence - hit)) @ counts) * per_row).abs(), n / counts.sum(0)
        sd = (accuracy * (1 - accuracy) * per_row).clamp(min=1e-24).sqrt()
        folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (gap / sd) ** 2) + gap * torch.erf(gap / sd / 2**0.5)
        plain += (share * gap).sum(0) / len(views)
        debiased += (share * (2 * gap - folded)).sum(0) / len(views)
    return plain, debiased


def gaps_if_calibrated(views: Sequence[View], labels: Tensor) -> Tensor:
    """The calibration errors [B] for labels [N, B] drawn from the model itself."""
    total = torch.zeros(labels.shape[1], dtype=torch.float64)
    for view in views:
        off = view.confidence.unsqueeze(1) - (labels == view.label.unsqueeze(1)).double()
        total += (_members(view) @ off).abs().sum(0) / len(labels) / len(views)
    return total


def labels_if_calibrated(p: Categorical, draws: int, seed: int) -> Iterator[Tensor]:
    """Labels drawn from the model, in blocks [N, b]."""
    generator, cumulative = torch.Generator().manual_seed(seed), p.probs.cumsum(-1)
    for size in blocks(len(cumulative), draws):
        u = torch.rand(len(cumulative), size, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
        yield torch.searchsorted(cumulative, u, right=True).clamp(max=cumulative.shape[1] - 1)


def blocks(rows: int, total: int) -> list[int]:
    """How many of `total` resamples to hold in memory at a time."""
    size = max(1, min(total, _BLOCK // rows))
    return [min(size, total - start) for start in range(0, total, size)]


def once(y: Tensor) -> Tensor:
    """Counts [N, 1] of the rows as they are."""
    return torch.ones(len(y), 1, dtype=torch.float64)


def ece(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: the mean gap between top-label confidence and accuracy over bins of equal width."""
    p, y = align(p, y)
    return float(gaps(top_label(p, bins), y, once(y))[0])


def ece_debiased(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """The calibration error less its estimated bias; slightly negative values are possible."""
    p, y = align(p, y)
    return float(gaps(top_label(p, bins), y, once(y))[1])


def ece_adaptive(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """The calibration error over bins of equal mass."""
    p, y = align(p, y)
    return float(gaps(adaptive(p, bins), y, once(y))[0])


def ece_classwise(p: Categorical, y: Tensor, bins: int = BINS) -> float:
    """The calibration error of each class's probability, averaged over the classes."""
    p, y = align(p, y)
    return float(gaps(classwise(p, bins), y, once(y))[0])


def expected_ece_if_calibrated(p: Categorical, bins: int = BINS, seed: int = 0, draws: int = 200) -> float:
    """The calibration error that a perfectly calibrated model with these confidences would show on so many rows."""
    p, _ = align(p, torch.zeros(len(p.log_probs)))
    views = top_label(p, bins)
    return float(
        torch.cat([gaps_if_calibrated(views, labels) for labels in labels_if_calibrated(p, draws, seed)]).mean()
    )


def reliability(p: Categorical, y: Tensor, bins: int = BINS) -> list[Bin]:
    """The reliability diagram as numbers."""
    p, y = align(p, y)
    (view,) = top_label(p, bins)
    where, hit = torch.bucketize(view.confidence, view.edges), y == view.label
    diagram = []
    for i in range(bins):
        rows = where == i
        n, low, high = int(rows.sum()), i / bins, (i + 1) / bins
        if n == 0:
            diagram.append(Bin(low, high, 0, None, None, None))
        else:
            accuracy = float(hit[rows].double().mean())
            diagram.append(Bin(low, high, n, float(view.confidence[rows].mean()), accuracy, wilson(accuracy, n)))
    return diagram


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion."""
    centre = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def intercept_and_slope(p: Categorical, y: Tensor) -> tuple[Estimate | None, Estimate | None]:
    """Logistic recalibration of a binary model, 0 and 1 when calibrated, with Wald 95 % intervals.

    The intercept is fitted with the slope held at 1 (calibration in the large), the slope with a free intercept. None
    where no finite value exists: one class alone, infinite or huge logits, classes that the model separates.
    """
    p, y = align(p, y)
    if p.log_probs.shape[1] != 2:
        raise InputError("Calibration intercept and slope are for two classes; use ece_classwise for more.")
    x, label = (p.log_probs[:, 1] - p.log_probs[:, 0]).numpy(), y.numpy().astype(float)
    rate = label.mean()
    if rate in {0, 1} or not (np.abs(x) <= 1e15).all():  # beyond, adding 1 is lost in the last digit
        return None, None
    expit, middle = scipy.special.expit, scipy.special.logit(rate)
    low, high = middle - x.max() - 1, middle - x.min() + 1  # all fitted below, all above the rate
    intercept = float(scipy.optimize.brentq(lambda a: float((expit(a + x) - label).sum()), low, high, xtol=1e-12))
    fitted = expit(intercept + x)
    first = _wald(intercept, 1 / max(float((fitted * (1 - fitted)).sum()), 1e-300))
    ones, zeros = x[label == 1], x[label == 0]
    if zeros.max() <= ones.min() or ones.max() <= zeros.min():
        return first, None
    spread = float(x.std())
    slope, var = _logistic_slope((x - x.mean()) / spread, label)
    return first, _wald(slope / spread, var / spread**2)


def coverage_curve(p: Normal, y: Tensor, levels: Sequence[float] = (0.5, 0.8, 0.95)) -> list[Coverage]:
    """How often the central interval of each level holds the target; outputs of one row count as one observation."""
    p, y = align(p, y)
    curve = []
    for level in levels:
        observed = float(coverage(p, y, level).mean())
        curve.append(Coverage(level, observed, wilson(observed, len(y))))
    return curve


def coverage(p: Normal, y: Tensor, level: float) -> Tensor:
    """Whether the central interval holds the target [N]; a share when a row has several outputs."""
    reach = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))
    within: Tensor = ((y - p.mean).abs() <= reach * p.total.sqrt()).double()
    return within.reshape(len(y), -1).mean(1)


def _members(view: View) -> Tensor:
    """Which rows lie in which bin [M, N]; bins are open below and closed above."""
    rows = torch.nn.functional.one_hot(torch.bucketize(view.confidence, view.edges), len(view.edges) + 1)
    return rows.double().T


def _logistic_slope(x: Array, y: Array) -> tuple[float, float]:
    """The slope of a logistic regression and its variance: Newton's method, halving steps that overshoot."""
    design, b = np.stack([np.ones_like(x), x], 1), np.zeros(2)

    def loss(b: Array) -> float:
        return float(np.logaddexp(0, design @ b).sum() - y @ design @ b)

    for _ in range(100):
        fitted = scipy.special.expit(design @ b)
        precision = (design.T * (fitted * (1 - fitted))) @ design
        step = np.linalg.solve(precision, design.T @ (y - fitted))
        while loss(b + step) > loss(b) and np.abs(step).max() > 1e-10:
            step = step / 2
        b = b + step
        if np.abs(step).max() <= 1e-10:
            break
    return float(b[1]), float(np.linalg.inv(precision)[1, 1])


def _wald(value: float, var: float) -> Estimate:
    return Estimate(value, value - Z95 * math.sqrt(var), value + Z95 * math.sqrt(var))
