"""Columns as they are described: numbers or levels, and where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.effects.terms import Field, fields_of
from consilience.errors import InputError


class Variable(NamedTuple):
    """What is known of a column without looking at any row.

    Attributes:
        name: Its name.
        levels: The levels of a category; none of a number.
        unit: The unit of a number.
        low: The smallest plausible number.
        high: The largest plausible number.
    """

    name: str
    levels: tuple[str, ...] = ()
    unit: str = ""
    low: float = 0.0
    high: float = 1.0


class Column(NamedTuple):
    """A site's values of a column.

    Attributes:
        values: Numbers, or numbers of levels, [N].
        gaps: Which are missing, [N].
    """

    values: Tensor
    gaps: Tensor


def variables_of(sites: Sites) -> list[Variable]:
    """Describe the columns of a simulation, the target last.

    Args:
        sites: The sites with their rows. Ranges of numbers are taken from all rows, which in a study people agree on.

    Returns:
        The columns.

    Raises:
        InputError: Rows are images.
    """
    if not isinstance(sites.features, int) or sites.image is not None:
        raise InputError("A table one is of columns, and these rows are images.")
    columns = [columns_of(sites, part) for part in sites.train]
    found = []
    for j, field in enumerate([*_fields(sites), _target(sites)]):
        low = 0.0
        high = 1.0
        if not field.levels:
            known = torch.cat([part[j].values[~part[j].gaps] for part in columns])
            if len(known):
                low = float(known.min())
                high = float(known.max())
        found.append(Variable(field.name, field.levels, field.unit, low, high))
    return found


def _fields(sites: Sites) -> list[Field]:
    names: Sequence[str] = sites.feature_names or tuple(f"x{i + 1}" for i in range(int(str(sites.features))))
    return fields_of(names)


def _target(sites: Sites) -> Field:
    levels: tuple[str, ...] = ()
    if sites.classes is not None:
        levels = sites.class_names or tuple(str(c) for c in range(sites.classes))
    return Field(sites.name, -1, levels)


def columns_of(sites: Sites, part: Data) -> list[Column]:
    """Undo what was done to a site's rows: scaling, and ones and zeros for levels.

    Args:
        sites: The sites, which know the scaling.
        part: The rows of one of them.

    Returns:
        Values and gaps of every column, the target last.
    """
    x = part.x.double().cpu()
    if sites.feature_shift is not None and sites.feature_scale is not None:
        x = x * sites.feature_scale + sites.feature_shift
    columns = []
    for field in _fields(sites):
        gaps = torch.zeros(len(x), dtype=torch.bool)
        if field.mark is not None:
            gaps = x[:, field.mark] > 0.5
        if not field.levels:
            columns.append(Column(x[:, field.first], gaps))
            continue
        marks = x[:, field.first : field.first + len(field.levels)]
        none = marks.max(1).values < 0.5
        columns.append(Column(marks.argmax(1).double(), gaps | none))
    y = part.y.double().cpu()
    if sites.classes is None:
        y = y.reshape(len(y), -1)[:, 0] * sites.target_scale + sites.target_shift
    columns.append(Column(y, torch.zeros(len(y), dtype=torch.bool)))
    return columns
