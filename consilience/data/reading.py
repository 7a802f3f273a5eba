"""How tables are read, said once: by arguments, by options of the command line, or by a columns.toml."""

from __future__ import annotations

import codecs
import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.data.dates import NO_DAY, is_day
from consilience.errors import InputError, unknown_name

MISSING_WAYS = ("refuse", "mean", "impute")
TABLES = 20  # that missing values are filled in for, where nobody says
TASKS = ("classification", "regression", "counts")


@dataclass(frozen=True)
class Reading:
    """How tables are read.

    Attributes:
        delimiter: What stands between two cells; found by looking at each file if None.
        decimal: What stands before decimals; found by looking if None.
        missing: "refuse" to refuse missing cells, "mean" to fill and mark them, "impute" or "impute:20" to fill them so
            many times at every site, by draws.
        unknown: Texts that mean missing, beside empty cells, NA and the like.
        text: Columns to read as categories though they look like numbers.
        drop: Columns to leave out.
        only: Columns to use, all others are left out; all columns if empty.
        categories: Pairs of a column and its categories, where they are known in advance.
        same: Triples of a column, a spelling and the category it means.
        ranges: Triples of a column of numbers, the least and the largest that is plausible; others are refused.
        group: The column that names the site of each row; the files are the sites if None.
        task: "classification", "regression" or "counts"; by the target's column if None.
        encoding: How the bytes of CSV files become text; found by looking if None.
        dates: Pairs of a column of dates and the day, as 2020-01-31, from which its days are counted.
    """

    delimiter: str | None = None
    decimal: str | None = None
    missing: str = "refuse"
    unknown: tuple[str, ...] = ("?",)
    text: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    same: tuple[tuple[str, str, str], ...] = ()
    ranges: tuple[tuple[str, float, float], ...] = ()
    group: str | None = None
    task: str | None = None
    encoding: str | None = None
    dates: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.missing.partition(":")[0] not in MISSING_WAYS:
            raise unknown_name("way with missing cells", self.missing, MISSING_WAYS)
        self._read_tables()
        for name, low, high in self.ranges:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InputError(f"Column '{name}': write range = [low, high], two finite numbers.")
        if self.decimal not in (None, ".", ","):
            raise InputError(f"decimal={self.decimal!r}: numbers have a point or a comma.")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(f"delimiter={self.delimiter!r}: one character stands between two cells, such as ';'.")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise InputError(f"encoding={self.encoding!r} is unknown: write for example 'latin-1'.") from None
        for name, since in self.dates:
            if not is_day(since):
                raise InputError(NO_DAY.format(name=name))
        if self.task not in (None, *TASKS):
            raise unknown_name("task", str(self.task), TASKS)

    @property
    def tables(self) -> int:
        """How many times missing values are filled by draws; 0 where they are not."""
        return self._read_tables()

    def _read_tables(self) -> int:
        way, colon, number = self.missing.partition(":")
        if not colon:
            return TABLES * (way == "impute")
        if way != "impute" or not number.isdecimal() or int(number) < 2:
            raise InputError(f"missing={self.missing!r}: write impute:20 to fill them twenty times, two or more.")
        return int(number)

    def categories_of(self, column: str) -> tuple[str, ...] | None:
        """Find a column's categories, where they are known in advance."""
        return dict(self.categories).get(column)

    def same_of(self, column: str) -> tuple[tuple[str, str], ...]:
        """Find what spellings in a column mean.

        Returns:
            Pairs of a spelling and its category.
        """
        return tuple((spelling, category) for name, spelling, category in self.same if name == column)

    def range_of(self, column: str) -> tuple[float, float] | None:
        """Find the numbers that are plausible in a column, where somebody says."""
        return next(((low, high) for name, low, high in self.ranges if name == column), None)

    def since(self, column: str) -> str:
        """Find the day from which a column's dates are counted; empty where nobody says."""
        return dict(self.dates).get(column, "")

    def to_text(self) -> str:
        """Write what is not as usual as JSON; nothing where all is."""
        changed = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        if not changed:
            return ""
        return json.dumps(changed, ensure_ascii=False)


def reading_from(text: str) -> Reading:
    """Read what `Reading.to_text` wrote.

    Args:
        text: The JSON; nothing for the usual way.

    Raises:
        InputError: It is damaged.
    """
    if not text:
        return Reading()
    try:
        return Reading(**{name: _to_tuples(value) for name, value in json.loads(text).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"'{text}' does not say how tables are read: the file is damaged.") from error


def _to_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_to_tuples(item) for item in value)
    return value


def read_reading(path: str | Path) -> tuple[Reading, str | None]:
    """Read a columns.toml, which a study can read too.

    Args:
        path: The file, with the tables [files], [target], [columns] and [same], each of which may be missing.

    Returns:
        How tables are read, and the target's name where the file says it.

    Raises:
        InputError: The file cannot be read, or holds something unknown.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"There is no file '{path}': check the name; `consilience inspect --write` makes one."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}.") from error
    known = {"files", "target", "columns", "same"}
    for name in content:
        if name not in known:
            raise InputError(f"{path}: {unknown_name('table', name, known)}")
    try:
        return _interpret(content)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None


def _interpret(content: Mapping[str, Any]) -> tuple[Reading, str | None]:
    """What the tables of a columns.toml say."""
    fields: dict[str, Any] = {name: _to_tuples(value) for name, value in content.get("files", {}).items()}
    columns = content.get("columns", {})
    target = content.get("target", {})
    if target.get("classes"):
        fields.setdefault("task", "classification")
    if columns:
        fields["only"] = tuple(columns)
    same = content.get("same", {})
    levels = [(name, column["levels"]) for name, column in columns.items() if column.get("type") == "category"]
    fields["categories"] = tuple(
        (n, tuple(text for text in texts if text not in same.get(n, {}))) for n, texts in levels
    )
    ways = {column.get("missing") for column in columns.values()}
    if {"mark", "impute"} <= ways:
        raise InputError("Some columns say mark and others impute: a run takes one way with all of them; choose one.")
    if "mark" in ways:
        fields.setdefault("missing", "mean")
    if "impute" in ways:
        fields.setdefault("missing", "impute")
    unknown = [text for column in columns.values() for text in column.get("unknown", ())]
    fields["unknown"] = tuple(dict.fromkeys((*fields.get("unknown", Reading.unknown), *unknown)))
    pairs = [(name, s, c) for name, spellings in same.items() for s, c in spellings.items()]
    fields["same"] = tuple(pairs)
    numbers = [*columns.items(), *([(target["name"], target)] if "name" in target else [])]
    ranges = [(name, *column["range"]) for name, column in numbers if "range" in column]
    fields["dates"] = tuple((name, str(column["since"])) for name, column in columns.items() if "since" in column)
    fields["ranges"] = tuple((name, float(low), float(high)) for name, low, high in ranges)
    return Reading(**fields), target.get("name")
