"""Sites from tables: files of every format, and data frames."""

from __future__ import annotations

import glob
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from consilience.data.cells import Cells, Numbers, Table
from consilience.data.columns import Column, check_range, read_feature, read_target
from consilience.data.dataset import Dataset
from consilience.data.dates import in_days
from consilience.data.delimited import Wanted
from consilience.data.doubts import Doubt, find_doubts
from consilience.data.encoding import Encoding
from consilience.data.formats import FEWEST_ROWS, frame_of, is_table_file, part_of, read_table, without_url
from consilience.data.reading import Reading, read_reading
from consilience.data.sites import Sites, narrow
from consilience.data.splits.split import Split
from consilience.data.targets import read_outcome
from consilience.errors import InputError, unknown_name

AT_ONCE = 2**14  # rows
PREDICTIONS = ".predictions.csv"  # how files end that `consilience predict` writes beside a table; no site's rows


def from_table(
    pattern: str | Path | Sequence[str | Path],
    target: str | None = None,
    *,
    split: Split | None = None,
    sites: int | None = None,
    test: float = 0.2,
    calibration: int = 30,
    inputs: int | float = 0,
    validation: float = 0.0,
    conformal: float = 0.0,
    seed: int = 0,
    standardise: bool = True,
    task: Literal["classification", "regression", "counts"] | None = None,
    time: str | None = None,
    event: str | None = None,
    exposure: str | None = None,
    missing: str = "refuse",
    text: Sequence[str] = (),
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    decimal: str | None = None,
    unknown: Sequence[str] = Reading.unknown,
    categories: Mapping[str, Sequence[str]] | None = None,
    group: str | None = None,
    columns: str | Path | None = None,
    encoding: str | None = None,
) -> Sites:
    """Read sites from files, one per site and named after it, or after its folder.

    CSV, Excel (`wards.xlsx#North` for one of several sheets), Parquet, Arrow, NDJSON, SPSS, Stata and SAS files, and
    tables of SQLite and DuckDB files (`ward.db#patients`, also as `sqlite:///ward.db#patients`), which are only read.

    Text columns become one column per category. A target of text, or of at most 20 different whole numbers, makes a
    classification, any other a regression. Columns may come in any order, and their names in any case.

    Args:
        pattern: A folder, a glob pattern, several patterns separated by commas, or the files.
        target: The column to predict; left out where `columns` names it, or `time` and `event` are given.
        split: How to deal the rows of all files to `sites` instead.
        sites: Without a split, how many of the files to take; a single file is dealt to so many sites, by class,
            or evenly in a regression.
        test: The share held out, as in `Dataset.split`.
        calibration: How many labelled rows the server has.
        inputs: How many rows without labels the server has, or, below 1, what share.
        validation: The share cut from each site's training rows to tune on.
        conformal: The share that each site holds out for prediction sets.
        seed: Equal seeds give equal roles.
        standardise: Whether features, and regression targets, are scaled by all training rows.
        task: "classification" or "regression", where the target's column would be read as the other; "counts" where it
            holds counts of events.
        time: The column of times to an event, for survival; with `event`.
        event: The column that says 1 where the event was seen at that time, 0 where it was censored.
        exposure: For counts, the column of how long, or how many, each row was exposed to risk.
        missing: "refuse" to refuse missing cells; "mean" to fill them with the mean of the training rows and add
            an indicator column; "impute" or "impute:20" to fill it so many times by draws at the site, for methods
            that send a Gaussian.
        text: Columns to read as categories though they look like numbers.
        drop: Columns to leave out, such as row numbers.
        delimiter: What stands between two cells; found by looking at each file if None.
        decimal: What stands before decimals, a point or a comma; found by looking at each file if None.
        unknown: Texts that mean missing, beside empty cells, NA and the like.
        categories: The categories of columns, where they are known in advance.
        group: The column that names the site of each row, which files then do not.
        columns: A columns.toml that says all this; what is passed here as well comes first.
        encoding: How the bytes of CSV files become text, such as "latin-1"; found by looking at each file if None.

    Returns:
        The rows with their roles.

    Raises:
        InputError: A file or a cell cannot be used; the message says where it is.

    Example:
        >>> import consilience as co
        >>> import polars as pl
        >>> frame = pl.DataFrame({"age": [61, 54, 70, 48] * 20, "died": [1, 0, 1, 0] * 20})
        >>> for ward in ("north.csv", "south.csv"):
        ...     frame.write_csv(ward)
        ...
        >>> co.from_table(["north.csv", "south.csv"], target="died").names
        ('north', 'south')
    """
    asked = _asked(
        delimiter,
        decimal,
        missing,
        unknown,
        text,
        drop,
        categories=categories,
        group=group,
        task=task,
        encoding=encoding,
    )
    reading, named = merge_reading(asked, columns)
    return read_sites(
        pattern,
        target or named,
        reading,
        split=split,
        sites=sites,
        time=time,
        event=event,
        exposure=exposure,
        test=test,
        calibration=calibration,
        inputs=inputs,
        validation=validation,
        conformal=conformal,
        seed=seed,
        standardise=standardise,
    )


from_csv = from_table


def from_frame(
    frame: Any,
    target: str | None = None,
    group: str | None = None,
    *,
    split: Split | None = None,
    sites: int | None = None,
    task: Literal["classification", "regression", "counts"] | None = None,
    time: str | None = None,
    event: str | None = None,
    exposure: str | None = None,
    missing: str = "refuse",
    text: Sequence[str] = (),
    drop: Sequence[str] = (),
    unknown: Sequence[str] = Reading.unknown,
    categories: Mapping[str, Sequence[str]] | None = None,
    columns: str | Path | None = None,
    standardise: bool = True,
    **roles: Any,
) -> Sites:
    """Read sites from a data frame of pandas, polars, pyarrow, or any library that narwhals knows.

    Args:
        frame: The rows; columns of text become one column per category.
        target: The column to predict, as in `from_table`.
        group: The column that names the site of each row; without it, rows are dealt to `sites`.
        split: How to deal the rows instead.
        sites: How many sites, without `group`.
        task: As in `from_table`.
        time: As in `from_table`.
        event: As in `from_table`.
        exposure: As in `from_table`.
        missing: As in `from_table`.
        text: As in `from_table`.
        drop: As in `from_table`.
        unknown: As in `from_table`.
        categories: As in `from_table`.
        columns: As in `from_table`.
        standardise: As in `from_table`.
        roles: Further arguments of `Dataset.split`, as `test`, `calibration` and `seed`.

    Returns:
        The rows with their roles.

    Raises:
        InputError: A column or a cell cannot be used; the message says where it is.

    Example:
        >>> import consilience as co
        >>> import polars as pl
        >>> frame = pl.DataFrame({"age": [61, 54, 70, 48] * 20, "died": [1, 0, 1, 0] * 20, "ward": ["a", "b"] * 40})
        >>> co.from_frame(frame, target="died", group="ward").names
        ('a', 'b')
    """
    asked = _asked(None, None, missing, unknown, text, drop, categories=categories, group=group, task=task)
    reading, named = merge_reading(asked, columns)
    outcome, names = name_targets(target or named, reading.task, time, event, exposure)
    data = _make_dataset([frame_of(frame)], ("frame",), names, outcome, reading)
    if reading.group is None:
        data = replace(data, site=None, site_names=None)
    return data.split(split or data.usual_split(), sites, standardise=standardise, **roles)


def _asked(
    delimiter: str | None,
    decimal: str | None,
    missing: str,
    unknown: Sequence[str],
    text: Sequence[str],
    drop: Sequence[str],
    *,
    categories: Mapping[str, Sequence[str]] | None,
    **more: Any,
) -> Reading:
    """Arguments as a reading."""
    known = tuple((name, tuple(levels)) for name, levels in (categories or {}).items())
    return Reading(delimiter, decimal, missing, tuple(unknown), tuple(text), tuple(drop), categories=known, **more)


def merge_reading(asked: Reading, columns: str | Path | None) -> tuple[Reading, str | None]:
    """Put what is asked for over what a columns.toml says.

    Args:
        columns: The file, if there is one.

    Returns:
        Both together, and the target's name where the file says it.
    """
    if columns is None:
        return asked, None
    written, target = read_reading(columns)
    usual = Reading()
    changes = {
        field.name: getattr(asked, field.name)
        for field in fields(asked)
        if getattr(asked, field.name) != getattr(usual, field.name)
    }
    return replace(written, **changes), target


def read_sites(
    pattern: str | Path | Sequence[str | Path],
    target: str | None,
    reading: Reading,
    split: Split | None = None,
    sites: int | None = None,
    standardise: bool = True,
    time: str | None = None,
    event: str | None = None,
    exposure: str | None = None,
    **roles: Any,
) -> Sites:
    """Read sites from files.

    Args:
        pattern: The files, as in `from_table`.
        target: The column to predict; None where `time` and `event` are.
        reading: How tables are read.
        split: How rows are dealt; by files or groups if None.
        standardise: Whether features, and regression targets, are scaled by all training rows.
        time: The column of times to an event, for survival.
        event: The column that says whether the event was seen.
        exposure: For counts, the column of how long, or how many, each row was exposed to risk.
        roles: Further arguments of `Dataset.split`.

    Returns:
        The rows with their roles.

    Raises:
        InputError: A file or a cell cannot be used; the message says where it is.
    """
    data = read_rows(pattern, target, reading, time, event, exposure)
    return split_files(data, split, sites, standardise=standardise, **roles)


def read_rows(
    pattern: str | Path | Sequence[str | Path],
    target: str | None,
    reading: Reading,
    time: str | None = None,
    event: str | None = None,
    exposure: str | None = None,
) -> Dataset:
    """Read the rows of CSV files, before anybody has a role.

    Args:
        pattern: The files, as in `from_csv`.
        target: The column to predict; None where `time` and `event` are.
        reading: How tables are read.
        time: The column of times to an event, for survival.
        event: The column that says whether the event was seen.
        exposure: For counts, the column of how long, or how many, each row was exposed to risk.

    Returns:
        The rows, with their files or groups as natural sites.

    Raises:
        InputError: A file or a cell cannot be used; the message says where it is.
    """
    outcome, names = name_targets(target, reading.task, time, event, exposure)
    return _read_dataset(list_files(pattern), names, outcome, reading)


def split_files(data: Dataset, split: Split | None, sites: int | None, **roles: Any) -> Sites:
    """Give the rows of files their roles; a single file is dealt to several sites.

    Args:
        split: How they are dealt; by files or groups if None.
        roles: Further arguments of `Dataset.split`.
    """
    if split is None and len(data.site_names or ()) == 1 and (sites or 1) > 1:
        data = replace(data, site=None)
    return data.split(split or data.usual_split(), sites, **roles)


def _read_dataset(paths: Sequence[Path], targets: tuple[str, str | None], outcome: str, reading: Reading) -> Dataset:
    """The rows of all files."""
    files = file_names(paths)
    texts = [*reading.text, *(name for name, _ in (*reading.categories, *reading.dates)), reading.group or ""]
    wanted = Wanted.of([*texts, *(name for name, *_ in reading.same)], reading.drop)
    tables = [
        read_table(path, reading.delimiter, FEWEST_ROWS, reading.decimal, file, reading.encoding, wanted)
        for path, file in zip(paths, files, strict=True)
    ]
    return _make_dataset(tables, tuple(site_names(paths)), targets, outcome, reading)


def _make_dataset(
    tables: list[Table], names: tuple[str, ...], targets: tuple[str, str | None], outcome: str, reading: Reading
) -> Dataset:
    """The rows of all tables, which are forgotten column by column once their numbers are known."""
    cells, site = stack(tables, [name for name in targets if name is not None], reading)
    tables.clear()
    if reading.group is not None:
        names, site = _groups(reading.group, cells.pop(reading.group))
    columns = []
    for name in list(cells):
        cells[name] = cells[name].respelt(dict(reading.same_of(name)))
        if reading.since(name):
            cells[name] = count_days(name, cells[name], reading)
        values = cells[name].numbers()
        if name not in reading.text:
            check_range(name, cells[name], values, reading.range_of(name), reading.unknown)
        doubts = [*_doubts(name, cells[name], site, name in targets, values, reading)]
        if name not in targets:
            categories = reading.categories_of(name)
            as_text = name in reading.text
            own = cells.pop(name)
            column = read_feature(name, own, reading.missing, as_text, reading.unknown, categories, values)
            columns.append(column._replace(values=narrow(column.values)))  # at once: in all they are twice as long
        for doubt in doubts:
            warnings.warn(str(doubt), stacklevel=5)
    class_names = None
    if outcome:
        y = read_outcome(cells, targets, outcome)
    else:
        y, class_names = read_target(targets[0], cells.pop(targets[0]), reading.task)
    classes = None
    if class_names is not None:
        classes = len(class_names)
    x, feature_names, gaps = join_columns(columns)
    if reading.tables:
        _check_imputed(columns)
    return Dataset(
        name=targets[0],
        x=x,
        y=y,
        classes=classes,
        site=site,
        site_names=names,
        class_names=class_names,
        feature_names=feature_names,
        gaps=gaps,
        columns=tuple(encoding_of(column, reading) for column in columns),
        outcome=outcome,
        imputations=reading.tables * bool(gaps),
    )


def count_days(name: str, cells: Cells, reading: Reading) -> Cells:
    """Turn a column of dates into days."""
    days = in_days(cells, reading.since(name))
    wrong = np.isnan(days.numbers()) & ~days.empty(reading.unknown)
    if wrong.any():
        cell = cells.first(wrong)
        raise InputError(f"{cell}: '{cell.text}' in column '{name}' is no date such as 2024-01-31: correct it.")
    return days


def _doubts(name: str, cells: Cells, site: Tensor, target: bool, values: Numbers, reading: Reading) -> Iterator[Doubt]:
    """What may be wrong with a column; what somebody says is missing needs no advice."""
    gaps = cells.empty(reading.unknown)
    if not gaps.any():
        yield from find_doubts(name, cells, site, target, values)
    elif not gaps.all():
        yield from find_doubts(name, cells.select(~gaps), site[torch.from_numpy(~gaps)], target, values[~gaps])


def _check_imputed(columns: Sequence[Column]) -> None:
    """Refuse missing values that are not drawn."""
    for column in columns:
        if column.categories is not None and bool(column.gaps.any()):
            raise InputError(
                f"Column '{column.name}' is a category with missing values, and draws are for numbers: write "
                "missing='mean', or give them a category of their own."
            )


def name_targets(
    target: str | None, task: str | None, time: str | None, event: str | None, exposure: str | None
) -> tuple[str, tuple[str, str | None]]:
    """Say what kind of outcome is predicted ("" for classes or numbers), and the columns it stands in."""
    if time is not None and event is not None:
        if target is not None or task is not None or exposure is not None:
            raise InputError("time and event are what a survival model predicts: leave target, task and exposure out.")
        return "survival", (time, event)
    if time is not None or event is not None:
        raise InputError("Survival needs both columns: time, and event, which says whether it was seen.")
    if target is None:
        raise InputError(
            "Tables need to know which column to predict: name it as target, or, for survival, name time and event."
        )
    if task == "counts":
        return "counts", (target, exposure)
    if exposure is not None:
        raise InputError("exposure is for counts: pass task='counts' too.")
    return "", (target, None)


def encoding_of(column: Column, reading: Reading) -> Encoding:
    """Say how a column was read, for rows to come."""
    categories = None
    if column.categories is not None:
        categories = tuple(column.categories)
    marked = bool(column.gaps.any())
    span = None
    if categories is None:
        span = reading.range_of(column.name)
    same = reading.same_of(column.name)
    since = reading.since(column.name)
    return Encoding(column.name, categories, marked, unknown=reading.unknown, same=same, range=span, since=since)


def _groups(name: str, cells: Cells) -> tuple[tuple[str, ...], Tensor]:
    """The sites that a column names, sorted, and the site of each row."""
    gaps = cells.empty()
    if gaps.any():
        raise InputError(f"{cells.first(gaps)}: the site in column '{name}' is missing; fill it in or remove the row.")
    names = sorted(cells.distinct())
    place = {site: i for i, site in enumerate(names)}
    return tuple(names), torch.from_numpy(cells.codes(place.__getitem__))


def is_tables(data: str) -> bool:
    """Say whether data are named by files rather than by a data set's name."""
    return all(is_table_file(part) or Path(part).is_dir() for part in data.split(","))


def list_files(pattern: str | Path | Sequence[str | Path]) -> list[Path]:
    """Find the files that are meant.

    Args:
        pattern: A folder, a glob pattern, several patterns separated by commas, or the files.

    Returns:
        The files, each once.

    Raises:
        InputError: There is none, one does not exist, or two have one name.
    """
    if isinstance(pattern, str | Path):
        paths = [path for part in str(pattern).split(",") for path in _matching(without_url(part.strip()))]
    else:
        paths = [Path(without_url(str(path))) for path in pattern]
    paths = list(dict.fromkeys(paths))
    if not paths:
        raise InputError(f"No file matches '{pattern}': check the folder and the ending.")
    for path in paths:
        if not part_of(path)[0].is_file():
            raise InputError(f"There is no file '{part_of(path)[0]}': check the name.")
    site_names(paths)
    return paths


def site_names(paths: Sequence[Path]) -> list[str]:
    """Name sites by their files or, where files of several folders have one name, by their folders.

    Raises:
        InputError: Neither tells two files apart.
    """
    stems = [part_of(path)[0].stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    parts = [part_of(path)[1] for path in paths]
    if all(parts) and len(set(parts)) == len(parts):
        return parts
    folders = [path.absolute().parent.name for path in paths]
    if len(set(folders)) == len(folders):
        return folders
    stem = Counter(stems).most_common(1)[0][0]
    raise InputError(f"Two files are called '{stem}': rename one, a site takes the name of its file or of its folder.")


def file_names(paths: Sequence[Path]) -> list[str]:
    """Name files for people: each by its name or, where that does not tell them apart, with its folder."""
    if len({path.stem for path in paths}) == len(paths) or len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    return [f"{path.absolute().parent.name}/{path.name}" for path in paths]


def _matching(pattern: str) -> list[Path]:
    """The files of a folder, or those that match a pattern, in order; a file that is named is taken as it is."""
    named = Path(pattern)
    if part_of(named)[0].is_file():
        return [named]
    if named.is_dir():
        found = [path for path in named.iterdir() if path.is_file() and is_table_file(path)]
    else:
        own, part = part_of(named)
        ending = f"#{part}" * bool(part)
        found = [Path(f"{path}{ending}") for path in glob.glob(str(own), recursive=True)]
    return sorted(path for path in found if not path.name.endswith(PREDICTIONS))


def stack(tables: Sequence[Table], targets: Sequence[str], reading: Reading) -> tuple[dict[str, Cells], Tensor]:
    """Put the columns of all tables under each other.

    Args:
        tables: The tables of all files; columns may come in another order, and spelt otherwise.
        targets: The columns to predict; none where nobody says.
        reading: How tables are read.

    Returns:
        The cells of each column that is used, and which table each row is from.

    Raises:
        InputError: A table lacks a column, or a column that is asked for does not exist.
    """
    wished = [
        name for name in (*targets, reading.group, *reading.only, *reading.text, *reading.drop) if name is not None
    ]
    first = tables[0].spelt_as(wished)
    known = first.columns  # the other files must have the same
    for name in wished:
        if name not in known:
            raise unknown_name("column", name, known)
    for target in targets:
        if target in reading.drop:
            raise InputError(f"The target '{target}' cannot be dropped: take it out of drop=.")
    used = [name for name in known if name not in reading.drop and (not reading.only or name in wished)]
    tables = [first, *(table.spelt_as(known) for table in tables[1:])]
    for table in tables:
        _check_columns(table, known, used, reading)
    if targets and not [name for name in used if name not in (*targets, reading.group)]:
        raise InputError(f"There is no column beside the target '{targets[0]}': give at least one to predict from.")
    unused = [name for name in known if name not in used and name not in reading.drop]
    if unused:
        warnings.warn(f"Not used: {', '.join(unused)} (not in columns.toml).", stacklevel=2)
    rows = {name: Cells.stack(table.columns[name] for table in tables) for name in used}
    sizes = torch.tensor([len(table) for table in tables])
    return rows, torch.arange(len(tables)).repeat_interleave(sizes)


def _check_columns(table: Table, known: dict[str, Cells], used: Sequence[str], reading: Reading) -> None:
    """Every site has the same columns; those that are not used do not matter."""
    file = next(iter(table.columns.values())).file
    for name in used:
        if name not in table.columns:
            raise InputError(f"{file} has no column '{name}': give every site the same columns, or drop it everywhere.")
    for name in table.columns:
        if name not in known and not reading.only and name not in reading.drop:
            raise InputError(f"{file} has a column '{name}' that other sites lack: give every site the same columns.")


def join_columns(columns: Sequence[Column]) -> tuple[Tensor, tuple[str, ...], tuple[tuple[int | None, int], ...]]:
    """Make features of columns, with names, and gaps as `Dataset` has them; marks of gaps stand after all values."""
    values = [column.values for column in columns]  # in single precision where that does no harm
    names = [name for column in columns for name in column.names]
    gaps: list[tuple[int | None, int]] = []
    start = 0
    for column in columns:
        if bool(column.gaps.any()):
            place = start if column.categories is None else None
            gaps.append((place, len(names)))
            names.append(f"{column.name} missing")
            values.append(column.gaps.float().unsqueeze(1))
        start += len(column.names)
    return _beside(values), tuple(names), tuple(gaps)


def _beside(columns: Sequence[Tensor]) -> Tensor:
    """Columns [N, …] beside each other, some rows of all at a time: cell by cell takes longer."""
    widths = [column.shape[1] for column in columns]
    dtype = max((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    joined = torch.empty(len(columns[0]), sum(widths), dtype=dtype)
    for start in range(0, len(joined), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        for column, place in zip(columns, joined[rows].split(widths, dim=1), strict=True):
            place.copy_(column[rows])
    return joined
