"""Commands that list the methods, networks, feature maps and data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.app import DATASETS, Actions, app
from consilience.cli.listing import dataset_table, method_table
from consilience.cli.options import DataDir_, methods_like
from consilience.cli.screen import out


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(autocompletion=methods_like, help="A method to show in full.")] = None,
) -> None:
    """List the methods, or show one: algorithm, paper, what a site sends, what the server needs, settings."""
    if name is None:
        out.print(method_table())
        return
    from consilience.cli.catalogue import method_page

    out.print(method_page(name))


@app.command()
def models() -> None:
    """List the networks that `--model` takes by name."""
    from consilience.cli.catalogue import model_table

    out.print(model_table())


@app.command()
def features() -> None:
    """List the feature maps that `--features` takes by name."""
    from consilience.cli.catalogue import feature_table

    out.print(feature_table())


datasets = Actions(invoke_without_command=True, help=DATASETS)
app.add_typer(datasets, name="datasets")


@datasets.callback()
def list_datasets(context: typer.Context, data_dir: DataDir_ = None) -> None:
    """List the data sets, or fetch one."""
    if context.invoked_subcommand is None:
        out.print(dataset_table(data_dir))


@datasets.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which data set; see `consilience datasets`.")],
    data_dir: Annotated[str | None, typer.Option(metavar="PATH", help="Folder with the data files.")] = None,
) -> None:
    """Fetch a data set's file into the data folder."""
    from consilience.data.datasets import fetch

    if data_dir is None and context.parent:
        data_dir = context.parent.params["data_dir"]  # `datasets --data-dir PATH get`, or the environment's
    out.print(f"{name}: {fetch(name, data_dir)}", soft_wrap=True)
