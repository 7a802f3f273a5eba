"""How a file writes its cells: what separates them, and what stands before decimals. Found by looking."""

from __future__ import annotations

import csv
import re
from itertools import islice
from pathlib import Path
from typing import NamedTuple

LINES = 200  # that are looked at
DELIMITERS = ",;\t|"
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+),\d+")
SURE_COMMA = re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})")  # 1,234 may be a thousand
POINT = re.compile(r"[-+]?\d+\.\d+")


class Dialect(NamedTuple):
    """How a file writes its cells.

    Attributes:
        delimiter: What stands between two cells.
        decimal: What stands before decimals.
    """

    delimiter: str = ","
    decimal: str = "."

    def __str__(self) -> str:
        """In words, as in 'semicolons between cells, decimal commas'."""
        words = f"{NAMES.get(self.delimiter, repr(self.delimiter))} between cells"
        if self.decimal == ",":
            words += ", decimal commas"
        return words


def sniff(path: Path) -> Dialect:
    """Find a file's dialect from its first lines.

    Args:
        path: The file.

    Returns:
        The dialect; commas and points where the file cannot be read or nothing else fits.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in islice(file, LINES) if line.strip()]
    except (OSError, UnicodeDecodeError):
        return Dialect()  # whoever reads the file says what is wrong with it
    tables = {delimiter: _split(lines, delimiter) for delimiter in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda d: (_columns(tables[d]), -DELIMITERS.index(d)))
    cells = [cell.strip() for row in tables[delimiter][1:] for cell in row]
    decimal = "."
    if any(SURE_COMMA.fullmatch(cell) for cell in cells) and not any(POINT.fullmatch(cell) for cell in cells):
        decimal = ","
    return Dialect(delimiter, decimal)


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []


def _columns(table: list[list[str]]) -> int:
    """How many columns there are, if every row but a few has as many as the header; 1 otherwise."""
    if not table:
        return 0
    width = len(table[0])
    like_header = sum(len(row) == width for row in table)
    if width < 2 or like_header < 0.8 * len(table):
        return 1
    return width


def to_points(text: str) -> str:
    """Write a number with a decimal comma as the rest of the world does.

    Args:
        text: A cell's text.

    Returns:
        '1234.5' for '1.234,5'; any other text as it is.
    """
    if COMMA.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text
