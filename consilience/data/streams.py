"""Tables larger than memory: a first pass looks at every cell, later ones make features of a batch at a time.

A site's training rows are read anew for every sum over them. Targets, and up to `MOST_TEST` test rows, are kept.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import polars as pl
import torch
from polars.exceptions import PanicException, PolarsError
from torch import Tensor

from consilience.data.cells import CATEGORY, Block, Cell, Cells, Mask, Numbers, Source, Table
from consilience.data.columns import (
    MOST_CLASSES,
    Column,
    check_categories,
    check_range,
    check_target,
    empty_column,
    many_texts,
    missing_cell,
    odd_number,
    one_class,
    read_feature,
)
from consilience.data.dataset import Draw
from consilience.data.delimited import (
    Wanted,
    check_header,
    find_dialect,
    has_blank,
    line_of,
    look,
    scan_plain,
    tidy,
    undecodable,
)
from consilience.data.dialect import UTF8, Dialect, first_lines, split_lines
from consilience.data.encoding import Encoding, encode, with_fills
from consilience.data.formats import FEWEST_ROWS, PARQUET, table_of, unreadable
from consilience.data.reading import Reading
from consilience.data.sites import TRIFLE, Data, Sites, moments_of, narrow, pool, rescale
from consilience.data.streamed import Streamed
from consilience.data.tables import (
    count_days,
    encoding_of,
    file_names,
    join_columns,
    list_files,
    name_targets,
    site_names,
    stack,
)
from consilience.data.targets import read_outcome
from consilience.errors import InputError, unknown_name
from consilience.key import Key

CELLS = 2**22  # that are read at a time
BLOCK = 2**16  # rows whose roles are drawn together: the same whatever is read at a time
MOST_TEST = 100_000  # test rows, which are kept in memory
LARGE = 2 * 2**30  # bytes of files from which on rows stay in them, where nobody says
MOST_NAMES = 1_000  # classes
STREAMS = (".csv", ".tsv", ".parquet")


class File(NamedTuple):
    """A file that is read in parts.

    Attributes:
        name: What it is called in messages.
        columns: Its columns.
        rows: How many rows it has.
        tables: Reads its rows from the first on.
    """

    name: str
    columns: Sequence[str]
    rows: int
    tables: Callable[[], Iterator[Table]]


class Roles(NamedTuple):
    """Which rows are for testing: by their place in a file, whatever is read at a time.

    Attributes:
        key: What is drawn from.
        share: Of the rows.
    """

    key: Key
    share: float

    def tested(self, file: int, start: int, rows: int) -> Mask:
        """Tell which rows of a file are for testing.

        Args:
            file: The number of the file.
            start: How many rows lie before these.
            rows: How many these are.
        """
        if not self.share or not rows:
            return np.zeros(rows, dtype=np.bool_)
        first, last = start // BLOCK, (start + rows - 1) // BLOCK
        draws = [self.key.fold(file).fold(block).uniform(BLOCK) for block in range(first, last + 1)]
        drawn: Mask = (torch.cat(draws)[start - first * BLOCK :][:rows] < self.share).numpy()
        return drawn


def may_stream(paths: Sequence[Path]) -> bool:
    """Tell whether files are of formats that can be read in parts."""
    return all(path.suffix.lower() in STREAMS for path in paths)


def are_large(paths: Sequence[Path]) -> bool:
    """Tell whether rows stay in their files where nobody says."""
    return may_stream(paths) and sum(path.stat().st_size for path in paths) > LARGE


def stream_sites(
    pattern: str,
    target: str | None,
    reading: Reading,
    *,
    test: float = 0.2,
    seed: int = 0,
    time: str | None = None,
    event: str | None = None,
    exposure: str | None = None,
    batch: int | None = None,
) -> Sites:
    """Read sites whose training rows stay in their files, one a site.

    Args:
        pattern: CSV or Parquet files, as in `from_table`.
        target: The column to predict.
        reading: How tables are read.
        test: The share of rows held out, but no more than `MOST_TEST` in all.
        seed: What test rows are drawn from.
        time: Refused: risk sets are no sums.
        event: Likewise.
        exposure: As in `from_table`.
        batch: How many rows are read at a time, by the number of columns if None; no number depends on it but for
            rounding.

    Raises:
        InputError: A file or a cell cannot be used, or needs all rows at once.
    """
    if not 0 <= test < 1:
        raise InputError(f"test={test} is not a share from 0 to below 1: try test=0.2.")
    outcome, targets = name_targets(target, reading.task, time, event, exposure)
    for wrong, what in (
        (outcome == "survival", "times to an event, whose risk sets need all rows"),
        (reading.group is not None, "a column that names sites: a site is a file"),
        (reading.tables > 0, "gaps that are filled by draws: use missing='mean'"),
    ):
        if wrong:
            raise InputError(f"Rows that stay in their files cannot have {what}; or read them whole (stream=False).")
    paths = list_files(pattern)
    texts = [*reading.text, *(name for name, _ in (*reading.categories, *reading.dates))]
    wanted = Wanted.of([*texts, *(name for name, *_ in reading.same)], reading.drop)
    files = [_open(path, name, reading, wanted, batch) for path, name in zip(paths, file_names(paths), strict=True)]
    rows = sum(file.rows for file in files)
    roles = Roles(Key(seed).fold(Draw.TEST), min(test, MOST_TEST / max(rows, 1)))
    return _first_pass(files, site_names(paths), targets, outcome, reading, roles)


# Files


def _open(path: Path, name: str, reading: Reading, wanted: Wanted, batch: int | None) -> File:
    if not may_stream([path]):
        raise InputError(
            f"{name} can only be read whole (stream=False): save it as Parquet or CSV to read it in parts."
        )
    if not path.stat().st_size:
        raise InputError(f"{name} is empty: a table has a header row with the columns' names, and rows under it.")
    open_file = _open_parquet if path.suffix.lower() == ".parquet" else _open_delimited
    try:
        file = open_file(path, name, reading, wanted, batch)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    if file.rows < FEWEST_ROWS:
        raise InputError(f"{name} has {file.rows} rows under its header: a site needs at least {FEWEST_ROWS}.")
    return file


def _open_parquet(path: Path, name: str, reading: Reading, wanted: Wanted, batch: int | None) -> File:
    try:
        scan = pl.scan_parquet(path, glob=False)
        header = scan.collect_schema().names()
        rows = int(scan.select(pl.len()).collect().item())
    except (PolarsError, PanicException) as error:
        raise unreadable(name, PARQUET.name, error) from None
    check_header(name, header)
    used = [column for column in header if column not in reading.drop]
    batch = batch or _rows_of(used)

    def tables() -> Iterator[Table]:
        start = 0
        for frame in _batches(scan.select(used), name, PARQUET.name, batch):
            yield table_of(frame, path.stem, name, PARQUET, start)
            start += frame.height

    return File(name, header, rows, tables)


def _rows_of(columns: Sequence[str]) -> int:
    return max(CELLS // max(len(columns), 1), 1024)


def _batches(scan: pl.LazyFrame, name: str, format: str, batch: int) -> Iterator[pl.DataFrame]:
    try:
        yield from scan.collect_batches(chunk_size=batch, maintain_order=True)
    except (PolarsError, PanicException) as error:
        raise unreadable(name, format, error) from None


def _open_delimited(path: Path, name: str, reading: Reading, wanted: Wanted, batch: int | None) -> File:
    dialect = find_dialect(path, name, Dialect(reading.delimiter or "", reading.decimal or "", reading.encoding or ""))
    odd = InputError(
        f"{name} can only be read whole (stream=False): to be read in parts, a CSV file is UTF-8, has no blank lines, "
        "and as many cells in each line as in its header."
    )
    try:
        check_header(
            name, [cell.strip() for cell in split_lines(first_lines(path, dialect.encoding), dialect.delimiter)[0]]
        )
        found = look(path, dialect, wanted) if dialect.encoding == UTF8 else None
    except UnicodeError:
        raise undecodable(name, dialect) from None
    if found is None:
        raise odd
    used = [column for column in found.header if column not in reading.drop]
    batch = batch or _rows_of(used)
    as_texts: dict[str, type[pl.DataType]] = dict.fromkeys(found.header, pl.String)
    types = found.types
    try:  # every cell is what the first rows promise, or columns are read as texts
        for _ in scan_plain(path, dialect, types, found.marks).select(used).collect_batches(chunk_size=batch):
            pass
    except PolarsError:
        types = as_texts

    def read_texts(start: int, rows: int, column: str) -> pl.Series:
        scan = scan_plain(path, dialect, as_texts, {}).select(column).slice(start, rows)
        return tidy(scan.collect()[column], dialect.decimal)

    def tables() -> Iterator[Table]:
        start = 0
        marks = found.marks if types is not as_texts else {}
        for frame in _batches(scan_plain(path, dialect, types, marks).select(used), name, "CSV", batch):
            if has_blank(frame):
                raise odd
            line = functools.partial(_line, path, dialect, start)
            source = Source(name, line, read=functools.partial(read_texts, start, frame.height))
            columns = {}
            for series in frame.get_columns():
                values = tidy(series, dialect.decimal) if series.dtype == pl.String else series
                columns[series.name] = Cells([Block(values, source, series.name)])
            yield Table(path.stem, columns, None, dialect, frame.height)
            start += frame.height

    return File(name, found.header, found.rows, tables)


def _line(path: Path, dialect: Dialect, start: int, row: int) -> int:
    return line_of(path, dialect, start + row)


# The first pass


class Spread:
    """Mean and squares about it, of numbers that come in parts (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares = 0, 0.0, 0.0
        self.low, self.high = np.inf, -np.inf

    def add(self, values: Numbers) -> None:
        """Add a part."""
        if not len(values):
            return
        n, mean = len(values), float(values.mean())
        total = self.n + n
        self.squares += float(((values - mean) ** 2).sum()) + (mean - self.mean) ** 2 * self.n * n / total
        self.mean += (mean - self.mean) * n / total
        self.n = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    @property
    def constant(self) -> bool:
        """Whether all numbers are one."""
        return not self.low < self.high


class Seen:
    """What was seen of a column of features so far."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name, self.reading = name, reading
        self.given = reading.categories_of(name)
        self.as_text = name in reading.text
        self.categories: dict[str, int] = dict.fromkeys(self.given or (), 0)  # with their training rows
        self.numeric: bool | None = None
        self.first: Cell | None = None
        self.gaps = self.trained_gaps = 0
        self.known, self.all = Spread(), Spread()
        self.lost = 0.0  # by rounding to float32, at most

    def add(self, cells: Cells, train: Mask) -> None:
        """Look at a part of the rows.

        Args:
            train: Which of them are trained on.
        """
        name, reading = self.name, self.reading
        values = cells.numbers()
        if not self.as_text:
            check_range(name, cells, values, reading.range_of(name), reading.unknown)
        gaps = cells.empty(reading.unknown)
        if gaps.any() and reading.missing == "refuse":
            raise missing_cell(name, cells.first(gaps))
        self.gaps += int(gaps.sum())
        self.trained_gaps += int((gaps & train).sum())
        if gaps.all():
            return
        column = read_feature(name, cells, reading.missing, self.as_text, reading.unknown, self.given, values)
        numeric = column.categories is None
        if self.numeric not in (None, numeric):
            text = self.first if numeric else cells.first(~gaps)
            assert text is not None
            raise odd_number(name, text)
        if self.numeric is None:
            self.numeric, self.first = numeric, cells.first(~gaps)
        if column.categories is None:
            known = values[~gaps]
            self.all.add(known)
            self.known.add(values[~gaps & train])
            self.lost = max(self.lost, float(np.abs(known - known.astype(np.float32)).max()))
            return
        counts = column.values[torch.from_numpy(train)].sum(0).tolist()
        for category, count in zip(column.categories, counts, strict=True):
            self.categories[category] = self.categories.get(category, 0) + int(count)
        check_categories(name, len(self.categories))

    def column(self) -> Column:
        """Describe the column by one row; a gap in it says that there are gaps."""
        if self.numeric is None:
            raise empty_column(self.name)
        categories = None if self.numeric else list(self.given or sorted(self.categories))
        width = 1 if categories is None else len(categories)
        return Column(self.name, categories, torch.zeros(1, width), torch.tensor([self.gaps > 0]))

    def moments(self, rows: int) -> Iterator[tuple[float, float]]:
        """List mean and deviation of each feature over so many training rows; the deviation of a constant is 1."""
        if self.numeric:
            deviation = (self.known.squares / rows) ** 0.5
            yield self.known.mean, 1.0 if self.known.constant else deviation
            return
        for category in self.given or sorted(self.categories):
            yield _share(self.categories[category], rows)

    def keeps_digits(self) -> bool:
        """Tell whether rounding would do harm, as `narrow` does."""
        rows = self.all.n + self.gaps
        return bool(self.numeric) and self.lost > TRIFLE * (self.all.squares / max(rows, 1)) ** 0.5


def _share(count: int, rows: int) -> tuple[float, float]:
    share = count / rows
    return share, (share * (1 - share)) ** 0.5 if 0 < count < rows else 1.0


class Classes:
    """Targets that may be classes or numbers, which is known once all are seen."""

    def __init__(self, name: str, task: str | None) -> None:
        if task not in (None, "classification", "regression"):
            raise unknown_name("task", str(task), ["classification", "regression"])
        self.name, self.task = name, task
        self.codes: dict[str, int] = {}
        self.texts: bool | None = None
        self.typed = False

    def add(self, cells: Cells) -> Tensor:
        """Read some targets: numbers, or the place of a class among those seen so far."""
        check_target(self.name, cells, self.task)
        self.typed |= cells.holds == CATEGORY
        values = cells.numbers()
        odd = np.isnan(values)
        texts = bool(odd.any()) or self.typed
        if self.task == "regression" and odd.any():
            raise odd_number(self.name, cells.first(odd))
        if self.texts not in (None, texts):
            place = cells.first(odd) if odd.any() else cells[0]
            raise InputError(
                f"{place}: the target '{self.name}' holds numbers and texts: write its classes alike, or read the file "
                "whole (stream=False)."
            )
        self.texts = texts
        if not texts:
            whole = torch.from_numpy(values)
            return whole if self.task == "classification" else narrow(whole)  # classes have names
        for text in sorted(cells.distinct()):
            self.codes.setdefault(text, len(self.codes))
        most = MOST_NAMES if self.task == "classification" else MOST_CLASSES
        if len(self.codes) > most:
            raise many_texts(self.name, cells.first(odd) if odd.any() else cells[0])
        return torch.from_numpy(cells.codes(self.codes.__getitem__)).to(torch.int16)

    def finish(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], tuple[str, ...] | None]:
        """Turn what `add` returned into classes and their names, or leave it as numbers.

        Args:
            parts: Targets, as `add` returned them, role by role.
        """
        if self.texts:
            known = tuple(sorted(self.codes))
            places = torch.tensor([known.index(text) for text in self.codes])
            return self._as_classes(parts, lambda part: places[part.long()], known)
        distinct = np.zeros(0)
        few = self.task != "regression"
        for part in parts:
            for chunk in part.split(BLOCK) if few else ():
                distinct = np.union1d(distinct, chunk.double().numpy())
                few = len(distinct) <= (MOST_NAMES if self.task else MOST_CLASSES)
                if not few:
                    break
        whole = bool((distinct == np.floor(distinct)).all())
        if not few and self.task == "classification":
            raise InputError(f"The target '{self.name}' has more than {MOST_NAMES:,} classes: predict it as numbers.")
        if not few or not (self.task or whole):
            return list(parts), None
        spelt = [f"{value:.15g}" for value in distinct.tolist()]
        names = tuple(dict.fromkeys(spelt))
        order, sought = torch.tensor([names.index(text) for text in spelt]), torch.from_numpy(distinct)
        return self._as_classes(parts, lambda part: order[torch.searchsorted(sought, part.double())], names)

    def _as_classes(
        self, parts: Sequence[Tensor], code: Callable[[Tensor], Tensor], names: tuple[str, ...]
    ) -> tuple[list[Tensor], tuple[str, ...]]:
        if len(names) < 2:
            raise one_class(self.name, names[0])
        kind = torch.uint8 if len(names) < 256 else torch.int64  # an eighth of the memory
        return [torch.cat([code(some).to(kind) for some in part.split(BLOCK)]) for part in parts], names


@dataclass(frozen=True)
class Plan:
    """How a batch becomes features.

    Attributes:
        columns: How each column is read.
        keeps: Which features keep their digits until they are scaled.
        shift: The mean of each feature over the training rows.
        scale: Its deviation.
    """

    columns: tuple[Encoding, ...]
    keeps: Tensor
    shift: Tensor
    scale: Tensor

    def features(self, cells: Mapping[str, Cells], file: str) -> Tensor:
        """Make features of rows [N, D]."""
        x = encode(self.columns, cells, file).whole()
        x = torch.where(self.keeps, x, x.float().double())
        return rescale(x, self.shift, self.scale).float()


def _first_pass(
    files: Sequence[File],
    names: Sequence[str],
    targets: tuple[str, str | None],
    outcome: str,
    reading: Reading,
    roles: Roles,
) -> Sites:
    """Look at every cell, and keep targets and test rows."""
    wanted = [name for name in targets if name is not None]
    heads = [_head(file) for file in files]
    used, _ = stack(heads, wanted, replace(reading, group=None))
    seen = {name: Seen(name, reading) for name in used if name not in wanted}
    classes = Classes(targets[0], reading.task if not outcome else "regression")
    trained: list[list[Tensor]] = []
    tested: list[list[Tensor]] = []
    kept: list[list[dict[str, Cells]]] = []
    digest = hashlib.sha256(repr(roles).encode())
    for k, file in enumerate(files):
        for parts in (trained, tested, kept):
            parts.append([])
        start = 0
        for table in file.tables():
            cells = _used(table, used, reading)
            test = roles.tested(k, start, len(table))
            for name, column in seen.items():
                column.add(cells[name], ~test)
                digest.update(f"{column.all.mean!r} {column.all.squares!r} {column.categories}".encode())
            y = (
                read_outcome({name: cells[name] for name in wanted}, targets, outcome)
                if outcome
                else classes.add(cells[targets[0]])
            )
            digest.update(y.numpy().tobytes())
            mask = torch.from_numpy(test)
            trained[k].append(y[~mask])
            tested[k].append(y[mask])
            if test.any():
                written = table.spelt_as(used).columns  # which are read again as rows to come are
                kept[k].append({name: written[name].select(test) for name in seen})
            start += len(table)
    counts = [sum(map(len, parts)) for parts in trained]
    for file, count in zip(files, counts, strict=True):
        if not count:
            raise InputError(f"{file.name} has no row to train on: hold fewer out.")
    plan, feature_names = _plan([*seen.values()], sum(counts), reading)
    ys = [torch.cat(parts) if parts else torch.zeros(0) for parts in (*trained, *tested)]
    class_names = None
    if not outcome:
        ys, class_names = classes.finish(ys)
    shift, scale = 0.0, 1.0
    if class_names is None and not outcome:
        moments = moments_of(pool(ys[: len(files)]), (0,))
        ys = [rescale(y, *moments).float() for y in ys]
        shift, scale = (float(value) for value in moments)
    width = len(plan.shift)
    train, test_parts = [], []
    for k, file in enumerate(files):
        batches = functools.partial(_training, file, k, plan, used, reading, roles)
        x = Streamed(batches, counts[k], width, f"{digest.hexdigest()} {k}")
        weight = torch.ones(1, dtype=torch.float64).expand(counts[k])
        train.append(Data(cast(Tensor, x), ys[k], weight))
        rows = [torch.zeros(0, width), *(plan.features(cells, file.name) for cells in kept[k])]
        test_y = ys[len(files) + k]
        if class_names is not None:
            test_y = test_y.long()
        test_parts.append(Data.of(torch.cat(rows), test_y.float() if test_y.is_floating_point() else test_y))
    return Sites(
        train=tuple(train),
        test=tuple(test_parts),
        validation=None,
        inputs=None,
        calibration=None,
        classes=None if class_names is None else len(class_names),
        features=width,
        name=targets[0],
        split="natural",
        names=tuple(names),
        target_shift=shift,
        target_scale=scale,
        class_names=class_names,
        feature_names=feature_names,
        feature_shift=plan.shift,
        feature_scale=plan.scale,
        columns=plan.columns,
        outcome=outcome,
    )


def _plan(seen: Sequence[Seen], rows: int, reading: Reading) -> tuple[Plan, tuple[str, ...]]:
    columns = [column.column() for column in seen]
    _, names, gaps = join_columns(columns)
    moments = [pair for column in seen for pair in column.moments(rows)]
    keeps = [column.keeps_digits() for column in seen for _ in column.moments(rows)]
    fills = {place: moments[place][0] for place, _ in gaps if place is not None}
    encodings = with_fills([encoding_of(column, reading) for column in columns], fills)
    for column in seen:
        if column.gaps:
            moments.append(_share(column.trained_gaps, rows))
            keeps.append(False)
    shift, scale = (torch.tensor(values, dtype=torch.float64) for values in zip(*moments, strict=True))
    return Plan(encodings, torch.tensor(keeps), shift, scale), names


def _head(file: File) -> Table:
    """The first rows of a file; columns that are not used have names alone."""
    first = next(file.tables())
    return replace(first, columns={name: first.columns.get(name, Cells(())) for name in file.columns})


def _used(table: Table, used: Mapping[str, Cells], reading: Reading) -> dict[str, Cells]:
    """The columns that are used, spelt as in the first file and read as agreed."""
    columns = table.spelt_as(used).columns
    cells = {}
    for name in used:
        cells[name] = columns[name].respelt(dict(reading.same_of(name)))
        if reading.since(name):
            cells[name] = count_days(name, cells[name], reading)
    return cells


def _training(
    file: File, k: int, plan: Plan, used: Mapping[str, Cells], reading: Reading, roles: Roles
) -> Iterator[Tensor]:
    """The training rows of a file as features, batch by batch."""
    start = 0
    for table in file.tables():
        train = ~roles.tested(k, start, len(table))
        start += len(table)
        columns = table.spelt_as(used).columns
        cells = {column.name: columns[column.name] for column in plan.columns}
        if not train.all():
            cells = {name: column.select(train) for name, column in cells.items()}
        if train.any():
            yield plan.features(cells, file.name)
