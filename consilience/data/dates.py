"""Columns of dates as days, counted from a day that was agreed on."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import polars as pl

from consilience.data.cells import Block, Cells, Numbers

NO_DAY = "Column '{name}': write since = \"2020-01-31\", a day."


def days_of(texts: pl.Series, since: str) -> Numbers:
    """Count days from an agreed day.

    Args:
        texts: Dates as 2024-01-31, with a time of day or without, or as 31.1.2024: what stands between slashes may be
            a month or a day.
        since: The day.

    Returns:
        Days and parts of them [N]; NaN where there is no date.
    """
    plain = texts.str.replace("T", " ", literal=True)
    ways = ("%Y-%m-%d", "%d.%m.%Y", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
    found = pl.select(pl.coalesce(plain.str.to_datetime(way, strict=False, time_unit="us") for way in ways)).to_series()
    passed = found - datetime.datetime.fromisoformat(since)
    days = passed.dt.total_microseconds().cast(pl.Float64) / datetime.timedelta(days=1).total_seconds() / 1e6
    return days.fill_null(np.nan).to_numpy().copy()


def in_days(cells: Cells, since: str) -> Cells:
    """Write dates as numbers of days, so that a column of dates is one of numbers; any other text stays as it is.

    Args:
        cells: A column of dates.
        since: The day from which they are counted.
    """
    blocks = []
    for block in cells.loaded().blocks:
        texts = block.texts
        days = pl.Series(days_of(texts, since), nan_to_null=True)
        if days.null_count():
            days = days.cast(pl.String).zip_with(days.is_not_null(), texts)
        blocks.append(Block(days, replace(block.source, read=None), block.name, rows=block.rows))
    return Cells(blocks)


def is_day(text: str) -> bool:
    """Say whether a text is a day as days are agreed on, such as 2020-01-31."""
    try:
        datetime.date.fromisoformat(text)
    except (TypeError, ValueError):
        return False
    return True
