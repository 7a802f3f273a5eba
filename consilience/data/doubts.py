"""What a column of a table may mean other than it says: ids, marks for missing values, categories that are one.

Nothing is changed by a doubt. `from_csv` warns of it, and `consilience inspect` lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
from torch import Tensor

from consilience.data.cells import Cells, Numbers, is_missing

FEWEST = 20  # rows below which different numbers prove nothing
SENTINELS = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999)
ALIKE = (("m", "male", "man"), ("f", "female", "woman", "w"), ("y", "yes", "true"), ("n", "no", "false"))
ID_NAME = re.compile(r"(^|[_\W])(id|mrn|uid|uuid|index|key|nr|row|patient|subject|case)([_\W]|$)", re.IGNORECASE)
DATES = (
    "Column '{name}' holds dates, which are no numbers: count days from a day you agree on, with "
    "'{name}' = {{ since = \"2020-01-01\" }} under [columns] in columns.toml, or leave it out with drop=['{name}'] "
    "(--drop {name})"
)
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")


def look_alike(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Find texts that may be spellings of one category.

    Returns:
        Groups of two or more, as ('YES', 'yes') or ('M', 'male').
    """
    groups: dict[str, list[str]] = {}
    for text in sorted(texts):
        groups.setdefault(_plain(text), []).append(text)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _plain(text: str) -> str:
    """A text without what people write differently."""
    word = re.sub(r"[\s_.\-]+", " ", text.casefold()).strip()
    for words in ALIKE:
        if word in words:
            return words[0]
    return word or text


def is_id(name: str, cells: Cells, site: Tensor | None = None) -> bool:
    """Say whether a column numbers or names its rows: every row of a site has a value of its own.

    Args:
        site: The site of every row; one for all if None.

    Returns:
        True for different whole numbers or texts, if they follow each other or the name says id.
    """
    if len(cells) < FEWEST or not _may_be_id(cells):
        return False
    values = cells.numbers()
    each: np.ndarray[tuple[int], np.dtype[np.generic]] = values
    if cells.has_texts:
        each = cells.texts.to_numpy()
    sites = np.zeros(len(each), dtype=np.int64)
    if site is not None:
        sites = site.numpy()
    if any(len(np.unique(each[sites == s])) < (sites == s).sum() for s in np.unique(sites)):
        return False
    if np.isnan(values).any():
        return bool(np.isnan(values).all()) or ID_NAME.search(name) is not None
    if (values != np.floor(values)).any():
        return False
    return ID_NAME.search(name) is not None or all(_follow(values[sites == s]) for s in np.unique(sites))


def _may_be_id(cells: Cells) -> bool:
    """A quick look at the first rows."""
    first = cells.blocks[0].series[:FEWEST]
    if first.dtype == pl.String:
        return first.n_unique() == len(first) and not first.str.contains(".", literal=True).any()
    return first.n_unique() == len(first) and bool((first.floor() == first).fill_null(False).all())


def _follow(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    return bool(values.max() - values.min() == len(values) - 1)


def sentinels(cells: Cells, values: Numbers) -> list[tuple[str, int]]:
    """Find numbers that may stand for missing values: such as -999, and far from all others.

    Args:
        cells: The cells of a column.

    Returns:
        Each as it is written, with the number of its rows.
    """
    found = []
    chosen = np.isin(values, SENTINELS)
    if not chosen.any():
        return []
    others = values[~np.isnan(values) & ~chosen]
    if not len(others):
        return []
    low, high = float(others.min()), float(others.max())
    if low == high:
        return []
    for text in sorted(cells.select(chosen).distinct()):
        value = float(text)
        if max(low - value, value - high) > high - low:
            found.append((text, int((values == value).sum())))
    return found


def is_date(cells: Cells) -> bool:
    """Say whether a column holds dates."""
    if not cells.has_texts:
        return False
    texts = [text for text in cells.distinct() if not is_missing(text)]
    return bool(texts) and all(DATE.fullmatch(text) for text in texts)


class Doubt(NamedTuple):
    """Something that may be wrong with a column.

    Attributes:
        what: What was seen, a sentence without its full stop.
        remedy: What to do about it, the rest of the sentence.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        """The whole sentence."""
        return f"{self.what}: {self.remedy}."


def find_doubts(
    name: str, cells: Cells, site: Tensor | None = None, target: bool = False, values: Numbers | None = None
) -> Iterator[Doubt]:
    """Say what may be wrong with a column, and what to do.

    Args:
        site: The site of every row; one for all if None.
        target: Whether it is the column to predict.
        values: The cells as numbers, where they were read already.

    Yields:
        One doubt after another.
    """
    if values is None:
        values = cells.numbers()
    for text, rows in sentinels(cells, values):
        yield Doubt(
            f"Column '{name}' holds {text} in {rows:,} of {len(cells):,} rows, far from its other values",
            f"if that means missing, pass unknown=['{text}'] and missing='mean' (--unknown={text} --missing mean)",
        )
    if not target and is_id(name, cells, site):
        yield Doubt(
            f"Column '{name}' has a value of its own in every row, as an id does",
            f"if it is one, leave it out with drop=['{name}'] (--drop {name})",
        )
    if not np.isnan(values).any():
        return
    kind = "categories"
    if target:
        kind = "classes"
    elif is_date(cells):
        yield Doubt(*DATES.format(name=name).split(": ", 1))
    for group in look_alike(text for text in cells.distinct() if not is_missing(text)):
        spelt = ", ".join(f"'{text}'" for text in group)
        yield Doubt(
            f"Column '{name}' has the {kind} {spelt}, which look like one",
            "if they are, write them alike in the files, or say so under [same] in columns.toml",
        )
