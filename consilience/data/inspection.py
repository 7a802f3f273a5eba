"""What is understood of files before anything is trained on them: kinds of columns, missing values by site, doubts."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from consilience.data.cells import Cells, is_missing
from consilience.data.dialect import ENCODINGS, Dialect, find_encoding, first_lines, sniff, split_lines
from consilience.data.doubts import find_doubts, is_date, is_id, look_alike, sentinels
from consilience.data.formats import format_of, read_table
from consilience.data.reading import Reading
from consilience.data.tables import file_names, site_names, stack

SHOWN = 8  # categories that are listed


class Seen(NamedTuple):
    """A column as it is understood.

    Attributes:
        name: Its name.
        kind: number, category, id, date, constant, empty, or mixed, where some cells are numbers and some are not.
        values: Its categories, or its range.
        missing: How many values are missing at each site.
        doubts: A sentence for each thing that may be wrong.
        levels: The categories, where there are some.
        unknown: Texts that seem to mean missing.
        same: Groups of categories that look alike.
        span: The smallest and the largest number, where there are numbers.
    """

    name: str
    kind: str
    values: str
    missing: dict[str, int]
    doubts: tuple[str, ...]
    levels: tuple[str, ...]
    unknown: tuple[str, ...]
    same: tuple[tuple[str, ...], ...]
    span: tuple[float, float] | None


class Found(NamedTuple):
    """What is understood of files.

    Attributes:
        rows: The number of rows of each file.
        dialects: How each file writes its cells.
        columns: Every column.
    """

    rows: dict[str, int]
    dialects: dict[str, Dialect]
    columns: tuple[Seen, ...]


def look(paths: Sequence[Path], target: str | None = None, reading: Reading | None = None) -> Found:
    """Look at files and say what is understood.

    Args:
        paths: The files, one per site.
        target: The column to predict, if somebody says.
        reading: How tables are read; as usual if None.

    Returns:
        What was found.

    Raises:
        InputError: A file cannot be read as a table, or lacks a column of the others.
    """
    reading = reading or Reading()
    files = file_names(paths)
    tables = [
        read_table(path, reading.delimiter, 1, reading.decimal, file, reading.encoding)
        for path, file in zip(paths, files, strict=True)
    ]
    names = site_names(paths)
    targets = [name for name in (target,) if name is not None]
    cells, site = stack(tables, targets, reading)
    columns = []
    for name, column in cells.items():
        respelt = column.respelt(dict(reading.same_of(name)))
        gaps = respelt.empty(reading.unknown)
        missing = {names[k]: int(gaps[(site == k).numpy()].sum()) for k in range(len(names))}
        known = respelt.select(~gaps)  # what is said to be missing needs no advice
        doubts: tuple[str, ...] = ()
        if len(known):
            doubts = tuple(
                str(doubt) for doubt in find_doubts(name, known, site[torch.from_numpy(~gaps)], name == target)
            )
        seen = _see(name, respelt, gaps, missing, doubts, is_id(name, respelt, site) and name != target)
        said = tuple(text for text in sorted(respelt.distinct()) if text in reading.unknown and not is_missing(text))
        columns.append(seen._replace(unknown=tuple(dict.fromkeys((*said, *seen.unknown)))))
    rows = {name: len(table) for name, table in zip(names, tables, strict=True)}
    dialects = {name: table.dialect for name, table in zip(names, tables, strict=True)}
    return Found(rows, dialects, tuple(columns))


def describe_files(paths: Sequence[Path], reading: Reading | None = None) -> dict[str, str]:
    """Say how each file is written, as far as its first lines tell.

    Args:
        reading: How they are read; as usual if None.

    Returns:
        For each file's name, delimiter, decimal mark, encoding and what means missing, in words.
    """
    files = zip(file_names(paths), paths, strict=True)
    return {name: _describe_file(path, name, reading or Reading()) for name, path in files}


def summarise_files(words: Mapping[str, str]) -> str:
    """Say in one line how files are written; those that are written alike are named together.

    Args:
        words: What `describe_files` says.
    """
    alike: dict[str, list[str]] = {}
    for name, text in words.items():
        alike.setdefault(text, []).append(name)
    if len(alike) == 1 and len(words) > 1:
        return f"{len(words)} files: {next(iter(alike))}."
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in alike.items()) + "."


def _describe_file(path: Path, name: str, reading: Reading) -> str:
    """One file's dialect, encoding and marks of missing cells."""
    format = format_of(path)
    if format != "CSV":
        return format
    encoding = reading.encoding or find_encoding(path, name)
    seen = sniff(path, encoding)
    dialect = seen._replace(delimiter=reading.delimiter or seen.delimiter, decimal=reading.decimal or seen.decimal)
    rows = split_lines(first_lines(path, encoding), dialect.delimiter)
    texts = {cell.strip() for row in rows[1:] for cell in row}
    marks = sorted(text for text in texts if is_missing(text) or text in reading.unknown)
    with path.open("rb") as binary:
        marked = binary.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    words = [str(dialect)]
    if dialect.decimal == ".":
        words.append("decimal points")
    if marked:
        words.append("UTF-8 with a byte-order mark")
    else:
        words.append(ENCODINGS.get(encoding, encoding))
    if marks:
        words.append(f"missing: {' '.join(mark or 'empty' for mark in marks)}")
    return ", ".join(words)


def _see(
    name: str,
    cells: Cells,
    gaps: np.ndarray[tuple[int], np.dtype[np.bool_]],
    missing: dict[str, int],
    doubts: tuple[str, ...],
    names_rows: bool,
) -> Seen:
    """One column as it is understood."""
    known = cells.select(~gaps)
    texts = sorted(known.distinct())
    unknown = tuple(text for text, _ in sentinels(known, known.numbers()))
    nothing: tuple[tuple[str, ...], ...] = ()
    if not texts:
        return Seen(name, "empty", "", missing, doubts, (), (), nothing, None)
    numbers = known.numbers()
    plausible = numbers[~np.isnan(numbers) & ~np.isin(numbers, [float(text) for text in unknown])]
    span = None
    if len(plausible):
        span = (float(plausible.min()), float(plausible.max()))
    if len(texts) == 1:
        return Seen(name, "constant", texts[0], missing, doubts, (), (), nothing, span)
    if is_date(known):
        return Seen(name, "date", _span_of_dates(texts), missing, doubts, (), (), nothing, None)
    if names_rows:
        return Seen(name, "id", f"{len(texts):,} different", missing, doubts, (), unknown, nothing, span)
    if span is not None and not np.isnan(numbers).any():
        return Seen(name, "number", f"{span[0]:g} to {span[1]:g}", missing, doubts, (), unknown, nothing, span)
    kind = "category"
    if span is not None:
        kind = "mixed"
    shown = ", ".join(texts[:SHOWN])
    if len(texts) > SHOWN:
        shown += f" and {len(texts) - SHOWN} more"
    return Seen(name, kind, shown, missing, doubts, tuple(texts), unknown, tuple(look_alike(texts)), span)


def _span_of_dates(texts: Sequence[str]) -> str:
    """The first and the last day; how many there are, where day and month may stand in either order."""
    if any("/" in text for text in texts):
        return f"{len(texts):,} different"
    ordered = sorted(texts, key=_day)
    return f"{ordered[0]} to {ordered[-1]}"


def _day(date: str) -> list[int]:
    """Year, month and day of 2024-03-01 or 1.3.2024."""
    if "." in date[:3]:
        return [int(part) for part in reversed(date.split("."))]
    return [int(part) for part in date[:10].replace("T", "-").split("-")[:3]]


def columns_text(found: Found, target: str | None, drop: Sequence[str] = ()) -> str:
    """Propose a columns.toml: to be read and corrected by people who know.

    Args:
        target: The column to predict, if somebody says.
        drop: Columns that somebody leaves out.

    Returns:
        The file's text.
    """
    return "\n".join(_lines(found, target, drop)) + "\n"


def _lines(found: Found, target: str | None, drop: Sequence[str]) -> Iterator[str]:
    dropped = [*drop]
    dropped += [seen.name for seen in found.columns if seen.kind in ("id", "date", "constant", "empty")]
    yield "# How these files are read. Correct it, then give it to run, compare, tune and inspect with --columns."
    yield "# Studies read [target] and [columns]: `consilience study new NAME --columns FILE`."
    yield ""
    yield "[files]  # delimiter and decimal are found by looking at each file, unless they are written here"
    yield f"drop = [{', '.join(_quote(name) for name in dropped if name != target)}]"
    for seen in found.columns:
        if seen.name == target:
            yield ""
            yield "[target]"
            yield f"name = {_quote(seen.name)}"
            if seen.levels:
                yield f"classes = [{', '.join(map(_quote, seen.levels))}]"
    yield ""
    yield "[columns]  # type: number or category; missing: refuse or mark; unknown: texts that mean missing"
    for seen in found.columns:
        if seen.name != target and seen.name not in dropped:
            yield f"{_quote(seen.name)} = {{ {', '.join(_fields(seen))} }}"
    alike = [seen for seen in found.columns if seen.same]
    if alike:
        yield ""
        yield "# These look alike. Take the # away where they are one: a spelling, and the category it means."
        yield "# [same]"
    for seen in alike:
        pairs = [(text, group[0]) for group in seen.same for text in group[1:]]
        spellings = ", ".join(f"{_quote(text)} = {_quote(category)}" for text, category in pairs)
        yield f"# {_quote(seen.name)} = {{ {spellings} }}"


def _fields(seen: Seen) -> Iterator[str]:
    """What a study's dictionary says of a column, too."""
    if seen.levels and seen.kind == "category":
        yield 'type = "category"'
        yield f"levels = [{', '.join(map(_quote, seen.levels))}]"
    else:
        low, high = seen.span or (0.0, 1.0)
        width = (high - low) or 1.0
        yield 'type = "number"'
        yield "range = [{:g}, {:g}]".format(*widen(low, high))
        yield f"centre = {(low + high) / 2:g}"
        yield f"spread = {width / 4:g}"
    if any(seen.missing.values()) or seen.unknown:
        yield 'missing = "mark"'
        if not seen.levels and seen.span is not None:
            yield f"fill = {sum(seen.span) / 2:g}"
    if seen.unknown:
        yield f"unknown = [{', '.join(map(_quote, seen.unknown))}]"


def widen(low: float, high: float) -> tuple[float, float]:
    """Propose a plausible range: half as wide again on either side, at round numbers.

    Args:
        low: The smallest number that was seen.

    Returns:
        The range; what was never negative stays so.
    """
    width = (high - low) or abs(high) or 1.0
    step = width
    if width >= 1:
        step = 10 ** (len(str(int(width))) - 1)
    below = float(((low - width / 2) // step) * step)
    above = float(-((-high - width / 2) // step) * step)
    if low >= 0 > below:
        below = 0.0
    return below, above


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
