"""Commands that describe columns before any model: table one of a simulation, of a site, and of a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.app import app, site_app, study_app
from consilience.cli.applies import check_applies
from consilience.cli.commands.study import warn
from consilience.cli.groups import ReadingOptions, with_groups
from consilience.cli.handed import columns, say, site_home, write_files
from consilience.cli.options import Data_, DataDir_, Seed_, Sites_, Split_, Target_
from consilience.cli.screen import out
from consilience.cli.study_options import Files_, Key_, Ledger_, SiteOut_, Study_, Table_

if TYPE_CHECKING:
    from consilience.biostatistics.table_one import TableOne

Csv_ = Annotated[Path | None, typer.Option("--csv", help="Also write every number here, a line each.")]
Html_ = Annotated[Path | None, typer.Option("--html", help="Also write a page.")]


@app.command()
@with_groups
def describe(
    ctx: typer.Context,
    *,
    data: Data_ = "digits",
    target: Target_ = None,
    sites: Sites_ = None,
    split: Split_ = None,
    seed: Seed_ = 0,
    smallest: Annotated[int, typer.Option(min=1, help="The fewest rows of a cell that is shown.")] = 10,
    csv_: Csv_ = None,
    html_: Html_ = None,
    data_dir: DataDir_ = None,
    reading: ReadingOptions,
) -> None:
    """Show counts, means, SDs, quartiles and missing values of all rows, by site and over all."""
    from consilience.biostatistics.table_one import table_one
    from consilience.runs.problem import Problem

    check_applies(ctx)
    read = reading.read(target)
    rows = Problem(data, read.target, sites=sites, split=split, reading=read.reading, data_dir=data_dir)
    every = dataclasses.replace(rows, calibration=0, test=0)
    table = table_one(every.build_sites(seed), smallest)
    _write(table, read.target or data, csv_, html_)
    _show(table)


@site_app.command("describe")
def describe_site(
    study_file: Study_, table: Table_, out_: SiteOut_ = None, key: Key_ = None, ledger: Ledger_ = None
) -> None:
    """Write counts, means and SDs of the columns for table one; small counts stay here."""
    from consilience.study.protocol.members import read
    from consilience.study.table_one import description

    study = read(study_file)
    home = site_home(study, key)
    path = out_ or Path(f"{home.member.name}.table")
    opened = home.open(table, ledger, keep=write_files)
    write_files(path, opened.site.answer(description(study)).content, "For the coordinator")
    say(f"`consilience site show {path} --all` shows everything that leaves.")


@study_app.command("describe")
def describe_study(
    study_file: Study_,
    files: Files_,
    csv_: Csv_ = None,
    html_: Html_ = None,
) -> None:
    """Add up the sites' tables and show table one, by site and over all."""
    from consilience.study.protocol.members import read
    from consilience.study.table_one import read_tables

    study = read(study_file)
    table, refused = read_tables(study, files)
    warn(refused)
    _write(table, study.agreement.name, csv_, html_)
    _show(table)


def _write(table: TableOne, title: str, csv_: Path | None, html_: Path | None) -> None:
    if csv_ is not None:
        write_files(csv_, table.to_csv(), "Table")
    if html_ is not None:
        from consilience.report.table_one_page import table_one_page

        write_files(html_, table_one_page(table, title), "Report")


def _show(table: TableOne) -> None:
    heads = ["", "all", *table.sites]
    listing = columns(heads, right=heads[1:])
    for line in table.lines():
        listing.add_row(*line)
    out.print(listing)
    for note in table.notes:
        say(note)
