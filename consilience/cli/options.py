"""The application, and the options its commands share."""

from __future__ import annotations

from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup


class Screen(TyperGroup):
    """Help that fits a screen, survives a narrow terminal and a pipe: a line a command, without frames."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Group.format_help(self, ctx, formatter)


def methods_like(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from consilience.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def data_like(incomplete: str) -> list[str]:
    from consilience.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


def models_like(incomplete: str) -> list[str]:
    from consilience.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


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


def number_or_name(text: Any) -> float | str:
    """What stands for the server's rows: how many of the sites' own kind, or where else they come from."""
    try:
        return float(text)
    except ValueError:
        return str(text)


Data_ = Annotated[
    str,
    typer.Option(
        autocompletion=data_like,
        help="A data set (`consilience datasets`) or a quoted pattern of CSV files, one per site.",
    ),
]
Target_ = Annotated[str | None, typer.Option(help="The column to predict, for CSV files.")]
Sites_ = Annotated[int | None, typer.Option(help="How many sites; 5, or as many as the data or files name.")]
Split_ = Annotated[
    str | None,
    typer.Option(
        help="iid, heterogeneous:H, dirichlet:ALPHA, step:MAJOR, dominant:SHARE, sorted_feature or natural; with "
        "+rotate:DEGREES or +noise:DEVIATION features also differ from site to site."
    ),
]
Model_ = Annotated[
    str,
    typer.Option(autocompletion=models_like, help="A network (`consilience models`) or package.module:factory."),
]
Seed_ = Annotated[int, typer.Option(help="Decides split, start and every draw.")]
Engine_ = Annotated[
    str,
    typer.Option(help="auto, sequential, vectorised[:SITES AT A TIME], parallel[:WORKERS], flower[:WORKERS[,BYTES]]."),
]
DataDir_ = Annotated[str | None, typer.Option(envvar="CONSILIENCE_DATA", metavar="PATH", help="Where data files lie.")]
Set_ = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. inference.epochs=20; may be repeated.")]
Seeds_ = Annotated[str, typer.Option(help="0-9, or 0,3,7, or 5: each decides split, start and every draw.")]
Calibration_ = Annotated[int, typer.Option(help="Labelled rows at the server; 0 for none.")]
Inputs_ = Annotated[
    Any,
    typer.Option(
        parser=number_or_name,
        metavar="NUMBER|DATA[:NUMBER]",
        help="Unlabelled rows at the server: a number, a fraction below 1, or another data set, as cifar100:2000.",
    ),
]
Json_ = Annotated[bool, typer.Option("--json", help="Print run.json alone on standard output.")]
Participation_ = Annotated[
    float | None, typer.Option(help="Sites asked a round: a number, or a fraction below 1; all by default.")
]
Dropout_ = Annotated[float, typer.Option(help="Simulate: the chance that a site asked never replies.")]
Deadline_ = Annotated[
    float | None, typer.Option(help="Simulate: slower replies do not count; a site of mean size usually takes 1.")
]
MinReplies_ = Annotated[
    int | None, typer.Option(help="Fewer replies stop the run; given, a site whose training fails is lost, no error.")
]
Device_ = Annotated[str, typer.Option(help="Where to compute: cpu, cuda or cuda:1.")]
