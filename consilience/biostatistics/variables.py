"""Columns as they are described: numbers or levels, and where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.biostatistics.terms import Field, fields_of
from consilience.data.sites import Data, Sites, concatenate
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

    Raises:
        InputError: Rows are images.
    """
    if not isinstance(sites.features, int) or sites.image is not None:
        raise InputError("A table one is of columns, and these rows are images.")
    columns = [columns_of(sites, part) for part in all_rows(sites)]
    found = []
    for j, field in enumerate([*_fields(sites), *_targets(sites)]):
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


def _targets(sites: Sites) -> list[Field]:
    """The target's columns: classes, a number, a count, or a time and whether the event was seen at it."""
    levels: tuple[str, ...] = ()
    if sites.classes is not None:
        levels = sites.class_names or tuple(str(c) for c in range(sites.classes))
    fields = [Field(sites.name, -1, levels)]
    if sites.outcome == "survival":
        fields.append(Field("event", -1, ("not seen", "seen")))
    return fields


def all_rows(sites: Sites) -> list[Data]:
    """Gather every site's rows, whatever their role.

    Returns:
        One part for each site: rows to train, tune, calibrate and test on.
    """
    roles = (sites.train, sites.validation, sites.conformal, sites.test)
    return [concatenate(parts) for parts in zip(*(role for role in roles if role), strict=True)]


def columns_of(sites: Sites, part: Data) -> list[Column]:
    """Undo what was done to a site's rows: scaling, and ones and zeros for levels.

    Args:
        sites: The sites, which know the scaling.
        part: The rows of one of them.

    Returns:
        Values of every column and which are missing, the target last; of times, whether the event was seen after them.
    """
    x = part.x.cpu()
    if sites.feature_shift is not None and sites.feature_scale is not None:
        x = _unscaled(x, sites.feature_scale.cpu(), sites.feature_shift.cpu())
    columns = []
    for field in _fields(sites):
        gaps = torch.zeros(len(x), dtype=torch.bool)
        if field.mark is not None:
            gaps = x[:, field.mark] > 0.5
        if not field.levels:
            columns.append(Column(x[:, field.first].double(), gaps))
            continue
        marks = x[:, field.first : field.first + len(field.levels)]
        none = marks.max(1).values < 0.5
        columns.append(Column(marks.argmax(1).double(), gaps | none))
    y = part.y.cpu().reshape(len(part.y), -1)
    values = y[:, 0]
    none = torch.zeros(len(y), dtype=torch.bool)
    if sites.classes is None:
        values = _unscaled(values, torch.tensor(sites.target_scale).double(), torch.tensor(sites.target_shift).double())
    columns.append(Column(values.double(), none))
    if sites.outcome == "survival":
        columns.append(Column(y[:, 1].double(), none))
    return columns


def _unscaled(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Values in their own unit, without the digits that their precision made up: 0 is 0 again, and not 9e-10."""
    if torch.equal(scale, torch.ones_like(scale)) and not shift.any():
        return values
    wide = values.double()
    largest = (wide.abs().amax(0) * scale).clamp(min=1e-300)
    step = 10.0 ** (2 * torch.finfo(values.dtype).eps * largest).log10().ceil()
    return ((wide * scale + shift) / step).round() * step
