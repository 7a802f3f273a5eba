"""Columns of numbers from the published CSV files; users' own files are read by `consilience.data.tables`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.errors import InputError

Column = np.ndarray[Any, np.dtype[np.float64]]


def read_columns(path: Path, delimiter: str = ",") -> dict[str, list[str]]:
    """Read a CSV file with a header.

    Args:
        delimiter: What stands between two cells.

    Returns:
        The cells of each column, by its name.

    Raises:
        InputError: The file has no rows, or rows of different lengths.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [row for row in csv.reader(file, delimiter=delimiter) if row]
    if len(lines) < 2 or any(len(row) != len(lines[0]) for row in lines):
        raise InputError(f"{path.name} is cut short: remove it and get it again.")
    header, *rows = lines
    return {name: [row[j] for row in rows] for j, name in enumerate(header)}


def as_numbers(path: Path, cells: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, Column]:
    """Read columns of cells as numbers.

    Args:
        path: The file they are from, for the error message.
        cells: The cells of each column.
        names: The columns to read.

    Returns:
        The numbers of each column, by its name.

    Raises:
        InputError: A cell is not a number.
    """
    try:
        return {name: np.array([float(cell) for cell in cells[name]]) for name in names}
    except ValueError as error:
        raise InputError(
            f"{path.name} has a cell that is not a number ({error}): remove it and get it again."
        ) from None


def as_circles(columns: Mapping[str, Column], **periods: int) -> dict[str, Column]:
    """Turn columns that come round, such as hours, into sine and cosine, so that 23 is next to 0.

    Args:
        **periods: The columns that come round, and after how many steps.

    Returns:
        All columns, two in place of each that comes round.
    """
    result: dict[str, Column] = {}
    for name, column in columns.items():
        if name in periods:
            angle = 2 * np.pi * column / periods[name]
            result[f"{name} sin"] = np.sin(angle)
            result[f"{name} cos"] = np.cos(angle)
        else:
            result[name] = column
    return result


def as_matrix(columns: Sequence[Column]) -> Tensor:
    """Put columns side by side.

    Args:
        columns: Columns of N numbers.

    Returns:
        Features, [N, columns], float32.
    """
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def as_vector(column: Column) -> Tensor:
    """Turn a column into targets.

    Returns:
        Targets, [N], float32.
    """
    return torch.from_numpy(column.astype(np.float32))
