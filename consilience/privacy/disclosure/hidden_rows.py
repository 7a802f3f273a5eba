"""Whether a value holds rows, as they are or in a cheap disguise.

Found by their values: a copy, a cast to another type, all numbers or a column shifted and scaled, rows or columns in
another order, transposed, flattened. No check can show that rows are not encoded in some other way: what methods send
is reviewed (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.tree import Tree

FEWEST = 20  # numbers in a profile: fewer may be alike by chance
DISTINCT = 8  # values of a column that is compared: marks and categories of different tables are alike
FEATURES = 4  # such columns that tell a single row
MANY = 12  # such columns that tell a row which was rounded, or shifted and scaled
ROUNDED = 0.02  # of an SD, by which numbers of type bfloat16 differ from what they were
EXACT = 1e-3  # the same for few features; float16 is nearer than that
TOGETHER = 64  # pairs whose numbers are all compared at a time
COMPARED = 2000  # rows, and as many parts of a tensor, that are held against each other


def holds_rows(value: Tree, data: Data) -> bool:
    """Say whether a value holds rows that can be found by their numbers.

    Args:
        value: What would be sent.

    Returns:
        Whether a tensor inside is a part of the rows' memory, or the table, a column, a row or the outcomes in one of
        the disguises above. False says nothing about others.
    """
    return RowSearch(data).finds_in(value)


class _Scaled:
    """Rows of numbers, shifted and scaled where they are looked at: most are told apart by a few."""

    def __init__(self, numbers: Tensor, shift: Tensor | float, scale: Tensor) -> None:
        self.numbers = numbers
        self.shift = torch.as_tensor(shift, dtype=scale.dtype).expand_as(numbers)
        self.scale = scale.expand_as(numbers)

    def __getitem__(self, place: Any) -> Tensor:
        return (self.numbers[place] - self.shift[place]) / self.scale[place]

    @property
    def negative(self) -> _Scaled:
        return _Scaled(self.numbers, self.shift, -self.scale)

    @property
    def backward(self) -> _Scaled:
        return _Scaled(self.numbers.flip(1), self.shift, self.scale)  # each row has one shift and one scale


class RowSearch:
    """A search for one site's rows. What it learns of them stays with it for the next value, and is small beside them.

    Args:
        data: The rows.
    """

    def __init__(self, data: Data) -> None:
        self.data = data
        self.memory = {t.untyped_storage().data_ptr() for t in data if t.numel()}
        self.x = data.x.flatten(1)
        self.y = data.y.flatten()

    def finds_in(self, value: Tree) -> bool:
        """Tell what `holds_rows` does.

        Args:
            value: What would be sent.
        """
        for leaf in tree.leaves(value):
            if not leaf.numel() or leaf.is_complex():
                continue
            if leaf.untyped_storage().data_ptr() in self.memory or self._is_in(leaf.detach().double().flatten()):
                return True
        return False

    @cached_property
    def telling(self) -> Tensor:
        """Which columns hold enough values to be told from others."""
        rows = _spaced(self.x)
        open = (rows.amin(0) < rows.amax(0)).nonzero().flatten()
        found = []
        length = 4 * DISTINCT  # most tell within a few rows
        while len(open):
            several = _several(rows[:length].index_select(1, open))
            found.append(open[several])
            if length >= len(rows):
                break
            open = open[~several]
            length *= 8
        return torch.cat(found).sort().values if found else open

    @cached_property
    def standardised_rows(self) -> _Scaled:
        """Some rows, by the columns that tell."""
        return _standardised(_spaced(self.x), self.telling)

    @cached_property
    def scaled_rows(self) -> _Scaled:
        """The same, each column by its SD."""
        rows = _spaced(self.x)
        some = rows.index_select(1, self.telling).double()
        deviations = torch.ones(rows.shape[1], dtype=some.dtype)
        deviations[self.telling] = _deviation(some - some.mean(0), 0)[0]
        return _Scaled(rows, 0.0, deviations)

    def _is_in(self, numbers: Tensor) -> bool:
        """Whether a tensor's numbers hold the table, a column, a row or the outcomes."""
        return (
            self._is_everything(numbers)
            or self._has_column(numbers)
            or self._has_row(numbers)
            or self._is_outcome(numbers)
        )

    def _is_everything(self, numbers: Tensor) -> bool:
        """All numbers, in any order."""
        if len(numbers) != self.x.numel() or len(numbers) < FEWEST or not len(self.telling):
            return False
        return _alike(_profiles(numbers[None]), _profiles(self.x.reshape(1, -1).double()))

    def _has_column(self, numbers: Tensor) -> bool:
        """One number for each row, in any order of the rows."""
        rows = len(self.x)
        if rows < FEWEST or len(numbers) % rows or not len(self.telling):
            return False
        columns = _profiles(self.x.index_select(1, self.telling).T.double())
        return any(_alike(_profiles(parts), columns) for parts in _parts(numbers, rows))

    def _has_row(self, numbers: Tensor) -> bool:
        """One number for each feature, in their order."""
        if len(numbers) % self.x.shape[1] or len(self.telling) < FEATURES:
            return False
        columns = self.telling
        for parts in _parts(numbers, self.x.shape[1]):
            if len(columns) >= MANY:
                part = _standardised(parts, columns)
                if any(_near(p, self.standardised_rows, ROUNDED, columns) for p in (part, part.negative)):
                    return True
            if _near(_Scaled(parts, 0.0, self.scaled_rows.scale[0]), self.scaled_rows, EXACT, columns):
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


def _several(rows: Tensor) -> Tensor:
    """Whether each column holds `DISTINCT` different numbers: from its smallest to the next greater one."""
    if not rows.is_floating_point():
        rows = rows.double()
    last = rows.amin(0)
    for _ in range(DISTINCT - 1):
        last = rows.masked_fill(rows <= last, torch.inf).amin(0)
    return last < torch.inf


def _profiles(rows: Tensor) -> _Scaled:
    """Each row's numbers in order of size, shifted and scaled to mean 0 and SD 1."""
    return _standardised(rows.sort(1).values, torch.arange(rows.shape[1]))


def _standardised(rows: Tensor, columns: Tensor) -> _Scaled:
    """Rows by some columns, shifted and scaled to mean 0 and SD 1 there; one of equal numbers is like no other.

    Args:
        rows: Numbers of any type.
    """
    some = rows.index_select(1, columns).double()
    mean = some.mean(1, keepdim=True)
    deviation = _deviation(some - mean, 1)
    small = (deviation[:, 0] <= 1e-9 * mean[:, 0].abs()).nonzero().flatten()  # equal, but for the mean's rounding
    deviation[small[(some[small] == some[small, :1]).all(1)]] = 0.0
    return _Scaled(rows, mean, deviation)


def _deviation(centred: Tensor, along: int) -> Tensor:
    """The SDs of numbers whose mean is 0."""
    length: Tensor = torch.linalg.vector_norm(centred, dim=along, keepdim=True)
    return length.div_((centred.shape[along] - 1) ** 0.5)


def _alike(first: _Scaled, second: _Scaled) -> bool:
    """Whether two profiles are the same, or one is the other's mirror image: numbers scaled by less than 0."""
    columns = torch.arange(first.numbers.shape[1])
    return any(_near(f, second, ROUNDED, columns) for f in (first, first.negative.backward))


def _near(first: _Scaled, second: _Scaled, tolerance: float, columns: Tensor) -> bool:
    """Whether a row of the one is a row of the other, but for rounding; a few numbers first, which are cheap."""
    some = columns[torch.linspace(0, len(columns) - 1, min(8, len(columns))).long()].tolist()
    i, j = ((first[:, some[0]][:, None] - second[:, some[0]]).abs_() <= tolerance).nonzero().T
    for place in some[1:]:
        near = (first[i, place] - second[j, place]).abs_() <= tolerance
        i, j = i[near], j[near]
    pairs = zip(i[:COMPARED].split(TOGETHER), j[:COMPARED].split(TOGETHER), strict=True)
    return any(bool(((first[i] - second[j])[:, columns].abs_() <= tolerance).all(1).any()) for i, j in pairs)
