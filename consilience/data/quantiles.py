"""Quantiles of columns, by which feature maps of tables are laid out: of rows at hand, or of counts on a grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from consilience.data.sites import Sites

Counts = npt.NDArray[np.float64]


def find_quantiles(sites: Sites, levels: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Find the quantiles of every feature over all training rows.

    Returns:
        One tuple a feature, in units of the rows; empty for one of at most two different values, as a category's ones
        and zeros are.
    """
    pooled = np.concatenate([part.x.flatten(1).double().cpu().numpy() for part in sites.train])
    return tuple(_of_column(column, levels) for column in pooled.T)


def _of_column(values: Counts, levels: Sequence[float]) -> tuple[float, ...]:
    low, high = values.min(), values.max()
    if bool(((values == low) | (values == high)).all()):
        return ()
    return tuple(np.quantile(values, levels, method="inverted_cdf").tolist())


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
