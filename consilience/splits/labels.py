"""Splits by chance, by class, by the site a row came from, or by a feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from consilience.errors import InputError, unknown_name
from consilience.key import Key
from consilience.splits.split import (
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


@dataclass(frozen=True)
class Iid(Split):
    """Every site gets an equal share of the shuffled rows."""

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        return list(key.permutation(len(rows.y)).tensor_split(sites))


@dataclass(frozen=True)
class Heterogeneous(Split):
    """A random 1−h of the rows is cut at random, the rest is sorted by class and cut contiguously.

    Hasan 2023, App. B.2.1, made disjoint: the paper sorts a copy, so that a row can be at two sites. What was released
    and run is `HeterogeneousHasan2023`.
    """

    h: float  # 0: iid; 1: every site sees a contiguous piece of the classes

    def __post_init__(self) -> None:
        if not (isinstance(self.h, Real) and 0 <= self.h <= 1):
            raise InputError(f"h={self.h} is not between 0 and 1: try heterogeneous(0.9).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        labels, _ = labels_of(self, rows)
        n = len(labels)
        m = round(self.h * n)
        order = key.permutation(n)
        chance, by_class = order[m:], order[:m]
        by_class = by_class[labels[by_class].argsort(stable=True)]
        # The shares of chance fill up to equal sites, so that rounding both parts never leaves a site empty.
        pieces = even(m, sites)
        shares = [a - b for a, b in zip(even(n, sites), pieces, strict=True)]
        return [torch.cat(pair) for pair in zip(cut(chance, shares), cut(by_class, pieces), strict=True)]

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        return follow_class(test, train, key)


@dataclass(frozen=True)
class HeterogeneousHasan2023(Split):
    """The form behind the tables of Hasan 2023: every site has the same first (1−h)·n/K rows of one shuffle, and the
    first h·n/K rows of its own classes in it, or all where there are fewer.

    Classes are dealt out whole, in one fixed random order. A row is at several sites, or twice at one; others are at
    none. For comparison with the paper's figures alone.
    """

    shares_rows: ClassVar[bool] = True
    h: float
    oversize: float = 1.0  # rows a site beyond n/K; theirs are counted before the server's fifth is cut: 1.25

    def __post_init__(self) -> None:
        Heterogeneous(self.h)  # its range is the same

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        labels, classes = labels_of(self, rows)
        size = int(self.oversize * len(labels)) // sites
        own = round(self.h * size)
        order = key.permutation(len(labels))
        shuffled = torch.randperm(classes, generator=torch.Generator().manual_seed(0))
        groups = cut(shuffled, even(classes, min(classes, sites))[::-1])
        parts = []
        for k in range(sites):
            by_class = order[torch.isin(labels[order], groups[k % len(groups)])][:own]
            same = order[: max(size - own, 1 - len(by_class))]  # one at least where nobody has the site's classes
            parts.append(torch.cat([same, by_class]))
        return parts

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        return follow_class(test, train, key)

    def __str__(self) -> str:
        return f"heterogeneous:{text_of(self.h)}@hasan2023"


@dataclass(frozen=True)
class Dirichlet(Split):
    """Each class is cut in proportions over the sites drawn from Dirichlet(α, …, α); small α, few sites per class."""

    alpha: float

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, Real) and 0 < self.alpha < float("inf")):
            raise InputError(f"alpha={self.alpha} is not a positive number: try dirichlet(0.1).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        labels, classes = labels_of(self, rows)
        shares = dirichlet_draws(self.alpha, (classes, sites), key.fold(0))
        return cut_classes(labels, shares, key.fold(1))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        return follow_class(test, train, key)


@dataclass(frozen=True)
class Natural(Split):
    """Rows stay where they were collected: one site per id. Fewer sites than ids: the first ids in ascending order,
    and the rows of the others take no part."""

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        if rows.site is None:
            raise InputError("The natural split needs a site id for every row: pass site=…, or use iid().")
        ids = sorted(set(rows.site.tolist()))
        if sites > len(ids):
            raise InputError(f"Only {len(ids)} natural sites have training rows, not {sites}: ask for fewer.")
        return [(rows.site == i).nonzero().flatten() for i in ids[:sites]]

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        if test.site is None:
            raise InputError("The natural split needs a site id for every test row: pass site_test=…, or use iid().")
        own = [part.site[0] for part in train if part.site is not None]
        return [(test.site == i).nonzero().flatten() for i in own]


@dataclass(frozen=True)
class SortedFeature(Split):
    """Rows sorted by one feature and cut into contiguous parts of equal size: heterogeneity for regressions.

    Hasan 2023, §3.3.2. Without a column it is the one of largest variance, for which units matter unless the features
    are on one scale. Test rows go to the site whose training rows span their value, or come nearest to it.
    """

    column: int | None = None

    def __post_init__(self) -> None:
        if self.column is not None and (not isinstance(self.column, int) or self.column < 0):
            raise InputError(f"column={self.column} is not the number of a feature: try sorted_feature(0).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        values = self._column(rows.x)(rows.x)
        order = key.permutation(len(values))  # so that chance decides where equal values are cut
        return list(order[values[order].argsort(stable=True)].tensor_split(sites))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        column = self._column(torch.cat([part.x for part in train]))
        values, parts = column(test.x), [column(part.x) for part in train]
        low, high = torch.stack([part.min() for part in parts]), torch.stack([part.max() for part in parts])
        outside = torch.maximum(low - values.unsqueeze(1), values.unsqueeze(1) - high).clamp(min=0)  # [N, K]
        site = outside.argmin(1)
        cut_through = ((outside == 0).sum(1) > 1).nonzero().flatten()  # a value that several sites have
        for i, value in enumerate(values[cut_through].unique()):
            rows = (values == value).nonzero().flatten()
            counts = torch.stack([(part == value).sum() for part in parts])
            shares = torch.tensor(apportion(counts, len(rows), key.fold(i).fold(0)))
            site[rows[key.fold(i).permutation(len(rows))]] = torch.arange(len(parts)).repeat_interleave(shares)
        return [(site == k).nonzero().flatten() for k in range(len(parts))]

    def _column(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """What picks the feature out of rows like these."""
        flat = x.flatten(1).double()
        if self.column is not None and self.column >= flat.shape[1]:
            raise InputError(f"There is no feature {self.column} to sort by: the last is {flat.shape[1] - 1}.")
        var = flat.var(0, correction=0)
        # Variances that differ by rounding count as equal, so that the order of the rows cannot change the column.
        widest = int((var >= var.max() * (1 - 1e-9)).int().argmax())
        chosen = widest if self.column is None else self.column
        return lambda rows: rows.flatten(1)[:, chosen]

    def __str__(self) -> str:
        return "sorted_feature" if self.column is None else f"sorted_feature:{self.column}"


def iid() -> Iid:
    """Equal shares of the shuffled rows."""
    return Iid()


def heterogeneous(h: float, variant: str | None = None) -> Heterogeneous | HeterogeneousHasan2023:
    """A share h of the rows is handed out by class, the rest at random; `variant="hasan2023"`: as in that paper's
    tables, with rows at several sites."""
    if variant not in (None, "hasan2023"):
        raise unknown_name("variant of the split", str(variant), ["hasan2023"])
    return Heterogeneous(h) if variant is None else HeterogeneousHasan2023(h)


def dirichlet(alpha: float) -> Dirichlet:
    """Each class in proportions drawn from a Dirichlet distribution."""
    return Dirichlet(alpha)


def natural() -> Natural:
    """One site per natural site id."""
    return Natural()


def sorted_feature(column: int | None = None) -> SortedFeature:
    """Contiguous parts of the rows sorted by a feature: the one of largest variance unless told otherwise."""
    return SortedFeature(column)
