"""Whether what columns say of the outcome differs between sites: Rao's score test of slopes of their own.

Every site has an intercept of its own and all share the slopes, b. At that fit a site's score in the slopes, g_k, and
its information H_k, both with its intercept profiled out, say how far its own slopes would go:

    Q = Σ_k g_kᵀ H_k⁻¹ g_k - (Σ_k g_k)ᵀ (Σ_k H_k)⁻¹ (Σ_k g_k)  ~  χ²,  Σ_k rank H_k - rank Σ_k H_k degrees of freedom,

where slopes are the same everywhere; for numbers over the noise that is left, an F test. (Q - df) / n is to be compared
with the square of Cramér's V, χ² / n: half of it is what the sites' own slopes could gain in nats a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 2e8  # multiplications a pass; of more rows a part is looked at, evenly drawn
STEPS = 20
RIDGE = 1.0  # of the shared slopes of standardised columns, so that separated rows do not run off
RANK = 1e-6


class Slopes(NamedTuple):
    """How far slopes differ.

    Attributes:
        size: √((Q - df) / n), to be read as Cramér's V; 0 where Q is below its degrees of freedom.
        chance: How often chance alone makes Q as large.
        q: Q, a χ² where classes are predicted.
        free: Its degrees of freedom.
    """

    size: float = 0.0
    chance: float = 1.0
    q: float = 0.0
    free: int = 0


def differ_in_slopes(xs: Sequence[Tensor], ys: Sequence[Tensor], classes: int | None) -> Slopes:
    """Test whether sites have slopes of their own.

    Args:
        xs: The columns of every site, [N, D].
        ys: Its classes, or its numbers [N].
        classes: How many classes; None for numbers.

    Returns:
        What was found; of several classes, of the one that differs most against the others.
    """
    width = xs[0].shape[1]
    step = math.ceil(sum(len(x) for x in xs) * width * width / MOST)
    pairs = [(x[::step].double(), y[::step]) for x, y in zip(xs, ys, strict=True) if len(x[::step]) > 1]
    if len(pairs) < 2:
        return Slopes()
    x = torch.cat([own for own, _ in pairs])
    x = (x - x.mean(0)) / x.std(0, correction=0).clamp_min(1e-12)
    sizes = [len(own) for own, _ in pairs]
    parts = x.split(sizes)
    if classes is None:
        return _of_numbers(parts, torch.cat([y.double() for _, y in pairs]).split(sizes))
    told = range(classes)
    if classes == 2:
        told = range(1, 2)
    found = [_of_class(parts, [(y == c).double() for _, y in pairs]) for c in told]
    best = min(found, key=lambda slopes: (slopes.chance, -slopes.size))
    return best._replace(chance=min(1.0, best.chance * len(found)))


def _of_numbers(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Slopes:
    """The F test of least squares with and without slopes of the sites' own."""
    from scipy.stats import f

    centred = [x - x.mean(0) for x in xs]
    residuals = [y - y.mean() for y in ys]
    information = [x.T @ x for x in centred]
    score = [x.T @ r for x, r in zip(centred, residuals, strict=True)]
    q, free, ranks = _statistic(information, score)
    rows = sum(len(y) for y in ys)
    left = rows - len(ys) - ranks
    explained = sum(float(g @ _inverse(h)[0] @ g) for h, g in zip(information, score, strict=True))
    noise = (sum(float(r @ r) for r in residuals) - explained) / max(left, 1)
    if free < 1 or left < 1 or noise <= 0:
        return Slopes()
    return _found(q / noise, free, rows, float(f.sf(q / noise / free, free, left)))


def _of_class(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Slopes:
    """The score test of a logistic model, at the sites' own intercepts and the slopes they share."""
    from scipy.stats import chi2

    seen = [(x, y) for x, y in zip(xs, ys, strict=True) if 0 < float(y.sum()) < len(y)]
    if len(seen) < 2:
        return Slopes()
    width = seen[0][0].shape[1]
    slopes = torch.zeros(width, dtype=torch.float64)
    intercepts = [torch.logit(y.mean()) for _, y in seen]
    information: list[Tensor] = []
    score: list[Tensor] = []
    for _ in range(STEPS):
        information, score, places = [], [], []
        for (x, y), intercept in zip(seen, intercepts, strict=True):
            p = torch.sigmoid(x @ slopes + intercept)
            w = (p * (1 - p)).clamp_min(1e-10)
            mean = (w @ x) / w.sum()
            moved = (y - p).sum() / w.sum()
            centred = x - mean
            information.append(centred.T @ (w.unsqueeze(1) * centred))
            score.append(centred.T @ (y - p))
            places.append((mean, moved))
        penalised = torch.stack(information).sum(0) + RIDGE * torch.eye(width, dtype=torch.float64)
        change = torch.linalg.solve(penalised, torch.stack(score).sum(0) - RIDGE * slopes)
        moves = [moved - mean @ change for mean, moved in places]
        largest = max(float(change.abs().max()), *(abs(float(move)) for move in moves))
        shrink = min(1.0, 2.0 / max(largest, 1e-300))
        slopes = slopes + shrink * change
        intercepts = [a + shrink * move for a, move in zip(intercepts, moves, strict=True)]
        if largest < 1e-8:
            break
    q, free, _ = _statistic(information, score)
    rows = sum(len(y) for _, y in seen)
    if free < 1:
        return Slopes()
    return _found(q, free, rows, float(chi2.sf(q, free)))


def _statistic(information: Sequence[Tensor], score: Sequence[Tensor]) -> tuple[float, int, int]:
    """Q, its degrees of freedom, and how many slopes all sites tell by themselves."""
    q = 0.0
    ranks = 0
    for h, g in zip(information, score, strict=True):
        inverse, rank = _inverse(h)
        q += float(g @ inverse @ g)
        ranks += rank
    inverse, rank = _inverse(torch.stack(list(information)).sum(0))
    total = torch.stack(list(score)).sum(0)
    return q - float(total @ inverse @ total), ranks - rank, ranks


def _inverse(matrix: Tensor) -> tuple[Tensor, int]:
    """The inverse on what rows tell, and how many directions that is."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > RANK * values.max().clamp_min(1e-300)
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T, int(kept.sum())


def _found(q: float, free: int, rows: int, chance: float) -> Slopes:
    return Slopes(math.sqrt(max(0.0, (q - free) / rows)), chance, q, free)
