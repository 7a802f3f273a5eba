"""What a site sends: how many of its scores lie in each cell of an agreed grid. Tables of sites add up.

A cell ends at its edge: the count of edge j is of scores above edge j − 1 and at most edge j; the last cell holds those
above every edge. Whoever reads a score off the grid takes the edge above it, so thresholds are only rounded up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from consilience.privacy.dp.discrete import discrete_gaussian
from consilience.privacy.dp.mechanisms import STEP
from consilience.privacy.entropy import Source
from consilience.privacy.secure_aggregation.fixed_point import decode


def count_scores(scores: Tensor, edges: Tensor) -> Tensor:
    """Count scores on a grid.

    Args:
        scores: Of a site's rows [N].
        edges: Ascending [G].

    Returns:
        Counts in int64 [G + 1].
    """
    places = torch.searchsorted(edges, scores.double())
    return torch.bincount(places, minlength=len(edges) + 1)


def count_by_class(scores: Tensor, labels: Tensor, classes: int, edges: Tensor) -> Tensor:
    """Count scores on a grid, class by class.

    Args:
        scores: Of a site's rows [N].
        labels: Their classes [N].
        edges: Ascending [G].

    Returns:
        Counts in int64 [C, G + 1].
    """
    return torch.stack([count_scores(scores[labels == label], edges) for label in range(classes)])


def mark_rank(scores: Tensor, rank: int, edges: Tensor) -> Tensor:
    """Write one score as a table that adds up: a 1 in its cell.

    Args:
        scores: Of a site's rows [N].
        rank: Which of them, from the smallest, from 1 on.
        edges: Ascending [G].

    Returns:
        A table in int64 [1, G + 1].
    """
    chosen = scores.double().sort().values[rank - 1 : rank]
    return count_scores(chosen, edges).unsqueeze(0)


def merge_upwards(table: Tensor, smallest: int) -> Tensor:
    """Count rows of small cells in a cell above, until no cell shows fewer rows than may be shown.

    Rows only move up, from the highest on, so a threshold read off the table is never too small. A line with fewer
    rows altogether is left out: that depends on their number alone, not on their scores.

    Args:
        table: A site's counts [R, G + 1].
        smallest: The smallest count that may be shown.

    Returns:
        A table of the same shape, every count 0 or at least `smallest`.
    """
    merged = torch.zeros_like(table)
    for line, counts in zip(merged, table, strict=True):
        cells = counts.nonzero().flatten().flip(0).tolist()
        if int(counts.sum()) < smallest:
            continue
        groups: list[list[int]] = []  # place and count, from the highest
        for cell in cells:
            if not groups or groups[-1][1] >= smallest:
                groups.append([cell, 0])
            groups[-1][1] += int(counts[cell])
        if groups[-1][1] < smallest:  # the lowest rows join those above them
            _, rest = groups.pop()
            groups[-1][1] += rest
        for cell, count in groups:
            line[cell] = count
    return merged


def add_noise(table: Tensor, var: float, source: Source) -> Tensor:
    """Add Gaussian noise to every count, in the steps of all noise that protects somebody.

    On whole numbers alone noise of a few rows is not quite a Gaussian: with σ = 3.731, which is enough for (1, 10⁻⁵) in
    fine steps, δ would be 1.035 · 10⁻⁵.

    Args:
        var: The variance of the noise.
        source: Where random bits come from; for privacy they must be secret and used once.

    Returns:
        The noisy table in float64; as it was without noise.
    """
    if not var:
        return table
    noise = discrete_gaussian(table.numel(), math.sqrt(var) / STEP, source)
    return table + decode(noise, STEP).reshape(table.shape)
