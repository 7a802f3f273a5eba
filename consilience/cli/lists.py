"""Commands that list what there is: methods, networks and data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.options import (
    DataDir_,
    app,
    methods_like,
)
from consilience.cli.screen import out


@app.command(short_help="List the methods, or show one in full.")
def methods(
    name: Annotated[str | None, typer.Argument(autocompletion=methods_like, help="One method, in full.")] = None,
) -> None:
    """List the methods, or show one: algorithm, paper, what a site sends, what the server needs, settings."""
    from consilience.cli.catalogue import method_page, method_table

    out.print(method_table() if name is None else method_page(name))


@app.command(short_help="List the networks.")
def models() -> None:
    """List the networks that --model knows by name."""
    from consilience.cli.catalogue import model_table

    out.print(model_table())


datasets = typer.Typer(invoke_without_command=True, help="List the data sets, or fetch one.")
app.add_typer(datasets, name="datasets")


@datasets.callback()
def listed(context: typer.Context, data_dir: DataDir_ = None) -> None:
    """List the data sets, or fetch one."""
    from consilience.cli.catalogue import dataset_table

    if context.invoked_subcommand is None:
        out.print(dataset_table(data_dir))


@datasets.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which data set; see `consilience datasets`.")],
    data_dir: Annotated[str | None, typer.Option(metavar="PATH", help="Where data files lie.")] = None,
) -> None:
    """Fetch a data set's file into the data folder."""
    from consilience.datasets import fetch

    before = context.parent.params["data_dir"] if context.parent else None  # `datasets --data-dir PATH get`, or as set
    out.print(f"{name}: {fetch(name, data_dir or before)}", soft_wrap=True)
