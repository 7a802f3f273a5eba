"""Methods and data sets as lists. They are read from a file, since loading all methods takes two seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consilience.disk.data_folder import presence
from consilience.plugins import any_plugins
from consilience.report.terminal_width import Fitting

FILE = Path(__file__).with_name("listing.json")
LEGIBLE = 72  # columns below which tables of words are hard to read


def read_listing() -> dict[str, Any]:
    """Read what there is to choose from; with methods of other packages, gather it from the code.

    Returns:
        Methods, data sets and networks, as `listing.json` holds them.
    """
    if any_plugins():
        from consilience.cli.catalogue import listing
        from consilience.methods import register_plugins

        register_plugins()
        return listing()
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def method_table() -> RenderableType:
    """List the methods, one per line, bounds last."""
    rows = [(m["name"], m["title"], m["sends"], m["needs"]) for m in read_listing()["methods"]]
    return list_rows(("method", "what it is", "a site sends", "the server needs"), rows)


def dataset_table(data_dir: str | None) -> RenderableType:
    """List the data sets, one per line.

    Args:
        data_dir: The folder of the data files.
    """
    heads = ("data", "rows", "features", "task", "sites", "file", "what it is")
    rows = []
    for data in read_listing()["datasets"]:
        facts = (data["name"], data["rows"], data["features"], data["task"], data["sites"])
        rows.append((*facts, presence(data["file"], data_dir), data["about"]))
    variants = ", ".join(read_listing()["variants"])
    note = f"Add @hasan2023 to the name for the version used in that paper: {variants}."
    return Group(list_rows(heads, rows, ("rows", "features")), Text(note, style="dim"))


def list_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> RenderableType:
    """Lay out a table, or, where the terminal is too narrow for one, a paragraph for each row."""
    table = Table(box=None, pad_edge=False, header_style="bold", min_width=LEGIBLE)
    for head in heads:
        table.add_column(head, no_wrap=head == heads[0], overflow="fold")
        if head in right:
            table.columns[-1].justify = "right"
    for row in rows:
        table.add_row(*row)
    paragraphs = (Text.assemble((row[0], "bold"), "\n", _describe(heads[1:], row[1:]), "\n") for row in rows)
    return Fitting(table, Group(*paragraphs))


def _describe(heads: Sequence[str], row: Sequence[str]) -> str:
    return "; ".join(f"{head}: {cell}" for head, cell in zip(heads, row, strict=True) if cell)
