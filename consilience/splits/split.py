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
        name, values = type(self).__name__.lower(), [text_of(getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        return ":".join([name, *values])


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
        for part, piece in zip(taken, cut(rows, apportion(weights, len(rows), key.fold(c).fold(0))), strict=True):
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


def cut(rows: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return rows.tensor_split(torch.tensor(sizes).cumsum(0)[:-1])


def even(total: int, pieces: int) -> list[int]:
    return [total // pieces + (k < total % pieces) for k in range(pieces)]


def text_of(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))
