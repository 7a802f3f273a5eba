"""A CSV file as named columns of cells, read without surprises.

A column keeps the texts of some thousand rows as one long text: a cell becomes an object only while it is looked at.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from consilience.data.dialect import Dialect, sniff, to_points
from consilience.errors import InputError

MISSING = {"", "na", "n/a", "nan", "null"}  # in small letters; 'none' is left to be a category
_SPELLINGS = {"".join(t) for word in MISSING for t in product(*zip(word, word.upper(), strict=True))}
FEWEST_ROWS = 5  # at a site
BLOCK_ROWS = 8192  # whose cells are objects at a time
MARK = "\x1f"  # between two texts of a block

Numbers: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


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


class Block(NamedTuple):
    """Some rows of one column.

    Attributes:
        joined: Their texts, one after another; as they are where a text holds the mark between two.
        file: The name of the file.
        lines: The number of each row's line.
    """

    joined: str | tuple[str, ...]
    file: str
    lines: npt.NDArray[np.int64]

    @staticmethod
    def of(texts: Sequence[str], file: str, lines: npt.NDArray[np.int64]) -> Block:
        """Pack texts.

        Args:
            texts: The texts of at least one cell.
            file: The name of the file.
            lines: The number of each row's line.

        Returns:
            The block.
        """
        joined = MARK.join(texts)
        if joined.count(MARK) != len(texts) - 1:
            return Block(tuple(texts), file, lines)
        return Block(joined, file, lines)

    def texts(self) -> Sequence[str]:
        """Unpack the texts."""
        if isinstance(self.joined, str):
            return self.joined.split(MARK)
        return self.joined


class Cells(Sequence[Cell]):
    """The cells of a column: a sequence of `Cell`, with what is asked of all of them answered block by block.

    Attributes:
        blocks: The rows in order.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        """Take a column's blocks.

        Args:
            blocks: The rows in order.
        """
        self.blocks = tuple(blocks)
        self._ends = np.cumsum([len(block.lines) for block in self.blocks])

    @staticmethod
    def of(cells: Sequence[Cell]) -> Cells:
        """Take any sequence of cells.

        Args:
            cells: The cells of a column.

        Returns:
            The same cells; themselves where they are a column already.
        """
        if isinstance(cells, Cells):
            return cells
        return Cells(Block.of([cell.text], cell.file, np.array([cell.line])) for cell in cells)

    @staticmethod
    def stack(columns: Iterable[Cells]) -> Cells:
        """Put columns under each other.

        Args:
            columns: Columns of the same name from several tables.

        Returns:
            One column with the cells of all.
        """
        return Cells(chain.from_iterable(column.blocks for column in columns))

    def __len__(self) -> int:
        """How many cells there are."""
        if not self.blocks:
            return 0
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | list[Cell]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self)
        number_of_block = int(np.searchsorted(self._ends, place, side="right"))
        block = self.blocks[number_of_block]
        row = place - int(self._ends[number_of_block]) + len(block.lines)
        return Cell(block.texts()[row], block.file, int(block.lines[row]))

    def __iter__(self) -> Iterator[Cell]:
        for block in self.blocks:
            for text, line in zip(block.texts(), block.lines.tolist(), strict=True):
                yield Cell(text, block.file, line)

    def first(self, chosen: Mask) -> Cell:
        """Find the first of some cells.

        Args:
            chosen: Which cells, at least one.

        Returns:
            The first of them.
        """
        return self[int(chosen.argmax())]

    def select(self, chosen: Mask) -> Cells:
        """Take some of the cells.

        Args:
            chosen: Which, [N].

        Returns:
            They, in order.
        """
        blocks = []
        start = 0
        for block in self.blocks:
            part = chosen[start : start + len(block.lines)]
            start += len(block.lines)
            if part.any():
                texts = [text for text, taken in zip(block.texts(), part.tolist(), strict=True) if taken]
                blocks.append(Block.of(texts, block.file, block.lines[part]))
        return Cells(blocks)

    def respelt(self, spellings: Mapping[str, str]) -> Cells:
        """Write some texts differently.

        Args:
            spellings: The new text of each that changes.

        Returns:
            The cells, each at its old place.
        """
        if not spellings:
            return self
        texts = ([spellings.get(text, text) for text in block.texts()] for block in self.blocks)
        blocks = zip(texts, self.blocks, strict=True)
        return Cells(Block.of(new, block.file, block.lines) for new, block in blocks)

    def distinct(self) -> set[str]:
        """Collect the different texts."""
        return set().union(*(block.texts() for block in self.blocks))

    def where(self, test: Callable[[str], bool]) -> Mask:
        """Ask something of every text; equal texts of a block are asked once.

        Args:
            test: The question.

        Returns:
            The answers [N].
        """
        parts = [np.zeros(0, dtype=np.bool_)]
        for block in self.blocks:
            texts = block.texts()
            chosen = {text for text in set(texts) if test(text)}
            part = np.zeros(len(texts), dtype=np.bool_)
            if chosen:
                part = np.fromiter(map(chosen.__contains__, texts), np.bool_, len(texts))
            parts.append(part)
        return np.concatenate(parts)

    def codes(self, code: Callable[[str], int]) -> npt.NDArray[np.int64]:
        """Give every text a whole number; equal texts of a block are asked for once.

        Args:
            code: The number of a text.

        Returns:
            The numbers [N].
        """
        parts = [np.zeros(0, dtype=np.int64)]
        for block in self.blocks:
            texts = block.texts()
            known = {text: code(text) for text in set(texts)}
            parts.append(np.fromiter(map(known.__getitem__, texts), np.int64, len(texts)))
        return np.concatenate(parts)

    def empty(self, unknown: Iterable[str] = ()) -> Mask:
        """Tell which values are missing, as `is_empty` does.

        Args:
            unknown: Further texts that mean missing.

        Returns:
            The answers [N].
        """
        missing = _SPELLINGS.union(unknown)
        parts = [np.zeros(0, dtype=np.bool_)]
        for block in self.blocks:
            texts = block.texts()
            part = np.zeros(len(texts), dtype=np.bool_)
            if not missing.isdisjoint(texts):
                part = np.fromiter(map(missing.__contains__, texts), np.bool_, len(texts))
            parts.append(part)
        return np.concatenate(parts)

    def numbers(self) -> Numbers:
        """Read every cell as a number, as `number` does; NaN where it holds none [N]."""
        return np.concatenate([np.zeros(0), *(_read_block(block.texts()) for block in self.blocks)])


def _read_block(texts: Sequence[str]) -> Numbers:
    """The numbers of a block; text by text only where one of them is odd."""
    try:
        values = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        values = np.full(len(texts), math.nan)
    if np.isfinite(values).all() and "_" not in "".join(texts):  # Python reads 1_000 as a number
        return values
    known = {text: number(text) for text in set(texts)}
    return np.array([known[text] for text in texts], dtype=np.float64)  # None becomes NaN


class Table(NamedTuple):
    """Named columns of cells, all of one length.

    Attributes:
        name: The name of the file, without its ending.
        columns: The cells of each column, by its name.
        blank: The number of the first blank line between rows; None where there is none.
        dialect: How the file writes its cells.
    """

    name: str
    columns: dict[str, Cells]
    blank: int | None
    dialect: Dialect = Dialect()

    def spelt_as(self, names: Iterable[str]) -> Table:
        """Give columns the names that are asked for where they differ in capitals and blanks alone.

        Args:
            names: The names as others write them.

        Returns:
            The table; a name that fits several columns, or none, changes nothing.
        """
        wanted = {" ".join(name.split()).casefold(): name for name in names}
        found = Counter(" ".join(name.split()).casefold() for name in self.columns)
        columns = {}
        for name, cells in self.columns.items():
            plain = " ".join(name.split()).casefold()
            spelt = name
            if name not in wanted.values() and found[plain] == 1:
                spelt = wanted.get(plain, name)
            columns[spelt] = cells
        return Table(self.name, columns, self.blank, self.dialect)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))


def read_table(
    path: Path,
    delimiter: str | None = None,
    fewest: int = FEWEST_ROWS,
    decimal: str | None = None,
    file: str | None = None,
) -> Table:
    """Read the table in one file; blank lines are passed over.

    Args:
        path: The file, UTF-8 text with a header row.
        delimiter: What stands between two cells; found by looking if None.
        fewest: How many rows there must be.
        decimal: What stands before decimals; found by looking if None. Cells have points afterwards.
        file: What the file is called in messages; by its name if None.

    Returns:
        The table.

    Raises:
        InputError: The file cannot be read, or is not a table with so many rows.
    """
    dialect = Dialect(delimiter or "", decimal or "")
    if not delimiter or not decimal:
        seen = sniff(path)
        dialect = Dialect(delimiter or seen.delimiter, decimal or seen.decimal)
    file = file or path.name
    found = _Rows(file)
    for lines, rows in _read_lines(path, dialect.delimiter, file):
        if dialect.decimal == ",":
            found.add(lines, [[to_points(cell.strip()) for cell in row] for row in rows])
        else:
            found.add(lines, rows)
    if not found.count:
        raise InputError(f"{file} is empty: a table has a header row with the columns' names, and rows under it.")
    if found.count <= fewest:
        rows_ = f"{found.count - 1} rows"
        if found.count == 2:
            rows_ = "1 row"
        raise InputError(f"{file} has {rows_} under its header: a site needs at least {fewest}.")
    _check_header(file, found.header)
    if found.ragged is not None:
        line, cells = found.ragged
        raise InputError(
            f"{file}, line {line} has {cells} cells and the header {len(found.header)}: give every row all cells."
        )
    blank = None
    if found.blank is not None and found.blank < found.last:
        blank = found.blank
    columns = {name: Cells(blocks) for name, blocks in zip(found.header, found.blocks, strict=True)}
    return Table(path.stem, columns, blank, dialect)


@dataclass
class _Rows:
    """What was read of a file so far.

    Attributes:
        file: The name of the file.
        header: The cells of the first line that is not blank.
        blocks: The blocks of every column.
        count: How many lines were not blank, the header included.
        last: The number of the last of them.
        blank: The number of the first blank line under the header.
        ragged: Line and length of the first row that is not as long as the header.
    """

    file: str
    header: list[str] = field(default_factory=list)
    blocks: list[list[Block]] = field(default_factory=list)
    count: int = 0
    last: int = 0
    blank: int | None = None
    ragged: tuple[int, int] | None = None

    def add(self, lines: list[int], rows: list[list[str]]) -> None:
        """Take some further lines in.

        Args:
            lines: The number of each row's line.
            rows: The cells of each.
        """
        width = len(self.header)
        if width and all(len(row) == width and any(map(str.strip, row)) for row in rows):
            self.count += len(rows)
            self.last = lines[-1]
        else:
            lines, rows = self._sort_out(lines, rows)
        if not rows:
            return
        numbers = np.array(lines, dtype=np.int64)
        for blocks, texts in zip(self.blocks, zip(*rows, strict=True), strict=True):
            blocks.append(Block.of(list(map(str.strip, texts)), self.file, numbers))

    def _sort_out(self, lines: list[int], rows: list[list[str]]) -> tuple[list[int], list[list[str]]]:
        """Line by line: the header, blank lines and rows of another length are noted and left out."""
        sound_lines = []
        sound_rows = []
        for line, row in zip(lines, rows, strict=True):
            if not any(map(str.strip, row)):
                if self.header and self.blank is None:
                    self.blank = line
                continue
            self.count += 1
            self.last = line
            if not self.header:
                self.header = [cell.strip() for cell in row]
                self.blocks = [[] for _ in row]
            elif len(row) == len(self.header):
                sound_lines.append(line)
                sound_rows.append(row)
            elif self.ragged is None:
                self.ragged = (line, len(row))
        return sound_lines, sound_rows


def is_empty(cell: Cell) -> bool:
    """Tell whether a cell's value is missing.

    Args:
        cell: The cell.

    Returns:
        True for an empty cell, and for NA, NaN and the like.
    """
    return is_missing(cell.text)


def is_missing(text: str) -> bool:
    """Tell whether a text means that a value is missing.

    Args:
        text: The text of a cell.

    Returns:
        True for no text, and for NA, NaN and the like.
    """
    return text in _SPELLINGS


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


def not_utf8(file: str) -> InputError:
    """Make the error for a file in another encoding; the caller raises it.

    Args:
        file: What the file is called.
    """
    return InputError(
        f"{file} is not UTF-8 text: save it as 'CSV UTF-8' in the spreadsheet, or convert it, for example with "
        "`iconv -f windows-1252 -t utf-8`."
    )


def _read_lines(path: Path, delimiter: str, file: str) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Every line, blank ones too, in blocks; the number of a row over several lines is that of its last."""
    lines: list[int] = []
    rows: list[list[str]] = []
    last = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, delimiter=delimiter, strict=True)
            for row in reader:
                last = reader.line_num
                lines.append(last)
                rows.append(row)
                if len(rows) == BLOCK_ROWS:
                    yield lines, rows
                    lines, rows = [], []
    except UnicodeDecodeError:
        raise not_utf8(file) from None
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except csv.Error as error:
        raise InputError(
            f"{file} cannot be read as CSV from line {last + 1} on ({error}): close every quote there, or save "
            "the file again as 'CSV UTF-8'."
        ) from None
    if rows:
        yield lines, rows


def _check_header(file: str, header: Sequence[str]) -> None:
    """Refuse columns that are separated by something else, and columns without a name of their own."""
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
