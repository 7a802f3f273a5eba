"""Tables in every format people have: found by the ending of a file's name, read by the library that is made for it.

A part of a file is named behind a `#`: a sheet of `wards.xlsx#North`, a table of `ward.db#patients`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import narwhals as nw
import polars as pl
from polars.exceptions import PanicException, PolarsError

from consilience.data.cells import CATEGORY, DATE, Block, Cells, Source, Table
from consilience.data.delimited import Wanted, assemble, check_header, check_width, read_delimited, tidy
from consilience.data.dialect import Dialect
from consilience.errors import InputError, unknown_name

FEWEST_ROWS = 5  # at a site
EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
STATISTICS = {
    ".sav": ("SPSS", "sav"),
    ".zsav": ("SPSS", "sav"),
    ".por": ("SPSS", "por"),
    ".dta": ("Stata", "dta"),
    ".sas7bdat": ("SAS", "sas7bdat"),
    ".xpt": ("SAS", "xport"),
}
RECORD = 80  # bytes of a SAS transport file, in which nothing else says where it ends
SQLITE = (".db", ".sqlite", ".sqlite3")
URLS = ("sqlite:///", "duckdb:///")


class Format(NamedTuple):
    """A format with types, or objects, of its own.

    Attributes:
        name: What people call it.
        read: Reads a file, or the part of it that is named, as a frame.
        typed: Whether its columns have types; a column of texts is looked at, as in a CSV file, where not.
    """

    name: str
    read: Callable[[Path, str], pl.DataFrame]
    typed: bool = True


def read_table(
    path: Path,
    delimiter: str | None = None,
    fewest: int = FEWEST_ROWS,
    decimal: str | None = None,
    file: str | None = None,
    encoding: str | None = None,
    wanted: Wanted = Wanted(),
) -> Table:
    """Read the table in one file; blank lines are passed over.

    Args:
        path: The file, with the name of a sheet or table behind a `#` where it has several.
        delimiter: What stands between two cells of a CSV file; found by looking if None.
        fewest: How many rows there must be.
        decimal: What stands before decimals; found by looking if None. Cells have points afterwards.
        file: What the file is called in messages; by its name if None.
        encoding: How a CSV file's bytes become text; found by looking if None.
        wanted: What is wanted of the columns; the texts of all by default.

    Raises:
        InputError: The file cannot be read, or is not a table with so many rows.
    """
    own, part = part_of(path)
    file = file or path.name
    if not own.exists():
        raise InputError(f"There is no file '{own}': check the name.")
    if not own.is_file():
        raise InputError(f"Cannot read {own}: it is no file.")
    try:
        table = _read(own, part, file, Dialect(delimiter or "", decimal or "", encoding or ""), wanted)
    except OSError as error:
        raise InputError(f"Cannot read {own}: {error.strerror}.") from error
    if len(table) < fewest:
        rows = f"{len(table)} rows"
        if len(table) == 1:
            rows = "1 row"
        raise InputError(f"{file} has {rows} under its header: a site needs at least {fewest}.")
    return table


def _read(path: Path, part: str, file: str, asked: Dialect, wanted: Wanted) -> Table:
    ending = path.suffix.lower()
    found = FORMATS.get(ending)
    if found is None and ending not in EXCEL:
        if part:
            raise InputError(f"{file}: only Excel files and databases have parts; take '#{part}' away.")
        return read_delimited(path, file, asked, wanted)
    if not path.stat().st_size:
        raise InputError(f"{file} is empty: a table has a header row with the columns' names, and rows under it.")
    if any(asked[:3]):
        raise InputError(f"{file} is not a CSV file: leave delimiter, decimal and encoding out.")
    if found is None:
        return _read_sheet(path, part, file)
    if part and found not in DATABASES:
        raise InputError(f"{file}: only Excel files and databases have parts; take '#{part}' away.")
    frame = _guarded(file, found.name, lambda: found.read(path, part))
    return table_of(frame, path.stem, file, found)


def _guarded(file: str, format: str, read: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """What a library reads; a sentence for whatever it says instead."""
    try:
        return read()
    except (InputError, OSError, MemoryError):
        raise
    except (Exception, PanicException) as error:  # of libraries with errors of their own; a panic is none of Python's
        raise unreadable(file, format, error) from None


def unreadable(file: str, format: str, error: BaseException) -> InputError:
    """Make a sentence of what a library says of a file.

    Args:
        file: What the file is called.
        format: What it should be.
        error: What the library raised.
    """
    words = " ".join(str(error).split()).rstrip(".:")[:120] or type(error).__name__
    return InputError(f"{file} cannot be read as {format} ({words}): it may be cut short; write it again.")


def table_of(frame: pl.DataFrame, name: str, file: str, format: Format, start: int = 0) -> Table:
    """Make a table of a frame, with the types it has.

    Args:
        name: The name of the file, without its ending.
        file: What it is called in messages.
        format: Where the frame is from.
        start: How many rows of the file lie before these.
    """
    if not frame.width:
        raise InputError(f"{file} is empty: a table has columns with names, and rows.")
    check_header(file, frame.columns)
    source = Source(file, lambda row: start + row + 1, "row")
    columns = {}
    for series in frame.get_columns():
        values, holds = _typed(series, format.typed)
        columns[series.name] = Cells([Block(values, source, series.name, holds)])
    return Table(name, columns, None, Dialect(format=format.name), frame.height)


def _typed(values: pl.Series, typed: bool) -> tuple[pl.Series, str]:
    """A column's numbers or texts, and what it holds by its type."""
    dtype = values.dtype
    if dtype.is_numeric():
        return values, ""
    if dtype in (pl.Date, pl.Datetime):
        return values.cast(pl.String).fill_null(""), DATE
    if dtype == pl.Boolean or dtype in (pl.Categorical, pl.Enum):
        return tidy(values.cast(pl.String)), CATEGORY
    if dtype in (pl.String, pl.Null):
        return tidy(values.cast(pl.String)), CATEGORY * (typed and dtype == pl.String)
    texts = ["" if value is None else str(value) for value in values.to_list()]
    return pl.Series(values.name, texts, dtype=pl.String), f"values of the type {dtype.base_type().__name__}"


def _read_sheet(path: Path, part: str, file: str) -> Table:
    """A sheet of a spreadsheet, whose cells are looked at as those of a CSV file: it has no types by column."""
    import fastexcel

    parts: list[str] = []

    def read() -> pl.DataFrame:
        book = fastexcel.read_excel(path)
        parts[:] = book.sheet_names
        sheet = choose_part(file, "sheet", part, parts)
        frame = book.load_sheet(sheet, header_row=None, skip_rows=0, dtypes="string").to_polars()
        check_width(file, frame.width)
        return pl.DataFrame([tidy(column) for column in frame.get_columns()])

    frame = _guarded(file, "Excel", read)
    rows, lines, blanks = [], [], []
    for line, row in enumerate(frame.iter_rows(), 1):
        if any(row):
            rows.append(row)
            lines.append(line)
        elif rows:
            blanks.append(line)
    used = [j for j in range(frame.width) if any(row[j] for row in rows)]  # a sheet may be wider than its table
    rows = [tuple(row[j] for j in used) for row in rows]
    return assemble(path.stem, file, rows, lines, blanks, Dialect(format="Excel"), "row")


def choose_part(file: str, kind: str, part: str, known: list[str]) -> str:
    """Find the sheet or table that is meant: the one that is named, or the only one.

    Args:
        file: What the file is called.
        part: The name of one; empty where nobody says.
    """
    if part:
        if part not in known:
            raise unknown_name(f"{kind} of {file}", part, known)
        return part
    if len(known) != 1:
        names = ", ".join(known) or "none"
        raise InputError(f"{file} has {len(known)} {kind}s ({names}): name one behind a #, as {file}#NAME.")
    return known[0]


def _read_json(path: Path, part: str) -> pl.DataFrame:
    with path.open(encoding="utf-8-sig") as opened:
        first = next((line for line in opened if line.strip()), "{}")
    pairs = json.loads(first, object_pairs_hook=lambda pairs: pairs)
    check_header(path.name, [name for name, _ in pairs])
    return pl.read_ndjson(path, infer_schema_length=None)


def _read_statistics(path: Path, part: str) -> pl.DataFrame:
    """A file of SPSS, Stata or SAS; a column all of whose values have labels is one of categories."""
    pyreadstat = _import("pyreadstat", "statistics")
    if path.suffix.lower() == ".xpt" and path.stat().st_size % RECORD:
        raise InputError(f"{path.name} is not made of records of {RECORD} bytes: it was cut short; copy it again.")
    frame, about = getattr(pyreadstat, f"read_{STATISTICS[path.suffix.lower()][1]}")(path, output_format="polars")
    for name, labels in about.variable_value_labels.items():
        values = frame[name]
        observed = values.drop_nulls().unique().to_list()
        if observed and all(value in labels for value in observed):
            texts = [labels.get(value) for value in values.to_list()]
            frame = frame.with_columns(pl.Series(name, texts, dtype=pl.String))
    return pl.DataFrame(frame)


def _read_sqlite(path: Path, part: str) -> pl.DataFrame:
    import sqlite3

    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(damage)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
        table = choose_part(path.name, "table", part, [name for (name,) in names])
        found = connection.execute(f"SELECT * FROM {_quoted(table)}")
        header = [column[0] for column in found.description]
        check_header(path.name, header)
        columns = list(zip(*found.fetchall(), strict=True)) or [()] * len(header)
    finally:
        connection.close()
    return pl.DataFrame([_series(name, values) for name, values in zip(header, columns, strict=True)])


def _read_duckdb(path: Path, part: str) -> pl.DataFrame:
    duckdb = _import("duckdb", "sql")
    with duckdb.connect(str(path), read_only=True) as connection:
        names = connection.execute("SELECT table_name FROM information_schema.tables ORDER BY table_name").fetchall()
        table = choose_part(path.name, "table", part, [name for (name,) in names])
        return pl.DataFrame(connection.sql(f"SELECT * FROM {_quoted(table)}"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _series(name: str, values: Any) -> pl.Series:
    """Values of any kind; numbers and texts in one column become texts."""
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, PolarsError, OverflowError):
        return pl.Series(name, ["" if value is None else str(value) for value in values], dtype=pl.String)


def _import(module: str, extra: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"This file needs {module}: run `pip install 'consilience[{extra}]'`.") from None


def frame_of(frame: Any) -> Table:
    """Take a data frame of pandas, polars, pyarrow or any library that narwhals knows.

    Raises:
        InputError: It is none, or has two columns of one name.
    """
    if isinstance(frame, pl.DataFrame):
        return table_of(frame, "frame", "the table", FRAME)
    try:
        known = nw.from_native(frame)
    except TypeError:
        raise InputError(f"A {type(frame).__name__} is no data frame: pass one of pandas, polars or pyarrow.") from None
    except Exception as error:  # such as two columns of one name, which every library reports in its own way
        raise InputError(f"The table cannot be read ({' '.join(str(error).split())[:120]}): correct it.") from None
    if isinstance(known, nw.LazyFrame):
        known = known.collect()
    columns = [_column(known.get_column(name)) for name in known.columns]
    return table_of(pl.DataFrame(columns), "frame", "the table", FRAME)


def _column(values: Any) -> pl.Series:
    """A column of some library's frame; its numbers as an array, the rest value by value."""
    dtype = values.dtype
    if dtype.is_float() or (dtype.is_integer() and not values.null_count()):
        return pl.Series(str(values.name), values.to_numpy())
    if dtype in (nw.Categorical, nw.Enum):
        return pl.Series(str(values.name), values.cast(nw.String).to_list(), dtype=pl.String)
    missing = values.is_null().to_list()
    listed = [None if gap else value for value, gap in zip(values.to_list(), missing, strict=True)]
    return _series(str(values.name), listed)


def part_of(path: Path) -> tuple[Path, str]:
    """Take a path apart: the file, and the sheet or table that is named behind a `#`.

    Args:
        path: As it was given.

    Returns:
        The file, and the part; no part where the file itself has a # in its name.
    """
    own, mark, part = str(path).rpartition("#")
    if not mark or path.exists():
        return path, ""
    return Path(own), part


def is_table_file(path: str | Path) -> bool:
    """Tell by its ending whether a file is a table."""
    return Path(str(path).rpartition("#")[0] or path).suffix.lower() in ENDINGS


def format_of(path: Path) -> str:
    """Say what people call a file's format, by its ending."""
    ending = part_of(path)[0].suffix.lower()
    if ending in FORMATS:
        return FORMATS[ending].name
    return "Excel" if ending in EXCEL else "CSV"


def without_url(pattern: str) -> str:
    """Take `sqlite:///` and the like away: what follows is a file."""
    for url in URLS:
        if pattern.startswith(url):
            return pattern.removeprefix(url)
    return pattern


PARQUET = Format("Parquet", lambda path, _: pl.read_parquet(path, glob=False))
ARROW = Format("Arrow", lambda path, _: pl.read_ipc(path))
JSON = Format("NDJSON", _read_json, typed=False)
SQL = Format("SQLite", _read_sqlite, typed=False)
DUCKDB = Format("DuckDB", _read_duckdb)
FRAME = Format("a data frame", lambda path, _: pl.DataFrame(), typed=False)
DATABASES = (SQL, DUCKDB)
FORMATS: Mapping[str, Format] = {
    ".parquet": PARQUET,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), ARROW),
    **dict.fromkeys((".ndjson", ".jsonl"), JSON),
    **{ending: Format(name, _read_statistics) for ending, (name, _) in STATISTICS.items()},
    **dict.fromkeys(SQLITE, SQL),
    ".duckdb": DUCKDB,
}
ENDINGS = (".csv", ".tsv", *EXCEL, *FORMATS)
