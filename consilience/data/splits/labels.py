"""Splits by chance, by class, by the site a row came from, or by a feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from consilience.data.splits.split import (
    Rows,
    Split,
    apportion,
    cut,
    cut_classes,
    dirichlet_draws,
    even,
    follow_class,
    labels_of,
    text_of,
)
from consilience.errors import InputError, unknown_name
from consilience.key import Key


@dataclass(frozen=True)
class Iid(Split):
    """Every site gets an equal share of the shuffled rows."""

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal equal shares of a shuffle."""
        return list(key.permutation(len(rows.y)).tensor_split(sites))


@dataclass(frozen=True)
class Heterogeneous(Split):
    """A random 1−h of the rows is cut at random, the rest is sorted by class and cut contiguously.

    Hasan 2023, App. B.2.1, made disjoint: the paper sorts a copy, so that a row can be at two sites. What was released
    and run is `HeterogeneousHasan2023`.

    Attributes:
        h: The share that is dealt by class; 0 is iid, with 1 every site sees a contiguous piece of the classes.
    """

    h: float

    def __post_init__(self) -> None:
        if not (isinstance(self.h, Real) and 0 <= self.h <= 1):
            raise InputError(f"h={self.h} is not between 0 and 1: try heterogeneous(0.9).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal a share by class and the rest at random."""
        labels, _ = labels_of(self, rows)
        n = len(labels)
        m = round(self.h * n)
        order = key.permutation(n)
        by_chance = order[m:]
        by_class = order[:m]
        by_class = by_class[labels[by_class].argsort(stable=True)]
        # The shares of chance fill up to equal sites, so that rounding both parts never leaves a site empty.
        pieces = even(m, sites)
        shares = [a - b for a, b in zip(even(n, sites), pieces, strict=True)]
        return [torch.cat(pair) for pair in zip(cut(by_chance, shares), cut(by_class, pieces), strict=True)]

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)


@dataclass(frozen=True)
class HeterogeneousHasan2023(Split):
    """The form behind the tables of Hasan 2023, for comparison with the paper's figures alone.

    Every site has the same first (1−h)·n/K rows of one shuffle, and the first h·n/K rows of its own classes in it, or
    all where there are fewer. Classes are dealt out whole, in one fixed random order. A row is at several sites, or
    twice at one; others are at none.

    Attributes:
        h: The share that is dealt by class.
        oversize: Rows a site over n/K; the paper's are counted before the server's fifth is cut, 1.25.
        ordered: Whether a site's rows stay as they were dealt, its own classes first and then what all share; training
            that does not shuffle (`shuffle=False`) then sees them in that order, as the paper's clients did.
    """

    shares_rows: ClassVar[bool] = True
    h: float
    oversize: float = 1.0
    ordered: bool = False

    def __post_init__(self) -> None:
        Heterogeneous(self.h)  # its range is the same

    @property
    def keeps_order(self) -> bool:
        """Whether a site's own classes come first."""
        return self.ordered

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal the same random rows to every site, and to each the first of its classes."""
        labels, classes = labels_of(self, rows)
        size = int(self.oversize * len(labels)) // sites
        dealt_by_class = round(self.h * size)
        order = key.permutation(len(labels))
        shuffled = torch.randperm(classes, generator=torch.Generator().manual_seed(0))
        groups = cut(shuffled, even(classes, min(classes, sites))[::-1])
        parts = []
        for k in range(sites):
            by_class = order[torch.isin(labels[order], groups[k % len(groups)])][:dealt_by_class]
            same = order[
                : max(size - dealt_by_class, 1 - len(by_class))
            ]  # one at least where nobody has the site's classes
            parts.append(torch.cat([by_class, same]))
        return parts

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)

    def __str__(self) -> str:
        """Write the split as `parse` reads it."""
        variant = "hasan2023"
        if self.ordered:
            variant = "hasan2023_ordered"
        return f"heterogeneous:{text_of(self.h)}@{variant}"


@dataclass(frozen=True)
class Dirichlet(Split):
    """Each class is cut in proportions over the sites drawn from Dirichlet(α, …, α).

    Attributes:
        alpha: The concentration α; where it is small, few sites have most of a class.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, Real) and 0 < self.alpha < float("inf")):
            raise InputError(f"alpha={self.alpha} is not a positive number: try dirichlet(0.1).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Cut each class in proportions that are drawn."""
        labels, classes = labels_of(self, rows)
        shares = dirichlet_draws(self.alpha, (classes, sites), key.fold(0))
        return cut_classes(labels, shares, key.fold(1))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)


@dataclass(frozen=True)
class Natural(Split):
    """Rows stay where they were collected: one site per id.

    With fewer sites than ids, these are the first ids in ascending order, and the rows of the others take no part.
    """

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal by site id."""
        if rows.site is None:
            raise InputError("The natural split needs a site id for every row: pass site=…, or use iid().")
        ids = sorted(set(rows.site.tolist()))
        if sites > len(ids):
            raise InputError(f"Only {len(ids)} natural sites have training rows, not {sites}: ask for fewer.")
        return [(rows.site == i).nonzero().flatten() for i in ids[:sites]]

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Deal by site id."""
        if test.site is None:
            raise InputError("The natural split needs a site id for every test row: pass site_test=…, or use iid().")
        ids = [part.site[0] for part in train if part.site is not None]
        return [(test.site == i).nonzero().flatten() for i in ids]


@dataclass(frozen=True)
class SortedFeature(Split):
    """Rows sorted by one feature and cut into contiguous parts of equal size: heterogeneity for regressions.

    Hasan 2023, §3.3.2. Without a column it is the one of largest variance, for which units matter unless the features
    are on one scale. Test rows go to the site whose training rows span their value, or come nearest to it.

    Attributes:
        column: The number of the feature; None for the one of largest variance.
    """

    column: int | None = None

    def __post_init__(self) -> None:
        if self.column is not None and (not isinstance(self.column, int) or self.column < 0):
            raise InputError(f"column={self.column} is not the number of a feature: try sorted_feature(0).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal contiguous parts of the sorted rows."""
        column = self._choose_column(rows.x)
        values = rows.x.flatten(1)[:, column]
        order = key.permutation(len(values))  # so that chance decides where equal values are cut
        return list(order[values[order].argsort(stable=True)].tensor_split(sites))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Deal by the sites' ranges; rows with a value that several sites have, in proportion to their rows with it."""
        column = self._choose_column(torch.cat([part.x for part in train]))
        values = test.x.flatten(1)[:, column]
        parts = [part.x.flatten(1)[:, column] for part in train]
        low = torch.stack([part.min() for part in parts])
        high = torch.stack([part.max() for part in parts])
        outside = torch.maximum(low - values.unsqueeze(1), values.unsqueeze(1) - high).clamp(min=0)  # [N, K]
        site = outside.argmin(1)
        ambiguous = ((outside == 0).sum(1) > 1).nonzero().flatten()  # the cut goes through rows of one value
        for i, value in enumerate(values[ambiguous].unique()):
            rows = (values == value).nonzero().flatten()
            counts = torch.stack([(part == value).sum() for part in parts])
            shares = torch.tensor(apportion(counts, len(rows), key.fold(i).fold(0)))
            site[rows[key.fold(i).permutation(len(rows))]] = torch.arange(len(parts)).repeat_interleave(shares)
        return [(site == k).nonzero().flatten() for k in range(len(parts))]

    def _choose_column(self, x: Tensor) -> int:
        """The number of the feature that rows like these are sorted by."""
        flat = x.flatten(1).double()
        if self.column is not None:
            if self.column >= flat.shape[1]:
                raise InputError(f"There is no feature {self.column} to sort by: the last is {flat.shape[1] - 1}.")
            return self.column
        var = flat.var(0, correction=0)
        # Variances that differ by rounding count as equal, so that the order of the rows cannot change the column.
        return int((var >= var.max() * (1 - 1e-9)).int().argmax())

    def __str__(self) -> str:
        """Write the split as `parse` reads it."""
        if self.column is None:
            return "sorted_feature"
        return f"sorted_feature:{self.column}"


def iid() -> Iid:
    """Deal equal shares of the shuffled rows.

    Returns:
        The split.

    Example:
        >>> import consilience as co
        >>> sites = co.datasets.moons(200).split(co.splits.iid(), 4)
        >>> [len(part.y) for part in sites.train]
        [33, 33, 32, 32]
    """
    return Iid()


def heterogeneous(h: float, variant: str | None = None) -> Heterogeneous | HeterogeneousHasan2023:
    """Deal a share of the rows by class, the rest at random.

    Args:
        h: The share, from 0 to 1.
        variant: "hasan2023" for the form behind that paper's tables, with rows at several sites; "hasan2023_ordered"
            for the same with every site's own classes first.

    Returns:
        The split.

    Raises:
        InputError: `h` is out of range, or there is no such variant.

    Example:
        >>> import consilience as co
        >>> counts = co.datasets.moons().split(co.splits.heterogeneous(1.0), 2).label_counts()
        >>> counts.argmax(1).tolist()
        [0, 1]
    """
    if variant is None:
        return Heterogeneous(h)
    variants = {"hasan2023": False, "hasan2023_ordered": True}
    if variant not in variants:
        raise unknown_name("variant of the split", variant, variants)
    return HeterogeneousHasan2023(h, ordered=variants[variant])


def dirichlet(alpha: float) -> Dirichlet:
    """Deal each class in proportions drawn from a Dirichlet distribution.

    Args:
        alpha: The concentration; where it is small, few sites have most of a class.

    Returns:
        The split.

    Raises:
        InputError: `alpha` is not positive.

    Example:
        >>> import consilience as co
        >>> str(co.splits.dirichlet(0.5))
        'dirichlet:0.5'
        >>> co.datasets.moons().split(co.splits.dirichlet(0.5), 3).label_counts().shape
        torch.Size([3, 2])
    """
    return Dirichlet(alpha)


def natural() -> Natural:
    """Leave rows where they were collected, one site per site id.

    Returns:
        The split.

    Example:
        >>> import consilience as co
        >>> co.datasets.sine(20).split(co.splits.natural()).names
        ('0', '1', '2', '3', '4')
    """
    return Natural()


def sorted_feature(column: int | None = None) -> SortedFeature:
    """Deal contiguous parts of the rows sorted by a feature.

    Args:
        column: The number of the feature, from 0; None for the one of largest variance.

    Returns:
        The split.

    Raises:
        InputError: `column` is not the number of a feature.

    Example:
        >>> import consilience as co
        >>> sites = co.datasets.moons().split(co.splits.sorted_feature(0), 3)
        >>> bool(sites.train[0].x[:, 0].max() < sites.train[2].x[:, 0].min())
        True
    """
    return SortedFeature(column)
