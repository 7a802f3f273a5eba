"""The page of a table one: one self-contained file."""

from __future__ import annotations

from consilience.report.page import Cell, render
from consilience.summaries.summary import BINS
from consilience.summaries.table import TableOne
from consilience.version import __version__


def table_one_page(table: TableOne, title: str) -> str:
    """Write the page of a table one.

    Args:
        table: The table.
        title: What it describes, such as the study's name.

    Returns:
        One HTML page.
    """
    rows = [{"name": line[0], "cells": [_cell(text) for text in line[1:]]} for line in table.lines()]
    heads = [("Column", ""), ("All sites", ""), *((name, "") for name in table.sites)]
    return render(
        kind="reproduction",
        title=f"{title}: table one",
        lead=f"{len(table.sites)} sites, {table.value('', 'rows'):.0f} rows.",
        summary="",
        facts=[],
        alerts=[],
        scores={},
        tables=[{"title": "Columns by site", "heads": heads, "rows": rows}],
        notes=notes(table),
        caution="",
        pictures=[],
        answers=[],
        first_page=False,
        provenance=[],
        details=[],
        version=__version__,
    )


def notes(table: TableOne) -> list[str]:
    """Say how the numbers came about.

    Args:
        table: The table.

    Returns:
        Sentences.
    """
    return [
        f"Counts from 1 to {table.smallest - 1} are withheld, and with them others that would give them away by "
        "subtraction; ≥ marks a sum in which withheld counts are missing.",
        f"Quartiles are read off {BINS} bins of equal width over the agreed range of a column, as if values lay evenly "
        "within a bin.",
        "Where few values are missing, a mean is rounded so that it does not tell how many.",
    ]


def _cell(text: str) -> Cell:
    return Cell(text, grey=text == "withheld")
