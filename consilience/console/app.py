"""The application and its groups of commands."""

from __future__ import annotations

from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from consilience.version import __version__


class Screen(TyperGroup):
    """Help that fits a screen, a narrow terminal and a pipe: one line per command, without frames."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the plain help of click."""
        click.Group.format_help(self, ctx, formatter)


app = typer.Typer(
    cls=Screen,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Bayesian federated learning: private sites, one round, one calibrated model.",
    epilog="""\b
Examples:
  consilience demo
  consilience run evidence --data "hospitals/*.csv" --target disease
  consilience compare evidence mixture "fedavg[rounds=10]" --seeds 0-9
  consilience COMMAND --help""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"consilience {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Bayesian federated learning: private sites, one round, one calibrated model."""


STUDY = "Coordinate a study: agree, collect files, pool."
study_app = typer.Typer(no_args_is_help=True, help=STUDY)
app.add_typer(study_app, name="study", short_help=STUDY)  # what is named short is never cut in a narrow terminal

SITE = "Take part in a study; your rows never leave."
site_app = typer.Typer(no_args_is_help=True, help=SITE)
app.add_typer(site_app, name="site", short_help=SITE)
