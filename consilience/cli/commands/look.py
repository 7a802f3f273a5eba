"""The command that looks before anybody leaps: inspect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.app import app
from consilience.cli.given import read_options
from consilience.cli.handed import columns as listing
from consilience.cli.handed import say, write_files
from consilience.cli.options import Columns_, Decimal_, Delimiter_, Drop_, Missing_, Target_, Unknown_
from consilience.cli.screen import out
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.data.inspection import Found, Seen

MANY = 6  # sites from which gaps are summed up


@app.command("inspect")
def inspect_files(
    ctx: typer.Context,
    files: Annotated[list[str] | None, typer.Argument(help="Files, folders or quoted patterns.")] = None,
    data: Annotated[str | None, typer.Option(help="The same, as other commands have it.")] = None,
    target: Target_ = None,
    columns: Columns_ = None,
    drop: Drop_ = None,
    missing: Missing_ = None,
    unknown: Unknown_ = None,
    delimiter: Delimiter_ = None,
    decimal: Decimal_ = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write a columns.toml to correct and to use with --columns.")
    ] = None,
) -> None:
    """Show types, categories, ids, dates, constants and missing values of CSV files; nothing is trained."""
    from consilience.data.inspection import columns_text, look
    from consilience.data.reading import reading_from
    from consilience.data.tables import list_files

    patterns = [*(files or ()), *filter(None, [data])]
    if not patterns:
        raise InputError("Name the files to look at: `consilience inspect FILES`.")
    read = read_options(ctx.params)
    paths = list(dict.fromkeys(path for pattern in patterns for path in list_files(pattern)))
    reading = reading_from(read.reading)
    found = look(paths, read.target, reading)
    for name, rows in found.rows.items():
        noun = "rows"
        if rows == 1:
            noun = "row"
        say(f"{name}: {rows:,} {noun}, {found.dialects[name]}")
    out.print(_table(found))
    doubts = [doubt for seen in found.columns for doubt in seen.doubts]
    for doubt in doubts:
        say(doubt, "yellow")
    if write is not None:
        write_files(write, columns_text(found, read.target, reading.drop), "Columns, to be corrected", shared=True)


def _table(found: Found) -> object:
    """A line for each column."""
    table = listing(("column", "type", "values", "missing"))
    for seen in found.columns:
        table.add_row(seen.name, seen.kind, seen.values, _gaps(seen))
    return table


def _gaps(seen: Seen) -> str:
    """Missing values at each site, or of all sites where there are many."""
    if not any(seen.missing.values()):
        return "none"
    if len(seen.missing) > MANY:
        return f"{sum(seen.missing.values()):,} at {sum(map(bool, seen.missing.values()))} sites"
    return ", ".join(f"{site} {count:,}" for site, count in seen.missing.items() if count)
