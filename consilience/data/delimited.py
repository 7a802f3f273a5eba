"""CSV files: read by polars, and line by line by Python's csv where a file is odd, which also says what is wrong.

Polars fills short rows up, takes blank lines for rows and guesses what a stray quote means. So a file is surveyed
first: polars reads it where every line has as many cells as the header, and every quote opens or closes a cell.
"""

from __future__ import annotations

import csv
import functools
import io
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from consilience.data.cells import Block, Cells, Source, Table, is_missing, number, plain
from consilience.data.dialect import (
    COMMA,
    ENCODINGS,
    UTF8,
    WESTERN,
    Dialect,
    find_encoding,
    first_lines,
    sniff,
    split_lines,
    to_points,
)
from consilience.errors import InputError

MOST_COLUMNS = 5_000  # of a table
CHUNK = 2**22  # bytes that are surveyed together
QUOTE, NEWLINE = b'"'[0], b"\n"[0]


class Wanted(NamedTuple):
    """What is wanted of a table's columns; names are as somebody else writes them.

    Attributes:
        texts: Columns whose texts are needed, in plain words; all if None.
        unused: Columns of which only the name is needed.
    """

    texts: frozenset[str] | None = None
    unused: frozenset[str] = frozenset()

    @staticmethod
    def of(texts: Collection[str], unused: Collection[str]) -> Wanted:
        """Want numbers at once where a column holds nothing else."""
        return Wanted(frozenset(map(plain, texts)), frozenset(map(plain, unused)))

    def as_text(self, name: str) -> bool:
        """Say whether a column's texts are needed."""
        return self.texts is None or plain(name) in self.texts


def read_delimited(path: Path, file: str, asked: Dialect, wanted: Wanted) -> Table:
    """Read the table in a CSV file; blank lines are passed over.

    Args:
        path: The file, with a header row.
        file: What it is called in messages.
        asked: Delimiter, decimal mark and encoding; found by looking where they are empty.
        wanted: What is wanted of the columns.

    Returns:
        The table; its numbers have decimal points.

    Raises:
        InputError: The file cannot be read, or is no table.
    """
    dialect = find_dialect(path, file, asked)
    try:
        return _read_plain(path, file, dialect, wanted) or _read_lines(path, file, dialect)
    except UnicodeError:
        raise undecodable(file, dialect) from None


def find_dialect(path: Path, file: str, asked: Dialect) -> Dialect:
    """Find how a file writes its cells, where nobody says; warn where it is in none of today's encodings.

    Args:
        file: What it is called in messages.
        asked: Delimiter, decimal mark and encoding, empty where nobody says.
    """
    encoding = asked.encoding or find_encoding(path, file)
    if encoding == WESTERN and not asked.encoding:
        warnings.warn(
            f"{file} is not UTF-8 and is read as {ENCODINGS[encoding]}: if letters with accents look wrong, name its "
            'encoding under [files] in columns.toml, for example encoding = "cp1250".',
            stacklevel=2,
        )
    found = sniff(path, encoding)
    return Dialect(asked.delimiter or found.delimiter, asked.decimal or found.decimal, encoding)


def undecodable(file: str, dialect: Dialect) -> InputError:
    """Make the error of a file whose bytes are no text; it is raised by who reads it."""
    return InputError(f"{file} is not text in the encoding '{dialect.encoding}': name another in columns.toml.")


class Plain(NamedTuple):
    """A file that polars reads as it is written.

    Attributes:
        header: The names of the columns.
        rows: How many rows there are.
        types: Of each column, as far as the first rows tell.
        marks: What means missing in columns of numbers.
    """

    header: list[str]
    rows: int
    types: dict[str, type[pl.DataType]]
    marks: dict[str, str]


def look(path: Path, dialect: Dialect, wanted: Wanted) -> Plain | None:
    """Look through a file without reading its cells.

    Args:
        path: The file.
        dialect: How it writes its cells.
        wanted: What is wanted of the columns.

    Returns:
        What polars has to know; None where the file is odd.
    """
    lines = first_lines(path, dialect.encoding)
    sample = split_lines(lines, dialect.delimiter)
    if len(sample) < 2 or not lines[0].strip() or lines[0].count('"') % 2 or not dialect.delimiter.isascii():
        return None
    header = [cell.strip() for cell in sample[0]]
    if not 2 <= len(header) <= MOST_COLUMNS or len(set(header)) < len(header) or "" in header:
        return None
    rows = _survey(_open(path, dialect), dialect.delimiter, len(header))
    if rows is None:
        return None
    shown = list(zip(*(row for row in sample[1:-1] or sample[1:] if len(row) == len(header)), strict=True))
    types: dict[str, type[pl.DataType]] = dict.fromkeys(header, pl.String)
    marks: dict[str, str] = {}
    for name, texts in zip(header, shown, strict=False):
        if not wanted.as_text(name) and dialect.decimal == "." and _all_numbers(texts):
            types[name] = pl.Float64
            missing = next((text.strip() for text in texts if text.strip() and is_missing(text.strip())), None)
            marks |= {} if missing is None else {name: missing}
    return Plain(header, rows, types, marks)


def _read_plain(path: Path, file: str, dialect: Dialect, wanted: Wanted) -> Table | None:
    """A table as polars reads it; None where the file is odd."""
    found = look(path, dialect, wanted)
    if found is None:
        return None
    header = found.header
    read = functools.partial(_parse, path, dialect, header)
    used = [name for name in header if plain(name) not in wanted.unused]
    frame = read(used, found.types, found.marks)
    if frame is None or frame.height != found.rows or has_blank(frame):
        return None

    def read_again(name: str) -> pl.Series:
        texts = read([name], dict.fromkeys(header, pl.String), {})
        assert texts is not None
        return texts[name]

    source = Source(file, functools.partial(line_of, path, dialect), read=read_again)
    values = dict(zip(frame.columns, frame.get_columns(), strict=True))
    del frame
    columns = {name: Cells([Block(values.pop(name, None), source, name)]) for name in header}
    return Table(path.stem, columns, None, dialect, found.rows)


def _all_numbers(texts: Sequence[str]) -> bool:
    """Whether the first cells of a column are numbers, or missing, and some are numbers."""
    known = {text.strip() for text in texts if not is_missing(text.strip())}
    return bool(known) and all(number(text) is not None for text in known)


def _open(path: Path, dialect: Dialect) -> BinaryIO:
    """A file as UTF-8, its byte-order mark passed over."""
    if dialect.encoding != UTF8:
        return io.BytesIO(path.read_bytes().decode(dialect.encoding).encode())
    opened = path.open("rb")
    if opened.read(3) != b"\xef\xbb\xbf":
        opened.seek(0)
    return opened


def _survey(opened: BinaryIO, delimiter: str, width: int) -> int | None:
    """How many rows lie under the header; None unless all have as many cells and every quote opens or closes one."""
    lines = cells = 0
    inside = False
    before = NEWLINE
    with opened:
        chunk = opened.read(CHUNK)
        while chunk:
            following = opened.read(CHUNK)
            if b"\r" in chunk and chunk.count(b"\r") > chunk.count(b"\r\n") + (
                chunk[-1:] == b"\r" and following[:1] == b"\n"
            ):
                return None  # a line end of old, or a stray one
            found = np.frombuffer(chunk, dtype=np.uint8)
            ends, separators = found == NEWLINE, found == ord(delimiter)
            if inside or QUOTE in chunk:
                quotes = found == QUOTE
                quoted = np.logical_xor.accumulate(quotes) ^ inside
                neighbours = np.frombuffer(bytes([before]) + chunk + (following[:1] or b"\n"), dtype=np.uint8)
                if not _bounds_cells(np.flatnonzero(quotes), quoted, neighbours, ord(delimiter)):
                    return None
                ends &= ~quoted
                separators &= ~quoted
                inside = bool(quoted[-1])
            marks = ends[np.flatnonzero(ends | separators)]
            stops = np.flatnonzero(marks)
            if (np.diff(stops, prepend=-cells - 1) != width).any():
                return None
            lines += len(stops)
            cells += len(marks) - width * len(stops)
            before = chunk[-1]
            chunk = following
    if inside or (before != NEWLINE and cells != width - 1):
        return None
    return lines + (before != NEWLINE) - 1


def _bounds_cells(
    quotes: np.ndarray[tuple[int], np.dtype[np.int64]],
    quoted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    neighbours: np.ndarray[tuple[int], np.dtype[np.uint8]],
    delimiter: int,
) -> bool:
    """Whether quotes open after a separator and close before one, but for those that are doubled."""
    opening = quoted[quotes]
    before, after = neighbours[quotes[opening]], neighbours[quotes[~opening] + 2]
    opens = np.isin(before, [delimiter, NEWLINE, QUOTE])
    return bool(opens.all() and np.isin(after, [delimiter, NEWLINE, QUOTE, ord("\r")]).all())


def _parse(
    path: Path,
    dialect: Dialect,
    header: Sequence[str],
    used: Sequence[str],
    types: dict[str, type[pl.DataType]],
    marks: dict[str, str],
) -> pl.DataFrame | None:
    """Some columns of a file; None where polars does not take it. Odd texts among numbers make a column of texts."""
    source: Path | BinaryIO = path
    if dialect.encoding != UTF8:
        source = _open(path, dialect)

    def scan(names: Sequence[str], chosen: dict[str, type[pl.DataType]], odd: bool) -> pl.DataFrame:
        return scan_plain(source, dialect, {name: chosen[name] for name in header}, marks, odd).select(names).collect()

    try:
        frame = scan(used, types, False)
    except PolarsError as error:
        if "could not parse" not in str(error):
            return None
        try:
            frame = scan(used, types, True)
            odd = [name for name in used if types[name] == pl.Float64 and frame[name].null_count()]
            frame = frame.with_columns(scan(odd, types | dict.fromkeys(odd, pl.String), True).get_columns())
        except PolarsError:
            return None
    return pl.DataFrame(
        [tidy(column, dialect.decimal) if column.dtype == pl.String else column for column in frame.get_columns()]
    )


def scan_plain(
    source: Path | BinaryIO,
    dialect: Dialect,
    types: dict[str, type[pl.DataType]],
    marks: dict[str, str],
    odd: bool = False,
) -> pl.LazyFrame:
    """Let polars read a file that is not odd.

    Args:
        source: The file, or its text as UTF-8.
        dialect: How it writes its cells.
        types: Of all columns, in order.
        marks: What means missing in columns of numbers.
        odd: Whether other texts among numbers are nothing; an error where not.
    """
    return pl.scan_csv(
        source,
        has_header=False,
        skip_lines=1,
        separator=dialect.delimiter,
        schema=types,
        null_values=marks or None,  # an empty cell is null anyway
        ignore_errors=odd,
        glob=False,
    )


def tidy(texts: pl.Series, decimal: str = ".") -> pl.Series:
    """Take the blanks around texts away, and write decimal points.

    Args:
        texts: Texts; null where there is none.
        decimal: What stands before decimals.
    """
    texts = texts.fill_null("").str.strip_chars()
    if decimal == ".":
        return texts
    commas = texts.str.contains(f"^(?:{COMMA.pattern})$")
    return texts.zip_with(~commas, texts.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True))


def has_blank(frame: pl.DataFrame) -> bool:
    """Tell whether some row holds nothing."""
    blank = pl.repeat(True, frame.height, eager=True, dtype=pl.Boolean)
    for column in frame.get_columns():
        blank &= column == "" if column.dtype == pl.String else column.is_null()
        if not blank.any():
            return False
    return True


def line_of(path: Path, dialect: Dialect, row: int) -> int:
    """Count the lines up to a row counted from 0, as the slow reader does."""
    with path.open(newline="", encoding=dialect.encoding) as opened:
        reader = csv.reader(opened, delimiter=dialect.delimiter)
        for place, _ in enumerate(reader):
            if place == row + 1:
                return reader.line_num
    return row + 2


def _read_lines(path: Path, file: str, dialect: Dialect) -> Table:
    """A table line by line; the number of a row over several lines is that of its last."""
    rows: list[list[str]] = []
    lines: list[int] = []
    blanks: list[int] = []
    point: Callable[[str], str] = str.strip
    if dialect.decimal == ",":
        point = lambda cell: to_points(cell.strip())
    last = 0
    try:
        with path.open(newline="", encoding=dialect.encoding) as opened:
            reader = csv.reader(opened, delimiter=dialect.delimiter, strict=True)
            for row in reader:
                last = reader.line_num
                if any(map(str.strip, row)):
                    rows.append([point(cell) for cell in row])
                    lines.append(last)
                elif rows:
                    blanks.append(last)
    except csv.Error as error:
        raise InputError(
            f"{file} cannot be read as CSV from line {last + 1} on ({error}): close every quote there, or save "
            "the file again as 'CSV UTF-8'."
        ) from None
    return assemble(path.stem, file, rows, lines, blanks, dialect)


def assemble(
    name: str,
    file: str,
    rows: Sequence[Sequence[str]],
    lines: Sequence[int],
    blanks: Sequence[int] = (),
    dialect: Dialect = Dialect(),
    unit: str = "line",
) -> Table:
    """Make a table of rows of texts, the first of which is the header.

    Args:
        name: The name of the file, without its ending.
        file: What it is called in messages.
        rows: The texts of the rows, none of them blank.
        lines: The number of each row's line.
        blanks: The numbers of blank lines under the header.
        dialect: How the file writes its cells.

    Raises:
        InputError: There is no header with a name for every column, or a row has another length.
    """
    if not rows:
        raise InputError(f"{file} is empty: a table has a header row with the columns' names, and rows under it.")
    header, *rows = rows
    check_header(file, header)
    for line, row in zip(lines[1:], rows, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"{file}, {unit} {line} has {len(row)} cells and the header {len(header)}: give every row all cells."
            )
    source = Source(file, lines[1:].__getitem__, unit)
    texts = zip(*rows, strict=True) if rows else ((),) * len(header)
    columns = {
        name: Cells([Block(pl.Series(column, dtype=pl.String), source, name)])
        for name, column in zip(header, texts, strict=True)
    }
    blank = next((line for line in blanks if line < lines[-1]), None)
    return Table(name, columns, blank, dialect, len(rows))


def check_header(file: str, header: Sequence[str]) -> None:
    """Refuse too many columns, columns that are separated by something else, and those without a name of their own.

    Args:
        file: What the file is called.
    """
    check_width(file, len(header))
    if len(header) == 1:
        for delimiter in ";\t|":
            if delimiter in header[0]:
                raise InputError(
                    f"{file} seems to separate its columns with {delimiter!r}: pass delimiter={delimiter!r}."
                )
    counts = Counter(header)
    for name in header:
        if not name or counts[name] > 1:
            raise InputError(f"{file} has a column without a name of its own ('{name}'): name every column once.")


def check_width(file: str, columns: int) -> None:
    """Refuse more columns than a table of a site has.

    Args:
        file: What the file is called.
    """
    if columns > MOST_COLUMNS:
        raise InputError(
            f"{file} has {columns:,} columns, more than {MOST_COLUMNS:,}: make a table of those you need, or give "
            "numbers to from_arrays in Python."
        )
