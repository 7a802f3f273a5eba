"""A CSV file as named columns of cells, read without surprises."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from consilience.errors import InputError

MISSING = {"", "na", "n/a", "nan", "null"}  # in small letters; 'none' is left to be a category
FEWEST_ROWS = 5  # at a site

Line = tuple[int, list[str]]  # the number of a line in its file, from 1, and its cells


class Cell(NamedTuple):
    """One cell's text and where it stands.

    Attributes:
        text: What is in it, without the blanks around it.
        file: The name of the file.
        line: The number of the line, from 1.
    """

    text: str
    file: str
    line: int

    def __str__(self) -> str:
        """Where it stands, for people."""
        return f"{self.file}, line {self.line}"


class Table(NamedTuple):
    """Named columns of cells, all of one length.

    Attributes:
        name: The name of the file, without its ending.
        columns: The cells of each column, by its name.
        blank: The number of the first blank line between rows; None where there is none.
    """

    name: str
    columns: dict[str, list[Cell]]
    blank: int | None

    def __len__(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))


def read_table(path: Path, delimiter: str = ",", fewest: int = FEWEST_ROWS) -> Table:
    """Read the table in one file; blank lines are passed over.

    Args:
        path: The file, UTF-8 text with a header row.
        delimiter: What stands between two cells.
        fewest: How many rows there must be.

    Returns:
        The table.

    Raises:
        InputError: The file cannot be read, or is not a table with so many rows.
    """
    all_lines = _read_lines(path, delimiter)
    lines = [(line, row) for line, row in all_lines if any(row)]
    if len(lines) <= fewest:
        raise InputError(
            f"{path.name} has {max(len(lines) - 1, 0)} rows under its header: a site needs at least {fewest}."
        )
    (first, header), *rows = lines
    last = lines[-1][0]
    _check_header(path, header)
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path.name}, line {line} has {len(row)} cells and the header {len(header)}: give every row all cells."
            )
    cells = {name: [Cell(row[j], path.name, line) for line, row in rows] for j, name in enumerate(header)}
    blank = next((line for line, row in all_lines if not any(row) and first < line < last), None)
    return Table(path.stem, cells, blank)


def is_empty(cell: Cell) -> bool:
    """Tell whether a cell's value is missing.

    Args:
        cell: The cell.

    Returns:
        True for an empty cell, and for NA, NaN and the like.
    """
    return cell.text.lower() in MISSING


def number(text: str) -> float | None:
    """Read a cell as a number.

    Args:
        text: The cell's text.

    Returns:
        The finite number it holds; None where it holds none.
    """
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or "_" in text:  # Python reads 1_000 as a number
        return None
    return value


def _read_lines(path: Path, delimiter: str) -> list[Line]:
    """Every line, blank ones too; the number of a row over several lines is that of its last."""
    lines: list[Line] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                lines.append((reader.line_num, [cell.strip() for cell in row]))
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text: save it as 'CSV UTF-8'.") from None
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except csv.Error as error:
        first = 1
        if lines:
            first = lines[-1][0] + 1
        raise InputError(
            f"{path.name} cannot be read as CSV from line {first} on ({error}): close every quote there, or save the "
            "file again as 'CSV UTF-8'."
        ) from None
    return lines


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Refuse columns that are separated by something else, and columns without a name of their own."""
    if len(header) == 1:
        for delimiter in ";\t|":
            if delimiter in header[0]:
                raise InputError(
                    f"{path.name} separates its columns with {delimiter!r}: save it with commas, or in Python pass "
                    f"delimiter={delimiter!r}."
                )
    for name in header:
        if not name or header.count(name) > 1:
            raise InputError(f"{path.name} has a column without a name of its own ('{name}'): name every column once.")
