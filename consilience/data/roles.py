"""The steps by which `Dataset.split` gives rows their roles, and what is done to features once they have them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.encoding import with_fills
from consilience.data.sites import Data, Sites
from consilience.data.splits.features import Shifted
from consilience.data.splits.split import Rows
from consilience.errors import InputError
from consilience.key import Key


class Role(enum.IntEnum):
    """What the key of a shift is folded by, so that the rows of no two roles have the same noise."""

    TRAIN = 0
    TEST = 1
    VALIDATION = 2
    CONFORMAL = 3
    DRAWN = 4


class Served(NamedTuple):
    """Rows after the server has its own.

    Attributes:
        rest: What is left for the sites.
        calibration: The server's rows with labels; None where it has none.
        inputs: The server's rows without labels; None where it has none.
        drawn: All rows that the server has; None where it has none.
    """

    rest: Rows
    calibration: Data | None = None
    inputs: Tensor | None = None
    drawn: Rows | None = None


def hold_out(rows: Rows, share: float, key: Key) -> tuple[Rows, Rows]:
    """Hold out a random share of each natural site for testing, or of all rows where there are no sites.

    Args:
        share: Below 1; 0 holds nothing out. Of a site with two rows or more, one at least goes either way otherwise.

    Returns:
        The rows to train on and the rows to test on.

    Raises:
        InputError: `share` is not from 0 to below 1.
    """
    if not 0 <= share < 1:
        raise InputError(f"test={share} is not a share from 0 to below 1: try test=0.2.")
    if not share:
        return rows, rows.take(torch.zeros(0, dtype=torch.int64))
    group = rows.site
    if group is None:
        group = torch.zeros(len(rows.y), dtype=torch.int64)
    tested = torch.zeros(len(rows.y), dtype=torch.bool)
    for i in group.unique().tolist():
        members = (group == i).nonzero().flatten()
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        tested[members[key.fold(i).permutation(len(members))[:count]]] = True
    return rows.take((~tested).nonzero().flatten()), rows.take(tested.nonzero().flatten())


def serve(rows: Rows, calibration: float, inputs: float, sites: int, key: Key) -> Served:
    """Draw the server's rows.

    Args:
        rows: The rows that are not for testing.
        calibration: How many rows with labels.
        inputs: How many rows without, or, below 1, what share of the rows.
        sites: How many sites must each have one row left.

    Returns:
        The server's rows and the rest, which stays in its order.

    Raises:
        InputError: A number cannot be used, or too few rows are left.
    """
    labelled = to_count("calibration", calibration)
    unlabelled = to_count("inputs", inputs, share_of=len(rows.y))
    left = len(rows.y) - labelled - unlabelled
    if left < sites:
        raise InputError(
            f"Of {len(rows.y)} rows, calibration={calibration} and inputs={inputs} leave {max(left, 0)} "
            f"to train on at {sites} sites: ask for fewer of them."
        )
    order = key.permutation(len(rows.y))
    first, second, rest = order.tensor_split([labelled, labelled + unlabelled])
    served = Served(rows.take(rest.sort().values))
    if labelled:
        served = served._replace(calibration=to_data(rows.take(first)))
    if unlabelled:
        served = served._replace(inputs=rows.take(second).x)
    if labelled or unlabelled:
        served = served._replace(drawn=rows.take(order[: labelled + unlabelled]))
    return served


def cut_validation(
    rows: Rows, parts: Sequence[Tensor], share: float, shared: bool, key: Key
) -> tuple[tuple[Data, ...], tuple[Data, ...] | None]:
    """Cut the rows to tune on from every site's training rows.

    Args:
        rows: The rows of all sites.
        parts: Row numbers for every site.
        share: From 0 to below 1.
        shared: Whether a row may be at several sites; one that any of them tunes on is then trained on at none.

    Returns:
        The rows every site trains on, at least one, and those it tunes on; None where `share` is 0.

    Raises:
        InputError: Nothing is left to train on at a site.
    """
    if not share:
        return tuple(to_data(rows.take(part)) for part in parts), None
    if shared:
        cuts = _cut_everywhere(rows, parts, share, key)
    else:
        cuts = [_cut_share(rows.take(part), share, key.fold(k)) for k, part in enumerate(parts)]
    train = tuple(to_data(rows) for rows, _ in cuts)
    return train, tuple(to_data(rows) for _, rows in cuts)


def set_aside(
    parts: Sequence[Tensor], rows: int, share: float, shared: bool, key: Key
) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
    """Hold out rows of every site for prediction sets.

    Args:
        parts: Row numbers for every site.
        share: From 0 to below 1.
        shared: Whether a row may be at several sites; one that any of them holds out is then used at none.

    Returns:
        The row numbers that stay, at least one a site, and those held out; None where `share` is 0.

    Raises:
        InputError: Nothing is left at a site.
    """
    if not share:
        return parts, None
    kept = []
    aside = []
    drawn = key.uniform(rows) < share
    for k, part in enumerate(parts):
        if shared:
            chosen = drawn[part]
        else:
            chosen = torch.zeros(len(part), dtype=torch.bool)
            order = key.fold(k).permutation(len(part))
            chosen[order[: min(round(share * len(part)), len(part) - 1)]] = True
        if len(part) and bool(chosen.all()):
            raise InputError(f"conformal={share} leaves a site nothing to train on: ask for less of it.")
        kept.append(part[~chosen])
        aside.append(part[chosen])
    return kept, aside


def fill_gaps(sites: Sites, gaps: Sequence[tuple[int, int]]) -> Sites:
    """Fill each missing value with its column's mean over the training rows that have one.

    Args:
        gaps: Columns with missing values, each with its indicator column.

    Returns:
        The sites with missing values filled in every role.
    """
    if not gaps:
        return sites
    train = torch.cat([part.x for part in sites.train])
    means = {}
    for column, mark in gaps:
        values = train[train[:, mark] == 0, column].double()
        means[column] = 0.0
        if len(values):
            means[column] = float(values.mean())

    def fill(x: Tensor) -> Tensor:
        x = x.clone()
        for column, mark in gaps:
            x[x[:, mark] == 1, column] = means[column]
        return x

    if sites.columns is not None:
        sites = replace(sites, columns=with_fills(sites.columns, means))
    return sites.map_x(fill)


def shift_features(sites: Sites, split: Shifted, marks: Sequence[int], key: Key) -> Sites:
    """Change the features of the sites' rows; the server's stay.

    Args:
        split: What changes the features.
        marks: Missing-value indicators, which stay too.

    Returns:
        The sites with their features changed.
    """

    def shift(parts: tuple[Data, ...], role: Role) -> tuple[Data, ...]:
        return tuple(shift_part(part, k, key.fold(role)) for k, part in enumerate(parts))

    def shift_part(part: Data, site: int, key: Key) -> Data:
        if not len(part.x):
            return part
        x = split.shift(part.x, site, len(sites), key)
        if marks:
            x[:, marks] = part.x[:, marks]
        return part._replace(x=x)

    shifted = replace(sites, train=shift(sites.train, Role.TRAIN), test=shift(sites.test, Role.TEST))
    if sites.validation is not None:
        shifted = replace(shifted, validation=shift(sites.validation, Role.VALIDATION))
    if sites.conformal is not None:
        shifted = replace(shifted, conformal=shift(sites.conformal, Role.CONFORMAL))
    if sites.drawn is not None:
        shifted = replace(shifted, drawn=shift(sites.drawn, Role.DRAWN))
    return shifted


def to_count(name: str, value: float, share_of: int | None = None) -> int:
    """Read a count of rows or sites.

    Args:
        name: The argument's name, for the error message.
        value: The count, or a share below 1 where `share_of` is given.

    Raises:
        InputError: `value` is negative or not whole.
    """
    if share_of is not None and 0 < value < 1:
        return max(round(value * share_of), 1)
    if value < 0 or value != value // 1:
        remedy = "give a count"
        if share_of is not None:
            remedy = "give a count or a share below 1"
        raise InputError(f"{name}={value} cannot be used: {remedy}.")
    return int(value)


def to_data(rows: Rows) -> Data:
    """Give rows the weight 1.

    Returns:
        The same as labelled rows, without their sites.
    """
    return Data.of(rows.x, rows.y)


def _cut_everywhere(rows: Rows, parts: Sequence[Tensor], share: float, key: Key) -> list[tuple[Rows, Rows]]:
    """The same rows are cut from every site that has them."""
    tuned = key.uniform(len(rows.y)) < share
    cuts = []
    for part in parts:
        train = part[~tuned[part]]
        if len(part) and not len(train):
            raise InputError(f"validation={share} leaves a site nothing to train on: ask for less of it.")
        cuts.append((rows.take(train), rows.take(part[tuned[part]])))
    return cuts


def _cut_share(rows: Rows, share: float, key: Key) -> tuple[Rows, Rows]:
    """The rows to train on, at least one, and those to tune on."""
    order = key.permutation(len(rows.y))
    count = min(round(share * len(order)), len(order) - 1)
    return rows.take(order[count:].sort().values), rows.take(order[:count].sort().values)
