"""What every split is: a frozen value that is a pure function of rows, sites and a key; and what splits share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar, NamedTuple

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.key import Key


class Rows(NamedTuple):
    """What a split may look at; it uses what it needs. Features are copied when they are asked for, and not before.

    Attributes:
        table: Features of all rows there are, [M, …].
        y: Labels or targets, [N, …].
        site: Natural site ids, [N]; None where rows have none.
        classes: How many there are; None for a regression.
        places: Which rows of the table these are, [N]; all if None.
    """

    table: Tensor
    y: Tensor
    site: Tensor | None
    classes: int | None
    places: Tensor | None = None

    @property
    def x(self) -> Tensor:
        """Features, [N, …]."""
        if self.places is None:
            return self.table
        return self.table[self.places]

    def take(self, index: Tensor) -> Rows:
        """Pick some of the rows.

        Returns:
            The rows in the order of the index.
        """
        site = None if self.site is None else self.site[index]
        places = index if self.places is None else self.places[index]
        return Rows(self.table, self.y[index], site, self.classes, places)


class Split(ABC):
    """A way to deal rows to sites.

    A new split says how it deals; if it deals by anything but chance, id or feature, also how test rows follow the
    training rows.

    Attributes:
        shares_rows: Whether a row may be dealt twice; only where a paper did so.

    Example:
        >>> import consilience as co
        >>> split = co.splits.iid()
        >>> isinstance(split, co.splits.Split), str(split)
        (True, 'iid')
    """

    shares_rows: ClassVar[bool] = False

    @property
    def keeps_order(self) -> bool:
        """Whether the order of a site's rows means something; otherwise it is that of the table."""
        return False

    @abstractmethod
    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal training rows.

        Returns:
            Row numbers for every site; some sites may have none.
        """

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Deal test rows, each site's from the distribution of its training rows.

        Args:
            train: The training rows of every site.

        Returns:
            Numbers of test rows for every site; some sites may have none.
        """
        return self.deal(test, len(train), key)

    def __call__(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Hand out training rows: disjoint, complete and never empty.

        Exceptions are `Natural` with fewer sites than ids, which is not complete, and splits with `shares_rows`, which
        are neither complete nor disjoint.

        Returns:
            Row numbers for every site, ascending unless the split keeps its order.

        Raises:
            InputError: There are too few rows for so many sites, or the split deals a row twice.
        """
        if sites < 1:
            raise InputError(f"sites={sites} is not a number of sites: ask for at least one site.")
        if sites > len(rows.y):
            raise InputError(f"{len(rows.y)} rows cannot fill {sites} sites: ask for at most {len(rows.y)} sites.")
        parts = self.deal(rows, sites, key)
        numbers = torch.cat(parts)
        if not self.shares_rows and len(numbers.unique()) < len(numbers):
            raise InputError(f"The split '{self}' deals a row twice: deal every row once, or set shares_rows.")
        parts = _fill_empty(parts, key.fold(2))
        if self.keeps_order:
            return parts
        return [part.sort().values for part in parts]

    def __str__(self) -> str:
        """Write the split as `parse` reads it."""
        values = [text_of(getattr(self, field.name)) for field in fields(self)]  # type: ignore[arg-type]
        return ":".join([type(self).__name__.lower(), *values])


def dirichlet_draws(alpha: float, shape: tuple[int, int], key: Key) -> Tensor:
    """Draw rows of proportions from Dirichlet(α, …, α), finite for every α > 0.

    With G ~ Gamma(α + 1) and U uniform, G U^(1/α) ~ Gamma(α). In log space, with the largest U of a row taken out, at
    least one share of every row stays positive where the Gamma draws themselves would all be zero.

    Args:
        shape: How many rows, and how many proportions a row.

    Returns:
        Proportions in the given shape, float64; every row adds up to 1.
    """
    generator = key.generator()
    uniform = torch.rand((2, *shape), generator=generator, dtype=torch.float64).clamp(min=2**-54)
    log_u = uniform[1].log()
    log_g = torch.from_numpy(scipy.special.gammaincinv(min(alpha, 1e9) + 1, uniform[0].numpy())).log()
    return torch.softmax(log_g + (log_u - log_u.max(-1, keepdim=True).values) / alpha, -1)


def apportion(weights: Tensor, total: int, key: Key) -> list[int]:
    """Divide a total into whole numbers in proportion to weights: largest remainders, ties by the key.

    Args:
        weights: What the numbers are in proportion to, [K].
        total: What they add up to.

    Returns:
        K whole numbers.
    """
    quota = weights.double() / weights.double().sum() * total
    counts = quota.floor().long()
    shuffled = key.permutation(len(counts))
    by_remainder = shuffled[(quota - counts)[shuffled].argsort(descending=True, stable=True)]
    counts[by_remainder[: total - int(counts.sum())]] += 1
    return [int(c) for c in counts]


def cut_classes(labels: Tensor, shares: Tensor, key: Key) -> list[Tensor]:
    """Shuffle the rows of each class and cut them in proportion to that class's shares.

    Args:
        labels: The class of every row, [N].
        shares: What each class is cut in proportion to, [C, K].

    Returns:
        Row numbers for each of the K sites.
    """
    parts: list[list[Tensor]] = [[] for _ in range(shares.shape[1])]
    for c, weights in enumerate(shares):
        rows = (labels == c).nonzero().flatten()
        rows = rows[key.fold(c).permutation(len(rows))]
        sizes = apportion(weights, len(rows), key.fold(c).fold(0))
        for part, piece in zip(parts, cut(rows, sizes), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def follow_class(test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
    """Deal test rows of a class in proportion to the sites' training rows of it; of an unseen class, by size.

    Args:
        train: The training rows of every site.

    Returns:
        Numbers of test rows for every site.
    """
    counts = torch.stack([torch.bincount(part.y, minlength=test.classes or 0) for part in train], dim=1)  # [C, K]
    sizes = torch.tensor([len(part.y) for part in train])
    return cut_classes(test.y, torch.where(counts.sum(1, keepdim=True) > 0, counts, sizes), key)


def labels_of(split: Split, rows: Rows) -> tuple[Tensor, int]:
    """Read the labels, for a split that goes by class.

    Args:
        split: The split, for the error message.

    Returns:
        The class of every row, and how many classes there are.

    Raises:
        InputError: The rows are of a regression.
    """
    if rows.classes is None or rows.y.is_floating_point():
        raise InputError(
            f"The split '{split}' goes by class, and a regression has none: use iid(), natural() or sorted_feature()."
        )
    return rows.y, rows.classes


def cut(rows: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Cut rows into contiguous pieces.

    Args:
        sizes: The sizes of the pieces, which add up to the number of rows.
    """
    return rows.tensor_split(torch.tensor(sizes).cumsum(0)[:-1])


def even(total: int, pieces: int) -> list[int]:
    """Divide a total evenly; the first pieces are larger by one where it does not divide.

    Args:
        total: What the sizes add up to.

    Returns:
        The sizes.
    """
    return [total // pieces + (k < total % pieces) for k in range(pieces)]


def text_of(value: float) -> str:
    """Write a number in the shortest form that reads back as the same number."""
    short = f"{value:g}"
    if float(short) == value:
        return short
    return repr(float(value))


def _fill_empty(parts: list[Tensor], key: Key) -> list[Tensor]:
    """Every empty site is given one random row of the site that is then largest."""
    sizes = [len(part) for part in parts]
    if 0 not in sizes:
        return parts
    parts = [part[key.fold(k).permutation(len(part))] for k, part in enumerate(parts)]
    for k in [k for k, size in enumerate(sizes) if size == 0]:
        giver = max(range(len(parts)), key=lambda j: len(parts[j]))
        parts[k] = parts[giver][-1:]
        parts[giver] = parts[giver][:-1]
    return parts
