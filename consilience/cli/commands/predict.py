"""The commands that use a model: predict and export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.app import app
from consilience.cli.handed import say, write_files
from consilience.errors import InputError, unknown_name

SHOWN = 10  # rows that cannot be predicted, each with its sentence


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run's folder, or the file of a pooled model.")],
    table: Annotated[Path, typer.Argument(help="Rows to predict: a CSV file with the columns trained on.")],
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="TABLE.predictions.csv by default.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="A column that names the rows; it is copied.")] = None,
    abstain: Annotated[
        float | None,
        typer.Option(
            help="Abstain if the most probable class is less probable than this; for numbers, if the 95 % interval is "
            "wider."
        ),
    ] = None,
    set_: Annotated[
        float | None, typer.Option("--set", help="Add prediction sets that cover this share of rows, as 0.9.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Whose rows they are: its own model and threshold, where sites have such. Of a run's folder."
        ),
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="This site's own thresholds, where `site calibrate` wrote some.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="The study file, to check that the model belongs to it and who has left since.")
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option(help="What `site fit` kept: predict with this site's own model, where sites have such."),
    ] = None,
) -> None:
    """Write probabilities, or means and intervals, with the parts of their uncertainty.

    A row that cannot be predicted is named and left empty; the exit code is then 1.
    """

    from consilience.cli.predictions import (
        predict_with_model,
        predict_with_run,
        read_checked_model,
        summarise,
        write_csv,
    )
    from consilience.data.tables import PREDICTIONS

    if thresholds is not None and set_ is None:
        raise InputError("Thresholds are for prediction sets: ask for some with --set 0.9.")
    if model.is_dir():
        _refuse_study({"study": study, "thresholds": thresholds, "memory": memory})
        rows, predicted = predict_with_run(model, table, id_, abstain, set_, site)
    else:
        if site is not None:
            raise InputError(
                "--site is for a run's folder: give --study and --memory for a site's own model of a study."
            )
        pooled = read_checked_model(model, study, memory)
        rows, predicted = predict_with_model(pooled, table, id_, abstain, set_, thresholds)
    path = out_ or table.with_name(f"{table.stem}{PREDICTIONS}")
    predictions = predicted.predictions
    write_files(path, write_csv(predictions, predicted.parts, rows, id_), "Predictions")
    summarise(predictions, predicted.parts, abstain)
    if predicted.guarantee is not None:
        say(str(predicted.guarantee))
    if rows.bad:
        for sentence in [*rows.bad.values()][:SHOWN]:
            say(sentence, "yellow")
        say(f"{len(rows.bad):,} of {rows.total:,} rows were not predicted.", "yellow")
        raise typer.Exit(1)


def _refuse_study(given: Mapping[str, Path | None]) -> None:
    """Refuse what is for models of studies."""
    for option, value in given.items():
        if value is not None:
            raise InputError(f"--{option} is for the file of a pooled model: a run's folder belongs to no study.")


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    to: Annotated[str, typer.Option("--to", help="onnx, or pt2 for torch.export.")] = "onnx",
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="FOLDER/model.onnx by default.")] = None,
    site: Annotated[
        str | None, typer.Option(help="Whose own model, where sites have such; else what a newcomer gets.")
    ] = None,
) -> None:
    """Write a run's model as a file that other programs read: from rows in their own units to probabilities."""
    from consilience.runs.module import FORMATS, export_module
    from consilience.runs.run import load

    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    path = out_ or folder / f"model.{to}"
    if path.suffix != f".{to}":
        raise InputError(f"{path.name} does not end with .{to}: give another --out or --to.")
    result = load(folder)
    say(f"Model: {export_module(result, path, site)}")
    columns = ", ".join(result.sites.feature_names or ())
    if columns:
        say(f"A row holds: {columns}.")
    if result.class_names:
        say(f"It gives the probabilities of: {', '.join(result.class_names)}.")
