"""Tables from files: one CSV per site, read without surprises."""

from __future__ import annotations

import csv
import glob
import math
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.sites import Sites, narrow
from consilience.errors import InputError, unknown_name
from consilience.splits.split import Split

MISSING = {"", "na", "n/a", "nan", "null"}  # in small letters; 'none' is left to be a category
FEWEST_ROWS = 5  # at a site
MOST_CATEGORIES = 100  # of a text feature
MOST_CLASSES = 20  # of a target of whole numbers or text, unless task= says otherwise


class Cell(NamedTuple):
    """One cell's text and where it stands."""

    text: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Table(NamedTuple):
    """Named columns of cells, all of one length."""

    name: str
    columns: dict[str, list[Cell]]
    blank: int | None  # the first blank line between rows

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Column(NamedTuple):
    """A column of features as numbers; what is missing is marked in `gaps`, and the first known number, or no category,
    stands in its place."""

    name: str
    categories: list[str] | None  # None: numbers
    values: Tensor  # [N, 1] or [N, categories]
    gaps: Tensor  # [N] bool

    @property
    def names(self) -> list[str]:
        return [self.name] if self.categories is None else [f"{self.name}={c}" for c in self.categories]


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
    """Sites from CSV files with a header row, one file per site and named after it; roles as in `Dataset.split`.

    `pattern`: a glob pattern, or the files. `split` deals the rows to `sites` instead; `sites` alone takes so many
    files, or deals the rows of a single one by class, evenly in a regression. Text columns become one per category. A
    target of text, or of at most 20 different whole numbers, makes a classification, any other a regression; `task`
    overrides. `missing="mean"` fills a gap with the mean of the training rows and marks it in a column of its own.
    `text`: columns to read as categories though they look like numbers. `drop`: columns to leave out, such as row
    numbers.
    """
    if missing not in ("refuse", "mean"):
        raise unknown_name("way with missing cells", missing, ["refuse", "mean"])
    tables = [read_table(path, delimiter) for path in _files(pattern)]
    rows, site = _stacked(tables, target, text, drop)
    columns = [_feature(name, cells, missing, name in text) for name, cells in rows.items() if name != target]
    y, class_names = _target(target, rows[target], task)

    dealt = split is None and len(tables) == 1 and (sites or 1) > 1  # one file that is to be several sites
    names = [n for c in columns for n in c.names]
    starts = accumulate((len(c.names) for c in columns), initial=0)
    gaps = [(start, c) for start, c in zip(starts, columns, strict=False) if bool(c.gaps.any())]
    marked = enumerate(gaps, start=len(names))
    data = Dataset(
        name=target,
        x=narrow(torch.cat([c.values for c in columns] + [c.gaps.double().unsqueeze(1) for _, c in gaps], dim=1)),
        y=y,
        classes=None if class_names is None else len(class_names),
        site=None if dealt else site,
        site_names=tuple(t.name for t in tables),
        class_names=class_names,
        feature_names=(*names, *(f"{c.name} missing" for _, c in gaps)),
        gaps=tuple((start if c.categories is None else None, mark) for mark, (start, c) in marked),
    )
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


def _files(pattern: str | Path | Sequence[str | Path]) -> list[Path]:
    single = isinstance(pattern, str | Path)
    paths = [Path(p) for p in (sorted(glob.glob(str(pattern), recursive=True)) if single else pattern)]  # type: ignore[union-attr]
    if not paths:
        raise InputError(f"No file matches '{pattern}': check the folder and the ending.")
    for path in paths:
        if not path.is_file():
            raise InputError(f"There is no file '{path}': check the name.")
    stems = [path.stem for path in paths]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"Two files are called '{stem}': rename one, a site takes the name of its file.")
    return paths


def read_table(path: Path, delimiter: str = ",", fewest: int = FEWEST_ROWS) -> Table:
    """The table in one file, every cell without the blanks around it; blank lines are passed over."""
    every: list[tuple[int, list[str]]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                every.append((reader.line_num, [cell.strip() for cell in row]))
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is not UTF-8 text: save it as 'CSV UTF-8'.") from None
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except csv.Error as error:
        first = every[-1][0] + 1 if every else 1
        raise InputError(
            f"{path.name} is no readable CSV from line {first} on ({error}): close every quote there, or save the file "
            "again as 'CSV UTF-8'."
        ) from None
    lines = [(line, row) for line, row in every if any(row)]
    header = lines[0][1] if lines else []
    if len(lines) <= fewest:
        raise InputError(
            f"{path.name} has {max(len(lines) - 1, 0)} rows under its header: a site needs at least {fewest}."
        )
    other = next((d for d in ";\t|" if len(header) == 1 and d in header[0]), None)
    if other:
        raise InputError(
            f"{path.name} separates its columns with {other!r}: save it with commas, or in Python pass "
            f"delimiter={other!r}."
        )
    for name in header:
        if not name or header.count(name) > 1:
            raise InputError(f"{path.name} has a column without a name of its own ('{name}'): name every column once.")
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise InputError(
                f"{path.name}, line {line} has {len(row)} cells and the header {len(header)}: give every row all cells."
            )
    cells = {name: [Cell(row[j], path.name, line) for line, row in lines[1:]] for j, name in enumerate(header)}
    blank = next((line for line, row in every if not any(row) and lines[0][0] < line < lines[-1][0]), None)
    return Table(path.stem, cells, blank)


def _stacked(
    tables: Sequence[Table], target: str, text: Sequence[str], drop: Sequence[str]
) -> tuple[dict[str, list[Cell]], Tensor]:
    """The columns of all tables under each other, and which table each row is from."""
    known = tables[0].columns
    for name in (target, *text, *drop):
        if name not in known:
            raise unknown_name("column", name, known)
    if target in drop:
        raise InputError(f"The target '{target}' cannot be dropped: take it out of drop=.")
    for table in tables:
        file = next(iter(table.columns.values()))[0].file
        for name in known:
            if name not in table.columns:
                raise InputError(
                    f"{file} has no column '{name}': give every site the same columns, or drop it everywhere."
                )
        for name in table.columns:
            if name not in known:
                raise InputError(
                    f"{file} has a column '{name}' that other sites lack: give every site the same columns."
                )
    kept = [name for name in known if name not in drop]
    if len(kept) < 2:
        raise InputError(f"There is no column beside the target '{target}': give at least one to predict from.")
    rows = {name: [cell for table in tables for cell in table.columns[name]] for name in kept}
    return rows, torch.arange(len(tables)).repeat_interleave(torch.tensor([len(table) for table in tables]))


def _feature(name: str, cells: Sequence[Cell], missing: str, as_text: bool) -> Column:
    """One column of numbers, or one column of 0 and 1 for each category."""
    present = [cell for cell in cells if not is_empty(cell)]
    gap = next((cell for cell in cells if is_empty(cell)), None)
    if not present:
        raise InputError(f"Column '{name}' is empty at every site: delete it, or in Python pass drop=[{name!r}].")
    if gap and missing == "refuse":
        raise InputError(
            f"{gap}: the cell in column '{name}' is missing; fill it in, delete the row or column, or in Python pass "
            "missing='mean'."
        )
    gaps = torch.tensor([is_empty(cell) for cell in cells])
    if not as_text and any(number(cell.text) is not None for cell in present):
        for cell in present:
            if number(cell.text) is None:
                raise InputError(
                    f"{cell}: '{cell.text}' in column '{name}' is not a finite number; correct it, or in Python "
                    f"pass text=[{name!r}] to read the column as categories."
                )
        numbers = [float(present[0].text if is_empty(cell) else cell.text) for cell in cells]
        return Column(name, None, torch.tensor(numbers, dtype=torch.float64).unsqueeze(1), gaps)
    if not as_text:
        _check_commas(name, present)
    texts = [_spelt(cell.text) for cell in cells]
    categories = sorted({t for t, cell in zip(texts, cells, strict=True) if not is_empty(cell)})
    if len(categories) > MOST_CATEGORIES:
        raise InputError(
            f"Column '{name}' has {len(categories)} categories, more than {MOST_CATEGORIES}: delete it, or in Python "
            f"pass drop=[{name!r}]."
        )
    values = torch.tensor([[float(t == c) for c in categories] for t in texts], dtype=torch.float64)
    return Column(name, categories, values, gaps)


def _spelt(text: str) -> str:
    """1, 1.0 and 1.00 are one category; codes such as 007 and 1e3 are not touched."""
    return text.rstrip("0").rstrip(".") if re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text) else text


def _check_commas(name: str, cells: Sequence[Cell]) -> None:
    """Text that would be a number but for its comma, such as 37,1 or 1.234,5."""
    for cell in cells:
        if "," in cell.text and number(cell.text.replace(".", "").replace(",", ".")) is not None:
            raise InputError(f"{cell}: '{cell.text}' in column '{name}' has a comma; write numbers like 1234.5.")


def _target(name: str, cells: Sequence[Cell], task: str | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """Classes with their names, or targets of a regression and None."""
    if task not in (None, "classification", "regression"):
        raise unknown_name("task", str(task), ["classification", "regression"])
    for cell in cells:
        if is_empty(cell):
            raise InputError(f"{cell}: the target '{name}' is missing; remove the row or fill the cell in.")
    numbers = [number(cell.text) for cell in cells]
    strange = next((cell for cell, number in zip(cells, numbers, strict=True) if number is None), None)
    if task != "classification":
        _check_commas(name, cells)
    if task is None:
        few = len({cell.text for cell in cells}) <= MOST_CLASSES
        whole = strange is None and all(number is not None and number.is_integer() for number in numbers)
        if strange and not few:
            raise InputError(
                f"{strange}: the target '{name}' is text with more than {MOST_CLASSES} different values, such as "
                f"'{strange.text}'; correct it, or in Python pass task='classification'."
            )
        task = "classification" if few and (strange or whole) else "regression"
    if task == "regression":
        if strange:
            raise InputError(f"{strange}: the target '{name}' is '{strange.text}', not a finite number; correct it.")
        return narrow(torch.tensor(numbers, dtype=torch.float64)), None
    # One spelling for one number, so that 1 and 1.0 at two sites are one class; numbers sort as numbers.
    labels = [c.text if strange or v is None else f"{v:.15g}" for c, v in zip(cells, numbers, strict=True)]
    names = sorted(set(labels), key=None if strange else float)
    if len(names) < 2:
        raise InputError(
            f"The target '{name}' is '{names[0]}' in every row: there is nothing to learn; check the column."
        )
    place = {label: c for c, label in enumerate(names)}
    return torch.tensor([place[label] for label in labels]), tuple(names)


def is_empty(cell: Cell) -> bool:
    return cell.text.lower() in MISSING


def number(text: str) -> float | None:
    """The finite number a cell holds, if it holds one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None
