"""Sites from CSV files."""

from __future__ import annotations

import glob
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from consilience.data.cells import Cells, Table, read_table
from consilience.data.columns import Column, read_feature, read_target
from consilience.data.dataset import Dataset
from consilience.data.doubts import doubts_of
from consilience.data.encoding import Encoding
from consilience.data.sites import Sites, narrow
from consilience.errors import InputError, unknown_name
from consilience.splits.split import Split


def from_csv(
    pattern: str | Path | Sequence[str | Path],
    target: str,
    *,
    split: Split | None = None,
    sites: int | None = None,
    test: float = 0.2,
    calibration: int = 30,
    inputs: int | float = 0,
    validation: float = 0.0,
    seed: int = 0,
    standardise: bool = True,
    task: Literal["classification", "regression"] | None = None,
    missing: Literal["refuse", "mean"] = "refuse",
    text: Sequence[str] = (),
    drop: Sequence[str] = (),
    delimiter: str = ",",
) -> Sites:
    """Read sites from CSV files with a header row, one file per site and named after it.

    Text columns become one column per category. A target of text, or of at most 20 different whole numbers, makes a
    classification, any other a regression.

    Args:
        pattern: A glob pattern, or the files.
        target: The column to predict.
        split: How to hand out the rows of all files to `sites` instead.
        sites: Without a split, how many of the files to take; a single file is handed out to so many sites, by class,
            or evenly in a regression.
        test: The share held out, as in `Dataset.split`.
        calibration: How many labelled rows the server has.
        inputs: How many rows without labels the server has, or, below 1, what share.
        validation: The share cut from each site's training rows to tune on.
        seed: Equal seeds give equal roles.
        standardise: Whether features, and regression targets, are scaled by all training rows.
        task: "classification" or "regression", where the target's column would be read as the other.
        missing: "refuse" to refuse missing cells; "mean" to fill a gap with the mean of the training rows and mark it
            in a column of its own.
        text: Columns to read as categories though they look like numbers.
        drop: Columns to leave out, such as row numbers.
        delimiter: What stands between two cells.

    Returns:
        The rows with their roles.

    Raises:
        InputError: A file or a cell cannot be used; the message says where it is.
    """
    if missing not in ("refuse", "mean"):
        raise unknown_name("way with missing cells", missing, ["refuse", "mean"])
    data = _read_dataset(_list_files(pattern), target, task, missing, text, drop, delimiter)
    if split is None and len(data.site_names or ()) == 1 and (sites or 1) > 1:  # one file is handed out to several
        data = replace(data, site=None)
    return data.split(
        split or data.usual_split(),
        sites,
        test=test,
        calibration=calibration,
        inputs=inputs,
        validation=validation,
        seed=seed,
        standardise=standardise,
    )


def _read_dataset(
    paths: Sequence[Path],
    target: str,
    task: str | None,
    missing: str,
    text: Sequence[str],
    drop: Sequence[str],
    delimiter: str,
) -> Dataset:
    """The rows of all files; the text of a column is forgotten once its numbers are known."""
    tables = [read_table(path, delimiter) for path in paths]
    names = tuple(table.name for table in tables)
    cells, site = _stack(tables, target, text, drop)
    tables.clear()
    features = [name for name in cells if name != target]
    for name in cells:
        for doubt in doubts_of(name, cells[name], site, name == target):
            warnings.warn(str(doubt), stacklevel=3)
    columns = [read_feature(name, cells.pop(name), missing, name in text) for name in features]
    y, class_names = read_target(target, cells.pop(target), task)
    classes = None
    if class_names is not None:
        classes = len(class_names)
    x, feature_names, gaps = _join(columns)
    return Dataset(
        name=target,
        x=x,
        y=y,
        classes=classes,
        site=site,
        site_names=names,
        class_names=class_names,
        feature_names=feature_names,
        gaps=gaps,
        columns=tuple(Encoding(c.name, _tuple(c.categories), bool(c.gaps.any())) for c in columns),
    )


def _tuple(categories: list[str] | None) -> tuple[str, ...] | None:
    if categories is None:
        return None
    return tuple(categories)


def _list_files(pattern: str | Path | Sequence[str | Path]) -> list[Path]:
    if isinstance(pattern, str | Path):
        paths = [Path(path) for path in sorted(glob.glob(str(pattern), recursive=True))]
    else:
        paths = [Path(path) for path in pattern]
    if not paths:
        raise InputError(f"No file matches '{pattern}': check the folder and the ending.")
    for path in paths:
        if not path.is_file():
            raise InputError(f"There is no file '{path}': check the name.")
    for stem, count in Counter(path.stem for path in paths).items():
        if count > 1:
            raise InputError(f"Two files are called '{stem}': rename one, a site takes the name of its file.")
    return paths


def _stack(
    tables: Sequence[Table], target: str, text: Sequence[str], drop: Sequence[str]
) -> tuple[dict[str, Cells], Tensor]:
    """The columns of all tables under each other, and which table each row is from."""
    known = tables[0].columns  # the other files must have the same
    for name in (target, *text, *drop):
        if name not in known:
            raise unknown_name("column", name, known)
    if target in drop:
        raise InputError(f"The target '{target}' cannot be dropped: take it out of drop=.")
    for table in tables:
        _check_columns(table, known)
    names = [name for name in known if name not in drop]
    if len(names) < 2:
        raise InputError(f"There is no column beside the target '{target}': give at least one to predict from.")
    rows = {name: Cells.stack(table.columns[name] for table in tables) for name in names}
    sizes = torch.tensor([len(table) for table in tables])
    return rows, torch.arange(len(tables)).repeat_interleave(sizes)


def _check_columns(table: Table, known: dict[str, Cells]) -> None:
    """Every site has the same columns."""
    file = next(iter(table.columns.values()))[0].file
    for name in known:
        if name not in table.columns:
            raise InputError(f"{file} has no column '{name}': give every site the same columns, or drop it everywhere.")
    for name in table.columns:
        if name not in known:
            raise InputError(f"{file} has a column '{name}' that other sites lack: give every site the same columns.")


def _join(columns: Sequence[Column]) -> tuple[Tensor, tuple[str, ...], tuple[tuple[int | None, int], ...]]:
    """Features, their names, and gaps as `Dataset` has them; marks of gaps stand after all values."""
    values = [column.values for column in columns]
    names = [name for column in columns for name in column.names]
    gaps: list[tuple[int | None, int]] = []
    start = 0
    for column in columns:
        if bool(column.gaps.any()):
            place = start if column.categories is None else None
            gaps.append((place, len(names)))
            names.append(f"{column.name} missing")
            values.append(column.gaps.double().unsqueeze(1))
        start += len(column.names)
    return narrow(torch.cat(values, dim=1)), tuple(names), tuple(gaps)
