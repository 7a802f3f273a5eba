"""How the columns of a table became features: what it takes to read further rows as those trained on were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience.data.cells import Block, Cell, Cells, Mask, Numbers, Source, Table, is_missing
from consilience.data.columns import beyond, normalise, outside_sentence
from consilience.data.dates import days_of
from consilience.data.formats import frame_of, read_table
from consilience.errors import InputError

NAMED = 5  # categories that a sentence names


@dataclass(frozen=True)
class Encoding:
    """How one column is read.

    Attributes:
        name: Its name in a table.
        categories: The categories, one feature each; None for a number.
        marked: Whether missing values have an indicator; they are refused where not.
        fill: What stands for a missing number.
        unknown: Further texts that mean missing.
        same: Pairs of a spelling and the category it means.
        range: The least and the largest number that is plausible; None where nobody said.
        since: The day from which dates are counted; empty where there are no dates.
    """

    name: str
    categories: tuple[str, ...] | None = None
    marked: bool = False
    fill: float = 0.0
    unknown: tuple[str, ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    range: tuple[float, float] | None = None
    since: str = ""

    @property
    def width(self) -> int:
        """How many features it makes, its indicator not counted."""
        if self.categories is None:
            return 1
        return len(self.categories)

    def gaps(self, cells: Cells) -> Mask:
        """Say which values are missing.

        Args:
            cells: Cells of the column.

        Returns:
            The answers, [N].
        """
        return cells.empty(self.unknown)

    def strange(self, cells: Cells) -> Mask:
        """Say which values cannot be used: neither plausible numbers nor categories that were trained on.

        Args:
            cells: Cells of the column.

        Returns:
            The answers, [N].
        """
        gaps = self.gaps(cells)
        values = self._numbers(cells)
        wrong = np.isnan(values)
        if self.range is not None:
            wrong = wrong | (beyond(values, self.range) & ~gaps)
        if self.categories is not None:
            wrong = self._codes(cells) < 0
        if self.marked:
            return wrong & ~gaps
        return wrong | gaps

    def _numbers(self, cells: Cells) -> Numbers:
        if self.since:
            return days_of(cells.texts, self.since)
        return cells.numbers()

    def _codes(self, cells: Cells) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        places = {category: i for i, category in enumerate(self.categories or ())}
        spellings = dict(self.same)
        return cells.codes(lambda text: places.get(normalise(spellings.get(text, text)), -1))

    def features(self, cells: Cells) -> Tensor:
        """Turn sound cells into features in the units of the table.

        Args:
            cells: Cells of the column.

        Returns:
            [N, width], and the mark of a gap [N, 1] after it where gaps are marked.
        """
        gaps = self.gaps(cells)
        if self.categories is None:
            values = torch.from_numpy(np.where(gaps, self.fill, self._numbers(cells))).unsqueeze(1)
        else:
            codes = torch.from_numpy(np.where(gaps, self.width, self._codes(cells)))
            values = one_hot(codes, self.width + 1)[:, :-1].double()
        if not self.marked:
            return values
        return torch.cat([values, torch.from_numpy(gaps).double().unsqueeze(1)], 1)


class Encoded(NamedTuple):
    """Rows of a table as features.

    Attributes:
        x: Features of the rows that can be used, in the units of the table, [M, D].
        places: The number of each of these rows in the table, from 0.
        bad: A sentence for each row that cannot be used, by its number from 0.
        total: How many rows the table has.
    """

    x: Tensor
    places: list[int]
    bad: dict[int, str]
    total: int

    def whole(self) -> Tensor:
        """The features of all rows.

        Raises:
            InputError: Some rows cannot be used.
        """
        if self.bad:
            first = next(iter(self.bad.values()))
            more = ""
            if len(self.bad) > 1:
                more = f" {len(self.bad) - 1:,} more rows cannot be used."
            raise InputError(f"{first}{more}")
        return self.x


def with_fills(columns: Sequence[Encoding], means: Mapping[int, float]) -> tuple[Encoding, ...]:
    """Fill in what stands for missing numbers.

    Args:
        columns: How each column is read, in the order of the features.
        means: The fill of a feature, by its number.
    """
    filled = []
    place = 0
    for column in columns:
        filled.append(replace(column, fill=means.get(place, column.fill)))
        place += column.width
    return tuple(filled)


def encode(columns: Sequence[Encoding], cells: Mapping[str, Cells], source: str) -> Encoded:
    """Read rows as those trained on; what cannot be read is named row by row.

    Args:
        columns: How each column is read.
        cells: The table's cells by column; more columns do no harm.
        source: What the rows are from, for sentences.

    Raises:
        InputError: A column is missing, or no row can be used.
    """
    cells = Table("", dict(cells)).spelt_as(column.name for column in columns).columns
    for column in columns:
        if column.name not in cells:
            raise InputError(f"{source} has no column '{column.name}': the model was trained with it.")
    count = len(cells[columns[0].name])
    bad: dict[int, str] = {}
    for column in columns:
        for place in np.flatnonzero(column.strange(cells[column.name])).tolist():
            if place not in bad:
                bad[place] = _fault(column, cells[column.name][place])
    if bad and len(bad) == count:
        raise InputError(f"No row of {source} can be used. {next(iter(bad.values()))}")
    sound = np.ones(count, dtype=np.bool_)
    sound[list(bad)] = False
    parts = [column.features(cells[column.name].select(sound)) for column in columns]
    values = [part[:, : column.width] for part, column in zip(parts, columns, strict=True)]
    marks = [part[:, column.width :] for part, column in zip(parts, columns, strict=True)]
    return Encoded(torch.cat([*values, *marks], 1), np.flatnonzero(sound).tolist(), dict(sorted(bad.items())), count)


def _fault(column: Encoding, cell: Cell) -> str:
    """The sentence for a cell that cannot be used."""
    if is_missing(cell.text) or cell.text in column.unknown:
        return f"{cell}: '{column.name}' is missing, and no row was so in training: fill it in."
    if column.since:
        return f"{cell}: '{cell.text}' in column '{column.name}' is no date such as 2024-01-31: correct it."
    if column.range is not None and beyond(Cells.of([cell]).numbers(), column.range).any():
        return f"{outside_sentence(cell, column.name, column.range)} or train with another range."
    if column.categories is None:
        return f"{cell}: '{cell.text}' in column '{column.name}' is not a finite number: correct it."
    few = ", ".join(column.categories[:NAMED]) + ", …" * (len(column.categories) > NAMED)
    return f"{cell}: '{cell.text}' in column '{column.name}' was not seen in training ({few}): correct or recode it."


def rows_of_table(table: Any, columns: Sequence[Encoding]) -> Encoded:
    """Read a file, a data frame, a dict of columns or a list of dicts.

    Args:
        table: The rows, with the names of their columns.
        columns: How each column is read.

    Raises:
        InputError: A column is missing, or no row can be used.
    """
    if isinstance(table, (str, Path)):
        path = Path(table)
        return encode(columns, read_table(path, fewest=1).columns, path.name)
    if isinstance(table, Mapping):
        named = {str(name): [*values] for name, values in table.items()}
    elif hasattr(table, "columns"):
        return encode(columns, frame_of(table).columns, "The table")
    else:
        names = dict.fromkeys(str(name) for row in table for name in row)
        named = {name: [row.get(name) for row in table] for name in names}
    return encode(columns, {name: _cells(values) for name, values in named.items()}, "The table")


def is_table(x: Any) -> bool:
    """Say whether rows come with the names of their columns.

    Args:
        x: What somebody wants predictions for.
    """
    if isinstance(x, (str, Path, Mapping)) or hasattr(x, "columns"):
        return True
    return isinstance(x, (list, tuple)) and bool(x) and isinstance(x[0], Mapping)


def _cells(values: Iterable[Any]) -> Cells:
    """Values as a file would have them; rows are counted from 1, and None and NaN are missing."""
    texts = []
    for value in values:
        text = str(value).strip()
        if value is None or text == "<NA>":
            text = ""
        elif isinstance(value, (float, np.floating)):
            text = repr(float(value))  # nan among them, which means missing
        texts.append(text)
    source = Source("the table", lambda row: row + 1, "row")
    return Cells([Block(pl.Series(texts, dtype=pl.String), source)])
