"""How often prediction sets held the truth, and how large they were: by site and by class, the worst first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.prediction_sets.coverage import binomial_interval


class Covered(NamedTuple):
    """What became of the sets of some rows.

    Attributes:
        name: Whose rows they are.
        rows: How many.
        coverage: The share of sets that hold the truth.
        interval: Its exact 95 % interval (Clopper and Pearson).
        size: The mean number of classes in a set, or the mean width of an interval; infinite where one is.
    """

    name: str
    rows: int
    coverage: float
    interval: tuple[float, float]
    size: float

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON."""
        size: float | None = self.size
        if math.isinf(self.size):
            size = None
        return {**self._asdict(), "interval": list(self.interval), "size": size}


def measure(inside: Tensor, sizes: Tensor, name: str = "") -> Covered:
    """Measure the sets of some rows.

    Args:
        inside: Whether each set holds the truth [N], of at least one row.
        sizes: The size of each set [N].
        name: Whose rows they are.

    Returns:
        Their coverage and size.
    """
    hits = int(inside.sum())
    rows = len(inside)
    return Covered(name, rows, hits / rows, binomial_interval(hits, rows), float(sizes.double().mean()))


def measure_groups(inside: Tensor, sizes: Tensor, groups: Mapping[str, Tensor]) -> list[Covered]:
    """Measure the sets of groups of rows.

    Args:
        inside: Whether each set holds the truth [N].
        sizes: The size of each set [N].
        groups: Which rows belong to each group [N], by name.

    Returns:
        An entry for each group that has rows, the least covered first.
    """
    found = [measure(inside[rows], sizes[rows], name) for name, rows in groups.items() if bool(rows.any())]
    return sorted(found, key=lambda covered: covered.coverage)


def groups_of(parts: Sequence[int], names: Sequence[str]) -> dict[str, Tensor]:
    """Say which of all rows belong to each part.

    Args:
        parts: How many rows each part has, one after another.

    Returns:
        A mask over all rows for each part, by name.
    """
    part = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(list(parts), dtype=torch.int64))
    return {name: part == k for k, name in enumerate(names)}


def uninformed(y: Tensor, level: float, classes: int) -> float:
    """Find the size of the sets of one who knows the target and no column: sets as large say nothing of a row.

    Args:
        y: Targets of training rows, in the unit of the widths [N].
        level: The share of rows to be covered.
        classes: How many there are; 0 for numbers.

    Returns:
        The number of classes times the level, as each class is then in that share of sets; the width of the central
        interval that covers this share of numbers.
    """
    if classes:
        return level * classes
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = y.double().flatten().quantile(ends).tolist()
    return float(high - low)
