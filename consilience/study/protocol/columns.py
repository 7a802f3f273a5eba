"""Columns agreed on in advance, and a site's table read by that agreement: nothing is learned from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.data.cells import Cell, Cells, Mask, is_empty, number
from consilience.data.dates import in_days
from consilience.data.formats import read_table
from consilience.data.quantiles import merge_small
from consilience.data.reading import Reading
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.models.hats import SCORES
from consilience.privacy.disclosure.guard import Span

if TYPE_CHECKING:
    from consilience.study.protocol.target import Target

EXAMPLES = 3  # of bad values in a sentence


@dataclass(frozen=True)
class Column:
    """One feature: what it means, what is plausible, how it is scaled, what a missing value becomes.

    Attributes:
        name: Its name in a table.
        type: `number` or `category`.
        unit: Of a number.
        range: Plausible numbers, in this unit.
        centre: The network sees (value − centre) / spread.
        spread: See `centre`.
        levels: Of a category.
        missing: `refuse`; `mark`: a number becomes `fill` and is marked, a category is none of its levels; `centre`: a
            number becomes `centre`, unmarked, which under scaling by sums is the mean of all sites; or `impute`: a
            number is drawn several times at the site, given the other columns.
        fill: What stands for a missing number, in this unit.
        unknown: Further texts that mean missing, such as 0; ? always does, unless it is a level.
        same: Pairs of a spelling and the level it means.
        since: The day, as 2020-01-31, from which dates are counted; empty where there are no dates.
        quantiles: At `LEVELS`, in this unit, where a feature map is laid out by them; as of a normal column if empty.
    """

    name: str
    type: str = "number"
    unit: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    centre: float = 0.0
    spread: float = 1.0
    levels: tuple[str, ...] = ()
    missing: str = "refuse"
    fill: float = 0.0
    unknown: tuple[str, ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    since: str = ""
    quantiles: tuple[float, ...] = ()

    @property
    def names(self) -> list[str]:
        """The features it becomes."""
        if self.type == "category":
            return [f"{self.name}={level}" for level in self.levels]
        if self.is_marked:
            return [self.name, f"{self.name} missing"]
        return [self.name]

    @property
    def knots(self) -> list[tuple[float, ...]]:
        """The quantiles of each of its features, as the network sees them; none of ones and zeros."""
        if self.type == "category":
            return [() for _ in self.names]
        quantiles = self.quantiles or tuple(self.centre + self.spread * score for score in SCORES)
        low, high = self.range
        own = tuple((min(max(value, low), high) - self.centre) / self.spread for value in quantiles)
        return [own, *(() for _ in self.names[1:])]

    @property
    def is_marked(self) -> bool:
        """Whether a feature of its own says where a number is missing."""
        return self.type == "number" and self.missing in ("mark", "impute")

    @property
    def filling(self) -> float:
        """What stands for a missing number, in this unit."""
        if self.missing in ("centre", "impute"):
            return self.centre
        return self.fill

    def empty(self, cell: Cell) -> bool:
        """Say whether a cell is missing, or holds a text that means so; 0 and 0.0 are one.

        Args:
            cell: A cell of this column.
        """
        return is_empty(cell) or _index(cell.text, self._means_missing) is not None

    def gaps(self, cells: Cells) -> Mask:
        """Say which cells are missing, as `empty` does.

        Args:
            cells: Cells of this column.

        Returns:
            [N].
        """
        unknown = self._means_missing
        return cells.empty() | cells.where(lambda text: _index(text, unknown) is not None)

    @property
    def _means_missing(self) -> tuple[str, ...]:
        """Texts that mean missing: those agreed on, and those that a run takes so, too."""
        return (*self.unknown, *(text for text in Reading.unknown if text not in self.levels))

    def strange(self, cells: Cells) -> Mask:
        """Say which cells are neither missing nor plausible.

        Args:
            cells: Cells of this column.

        Returns:
            [N].
        """
        if self.type == "category":
            none: Mask = self.codes(cells) == len(self.levels)
            return ~self.gaps(cells) & none
        values = cells.numbers()
        plausible: Mask = (values >= self.range[0]) & (values <= self.range[1])  # NaN, where there is no number, is not
        return ~self.gaps(cells) & ~plausible

    def beyond(self, cells: Cells) -> Mask:
        """Say which cells are numbers outside the range, infinite ones among them.

        Args:
            cells: Cells of this column.

        Returns:
            [N].
        """
        if self.type == "category":
            return np.zeros(len(cells), dtype=bool)
        outside: Mask = self.strange(cells) & ~np.isnan(_extended(cells))
        return outside

    def codes(self, cells: Cells) -> NDArray[np.int64]:
        """Find the levels of cells; 1 and 1.0 are one.

        Args:
            cells: Cells of this column.

        Returns:
            Their indices among the levels, and one beyond the last for cells that are none of them [N].
        """
        spellings = dict(self.same)

        def code(text: str) -> int:
            place = _index(spellings.get(text, text), self.levels)
            if place is None:
                return len(self.levels)
            return place

        return cells.codes(code)

    def features(self, cells: Sequence[Cell]) -> Tensor:
        """Turn cells into what the network sees.

        Args:
            cells: Cells of this column that are sound.

        Returns:
            [N, features].
        """
        column = Cells.of(cells)
        gaps = self.gaps(column)
        if self.type == "category":
            codes = torch.from_numpy(np.where(gaps, len(self.levels), self.codes(column)))
            return torch.nn.functional.one_hot(codes, len(self.levels) + 1)[:, :-1].double()
        known = np.clip(_extended(column), *self.range)  # which changes a table only where it may be (`inspect`)
        values = torch.from_numpy(np.where(gaps, self.filling, known))
        scaled = ((values - self.centre) / self.spread).unsqueeze(1)
        if not self.is_marked:
            return scaled
        return torch.cat([scaled, torch.from_numpy(gaps).double().unsqueeze(1)], 1)


class Inspection(NamedTuple):
    """A table held against the agreement.

    Attributes:
        path: The table's name.
        rows: How many rows it has.
        missing: Missing values by column.
        classes: Rows of each class; empty where a number is predicted.
        extra: Columns nobody agreed on: never read.
        problems: One sentence for each thing that is wrong.
        cells: The cells by column.
        blank: The first blank line between rows.
    """

    path: str
    rows: int
    missing: dict[str, int]
    classes: dict[str, int]
    extra: tuple[str, ...]
    problems: tuple[str, ...]
    cells: dict[str, Cells]
    blank: int | None

    def sound(self) -> Inspection:
        """Return itself if nothing is wrong.

        Raises:
            InputError: The first thing that is wrong.
        """
        if not self.problems:
            return self
        first, *others = self.problems
        if others:
            first = f"{first} {len(others)} more: see `consilience site check`."
        raise InputError(first)


def inspect(
    path: Path, columns: Sequence[Column], target: Target | None, delimiter: str | None = None, clip: bool = False
) -> Inspection:
    """Read a table and hold it against the agreed columns, in whatever order they come.

    Args:
        path: The table, a CSV file.
        target: What is predicted; None for rows to predict.
        delimiter: What separates cells; found by looking if None.
        clip: Whether a number outside its range counts as the range's end in place of being a problem: that a site
            sends nothing for one row's sake would tell of that row, where privacy is promised.

    Returns:
        What was found.

    Raises:
        InputError: The table cannot be read at all.
    """
    agreed = list(columns)
    if target is not None:
        agreed += target.as_columns()
    table = read_table(path, delimiter, fewest=1).spelt_as(column.name for column in agreed)
    dated = {column.name: column.since for column in agreed if column.since}
    cells = {name: in_days(own, dated[name]) if name in dated else own for name, own in table.columns.items()}
    problems = []
    missing = {}
    for column in agreed:
        if column.name not in cells:
            problems.append(_absence(path, column))
            continue
        clips = clip and (target is None or not target.counts_events or column in columns)
        problems += _problems(column, cells[column.name], clips)
        missing[column.name] = int(column.gaps(cells[column.name]).sum())
    names = {column.name for column in agreed}
    extra = tuple(name for name in cells if name not in names)
    if target is not None and not problems:
        problems += target.doubts(cells)
    classes = _count_classes(target, cells)
    return Inspection(path.name, len(table), missing, classes, extra, tuple(problems), cells, table.blank)


def bad_rows(columns: Sequence[Column], inspection: Inspection) -> dict[int, str]:
    """Say row by row what cannot be used, so that the others can be.

    Returns:
        A sentence for each such row, by its number from 0.

    Raises:
        InputError: A column is missing altogether.
    """
    bad: dict[int, str] = {}
    for column in columns:
        if column.name not in inspection.cells:
            inspection.sound()
        cells = inspection.cells[column.name]
        gaps = column.gaps(cells)
        wrong = column.strange(cells)
        if column.missing == "refuse":
            wrong = wrong | gaps
        for place in np.flatnonzero(wrong).tolist():
            if place not in bad:
                bad[place] = _fault(column, cells[place], bool(gaps[place]))
    return dict(sorted(bad.items()))


def _fault(column: Column, cell: Cell, missing: bool) -> str:
    """The sentence for one cell that cannot be used."""
    if missing:
        return f"{cell}: '{column.name}' is missing, and the study refuses missing values: fill it in."
    plausible = ", ".join(column.levels) or f"{column.range[0]:g} to {column.range[1]:g} {column.unit}".rstrip()
    return f"{cell}: '{cell.text}' in column '{column.name}' is not plausible in this study ({plausible}): correct it."


def _absence(path: Path, column: Column) -> str:
    """The sentence for a column that is not there."""
    return f"{path.name} has no column '{column.name}': add it as the study describes it."


def _count_classes(target: Target | None, cells: Mapping[str, Cells]) -> dict[str, int]:
    """Rows of each class; empty where a number is predicted, or nothing is known."""
    if target is None or target.name not in cells:
        return {}
    levels = Counter(target.as_column().codes(cells[target.name]).tolist())
    return {label: levels[i] for i, label in enumerate(target.classes)}


def _extended(cells: Cells) -> NDArray[np.float64]:
    """Every cell as a number, infinite ones too; NaN where it holds none [N]."""
    values = cells.numbers()
    values[cells.where(lambda text: _infinity(text) < 0)] = -np.inf
    values[cells.where(lambda text: _infinity(text) > 0)] = np.inf
    return values


def _infinity(text: str) -> int:
    """The sign of an infinite number, or of one too large to be held; 0 for every other text."""
    try:
        value = float(text)
    except ValueError:
        return 0
    return int(np.sign(value)) * bool(np.isinf(value))


def _index(text: str, texts: Sequence[str]) -> int | None:
    """Where a text is among others, by its spelling or else as a number."""
    if text in texts:
        return texts.index(text)
    if not texts or (value := number(text)) is None:
        return None
    return next((i for i, other in enumerate(texts) if number(other) == value), None)


def _problems(column: Column, cells: Cells, clip: bool) -> list[str]:
    """A sentence for each thing that is wrong with a column."""
    problems = []
    gaps = column.gaps(cells)
    if gaps.any() and column.missing == "refuse":
        problems.append(
            f"Column '{column.name}' is missing in {gaps.sum()} of {len(cells)} rows (first: {cells.first(gaps)}) and "
            "the study refuses missing values: fill them in or leave those rows out."
        )
    strange = column.strange(cells)
    if clip:
        strange = strange & ~column.beyond(cells)
    if strange.any():
        problems.append(_strangeness(column, cells, strange))
    return problems


def _strangeness(column: Column, cells: Cells, strange: Mask) -> str:
    """The sentence for values that are not plausible, with a few of them."""
    few = [cells[int(i)] for i in np.flatnonzero(strange)[:50]]
    examples = ", ".join(dict.fromkeys(f"'{cell.text}'" for cell in few))
    examples = ", ".join(examples.split(", ")[:EXAMPLES])
    count = f"{strange.sum()} of {len(cells)} values"
    if column.type == "category":
        return (
            f"Column '{column.name}': {count} are none of the agreed {', '.join(column.levels)} (such as {examples}, "
            f"{few[0]}): correct or recode them."
        )
    if np.isnan(cells.numbers()[strange]).all():
        return (
            f"Column '{column.name}': {count} are not numbers (such as {examples}, {few[0]}): correct them, with a "
            "point for decimals."
        )
    low, high = column.range
    plausible = f"{low:g} to {high:g} {column.unit}".rstrip()
    return (
        f"Column '{column.name}': {count} lie outside {plausible} (such as {examples}, {few[0]}): is this another "
        "unit? Convert or correct them."
    )


def features(columns: Sequence[Column], inspection: Inspection) -> Tensor:
    """Compute the agreed features of a table, scaled by the agreed constants.

    Returns:
        [N, D].

    Raises:
        InputError: Something is wrong with the table.
    """
    inspection.sound()
    return torch.cat([column.features(inspection.cells[column.name]) for column in columns], 1).float()


def imputed_marks(columns: Sequence[Column]) -> str:
    """Say which features are drawn where they are missing, and which mark where that is.

    Returns:
        Pairs of numbers of features, such as `1:2,4:5`; empty where none is drawn.
    """
    pairs = []
    first = 0
    for column in columns:
        if column.missing == "impute":
            pairs.append(f"{first}:{first + 1}")
        first += len(column.names)
    return ",".join(pairs)


def spans(columns: Sequence[Column]) -> list[Span]:
    """Say where columns lie among the features, for the guard of rare values.

    Marks of numbers that are drawn are no part of what is learned: few of them tell nothing.

    Returns:
        A place for each column.
    """
    places = []
    first = 0
    for column in columns:
        marked = column.type == "number" and column.missing == "mark"
        fill = (column.fill - column.centre) / column.spread
        places.append(Span(column.name, first, column.levels, marked, fill))
        first += len(column.names)
    return places


def labelled_rows(columns: Sequence[Column], target: Target, inspection: Inspection) -> Data:
    """Compute the rows of a table.

    Raises:
        InputError: Something is wrong with the table.
    """
    return Data.of(features(columns, inspection), target.values(inspection.cells))


def sums(columns: Sequence[Column], target: Target, inspection: Inspection, smallest: int, grid: int = 0) -> Tensor:
    """Sum up every column of numbers.

    Args:
        smallest: Columns with fewer known values are withheld.
        grid: How many cells of each column's range values are counted in, for its quantiles; the target's are not.

    Returns:
        Count, sum and sum of squares of the values that are known, and how many lie in each cell, or in it and its
        neighbours where they are few, [columns, 3 + grid]; 0 where withheld.

    Raises:
        InputError: Something is wrong with the table.
    """
    inspection.sound()
    scaled = target.as_scaled()
    rows = [_sum(column, inspection.cells[column.name], smallest, grid, True) for column in columns]
    return torch.stack([*rows, _sum(scaled, inspection.cells[scaled.name], smallest, grid, False)])


def _sum(column: Column, cells: Cells, smallest: int, grid: int, counted: bool) -> Tensor:
    """Count, sum and sum of squares of one column, and its counts [3 + grid]."""
    found = torch.zeros(3 + grid, dtype=torch.float64)
    if column.type != "number":
        return found
    values = cells.numbers()[~column.gaps(cells)]
    if len(values) < smallest:
        return found
    known = torch.from_numpy(values)
    found[:3] = torch.stack([torch.tensor(float(len(values))).double(), known.sum(), (known**2).sum()])
    if counted and grid:
        counts, _ = np.histogram(values, grid, column.range)
        found[3:] = torch.from_numpy(merge_small(counts.astype(np.float64), smallest))
    return found
