"""The columns of a table as cells: what is in each, and where it stands. Polars holds them.

A column keeps the type that its file gives it, or its texts: a cell becomes an object only while it is looked at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from consilience.data.dialect import Dialect

MISSING = {"", "na", "n/a", "nan", "null"}  # in small letters; 'none' is left to be a category
SPELLINGS = frozenset("".join(t) for word in MISSING for t in product(*zip(word, word.upper(), strict=True)))
CATEGORY = "categories"  # what a column holds whose file says so
DATE = "dates"

Numbers: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Cell(NamedTuple):
    """One cell's text and where it stands.

    Attributes:
        text: What is in it, without the blanks around it.
        file: The name of the file.
        line: The number of the line, from 1; of the row, where a format has no lines.
        unit: line or row.
    """

    text: str
    file: str
    line: int
    unit: str = "line"

    def __str__(self) -> str:
        """Where it stands, for people."""
        return f"{self.file}, {self.unit} {self.line}"


@dataclass(frozen=True)
class Source:
    """Where rows stand, for people; and their texts, where a column was read as numbers at once.

    Attributes:
        file: The name of the file.
        line: The number of the line, or row, of a row counted from 0.
        unit: line or row.
        read: Reads a column again, as texts.
    """

    file: str
    line: Callable[[int], int]
    unit: str = "line"
    read: Callable[[str], pl.Series] | None = None


class Block(NamedTuple):
    """One file's rows of a column.

    Attributes:
        values: Texts, or numbers; missing numbers are null or NaN. None until somebody needs the column.
        source: Where they stand.
        name: The column's name in the file.
        holds: What its file says that it holds, where that is no numbers and nothing to be guessed.
        rows: The number of each row in the file; all rows in order if None.
    """

    values: pl.Series | None
    source: Source
    name: str = ""
    holds: str = ""
    rows: npt.NDArray[np.int64] | None = None

    @property
    def series(self) -> pl.Series:
        """The values; read now where nobody needed them."""
        if self.values is None:
            return self.texts
        return self.values

    @property
    def texts(self) -> pl.Series:
        """The cells as their file writes them; empty where nothing stands."""
        if self.values is not None and self.values.dtype == pl.String:
            return self.values
        if self.source.read is None:
            assert self.values is not None
            return self.values.cast(pl.String).fill_null("")
        texts = self.source.read(self.name)
        if self.rows is not None:
            return texts[self.rows]
        return texts

    def line(self, place: int) -> int:
        """Say where a row stands, by its place in the block."""
        if self.rows is not None:
            place = int(self.rows[place])
        return self.source.line(place)


class Cells(Sequence[Cell]):
    """The cells of a column: a sequence of `Cell`, with what is asked of all of them answered at once.

    Attributes:
        blocks: The rows in order, file by file.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = tuple(blocks)
        self._ends = np.cumsum([len(block.series) for block in self.blocks if block.values is not None])

    @staticmethod
    def of(cells: Sequence[Cell]) -> Cells:
        """Take any sequence of cells; themselves where they are a column already."""
        if isinstance(cells, Cells):
            return cells
        texts = [pl.Series([cell.text], dtype=pl.String) for cell in cells]
        sources = [Source(cell.file, [cell.line].__getitem__, cell.unit) for cell in cells]
        return Cells(Block(text, source) for text, source in zip(texts, sources, strict=True))

    @staticmethod
    def stack(columns: Iterable[Cells]) -> Cells:
        """Put columns of the same name from several tables under each other."""
        return Cells(block for column in columns for block in column.loaded().blocks)

    def loaded(self) -> Cells:
        """Read what was not read because nobody had asked for it."""
        if all(block.values is not None for block in self.blocks):
            return self
        return Cells(block._replace(values=block.series) for block in self.blocks)

    @property
    def file(self) -> str:
        """The name of the first file."""
        return self.blocks[0].source.file

    @property
    def holds(self) -> str:
        """What the files say that the column holds; categories, if one of them does."""
        said = {block.holds for block in self.blocks if block.holds}
        return min(said, key=lambda what: (what in (CATEGORY, DATE), what), default="")

    @property
    def has_texts(self) -> bool:
        """Whether some cells may hold anything but numbers."""
        return any(block.series.dtype == pl.String for block in self.blocks)

    def __len__(self) -> int:
        if not len(self._ends):
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
        row = place - int(self._ends[number_of_block]) + len(block.series)
        return Cell(block.texts[row], block.source.file, block.line(row), block.source.unit)

    def __iter__(self) -> Iterator[Cell]:
        for block in self.blocks:
            for row, text in enumerate(block.texts):
                yield Cell(text, block.source.file, block.line(row), block.source.unit)

    @property
    def texts(self) -> pl.Series:
        """All texts."""
        return _concatenate([block.texts for block in self.blocks], pl.String)

    def first(self, chosen: Mask) -> Cell:
        """Find the first of some cells, at least one."""
        return self[int(chosen.argmax())]

    def select(self, chosen: Mask) -> Cells:
        """Take some of the cells, in order."""
        blocks = []
        start = 0
        for block in self.blocks:
            part = chosen[start : start + len(block.series)]
            start += len(part)
            if part.any():
                rows = np.flatnonzero(part)
                kept = rows
                if block.rows is not None:
                    kept = block.rows[rows]
                blocks.append(block._replace(values=block.series[rows], rows=kept))
        return Cells(blocks)

    def respelt(self, spellings: Mapping[str, str]) -> Cells:
        """Write some texts differently, each at its old place."""
        if not spellings:
            return self
        return Cells(block._replace(values=block.texts.replace(dict(spellings))) for block in self.blocks)

    def distinct(self) -> set[str]:
        """Collect the different texts."""
        return set(self.texts.unique().to_list())

    def where(self, test: Callable[[str], bool]) -> Mask:
        """Ask something of every text; equal texts are asked once. The answers are [N]."""
        chosen = [text for text in self.distinct() if test(text)]
        if not chosen:
            return np.zeros(len(self), dtype=np.bool_)
        return self.texts.is_in(chosen).to_numpy()

    def codes(self, code: Callable[[str], int]) -> npt.NDArray[np.int64]:
        """Give every text a whole number; equal texts are asked for once. The numbers are [N]."""
        texts = self.texts
        distinct = texts.unique().to_list()
        return (
            texts.replace_strict(distinct, [code(text) for text in distinct], return_dtype=pl.Int64).to_numpy().copy()
        )

    def empty(self, unknown: Iterable[str] = ()) -> Mask:
        """Say which values are missing, as `is_empty` does, or hold one of further texts that mean so [N]."""
        unknown = list(unknown)
        return np.concatenate([np.zeros(0, dtype=np.bool_), *(_missing(block, unknown) for block in self.blocks)])

    def numbers(self) -> Numbers:
        """Read every cell as a number, as `number` does; NaN where it holds none [N]."""
        parts = [_read_numbers(block.series) for block in self.blocks]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.zeros(0), *parts])


def _concatenate(parts: Sequence[pl.Series], dtype: type[pl.DataType]) -> pl.Series:
    if not parts:
        return pl.Series([], dtype=dtype)
    if len(parts) == 1:
        return parts[0]
    return pl.concat([part.alias("") for part in parts])


def _missing(block: Block, unknown: Sequence[str]) -> Mask:
    """Which values of a block are missing; its texts are read only where a number may mean so."""
    values = block.series
    if values.dtype == pl.String:
        return values.is_in([*SPELLINGS, *unknown]).to_numpy()
    missing = values.is_null()
    if values.dtype.is_float():
        missing |= values.is_nan().fill_null(False)
    marks = [value for value in map(number, unknown) if value is not None]
    found: Mask = missing.to_numpy()
    if marks and np.isin(_read_numbers(values), marks).any():
        found = found | block.texts.is_in(unknown).to_numpy()
    return found


def _read_numbers(values: pl.Series) -> Numbers:
    """The numbers of a series; texts that polars and Python read differently are left to `number`."""
    numbers = values.cast(pl.Float64, strict=False)
    found = numbers.fill_null(math.nan).to_numpy().copy()
    found[np.isinf(found)] = math.nan
    if values.dtype == pl.String and numbers.null_count():
        odd = np.flatnonzero(numbers.is_null().to_numpy())
        texts = values[odd]
        known = {text: value for text in texts.unique() if (value := number(text)) is not None}
        if known:
            found[odd] = [known.get(text, math.nan) for text in texts]
    return found


@dataclass(frozen=True)
class Table:
    """Named columns of cells, all of one length.

    Attributes:
        name: The name of the file, without its ending.
        columns: The cells of each column, by its name.
        blank: The number of the first blank line between rows; None where there is none.
        dialect: How the file writes its cells.
        rows: How many rows there are.
    """

    name: str
    columns: dict[str, Cells]
    blank: int | None = None
    dialect: Dialect = Dialect()
    rows: int = 0

    def spelt_as(self, names: Iterable[str]) -> Table:
        """Give columns the names that are asked for where they differ in capitals and blanks alone.

        Args:
            names: The names as others write them.

        Returns:
            The table; a name that fits several columns, or none, changes nothing.
        """
        wanted = {plain(name): name for name in names}
        found = Counter(map(plain, self.columns))
        columns = {}
        for name, cells in self.columns.items():
            spelt = name
            if name not in wanted.values() and found[plain(name)] == 1:
                spelt = wanted.get(plain(name), name)
            columns[spelt] = cells
        return replace(self, columns=columns)

    def __len__(self) -> int:
        """How many rows there are."""
        return self.rows


def plain(name: str) -> str:
    """Write a column's name without what people write differently."""
    return " ".join(name.split()).casefold()


def is_empty(cell: Cell) -> bool:
    """Say whether a cell's value is missing: nothing, NA, NaN and the like."""
    return is_missing(cell.text)


def is_missing(text: str) -> bool:
    """Say whether a text means that a value is missing: no text, NA, NaN and the like."""
    return text in SPELLINGS


def number(text: str) -> float | None:
    """Read a cell's text as a finite number; None where it holds none."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or "_" in text:  # Python reads 1_000 as a number
        return None
    return value
