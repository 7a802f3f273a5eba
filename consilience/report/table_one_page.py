"""The page of a table one: one self-contained file."""

from __future__ import annotations

from consilience.biostatistics.table_one import TableOne
from consilience.report.page import Cell, render
from consilience.report.schema.numbers import count
from consilience.version import __version__


def table_one_page(table: TableOne, title: str) -> str:
    """Write the page of a table one.

    Args:
        title: What it describes, such as the study's name.

    Returns:
        One HTML page.
    """
    rows = [{"name": line[0], "cells": [_cell(text) for text in line[1:]]} for line in table.lines()]
    heads = [("Column", ""), ("All sites", ""), *((name, "") for name in table.sites)]
    return render(
        kind="reproduction",
        title=f"{title}: table one",
        lead=f"{count(len(table.sites), 'site')}, {count(table.value('', 'rows'), 'row')}.",
        summary="",
        facts=[],
        alerts=[],
        scores={},
        tables=[{"title": "Columns by site", "heads": heads, "rows": rows}],
        notes=table.notes,
        caution="",
        pictures=[],
        answers=[],
        first_page=False,
        provenance=[],
        details=[],
        version=__version__,
    )


def _cell(text: str) -> Cell:
    return Cell(text, grey=text == "withheld")
