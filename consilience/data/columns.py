"""Columns of cells as numbers: features, of numbers or categories, and the target."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience.data.cells import CATEGORY, DATE, Cell, Cells, Mask, Numbers, number
from consilience.data.doubts import DATES, is_date
from consilience.data.sites import narrow
from consilience.errors import InputError, unknown_name

MOST_CATEGORIES = 100  # of a text feature
LARGEST = float(np.finfo(np.float32).max)  # of a number, as networks have them
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


def read_feature(
    name: str,
    cells: Cells,
    missing: str,
    as_text: bool,
    unknown: Collection[str] = (),
    categories: Sequence[str] | None = None,
    values: Numbers | None = None,
) -> Column:
    """Read a column as numbers, or as categories where no cell is a number.

    Args:
        name: The name of the column.
        missing: "refuse" to refuse missing values.
        as_text: Whether numbers are categories too.
        unknown: Texts that mean missing.
        categories: The categories, where they are known in advance.
        values: The cells as numbers, where they were read already.

    Raises:
        InputError: A cell is missing or not a number where it should not be, or there are too many categories.
    """
    _check_type(name, cells, as_text or categories is not None)
    if values is None:
        values = cells.numbers()
    gaps = np.zeros(len(cells), dtype=np.bool_)
    numeric = any(number(text) is not None for text in unknown)
    if numeric or not np.isfinite(values).all():  # the usual spellings of "missing" are not numbers
        gaps = cells.empty(unknown)
    if gaps.all():
        raise empty_column(name)
    if missing == "refuse" and gaps.any():
        raise missing_cell(name, cells.first(gaps))
    if not as_text and categories is None and cells.holds != CATEGORY:
        if not (np.isnan(values) | gaps).all():
            return _read_numbers(name, cells, values, gaps)
        _check_commas(name, cells)
        if is_date(cells):
            raise InputError(f"{DATES.format(name=name)}.")
    return _read_categories(name, cells, gaps, categories)


def missing_cell(name: str, cell: Cell) -> InputError:
    """Make the error of a gap where gaps are refused."""
    return InputError(
        f"{cell}: the cell in column '{name}' is missing; fill it in, delete the row or column, or pass "
        "missing='mean' (--missing mean)."
    )


def empty_column(name: str) -> InputError:
    """Make the error of a column of gaps."""
    return InputError(f"Column '{name}' is empty at every site: leave it out with drop=[{name!r}] (--drop {name}).")


def odd_number(name: str, cell: Cell) -> InputError:
    """Make the error of a text among numbers."""
    return InputError(
        f"{cell}: '{cell.text}' in column '{name}' is not a finite number; correct it, pass text=[{name!r}] "
        f"(--text {name}) to read the column as categories, or unknown=[{cell.text!r}] if that means missing."
    )


def check_categories(name: str, count: int) -> None:
    """Refuse a column with more categories than features are made of."""
    if count > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' has {count} categories, more than {MOST_CATEGORIES}: leave it out with "
            f"drop=[{name!r}] (--drop {name})."
        )


def _check_type(name: str, cells: Cells, as_text: bool) -> None:
    """Refuse what its file says to be neither numbers nor categories."""
    if cells.holds == DATE and not as_text:
        raise InputError(f"{DATES.format(name=name)}.")
    if cells.holds not in ("", CATEGORY, DATE):
        raise InputError(
            f"{cells.file}: column '{name}' holds {cells.holds}, neither numbers nor categories: make numbers of them, "
            f"or leave it out with drop=[{name!r}] (--drop {name})."
        )


def check_range(
    name: str, cells: Cells, values: Numbers, span: tuple[float, float] | None, unknown: Collection[str] = ()
) -> None:
    """Refuse numbers that somebody said are not plausible.

    Args:
        name: The name of the column.
        values: The cells as numbers.
        span: The least and the largest plausible number; None where nobody says.
        unknown: Texts that mean missing.

    Raises:
        InputError: A number lies outside.
    """
    if span is None:
        return
    outside = beyond(values, span) & ~cells.empty(unknown)
    if outside.any():
        raise InputError(f"{outside_sentence(cells.first(outside), name, span)} or the range in columns.toml.")


def beyond(values: Numbers, span: tuple[float, float]) -> Mask:
    """Say which numbers lie outside a range; what is no number does not.

    Args:
        values: Numbers, NaN where there is none.
        span: The least and the largest.
    """
    outside: Mask = (values < span[0]) | (values > span[1])
    return outside


def outside_sentence(cell: Cell, name: str, span: tuple[float, float]) -> str:
    """Say that a number is not plausible; what else may be corrected follows.

    Args:
        name: The name of the column.
        span: The least and the largest plausible number.
    """
    low, high = span
    return f"{cell}: '{cell.text}' in column '{name}' is outside its range, {low:g} to {high:g}: correct the cell,"


def read_target(name: str, cells: Cells, task: str | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """Read the target's column as classes, or as the targets of a regression.

    Args:
        name: The name of the column.
        task: "classification" or "regression"; None to decide by the cells.

    Returns:
        The number of each row's class and the names of the classes, or targets and None.

    Raises:
        InputError: A cell is missing, or cannot be a target; or there is but one class.
    """
    if task not in (None, "classification", "regression"):
        raise unknown_name("task", str(task), ["classification", "regression"])
    check_target(name, cells, task)
    values = cells.numbers()
    if task is None and cells.holds == CATEGORY and len(cells.distinct()) <= MOST_CLASSES:
        task = "classification"
    if task is None:
        task = _choose_task(name, cells, values)
    if task == "regression":
        return _read_targets(name, cells, values), None
    return _read_classes(name, cells, values)


def check_target(name: str, cells: Cells, task: str | None) -> None:
    """Refuse cells that can be no target.

    Args:
        name: The name of the column.
        task: As in `read_target`.

    Raises:
        InputError: A cell is missing, or a number is written with a comma.
    """
    _check_type(name, cells, task == "classification")
    gaps = cells.empty()
    if gaps.any():
        raise InputError(f"{cells.first(gaps)}: the target '{name}' is missing; remove the row or fill the cell in.")
    if task != "classification":
        _check_commas(name, cells)


def _read_numbers(name: str, cells: Cells, values: Numbers, gaps: Mask) -> Column:
    found = Column(name, None, torch.from_numpy(values).unsqueeze(1), torch.from_numpy(gaps))
    if values.min() >= -LARGEST and values.max() <= LARGEST and not gaps.any():  # not of NaN: most columns end here
        return found
    texts = np.isnan(values) & ~gaps
    if texts.any():
        raise odd_number(name, cells.first(texts))
    large = np.abs(values) > LARGEST
    if large.any():
        cell = cells.first(large)
        raise InputError(
            f"{cell}: '{cell.text}' in column '{name}' is larger than networks can compute with; correct it, use "
            f"another unit, or pass text=[{name!r}] (--text {name}) to read the column as categories."
        )
    values[gaps] = values[int((~gaps).argmax())]
    return found


def _read_categories(name: str, cells: Cells, gaps: Mask, given: Sequence[str] | None) -> Column:
    known = cells.select(~gaps).distinct()
    categories = sorted({normalise(text) for text in known})
    if given is not None:
        strange = [category for category in categories if category not in given]
        if strange:
            raise InputError(
                f"Column '{name}' holds '{strange[0]}', which is none of its categories {', '.join(given)}: correct "
                "the cell, or add the category."
            )
        categories = list(given)
    check_categories(name, len(categories))
    place = {category: i for i, category in enumerate(categories)}
    found = cells.codes(lambda text: place.get(normalise(text), len(categories)))
    codes = torch.from_numpy(np.where(gaps, len(categories), found))
    indicators = one_hot(codes, len(categories) + 1)[:, :-1].double()
    return Column(name, categories, indicators, torch.from_numpy(gaps))


def normalise(text: str) -> str:
    """Write a category as everybody would: 1, 1.0 and 1.00 are one; codes such as 007 and 1e3 are not touched."""
    if re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text):
        return text.rstrip("0").rstrip(".")
    return text


def _check_commas(name: str, cells: Cells) -> None:
    """Text that would be a number but for its comma, such as 37,1 or 1.234,5."""
    if not cells.has_texts:
        return
    decimals = cells.where(lambda text: "," in text and number(text.replace(".", "").replace(",", ".")) is not None)
    if decimals.any():
        cell = cells.first(decimals)
        raise InputError(f"{cell}: '{cell.text}' in column '{name}' has a comma; write numbers like 1234.5.")


def one_class(name: str, value: str) -> InputError:
    """Make the error of a target that never changes."""
    return InputError(f"The target '{name}' is '{value}' in every row: there is nothing to learn; check the column.")


def many_texts(name: str, cell: Cell) -> InputError:
    """Make the error of a target of texts that are too many for classes."""
    return InputError(
        f"{cell}: the target '{name}' is text with more than {MOST_CLASSES} different values, such as '{cell.text}'; "
        "correct it, or pass task='classification' (--task)."
    )


def _choose_task(name: str, cells: Cells, values: Numbers) -> str:
    """Text, or a few different whole numbers, make a classification."""
    texts = np.isnan(values)
    few = len(np.unique(values[~texts])) <= MOST_CLASSES
    if texts.any():
        if len(cells.distinct()) <= MOST_CLASSES:
            return "classification"
        raise many_texts(name, cells.first(texts))
    if few and bool((values == np.floor(values)).all()):
        return "classification"
    return "regression"


def _read_targets(name: str, cells: Cells, values: Numbers) -> Tensor:
    texts = np.isnan(values)
    if texts.any():
        text = cells.first(texts)
        raise InputError(f"{text}: the target '{name}' is '{text.text}', not a finite number; correct it.")
    large = np.abs(values) > LARGEST
    if large.any():
        text = cells.first(large)
        raise InputError(
            f"{text}: the target '{name}' is '{text.text}', larger than networks can compute with; correct it, or use "
            "another unit."
        )
    return narrow(torch.from_numpy(values))


def _read_classes(name: str, cells: Cells, values: Numbers) -> tuple[Tensor, tuple[str, ...]]:
    if np.isnan(values).any():
        names = sorted(cells.distinct())
        codes = cells.codes(names.index)
    else:
        # One spelling for one number, so that 1 and 1.0 at two sites are one class; numbers sort as numbers.
        spelt = [f"{value:.15g}" for value in np.unique(values).tolist()]
        names = list(dict.fromkeys(spelt))
        codes = np.array([names.index(name) for name in spelt])[np.searchsorted(np.unique(values), values)]
    if len(names) < 2:
        raise one_class(name, names[0])
    return torch.from_numpy(codes), tuple(names)
