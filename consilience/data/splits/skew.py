"""Splits by class in which every site has much of a few classes and little of the rest.  Chen and Chao 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from consilience.data.splits.split import Rows, Split, cut_classes, follow_class, labels_of
from consilience.errors import InputError
from consilience.key import Key


@dataclass(frozen=True)
class Step(Split):
    """Every site has a few major classes, and `minor` rows of each of the others (Chen and Chao 2021, §5.2).

    Major classes are drawn at random, every class for as many sites as any other, or for one fewer; what the minor
    rows leave of a class is cut evenly over the sites where it is major. A class that is major nowhere is cut evenly
    over all sites, and of a class with fewer than `minor` rows a site, the others have no more than the major ones.

    Attributes:
        major: How many major classes a site has.
        minor: How many rows of every other class it has.
    """

    major: int
    minor: int = 10

    def __post_init__(self) -> None:
        if not (isinstance(self.major, int) and self.major >= 1):
            raise InputError(f"major={self.major} is not a number of classes: try step(2).")
        if not (isinstance(self.minor, int) and self.minor >= 0):
            raise InputError(f"minor={self.minor} is not a number of rows: try step({self.major}, 10).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Cut each class into small shares, and large ones where it is major."""
        labels, classes = labels_of(self, rows)
        if self.major > classes:
            raise InputError(f"The split '{self}' asks for {self.major} major classes of {classes}: ask for fewer.")
        major = _balance(classes, sites, self.major, key.fold(0))  # [C, K]
        size = torch.bincount(labels, minlength=classes).unsqueeze(1)  # [C, 1]
        holders = major.sum(1, keepdim=True)  # [C, 1]
        few = (size // sites).clamp(max=self.minor)
        many = (size - few * (sites - holders)).double() / holders.clamp(min=1)
        shares = torch.where(major, many, few.to(many))
        shares = torch.where((holders == 0) | (size == 0), torch.ones_like(shares), shares)
        return cut_classes(labels, shares, key.fold(1))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)

    def __str__(self) -> str:
        """Write the split as `parse` reads it."""
        return f"step:{self.major}:{self.minor}"


@dataclass(frozen=True)
class Dominant(Split):
    """Every site has a class of its own: a share of that class's rows is there, the rest evenly at the other sites.

    With as many sites as classes, all of one size, that share of every site's rows is of its own class (Chen and Chao
    2021, §3.3: 80 % of three). Further sites share a class; fewer have several each. Which is whose is random.

    Attributes:
        share: How much of a class is at its own site.
    """

    share: float

    def __post_init__(self) -> None:
        if not (isinstance(self.share, Real) and 0 < self.share <= 1):
            raise InputError(f"share={self.share} is not above 0 and at most 1: try dominant(0.8).")

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Cut each class into one large share and even small ones."""
        labels, classes = labels_of(self, rows)
        pairs = torch.arange(max(sites, classes))
        shuffled_classes = key.fold(0).permutation(classes)
        shuffled_sites = key.fold(1).permutation(sites)
        dominant = torch.zeros(classes, sites, dtype=torch.bool)  # is the class that site's own?
        dominant[shuffled_classes[pairs % classes], shuffled_sites[pairs % sites]] = True
        holders = dominant.sum(1, keepdim=True).double()
        rest = (1 - self.share) / (sites - holders).clamp(min=1)
        return cut_classes(labels, torch.where(dominant, self.share / holders, rest), key.fold(3))

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)


def step(major: int, minor: int = 10) -> Step:
    """Deal many rows of a few classes to every site, and few of the others.

    Args:
        major: How many major classes a site has.
        minor: How many rows of every other class it has.

    Returns:
        The split.

    Raises:
        InputError: `major` is below 1 or `minor` below 0.

    Example:
        >>> import consilience as co
        >>> str(co.splits.step(2))
        'step:2:10'
        >>> co.datasets.digits().split(co.splits.step(2), 5).label_counts().shape
        torch.Size([5, 10])
    """
    return Step(major, minor)


def dominant(share: float) -> Dominant:
    """Deal a share of every class to one site, the rest of it evenly to the others.

    Args:
        share: Above 0 and at most 1.

    Returns:
        The split.

    Raises:
        InputError: `share` is out of range.

    Example:
        >>> import consilience as co
        >>> counts = co.datasets.moons().split(co.splits.dominant(0.8), 2).label_counts()
        >>> counts.argmax(1).tolist()
        [1, 0]
    """
    return Dominant(share)


def _balance(classes: int, sites: int, each: int, key: Key) -> Tensor:
    """`each` classes for every site, [C, K]: always those that the fewest sites have so far, ties by the key."""
    major = torch.zeros(classes, sites, dtype=torch.bool)
    for k in range(sites):
        order = key.fold(k).permutation(classes)
        holders = major.sum(1)
        major[order[holders[order].argsort(stable=True)[:each]], k] = True
    return major
