"""The options that commands share, and how names are completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer


def methods_like(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    return _names("methods", incomplete)


def data_like(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    return _names("datasets", incomplete)


def models_like(incomplete: str) -> list[str]:
    """Complete the name of a network."""
    return _names("models", incomplete)


def with_centre(settings: Sequence[str] | None, centre: str | None) -> tuple[str, ...]:
    """Add what `--centre` says to a method's settings."""
    chosen = tuple(settings or ())
    if centre is None:
        return chosen
    return (*chosen, f"centre={centre}")


def features_like(incomplete: str) -> list[str]:
    """Complete the name of a feature map."""
    return _names("features", incomplete)


def _names(kind: str, incomplete: str) -> list[str]:
    """List what there is of a kind and begins so."""
    from consilience.cli.listing import read_listing

    return [entry["name"] for entry in read_listing()[kind] if entry["name"].startswith(incomplete)]


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
        help="A data set (`consilience datasets`), or tables (CSV, Excel, Parquet, …), one per site: a folder, or "
        "quoted patterns, separated by commas.",
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
Centre_ = Annotated[
    str | None,
    typer.Option(
        help="Intercepts of the effects of glm: none, one for all sites; fixed, a free one a site; random, normal "
        "ones. Studies have fixed unless asked otherwise."
    ),
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
PriorVar_ = Annotated[
    float | None, typer.Option(help="Variance of every weight under the prior, a Normal around 0; 1 by default.")
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
    float, typer.Option(help="Fraction of each site's training rows held out for prediction sets; 0 for none.")
]
Level_ = Annotated[
    float | None,
    typer.Option(help="What prediction sets shall cover, as 0.9; holds out a fifth of the rows for them."),
]
Stream_ = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Leave training rows in their CSV or Parquet files, a site each, and read them a part at a time.  "
        "\\[default: from 2 GB on]",
    ),
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
Rounds_ = Annotated[int | None, typer.Option(help="Number of rounds; 1 for one-round methods, 10 for others.")]
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
Columns_ = Annotated[
    str | None, typer.Option("--columns", metavar="FILE", help="A columns.toml that says how CSV files are read.")
]
Drop_ = Annotated[list[str] | None, typer.Option("--drop", help="A column to leave out; may be repeated.")]
Text_ = Annotated[
    list[str] | None, typer.Option("--text", help="A column of numbers to read as categories; may be repeated.")
]
Categories_ = Annotated[
    list[str] | None,
    typer.Option("--categories", metavar="COLUMN=A,B", help="A column's categories, if known; may be repeated."),
]
Missing_ = Annotated[
    str | None,
    typer.Option(
        "--missing",
        help="Missing cells: refuse; mean, with an indicator, biases effects; or impute:20.",
    ),
]
Unknown_ = Annotated[
    list[str] | None, typer.Option("--unknown", help="A text that means missing, as -999; may be repeated.")
]
Delimiter_ = Annotated[
    str | None, typer.Option("--delimiter", help="What separates cells; found by looking at each file by default.")
]
Decimal_ = Annotated[
    str | None, typer.Option("--decimal", help="A point or a comma; found by looking at each file by default.")
]
Group_ = Annotated[str | None, typer.Option("--group", help="The column of CSV files that names each row's site.")]
Test_ = Annotated[
    float,
    typer.Option(
        "--test",
        min=0.0,
        max=1.0,
        help="Fraction of rows held out for testing; 0, where nothing is to be scored. Effects are of all rows anyway.",
    ),
]
