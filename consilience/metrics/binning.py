"""Confidences in bins: how far confidence and accuracy lie apart, and how far they would in a calibrated model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.distributions.survival import Survival
from consilience.errors import Diverged, InputError

BINS = 15
_BLOCK = 2_000_000  # numbers in one block of resamples: 16 MB
D = TypeVar("D", bound=Distribution)


class View(NamedTuple):
    """One way to ask for calibration: the confidence that each row has this label, and inner bin edges.

    Attributes:
        confidence: [N].
        label: [N].
        edges: [M − 1].
    """

    confidence: Tensor
    label: Tensor
    edges: Tensor


def align(p: D, y: Tensor) -> tuple[D, Tensor]:
    """Bring a distribution and its labels into one form, and refuse what cannot be scored.

    Returns:
        Both in double precision on the CPU, targets in the shape of the means.

    Raises:
        InputError: If labels and predictions do not fit each other.
        Diverged: If predictions are NaN.
    """
    first = p[0]
    if len(y) != len(first) or len(y) == 0:
        raise InputError(f"There are {len(first)} predictions and {len(y)} labels; give one label for each row.")
    if any(bool(part.isnan().any()) for part in p):
        raise Diverged("The predictions contain NaN; lower the learning rate or the temperature and run again.")
    y = y.detach().cpu()
    if isinstance(p, Categorical):
        return cast(tuple[D, Tensor], _align_classes(p, y))
    if isinstance(p, Counts):
        exposed, counts = p.expose(y)
        return cast(tuple[D, Tensor], (Counts(*(leaf.detach().cpu().double() for leaf in exposed)), counts.double()))
    if isinstance(p, Survival):
        if y.shape != (len(first), 2):
            raise InputError(f"Targets of shape {list(y.shape)} are not a time and an event for each row.")
        return cast(tuple[D, Tensor], (Survival(*(leaf.detach().cpu().double() for leaf in p)), y.double()))
    assert isinstance(p, Normal)
    return cast(tuple[D, Tensor], _align_numbers(p, y))


def _align_classes(p: Categorical, y: Tensor) -> tuple[Categorical, Tensor]:
    rows, classes = p.log_probs.shape
    y = y.reshape(-1).long()
    if len(y) != rows or bool(((y < 0) | (y >= classes)).any()):
        raise InputError(f"Labels for {classes} classes are one integer from 0 to {classes - 1} for each row.")
    return Categorical(p.log_probs.detach().cpu().double()), y


def _align_numbers(p: Normal, y: Tensor) -> tuple[Normal, Tensor]:
    mean, var, noise = (part.detach().cpu().double() for part in p)
    if not p.full:
        var = var.broadcast_to(mean.shape)
    aligned = Normal(mean, var, noise.broadcast_to(mean.shape))
    if y.numel() != mean.numel():
        raise InputError(f"Targets of shape {list(y.shape)} do not fit means of shape {list(mean.shape)}.")
    if not bool((aligned.total > 0).all()):
        raise Diverged("A predictive variance is not positive; give the likelihood an observation noise above 0.")
    return aligned, y.double().reshape(mean.shape)


def top_label(p: Categorical, bins: int = BINS) -> list[View]:
    """View the predicted class in bins of equal width."""
    confidence, label = p.probs.max(-1)
    return [View(confidence, label, torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1])]


def adaptive(p: Categorical, bins: int = BINS) -> list[View]:
    """View the predicted class in bins of equal mass.

    Equal confidences share a bin, so the order of rows is irrelevant.
    """
    (view,) = top_label(p, bins)
    return [view._replace(edges=torch.quantile(view.confidence, view.edges))]


def classwise(p: Categorical, bins: int = BINS) -> list[View]:
    """View every class in bins of equal width."""
    (top,) = top_label(p, bins)
    return [View(c, torch.full_like(top.label, k), top.edges) for k, c in enumerate(p.probs.T.contiguous())]


def gaps(views: Sequence[View], y: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the calibration error and its debiased form, the mean over views.

    Debiased: Kumar, Liang & Ma, NeurIPS 2019. Each bin's |confidence − accuracy| loses what it would gain on average if
    its accuracy were drawn from N(accuracy, accuracy (1 − accuracy) / n): the mean of a folded normal, less the gap.

    Args:
        views: What confidence and accuracy are compared of.
        y: Labels [N].
        counts: How many times row i is there in resample b [N, B].

    Returns:
        Both errors [B].
    """
    plain, debiased = torch.zeros(2, counts.shape[1], dtype=torch.float64)
    for view in views:
        hit = (y == view.label).double()
        n, hits, excess = _sum_bins(view, (torch.ones_like(hit), hit, view.confidence - hit), counts)
        gap, less_bias = weigh_gaps(n, hits, excess)
        plain += gap / len(views)
        debiased += less_bias / len(views)
    return plain, debiased


def weigh_gaps(n: Tensor, hits: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Average the gaps of bins by their rows.

    Args:
        n: Rows in each bin [M, B].
        hits: How many of them are right [M, B].
        excess: The sum of their confidence less that [M, B].

    Returns:
        The calibration error and its debiased form [B].
    """
    share = n / n.sum(0)
    per_row = 1 / n.clamp(min=1)  # an empty bin's sums are zero
    accuracy = hits * per_row
    gap = (excess * per_row).abs()
    sd = (accuracy * (1 - accuracy) * per_row).clamp(min=1e-24).sqrt()
    folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (gap / sd) ** 2) + gap * torch.erf(gap / sd / 2**0.5)
    return (share * gap).sum(0), (share * (2 * gap - folded)).sum(0)


def gaps_if_calibrated(views: Sequence[View], labels: Tensor) -> Tensor:
    """Compute the calibration errors for labels drawn from the model itself.

    Args:
        views: What confidence and accuracy are compared of.
        labels: B draws of all labels [N, B].

    Returns:
        Errors [B].
    """
    total = torch.zeros(labels.shape[1], dtype=torch.float64)
    for view in views:
        off = view.confidence.unsqueeze(1) - (labels == view.label.unsqueeze(1)).double()
        total += (_members(view) @ off).abs().sum(0) / len(labels) / len(views)
    return total


def labels_if_calibrated(p: Categorical, draws: int, seed: int) -> Iterator[Tensor]:
    """Draw labels from the model.

    Yields:
        Blocks of labels [N, b].
    """
    generator = torch.Generator().manual_seed(seed)
    cumulative = p.probs.cumsum(-1)
    for size in blocks(len(cumulative), draws):
        u = torch.rand(len(cumulative), size, generator=generator, dtype=torch.float64) * cumulative[:, -1:]
        yield torch.searchsorted(cumulative, u, right=True).clamp(max=cumulative.shape[1] - 1)


def blocks(rows: int, total: int) -> list[int]:
    """Cut resamples into blocks that fit into memory.

    Args:
        rows: How many rows a resample has.
        total: How many resamples there are.

    Returns:
        How many resamples to hold at a time.
    """
    size = max(1, min(total, _BLOCK // rows))
    return [min(size, total - start) for start in range(0, total, size)]


def once(y: Tensor) -> Tensor:
    """Count every row once.

    Args:
        y: Labels of N rows.

    Returns:
        Counts [N, 1].
    """
    return torch.ones(len(y), 1, dtype=torch.float64)


def _sum_bins(view: View, values: Sequence[Tensor], counts: Tensor) -> list[Tensor]:
    """The sums of each value [N] over the rows of a bin [M, B]; without a matrix of rows where there is no resample."""
    if counts.shape[1] > 1:
        members = _members(view)
        return [(members * value) @ counts for value in values]
    where = torch.bucketize(view.confidence, view.edges)
    bins = len(view.edges) + 1
    return [torch.bincount(where, value * counts[:, 0], bins).unsqueeze(1) for value in values]


def _members(view: View) -> Tensor:
    """Which rows lie in which bin [M, N]; bins are open below and closed above."""
    rows = torch.nn.functional.one_hot(torch.bucketize(view.confidence, view.edges), len(view.edges) + 1)
    return rows.double().T
