"""Columns agreed on in advance, and a site's table read by that agreement: nothing is learned from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.cells import Cell, is_empty, number, read_table
from consilience.data.sites import Data
from consilience.errors import InputError

EXAMPLES = 3  # of bad values in a sentence


@dataclass(frozen=True)
class Column:
    """One feature: what it means, what is plausible, how it is scaled, what a missing value becomes."""

    name: str
    type: str = "number"  # number or category
    unit: str = ""
    range: tuple[float, float] = (0.0, 1.0)  # plausible numbers, in this unit
    centre: float = 0.0  # the network sees (value − centre) / spread
    spread: float = 1.0
    levels: tuple[str, ...] = ()  # of a category
    missing: str = "refuse"  # refuse; or mark: a number becomes `fill` and is marked, a category is none of its levels
    fill: float = 0.0  # in this unit
    unknown: tuple[str, ...] = ()  # further texts that mean missing, such as 0 or ?

    @property
    def names(self) -> list[str]:
        """The features it becomes."""
        if self.type == "category":
            return [f"{self.name}={level}" for level in self.levels]
        return [self.name] + ([f"{self.name} missing"] if self.missing == "mark" else [])

    def empty(self, cell: Cell) -> bool:
        """Missing, or a text that means so; 0 and 0.0 are one."""
        return is_empty(cell) or _place(cell.text, self.unknown) is not None

    def strange(self, cell: Cell) -> bool:
        """Neither missing nor plausible."""
        if self.empty(cell):
            return False
        if self.type == "category":
            return self.level(cell) is None
        value = number(cell.text)
        return value is None or not self.range[0] <= value <= self.range[1]

    def level(self, cell: Cell) -> int | None:
        """1 and 1.0 are one level."""
        return _place(cell.text, self.levels)

    def features(self, cells: Sequence[Cell]) -> Tensor:
        """[N, features]; the cells have been found sound."""
        if self.type == "category":
            codes = torch.tensor([len(self.levels) if self.empty(c) else self.level(c) for c in cells])
            return torch.nn.functional.one_hot(codes, len(self.levels) + 1)[:, :-1].double()
        gaps = [self.empty(c) for c in cells]
        values = [self.fill if gap else float(c.text) for gap, c in zip(gaps, cells, strict=True)]
        scaled = ((torch.tensor(values, dtype=torch.float64) - self.centre) / self.spread).unsqueeze(1)
        return torch.cat([scaled, torch.tensor(gaps).double().unsqueeze(1)], 1) if self.missing == "mark" else scaled


@dataclass(frozen=True)
class Target:
    """What is predicted: one of several classes, or a number."""

    name: str
    classes: tuple[str, ...] = ()  # none: a number
    unit: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    centre: float = 0.0
    spread: float = 1.0

    def as_column(self) -> Column:
        kind = "category" if self.classes else "number"
        return Column(self.name, kind, self.unit, self.range, self.centre, self.spread, self.classes)

    def values(self, cells: Sequence[Cell]) -> Tensor:
        features = self.as_column().features(cells)
        return features.argmax(1) if self.classes else features.squeeze(1).float()


class Inspection(NamedTuple):
    """A table held against the agreement; one sentence for each thing that is wrong."""

    path: str
    rows: int
    missing: dict[str, int]  # by column
    classes: dict[str, int]  # rows of each class; empty for a number
    extra: tuple[str, ...]  # columns nobody agreed on: never read
    problems: tuple[str, ...]
    cells: dict[str, list[Cell]]
    blank: int | None  # the first blank line between rows

    def sound(self) -> Inspection:
        """Itself, or the first thing that is wrong."""
        if self.problems:
            more = f" {len(self.problems) - 1} more: see `consilience site check`." if len(self.problems) > 1 else ""
            raise InputError(self.problems[0] + more)
        return self


def inspect(path: Path, columns: Sequence[Column], target: Target | None, delimiter: str = ",") -> Inspection:
    """Read a table and hold it against the agreed columns, in whatever order they come; without a target, rows to
    predict."""
    table = read_table(path, delimiter, fewest=1)
    cells, problems = table.columns, []
    wanted = [*columns, *([target.as_column()] if target else [])]
    for column in wanted:
        if column.name not in cells:
            near = [name for name in cells if name.strip().lower() == column.name.lower()]
            hint = f"; '{near[0]}' is spelt otherwise" if near else ""
            problems.append(f"{path.name} has no column '{column.name}'{hint}: add it as the study describes it.")
            continue
        problems += _problems(column, cells[column.name], column.missing == "refuse")
    known = [c for c in wanted if c.name in cells]
    missing = {c.name: sum(c.empty(cell) for cell in cells[c.name]) for c in known}
    counted: dict[str, int] = {}
    if target and target.classes and target.name in cells:
        own = target.as_column()
        levels = Counter(own.level(cell) for cell in cells[target.name])
        counted = {label: levels[i] for i, label in enumerate(target.classes)}
    extra = tuple(name for name in cells if name not in {c.name for c in wanted})
    return Inspection(path.name, len(table), missing, counted, extra, tuple(problems), cells, table.blank)


def _place(text: str, texts: Sequence[str]) -> int | None:
    """Where a text is among others, by its spelling or else as a number."""
    if text in texts:
        return texts.index(text)
    value = number(text) if texts else None
    same = [i for i, other in enumerate(texts) if value is not None and number(other) == value]
    return same[0] if same else None


def _problems(column: Column, cells: Sequence[Cell], needed: bool) -> list[str]:
    found = []
    gaps = [cell for cell in cells if column.empty(cell)]
    if gaps and needed:
        found.append(
            f"Column '{column.name}' is missing in {len(gaps)} of {len(cells)} rows (first: {gaps[0]}) and the study "
            "refuses gaps: fill them in or leave those rows out."
        )
    strange = [cell for cell in cells if column.strange(cell)]
    if not strange:
        return found
    examples = ", ".join(dict.fromkeys(f"'{cell.text}'" for cell in strange[:50]))
    examples = ", ".join(examples.split(", ")[:EXAMPLES])
    count = f"{len(strange)} of {len(cells)} values"
    if column.type == "category":
        found.append(
            f"Column '{column.name}': {count} are none of the agreed {', '.join(column.levels)} (such as {examples}, "
            f"{strange[0]}): correct or recode them."
        )
    elif all(number(cell.text) is None for cell in strange):
        found.append(
            f"Column '{column.name}': {count} are not numbers (such as {examples}, {strange[0]}): correct them, with a "
            "point for decimals."
        )
    else:
        low, high = column.range
        found.append(
            f"Column '{column.name}': {count} lie outside {low:g} to {high:g} {column.unit}".rstrip()
            + f" (such as {examples}, {strange[0]}): is this another unit? Convert or correct them."
        )
    return found


def features(columns: Sequence[Column], found: Inspection) -> Tensor:
    """The agreed features of a sound table, [N, D], scaled by the agreed constants."""
    found.sound()
    return torch.cat([column.features(found.cells[column.name]) for column in columns], 1).float()


def labelled_rows(columns: Sequence[Column], target: Target, found: Inspection) -> Data:
    """The rows of a sound table."""
    return Data.of(features(columns, found), target.values(found.cells[target.name]))


def sums(columns: Sequence[Column], target: Target, found: Inspection, smallest: int) -> Tensor:
    """Count, sum and sum of squares of every number that is known, [columns, 3]; columns known too seldom are 0."""
    found.sound()
    rows = []
    for column in (*columns, target.as_column()):
        known = [c for c in found.cells[column.name] if column.type == "number" and not column.empty(c)]
        values = torch.tensor([float(c.text) for c in known], dtype=torch.float64)
        shown = len(known) >= smallest
        parts = [torch.tensor(float(len(known))).double(), values.sum(), (values**2).sum()]
        rows.append(torch.stack(parts) if shown else torch.zeros(3, dtype=torch.float64))
    return torch.stack(rows)
