"""The application, and the options its commands share."""

from __future__ import annotations

from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from consilience.errors import InputError
from consilience.version import __version__


class Screen(TyperGroup):
    """Help that fits a screen, a narrow terminal and a pipe: one line per command, without frames."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Group.format_help(self, ctx, formatter)


def methods_like(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    from consilience.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def data_like(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from consilience.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


def models_like(incomplete: str) -> list[str]:
    """Complete the name of a network."""
    from consilience.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


def features_like(incomplete: str) -> list[str]:
    """Complete the name of a feature map."""
    from consilience.models import FEATURES

    return [name for name in FEATURES if name.startswith(incomplete)]


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


def number_or_name(text: Any) -> float | str:
    """Read where the server's rows come from: a number of the sites' own kind, or another data set's name."""
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
Task_ = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="What the target is: classification, regression or counts; by default a guess."),
]
Time_ = Annotated[str | None, typer.Option(help="For survival: the column of times, in place of --target.")]
Event_ = Annotated[str | None, typer.Option(help="For survival: the column that is 1 if the event was seen, else 0.")]
Exposure_ = Annotated[str | None, typer.Option(help="For counts: the column of how long each row was exposed.")]
Horizon_ = Annotated[float | None, typer.Option(help="For survival: the time at which risks are checked.")]
Sites_ = Annotated[
    int | None, typer.Option(help="Number of sites; by default 5, or as many as the data or files define.")
]
Split_ = Annotated[
    str | None,
    typer.Option(
        help="iid, heterogeneous:H, dirichlet:ALPHA, step:MAJOR, dominant:SHARE, sorted_feature or natural; add "
        "+rotate:DEGREES or +noise:DEVIATION to let features differ from site to site."
    ),
]
Model_ = Annotated[
    str | None,
    typer.Option(
        autocompletion=models_like,
        help="A network (`consilience models`) or package.module:factory; by default mlp, or linear on features.",
    ),
]
Epsilon_ = Annotated[float | None, typer.Option(help="Differential privacy of all that sites send: ε, for example 3.")]
Delta_ = Annotated[float | None, typer.Option(help="δ, below one over the number of rows; 1e-5 with --epsilon.")]
Unit_ = Annotated[str | None, typer.Option(help="Who is protected: row.")]
Noise_ = Annotated[str | None, typer.Option(help="Where noise is added: site (all of it at each), or once.")]
Honest_ = Annotated[
    int | None, typer.Option(help="Sites relied on to add their share under --noise once; by default all of them.")
]
Features_ = Annotated[
    str | None,
    typer.Option(
        autocompletion=features_like,
        metavar="MAP[:NUMBER[:SEED]]|FOLDER",
        help="Fixed features that the network learns on (`consilience features`), as conv:512, or a run's folder, "
        "whose network is used without its last layer.",
    ),
]
Seed_ = Annotated[int, typer.Option(help="Seed of the split, the initial weights and all random draws.")]
Engine_ = Annotated[
    str,
    typer.Option(help="auto, sequential, vectorised[:SITES AT A TIME], parallel[:WORKERS], flower[:WORKERS[,BYTES]]."),
]
DataDir_ = Annotated[
    str | None, typer.Option(envvar="CONSILIENCE_DATA", metavar="PATH", help="Folder with the data files.")
]
Set_ = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. inference.epochs=20; may be repeated.")]
Seeds_ = Annotated[
    str, typer.Option(help="Seeds, as 0-9, 0,3,7 or 5; each sets the split, the initial weights and all random draws.")
]
Conformal_ = Annotated[
    float, typer.Option(help="Fraction of each site's training rows set aside for prediction sets; 0 for none.")
]
Level_ = Annotated[
    float | None,
    typer.Option(help="What prediction sets shall cover, as 0.9; sets a fifth of the rows aside for them."),
]
Calibration_ = Annotated[int, typer.Option(help="Labelled rows at the server; 0 for none.")]
Inputs_ = Annotated[
    Any,
    typer.Option(
        parser=number_or_name,
        metavar="NUMBER|DATA[:NUMBER]",
        help="Unlabelled rows at the server: a number, a fraction below 1, or another data set, as cifar100:2000.",
    ),
]
Json_ = Annotated[bool, typer.Option("--json", help="Print only run.json on standard output.")]
Participation_ = Annotated[
    float | None, typer.Option(help="Sites per round: a number, or a fraction below 1; all by default.")
]
Dropout_ = Annotated[float, typer.Option(help="Simulated probability that a site does not reply.")]
Deadline_ = Annotated[
    float | None, typer.Option(help="Simulated deadline: later replies are lost; a site of mean size usually takes 1.")
]
MinReplies_ = Annotated[
    int | None,
    typer.Option(help="Stop if fewer sites reply. With this option, a site whose training fails counts as lost."),
]
Device_ = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda or cuda:1.")]


def privacy_settings(
    epsilon: float | None, delta: float | None, unit: str | None, noise: str | None, honest: int | None
) -> tuple[str, ...]:
    """Write what a command says about privacy as settings of a method.

    Args:
        epsilon: ε; None: none is asked for.
        delta: δ.
        unit: Who is protected.
        noise: Where noise is added.
        honest: How many sites are relied on.

    Returns:
        Texts as `--set` takes them; none without ε.

    Raises:
        InputError: The other options are given without ε, or mean nothing here.
    """
    if epsilon is None:
        if any(option is not None for option in (delta, unit, noise, honest)):
            raise InputError("--delta, --unit, --noise and --honest belong to --epsilon: give it too.")
        return ()
    if unit not in (None, "row"):
        raise InputError(
            f"--unit {unit}: these rows do not say whose they are, so that each is protected by itself; where every "
            "patient has one row, --unit row is the same."
        )
    options = {"epsilon": epsilon, "delta": delta, "noise": noise, "honest": honest}
    given = (f"privacy.{name}={value}" for name, value in options.items() if value is not None)
    return ("privacy=Privacy", *given)
