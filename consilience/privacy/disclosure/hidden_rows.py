"""Whether a value holds rows, as they are or in a cheap disguise.

Found by their values: a copy, a cast to another type, all numbers or a column shifted and scaled, rows or columns in
another order, transposed, flattened. No check can show that rows are not encoded in some other way: what methods send
is reviewed (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.tree import Tree

FEWEST = 20  # numbers in a profile: fewer may be alike by chance
DISTINCT = 8  # values of a column that is compared: marks and categories of different tables are alike
FEATURES = 4  # such columns that tell a single row
MANY = 12  # such columns that tell a row which was rounded, or shifted and scaled
ROUNDED = 0.02  # of a deviation, by which numbers of type bfloat16 differ from what they were
EXACT = 1e-3  # the same for few features; float16 is nearer than that
COMPARED = 2000  # rows, and as many parts of a tensor, that are held against each other


def holds_rows(value: Tree, data: Data) -> bool:
    """Tell whether a value holds rows that can be found by their numbers.

    Args:
        value: What would be sent.

    Returns:
        Whether a tensor inside is a part of the rows' memory, or the table, a column, a row or the outcomes in one of
        the disguises above. False says nothing about others.
    """
    memory = {t.untyped_storage().data_ptr() for t in data if t.numel()}
    table = _Table(data)
    for leaf in tree.leaves(value):
        if not leaf.numel() or leaf.is_complex():
            continue
        if leaf.untyped_storage().data_ptr() in memory or table.is_in(leaf.detach().double().flatten()):
            return True
    return False


class _Table:
    """A site's rows, with what is compared; computed when a tensor has the size to hold it."""

    def __init__(self, data: Data) -> None:
        self.x = data.x.flatten(1)
        self.y = data.y.flatten()

    @cached_property
    def telling(self) -> Tensor:
        """Which columns hold enough values to be told from others."""
        columns = _spaced(self.x).T
        telling = _distinct(columns[:, : 4 * DISTINCT]) >= DISTINCT  # most tell within a few rows
        telling[~telling] = _distinct(columns[~telling]) >= DISTINCT
        return telling

    @cached_property
    def rows(self) -> Tensor:
        """Some rows, of the columns that tell."""
        return _spaced(self.x)[:, self.telling].double()

    @cached_property
    def standardised_rows(self) -> Tensor:
        return _standardised(self.rows)

    @cached_property
    def deviations(self) -> Tensor:
        return self.rows.std(0)

    @cached_property
    def scaled_rows(self) -> Tensor:
        return self.rows / self.deviations

    @cached_property
    def columns(self) -> Tensor:
        return _profiles(self.x[:, self.telling].T.double())

    @cached_property
    def everything(self) -> Tensor:
        return _profiles(self.x.reshape(1, -1).double())

    def is_in(self, numbers: Tensor) -> bool:
        """Whether a tensor's numbers hold the table, a column, a row or the outcomes."""
        return (
            self._is_everything(numbers)
            or self._has_column(numbers)
            or self._has_row(numbers)
            or self._is_outcome(numbers)
        )

    def _is_everything(self, numbers: Tensor) -> bool:
        """All numbers, in any order."""
        if len(numbers) != self.x.numel() or len(numbers) < FEWEST or not self.telling.any():
            return False
        return _alike(_profiles(numbers[None]), self.everything)

    def _has_column(self, numbers: Tensor) -> bool:
        """One number for each row, in any order of the rows."""
        rows = len(self.x)
        if rows < FEWEST or len(numbers) % rows or not self.telling.any():
            return False
        return any(_alike(_profiles(parts), self.columns) for parts in _parts(numbers, rows))

    def _has_row(self, numbers: Tensor) -> bool:
        """One number for each feature, in their order."""
        if len(numbers) % self.x.shape[1] or self.telling.sum() < FEATURES:
            return False
        for parts in _parts(numbers, self.x.shape[1]):
            part = parts[:, self.telling]
            if self.telling.sum() >= MANY and _same_way(_standardised(part), self.standardised_rows):
                return True
            if _near(part / self.deviations, self.scaled_rows, EXACT):
                return True
        return False

    def _is_outcome(self, numbers: Tensor) -> bool:
        """One number for each row, in their order."""
        if len(numbers) != len(self.y) or len(numbers) < FEWEST or len(self.y.unique()) < 2:
            return False
        pair = torch.stack([numbers, self.y.double()])
        return bool(torch.corrcoef(pair)[0, 1].abs() > 1 - 1e-6)


def _parts(numbers: Tensor, length: int) -> Iterator[Tensor]:
    """A tensor's numbers as rows of this length, read in both directions."""
    yield _spaced(numbers.reshape(-1, length))
    yield _spaced(numbers.reshape(length, -1).T)


def _spaced(rows: Tensor) -> Tensor:
    """At most `COMPARED` of the rows, evenly spaced."""
    return rows[:: -(-len(rows) // COMPARED)]


def _distinct(rows: Tensor) -> Tensor:
    """How many different numbers each row holds."""
    ordered = rows.contiguous().sort(1).values
    return (ordered[:, 1:] > ordered[:, :-1]).sum(1) + 1


def _profiles(rows: Tensor) -> Tensor:
    """Each row's numbers in order of size, shifted and scaled to mean 0 and deviation 1."""
    return _standardised(rows.sort(1).values)


def _standardised(rows: Tensor) -> Tensor:
    """Each row shifted and scaled to mean 0 and deviation 1; one of equal numbers is like no other."""
    deviation = rows.std(1, keepdim=True)
    return torch.where(deviation > 0, (rows - rows.mean(1, keepdim=True)) / deviation, torch.inf)


def _alike(first: Tensor, second: Tensor) -> bool:
    """Whether two profiles are the same, or one is the other's mirror image: numbers scaled by less than 0."""
    return _near(first, second, ROUNDED) or _near(-first.flip(1), second, ROUNDED)


def _same_way(first: Tensor, second: Tensor) -> bool:
    """Whether a row of the one is a row of the other, or its negative."""
    return _near(first, second, ROUNDED) or _near(-first, second, ROUNDED)


def _near(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Whether a row of the one is a row of the other, but for rounding; a few numbers first, which are cheap."""
    some = torch.linspace(0, first.shape[1] - 1, min(8, first.shape[1])).long()
    candidates = (torch.cdist(first[:, some], second[:, some], p=torch.inf) <= tolerance).nonzero()
    return any(bool(((first[i] - second[j]).abs() <= tolerance).all()) for i, j in candidates[:COMPARED].tolist())
