"""How rows are handed out to sites: splits are frozen values that are pure functions of rows, sites and a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, NamedTuple

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.errors import InputError, unknown
from consilience.key import Key


class Rows(NamedTuple):
    """What a split may look at; it uses what it needs."""

    x: Tensor  # [N, …]
    y: Tensor  # [N, …]
    site: Tensor | None  # [N] natural site ids
    classes: int | None  # None: regression

    def take(self, index: Tensor) -> Rows:
        return Rows(self.x[index], self.y[index], None if self.site is None else self.site[index], self.classes)


class Split(ABC):
    """A way to hand out rows. A new split says how it deals; if it deals by anything but chance, id or feature, also
    how test rows follow the training rows."""

    shares_rows: ClassVar[bool] = False  # may a row be handed out twice? Only where a paper did so

    @abstractmethod
    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Row numbers for every site; some may be empty."""

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Row numbers of the test part for every site, from the distribution of that site's training rows."""
        return self.deal(test, len(train), key)

    def __call__(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Row numbers for every site, ascending: disjoint, complete and never empty.

        Exceptions are `Natural` with fewer sites than ids, which is not complete, and splits with `shares_rows`, which
        are neither complete nor disjoint.
        """
        if sites < 1:
            raise InputError(f"sites={sites} makes no sense: ask for at least one site.")
        if sites > len(rows.y):
            raise InputError(f"{len(rows.y)} rows cannot fill {sites} sites: ask for at most {len(rows.y)} sites.")
        parts = self.deal(rows, sites, key)
        dealt = torch.cat(parts)
        if not self.shares_rows and len(dealt.unique()) < len(dealt):
            raise InputError(f"The split {self} hands out a row twice: deal every row once, or set shares_rows.")
        return [part.sort().values for part in _filled(parts, key.fold(2))]

    def __str__(self) -> str:
        name, values = type(self).__name__.lower(), [_text(getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        return ":".join([name, *values])


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
        pieces = _even(m, sites)
        shares = [a - b for a, b in zip(_even(n, sites), pieces, strict=True)]
        return [torch.cat(pair) for pair in zip(_cut(chance, shares), _cut(by_class, pieces), strict=True)]

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
        groups = _cut(shuffled, _even(classes, min(classes, sites))[::-1])
        parts = []
        for k in range(sites):
            by_class = order[torch.isin(labels[order], groups[k % len(groups)])][:own]
            same = order[: max(size - own, 1 - len(by_class))]  # one at least where nobody has the site's classes
            parts.append(torch.cat([same, by_class]))
        return parts

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        return follow_class(test, train, key)

    def __str__(self) -> str:
        return f"heterogeneous:{_text(self.h)}@hasan2023"


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
        raise unknown("variant of the split", str(variant), ["hasan2023"])
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


PLAIN: dict[str, Callable[[], Split]] = {"iid": iid, "natural": natural, "sorted_feature": sorted_feature}
NUMBERED: dict[str, Callable[[float], Split]] = {"heterogeneous": heterogeneous, "dirichlet": dirichlet}


def parse(text: str) -> Split:
    """The split that `str` wrote: «iid», «natural», «dirichlet:0.1», «heterogeneous:0.9», «sorted_feature:2»,
    «heterogeneous:0.9@hasan2023», «step:2:10», «dominant:0.8», and «iid+rotate:30», «dirichlet:0.3+noise:0.5»."""
    from consilience.data import shift, skew  # here, because they build on this file

    if len(shift.pieces(text)) > 1:
        return shift.parse(text)
    name, colon, rest = (part.strip() for part in text.partition(":"))
    number, at, variant = (part.strip() for part in rest.partition("@"))
    if name in PLAIN and not colon:
        return PLAIN[name]()
    if name == "sorted_feature":
        if at or not number.isdecimal():
            raise InputError(f"The split «{text}» needs the number of a feature: type for example {name}:0.")
        return sorted_feature(int(number))
    if name in PLAIN:
        raise InputError(f"The split {name} takes no number: type {name}.")
    if name in skew.SKEWED:
        return skew.parse(name, rest)
    if name not in NUMBERED:
        raise unknown("split", name, [*PLAIN, *NUMBERED, *skew.SKEWED])
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"The split «{text}» needs a number: type for example {name}:0.5.") from None
    if at and name != "heterogeneous":
        raise InputError(f"The split {name} has no variants: type {name}:{number}.")
    return heterogeneous(value, variant) if at else NUMBERED[name](value)


def dirichlet_draws(alpha: float, shape: tuple[int, int], key: Key) -> Tensor:
    """Rows of proportions from Dirichlet(α, …, α), finite for every α > 0.

    With G ~ Gamma(α + 1) and U uniform, G U^(1/α) ~ Gamma(α). In log space, with the largest U of a row taken out, at
    least one share of every row stays positive where the Gamma draws themselves would all be zero.
    """
    generator = key.generator()
    uniform = torch.rand((2, *shape), generator=generator, dtype=torch.float64).clamp(min=2**-54)
    log_u = uniform[1].log()
    log_g = torch.from_numpy(scipy.special.gammaincinv(min(alpha, 1e9) + 1, uniform[0].numpy())).log()
    return torch.softmax(log_g + (log_u - log_u.max(-1, keepdim=True).values) / alpha, -1)


def apportion(weights: Tensor, total: int, key: Key) -> list[int]:
    """Whole numbers in proportion to the weights that add up to the total: largest remainders, ties by the key."""
    quota = weights.double() / weights.double().sum() * total
    counts = quota.floor().long()
    shuffled = key.permutation(len(counts))
    by_remainder = shuffled[(quota - counts)[shuffled].argsort(descending=True, stable=True)]
    counts[by_remainder[: total - int(counts.sum())]] += 1
    return [int(c) for c in counts]


def cut_classes(labels: Tensor, shares: Tensor, key: Key) -> list[Tensor]:
    """Each class's shuffled rows, cut in proportion to that class's row of shares [C, K]."""
    taken: list[list[Tensor]] = [[] for _ in range(shares.shape[1])]
    for c, weights in enumerate(shares):
        rows = (labels == c).nonzero().flatten()
        rows = rows[key.fold(c).permutation(len(rows))]
        for part, piece in zip(taken, _cut(rows, apportion(weights, len(rows), key.fold(c).fold(0))), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in taken]


def follow_class(test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
    """Test rows of a class go to the sites in proportion to their training rows of it; of an unseen class, by size."""
    counts = torch.stack([torch.bincount(part.y, minlength=test.classes or 0) for part in train], dim=1)  # [C, K]
    sizes = torch.tensor([len(part.y) for part in train])
    return cut_classes(test.y, torch.where(counts.sum(1, keepdim=True) > 0, counts, sizes), key)


def _filled(parts: list[Tensor], key: Key) -> list[Tensor]:
    """Every empty site is given one random row of the site that is then largest."""
    sizes = [len(part) for part in parts]
    if 0 in sizes:
        parts = [part[key.fold(k).permutation(len(part))] for k, part in enumerate(parts)]
        for k in [k for k, size in enumerate(sizes) if size == 0]:
            giver = max(range(len(parts)), key=lambda j: len(parts[j]))
            parts[k], parts[giver] = parts[giver][-1:], parts[giver][:-1]
    return parts


def labels_of(split: Split, rows: Rows) -> tuple[Tensor, int]:
    if rows.classes is None or rows.y.is_floating_point():
        raise InputError(
            f"The split {split} goes by class, and a regression has none: use iid() or natural(), or sorted_feature()."
        )
    return rows.y, rows.classes


def _cut(rows: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return rows.tensor_split(torch.tensor(sizes).cumsum(0)[:-1])


def _even(total: int, pieces: int) -> list[int]:
    return [total // pieces + (k < total % pieces) for k in range(pieces)]


def _text(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))
