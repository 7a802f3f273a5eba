"""Columns of cells as numbers: features, of numbers or categories, and the target."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.cells import Cell, is_empty, number
from consilience.data.sites import narrow
from consilience.errors import InputError, unknown_name

MOST_CATEGORIES = 100  # of a text feature
MOST_CLASSES = 20  # of a target of whole numbers or text, unless task= says otherwise


class Column(NamedTuple):
    """A column of features as numbers.

    Attributes:
        name: The name of the column.
        categories: The categories in sorted order; None for numbers.
        values: Numbers [N, 1], or 0 and 1 for each category [N, categories]. Where one is missing, the first known
            number, or no category, stands in its place.
        gaps: Which values are missing, [N] bool.
    """

    name: str
    categories: list[str] | None
    values: Tensor
    gaps: Tensor

    @property
    def names(self) -> list[str]:
        """A name for each column of `values`."""
        if self.categories is None:
            return [self.name]
        return [f"{self.name}={category}" for category in self.categories]


def read_feature(name: str, cells: Sequence[Cell], missing: str, as_text: bool) -> Column:
    """Read a column as numbers, or as categories where no cell is a number.

    Args:
        name: The name of the column.
        cells: Its cells.
        missing: "refuse" to refuse gaps.
        as_text: Whether numbers are categories too.

    Returns:
        The column.

    Raises:
        InputError: A cell is missing or not a number where it should not be, or there are too many categories.
    """
    present = [cell for cell in cells if not is_empty(cell)]
    if not present:
        raise InputError(f"Column '{name}' is empty at every site: delete it, or in Python pass drop=[{name!r}].")
    if missing == "refuse" and len(present) < len(cells):
        gap = next(cell for cell in cells if is_empty(cell))
        raise InputError(
            f"{gap}: the cell in column '{name}' is missing; fill it in, delete the row or column, or in Python pass "
            "missing='mean'."
        )
    if not as_text and any(number(cell.text) is not None for cell in present):
        return _read_numbers(name, cells, present)
    if not as_text:
        _check_commas(name, present)
    return _read_categories(name, cells)


def read_target(name: str, cells: Sequence[Cell], task: str | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """Read the target's column as classes, or as the targets of a regression.

    Args:
        name: The name of the column.
        cells: Its cells.
        task: "classification" or "regression"; None to decide by the cells.

    Returns:
        The number of each row's class and the names of the classes, or targets and None.

    Raises:
        InputError: A cell is missing, or cannot be a target; or there is but one class.
    """
    if task not in (None, "classification", "regression"):
        raise unknown_name("task", str(task), ["classification", "regression"])
    for cell in cells:
        if is_empty(cell):
            raise InputError(f"{cell}: the target '{name}' is missing; remove the row or fill the cell in.")
    if task != "classification":
        _check_commas(name, cells)
    if task is None:
        task = _choose_task(name, cells)
    if task == "regression":
        return _read_targets(name, cells), None
    return _read_classes(name, cells)


def _read_numbers(name: str, cells: Sequence[Cell], present: Sequence[Cell]) -> Column:
    for cell in present:
        if number(cell.text) is None:
            raise InputError(
                f"{cell}: '{cell.text}' in column '{name}' is not a finite number; correct it, or in Python "
                f"pass text=[{name!r}] to read the column as categories."
            )
    gaps = torch.tensor([is_empty(cell) for cell in cells])
    numbers = torch.tensor([float(cell.text) for cell in present], dtype=torch.float64)
    values = numbers[:1].repeat(len(cells))
    values[~gaps] = numbers
    return Column(name, None, values.unsqueeze(1), gaps)


def _read_categories(name: str, cells: Sequence[Cell]) -> Column:
    gaps = [is_empty(cell) for cell in cells]
    texts = [_normalise(cell.text) for cell in cells]
    categories = sorted({text for text, gap in zip(texts, gaps, strict=True) if not gap})
    if len(categories) > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' has {len(categories)} categories, more than {MOST_CATEGORIES}: delete it, or in Python "
            f"pass drop=[{name!r}]."
        )
    indicators = [[float(text == category) for category in categories] for text in texts]
    return Column(name, categories, torch.tensor(indicators, dtype=torch.float64), torch.tensor(gaps))


def _normalise(text: str) -> str:
    """1, 1.0 and 1.00 are one category; codes such as 007 and 1e3 are not touched."""
    if re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text):
        return text.rstrip("0").rstrip(".")
    return text


def _check_commas(name: str, cells: Sequence[Cell]) -> None:
    """Text that would be a number but for its comma, such as 37,1 or 1.234,5."""
    for cell in cells:
        if "," in cell.text and number(cell.text.replace(".", "").replace(",", ".")) is not None:
            raise InputError(f"{cell}: '{cell.text}' in column '{name}' has a comma; write numbers like 1234.5.")


def _first_text(cells: Sequence[Cell]) -> Cell | None:
    """The first cell that is not a number."""
    return next((cell for cell in cells if number(cell.text) is None), None)


def _choose_task(name: str, cells: Sequence[Cell]) -> str:
    """Text, or a few different whole numbers, make a classification."""
    few = len({cell.text for cell in cells}) <= MOST_CLASSES
    text = _first_text(cells)
    if text is not None:
        if few:
            return "classification"
        raise InputError(
            f"{text}: the target '{name}' is text with more than {MOST_CLASSES} different values, such as "
            f"'{text.text}'; correct it, or in Python pass task='classification'."
        )
    if few and all(float(cell.text).is_integer() for cell in cells):
        return "classification"
    return "regression"


def _read_targets(name: str, cells: Sequence[Cell]) -> Tensor:
    text = _first_text(cells)
    if text is not None:
        raise InputError(f"{text}: the target '{name}' is '{text.text}', not a finite number; correct it.")
    return narrow(torch.tensor([float(cell.text) for cell in cells], dtype=torch.float64))


def _read_classes(name: str, cells: Sequence[Cell]) -> tuple[Tensor, tuple[str, ...]]:
    labels = [cell.text for cell in cells]
    order: Callable[[str], float] | None = None
    if _first_text(cells) is None:
        # One spelling for one number, so that 1 and 1.0 at two sites are one class; numbers sort as numbers.
        labels = [f"{float(label):.15g}" for label in labels]
        order = float
    names = sorted(set(labels), key=order)
    if len(names) < 2:
        raise InputError(
            f"The target '{name}' is '{names[0]}' in every row: there is nothing to learn; check the column."
        )
    place = {label: c for c, label in enumerate(names)}
    return torch.tensor([place[label] for label in labels]), tuple(names)
