"""Table one of sums with noise: what one row adds is bounded, and everything shown is computed from noisy sums.

With V columns a row adds v = (v₁ … v_V)/√V, and ‖vⱼ‖ ≤ 1:

    a category      vⱼ marks its level, or that it is missing
    a number        vⱼ = √½ (marks of the bin it lies in, or that it is missing; z/√2, z²/√2), z its place in the agreed
                    range, from −1 to 1: ½ + ¼ (z² + z⁴) ≤ 1

so that ‖v‖ ≤ 1, as `consilience.privacy.dp.mechanisms` asks; a row of weight w ≤ 1 adds w v. Counts may come out below
0, and are shown as 0; a mean whose noise is wide beside its range is not shown. There are no exact quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from consilience.biostatistics.site_summary import BINS
from consilience.biostatistics.table_one import OVERALL, QUARTILES, Curve, Entry, TableOne, quantile
from consilience.biostatistics.variables import Column, Variable
from consilience.privacy.dp.mechanisms import Clipped

Z95 = 1.959963984540054
WIDE = 0.25  # of a range from −1 to 1, and of a share: noise beyond which a mean or a quartile is not shown


def width_of(variable: Variable) -> int:
    """Count the sums of a column."""
    if variable.levels:
        return len(variable.levels) + 1
    return BINS + 3


def sum_rows(variables: Sequence[Variable], columns: Sequence[Column], weights: Tensor) -> Clipped:
    """Add up what rows add to a table one, of which no row's, or patient's, is longer than 1.

    Args:
        variables: The columns, and the agreed ranges of numbers.
        weights: Of the rows [N], 1 or less; those of a patient add up to 1.

    Returns:
        The sums without noise, which cannot be sent.
    """
    w = weights.double()
    parts = []
    for variable, column in zip(variables, columns, strict=True):
        if variable.levels:
            place = torch.where(column.gaps, len(variable.levels), column.values).long()
            parts.append(torch.zeros(len(variable.levels) + 1, dtype=torch.float64).index_add(0, place, w))
            continue
        span = variable.high - variable.low
        known = column.values.double().nan_to_num(variable.low).clamp(variable.low, variable.high)
        share = (known - variable.low) / (span or 1.0)
        place = torch.where(column.gaps, BINS, (share * BINS).ceil().sub(1).clamp(0, BINS - 1)).long()
        marks = torch.zeros(BINS + 1, dtype=torch.float64).index_add(0, place, w)
        z = torch.where(column.gaps, 0.0, 2 * share - 1)
        moments = torch.stack([(w * z).sum(), (w * z * z).sum()])
        parts.append(math.sqrt(0.5) * torch.cat([marks, moments / math.sqrt(2)]))
    return Clipped(torch.cat(parts) / math.sqrt(len(variables)))


class _Noisy(NamedTuple):
    """A column's sums, and the SD of their noise.

    Attributes:
        cells: Rows of every level or bin, and without a value.
        cell: The deviation of each.
        moments: Σ z and Σ z²; nothing for a category.
        moment: The deviation of each.
    """

    cells: Tensor
    cell: float
    moments: Tensor
    moment: float


def _read(variables: Sequence[Variable], sums: Tensor, deviation: float) -> list[_Noisy]:
    """The columns' sums, in rows."""
    scale = math.sqrt(len(variables))
    found = []
    for variable, part in zip(variables, sums.split([width_of(v) for v in variables]), strict=True):
        if variable.levels:
            found.append(_Noisy(scale * part, scale * deviation, part[:0], 0.0))
            continue
        own = scale * math.sqrt(2)
        cells, moments = part[: BINS + 1], part[BINS + 1 :]
        found.append(_Noisy(own * cells, own * deviation, own * math.sqrt(2) * moments, own * math.sqrt(2) * deviation))
    return found


def combine_noisy(variables: Sequence[Variable], sums: Mapping[str, Tensor], deviation: float, said: str) -> TableOne:
    """Put the sites' noisy sums side by side and add them up.

    Args:
        sums: One release for each site, by name.
        deviation: Of the noise in each sum of one site.
        said: What is promised, one sentence.

    Returns:
        The table; of each number it says how far noise takes it in 95 of 100 draws.
    """
    places = {OVERALL: torch.stack(list(sums.values())).sum(0), **sums}
    entries: list[Entry] = []
    for place, own in places.items():
        noise = deviation * (math.sqrt(len(sums)) if place == OVERALL else 1.0)
        columns = _read(variables, own, noise)
        rows, error = _count_rows(columns)
        entries.append(Entry("", "", "rows", place, max(0.0, float(round(rows))), within=Z95 * error))
        for variable, column in zip(variables, columns, strict=True):
            labels = [*enumerate(variable.levels), (-1, "missing")]
            for cell, label in labels:
                count = max(0.0, float(round(float(column.cells[cell]))))
                entries.append(Entry(variable.name, label, "count", place, count, within=Z95 * column.cell))
            if not variable.levels:
                entries += _numbers(variable, column, place, rows)
    return TableOne(tuple(variables), tuple(sums), 1, tuple(entries), said)


def _count_rows(columns: Sequence[_Noisy]) -> tuple[float, float]:
    """How many rows there are by all columns, each of whose cells add up to that, and the SD of that."""
    weights = [1 / (len(column.cells) * column.cell**2) for column in columns]
    total = sum(w * float(column.cells.sum()) for w, column in zip(weights, columns, strict=True))
    return total / sum(weights), 1 / math.sqrt(sum(weights))


def _numbers(variable: Variable, column: _Noisy, place: str, rows: float) -> list[Entry]:
    """Mean, SD and quartiles of a number; nothing of them where noise drowns it."""
    known = rows - max(0.0, float(column.cells[-1]))
    half = (variable.high - variable.low) / 2
    mean = spread = None
    reach = math.inf
    if known > 1:
        reach = Z95 * column.moment / known
    if reach < WIDE:
        z = float((column.moments[0] / known).clamp(-1, 1))
        square = float((column.moments[1] / known).clamp(0, 1))
        mean = variable.low + half * (z + 1)
        spread = half * math.sqrt(max(0.0, square - z * z))
    else:
        reach = 0.0
    entries = [
        Entry(variable.name, "", "mean", place, mean, within=half * reach),
        Entry(variable.name, "", "deviation", place, spread),
    ]
    edges = np.linspace(variable.low, variable.high, BINS + 1)
    up_to = np.maximum.accumulate(np.concatenate([[0.0], column.cells[:-1].cumsum(0).clamp(min=0).numpy()]))
    off = math.inf
    if up_to[-1] > 1:
        off = Z95 * math.sqrt(BINS / 2) * column.cell / up_to[-1]
    for statistic, share in QUARTILES.items():
        value, within = None, 0.0
        if off < WIDE:
            value = _at(edges, up_to, share)
            ends = [_at(edges, up_to, min(max(share + side * off, 1e-9), 1.0)) for side in (-1, 1)]
            within = max([abs(end - value) for end in ends if end is not None and value is not None] or [0.0])
            within = max(within, float(edges[1] - edges[0]))
        entries.append(Entry(variable.name, "", statistic, place, value, within=within))
    return entries


def _at(edges: Any, up_to: Any, share: float) -> float | None:
    """Where a share of the values lies, on a straight line within its bin."""
    return quantile(edges, Curve(up_to, up_to, up_to), share)
