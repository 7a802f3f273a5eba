"""Quantiles of columns, by which feature maps of tables are laid out: of rows at hand, or of counts on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience.data.sites import Sites, concatenate

HALF = 2**16  # of the 2³² numbers in float32, in order
AT_ONCE = 2**14  # rows
Counts = npt.NDArray[np.float64]


def find_quantiles(sites: Sites, levels: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Find the quantiles of every feature over all training rows.

    Returns:
        One tuple a feature, in units of the rows; empty for one of at most two different values, as a category's ones
        and zeros are.
    """
    if sites.streamed:
        return tuple(_of_rows_in_files(concatenate(sites.train).x, levels))
    pooled = np.concatenate([part.x.flatten(1).double().cpu().numpy() for part in sites.train])
    return tuple(_of_column(column, levels) for column in pooled.T)


def _of_column(values: Counts, levels: Sequence[float]) -> tuple[float, ...]:
    low, high = values.min(), values.max()
    if bool(((values == low) | (values == high)).all()):
        return ()
    return tuple(np.quantile(values, levels, method="inverted_cdf").tolist())


def _of_rows_in_files(x: Tensor, levels: Sequence[float]) -> Iterator[tuple[float, ...]]:
    """The same numbers in two passes: values are counted by the first half of their digits, then by the rest."""
    rows, width = x.shape
    columns = torch.arange(width)
    upper = torch.zeros(width * HALF, dtype=torch.int64)
    low, high = torch.full((width,), torch.inf), torch.full((width,), -torch.inf)
    for part in x.split(AT_ONCE):
        upper += torch.bincount((_ordered(part) // HALF + columns * HALF).flatten(), minlength=len(upper))
        low, high = torch.minimum(low, part.amin(0)), torch.maximum(high, part.amax(0))
    ranks = torch.tensor([max(math.ceil(rows * level - 1), 0) for level in levels])
    up_to = upper.reshape(width, HALF).cumsum(1)
    cells = torch.searchsorted(up_to, ranks.expand(width, -1).contiguous(), right=True)  # of each column and level
    sought = torch.unique(cells + columns.unsqueeze(1) * HALF)
    lower = torch.zeros(len(sought) * HALF, dtype=torch.int64)
    at_ends = torch.zeros(width, dtype=torch.int64)
    for part in x.split(AT_ONCE):
        values = _ordered(part)
        place = torch.bucketize(values // HALF + columns * HALF, sought).clamp(max=len(sought) - 1)
        inside = sought[place] == values // HALF + columns * HALF
        lower += torch.bincount(place[inside] * HALF + values[inside] % HALF, minlength=len(lower))
        at_ends += ((part == low) | (part == high)).sum(0)
    within = lower.reshape(-1, HALF).cumsum(1)
    for column in range(width):
        if int(at_ends[column]) == rows:
            yield ()
            continue
        found = []
        for cell, rank in zip(cells[column].tolist(), ranks.tolist(), strict=True):
            before = int(up_to[column, cell - 1]) if cell else 0
            own = within[int(torch.searchsorted(sought, cell + column * HALF))]
            digits = int(torch.searchsorted(own, torch.tensor(rank - before), right=True))
            found.append(_back(cell * HALF + digits))
        yield tuple(found)


def _ordered(values: Tensor) -> Tensor:
    """Numbers in float32 as whole numbers from 0 in the same order."""
    bits = (values + 0.0).contiguous().view(torch.int32).long()  # 0 for −0
    return torch.where(bits < 0, -(bits + 2**31) - 1, bits) + 2**31


def _back(order: int) -> float:
    """The number at a place of that order."""
    bits = order - 2**31
    if bits < 0:
        bits = -(bits + 1) - 2**31
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))


def quantiles_from(counts: Counts, span: tuple[float, float], levels: Sequence[float]) -> tuple[float, ...]:
    """Find a column's quantiles from how many values lie in each cell of a grid.

    Args:
        counts: Of cells of equal width, in order.
        span: Where the first cell begins and the last one ends.
        levels: Which quantiles.

    Returns:
        The quantiles: a cell's values are taken to lie evenly in it. Empty where nothing was counted, or all in one
        cell.
    """
    if np.count_nonzero(counts) < 2:
        return ()
    edges = np.linspace(*span, len(counts) + 1)
    shares = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    rises = np.concatenate([[True], np.diff(shares) > 0])
    return tuple(np.interp(levels, shares[rises], edges[rises]).tolist())


def merge_small(counts: Counts, smallest: int) -> Counts:
    """Hide cells of few values: neighbours are counted together, in the cell where their middle lies.

    Args:
        counts: Of cells in order.
        smallest: The fewest that may be shown.

    Returns:
        Counts of the same sum, each 0 or at least `smallest`; nothing where all together are fewer.
    """
    merged = np.zeros_like(counts)
    if counts.sum() < smallest:
        return merged
    start, rest = 0, counts.sum()
    for stop in range(1, len(counts) + 1):
        own = counts[start:stop].sum()
        if own >= smallest and (rest - own >= smallest or rest == own):
            middle = int(np.searchsorted(np.cumsum(counts[start:stop]), own / 2))
            merged[start + middle] = own
            start, rest = stop, rest - own
    return merged
