"""The command that uses a pooled model: predict."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import torch
import typer

from consilience.cli.handed import say, warn_unsigned, write_files
from consilience.cli.options import app
from consilience.data.cells import number
from consilience.errors import InputError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.agreement.columns import Column, Target
    from consilience.data.cells import Cells
    from consilience.predictive import Categorical, Distribution, Normal
    from consilience.study.model import Model

Z95 = 1.959964
SHOWN = 10  # rows that cannot be predicted, each with its sentence
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula of a spreadsheet may begin with


class Predictions(NamedTuple):
    """What a table of predictions says of each row, beside the parts of its uncertainty."""

    head: list[str]
    rows: list[list[str]]
    decisions: list[str]  # the most probable class, or the mean
    abstains: list[bool]  # whether the decision is left open


class Rows(NamedTuple):
    """The rows of a table to predict for."""

    x: Tensor  # of those that can be predicted, as the model takes them
    places: list[int]  # the number of each of them in the table, from 0
    bad: dict[int, str]  # why the others cannot be predicted
    total: int
    ids: list[str]  # of all rows; empty where nobody asked


class Predicted(NamedTuple):
    """What a model says of the rows that it can predict."""

    p: Distribution
    parts: Mapping[str, Sequence[float]]  # of its uncertainty
    target: Target


@app.command(short_help="Predict for a table, with uncertainty.")
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
    study: Annotated[
        Path | None, typer.Option(help="The study file, to check that the model belongs to it and who has left since.")
    ] = None,
) -> None:
    """Write probabilities, or means and intervals, with the parts of their uncertainty.

    A row that cannot be predicted is named and left empty; the exit code is then 1.
    """
    from consilience.predictive import check_finite

    if model.is_dir():
        if study is not None:
            raise InputError("--study is for the file of a pooled model: a run's folder belongs to no study.")
        rows, predicted = _predict_with_run(model, table, id_, abstain)
    else:
        rows, predicted = _predict_with_model(model, table, id_, abstain, study)
    check_finite(predicted.p)
    predictions = _predict(predicted.p, predicted.target, abstain)
    path = out_ or table.with_name(f"{table.stem}.predictions.csv")
    write_files(path, _csv(predictions, predicted.parts, rows, id_), "Predictions")
    _summarise(predictions, predicted.parts, abstain)
    if rows.bad:
        for sentence in [*rows.bad.values()][:SHOWN]:
            say(sentence, "yellow")
        say(f"{len(rows.bad):,} of {rows.total:,} rows were not predicted.", "yellow")
        raise typer.Exit(1)


def _predict_with_run(folder: Path, table: Path, id_: str | None, abstain: float | None) -> tuple[Rows, Predicted]:
    """Predict with the model in a run's folder, which knows how its tables were read."""
    from consilience.agreement.columns import Target
    from consilience.data.cells import read_table
    from consilience.predictive import Categorical, Normal
    from consilience.runs.run import load

    result = load(folder)
    _check_abstain(abstain, bool(result.sites.classes))
    encoded = result.read(table)
    names = read_table(table, fewest=1)
    _check_blank(table, names.blank)
    rows = Rows(encoded.x, encoded.places, encoded.bad, encoded.total, _ids(names.columns, id_))
    made = result.predict(encoded.x)
    parts = {name: getattr(made, name).tolist() for name in ("aleatoric", "epistemic", "disagreement")}
    if made.probs is not None:
        return rows, Predicted(Categorical(made.probs.log()), parts, Target(result.sites.name, result.class_names))
    assert made.mean is not None and made.var is not None
    normal = Normal(made.mean, made.var, torch.zeros_like(made.var))
    return rows, Predicted(normal, parts, Target(result.sites.name))


def _predict_with_model(
    model: Path, table: Path, id_: str | None, abstain: float | None, study: Path | None
) -> tuple[Rows, Predicted]:
    """Predict with a study's model, by the columns that were agreed."""
    pooled = _read_model(model, study)
    _check_abstain(abstain, bool(pooled.agreement.target.classes))
    rows = _read_rows(table, pooled.agreement.columns, id_)
    parts = {name: values.tolist() for name, values in pooled.uncertainty(rows.x).items()}
    return rows, Predicted(pooled(rows.x), parts, pooled.agreement.target)


def _ids(cells: Mapping[str, Cells], name: str | None) -> list[str]:
    """The texts of the column that names the rows."""
    if name is None:
        return []
    if name not in cells:
        raise unknown_name("column", name, cells)
    return [cell.text for cell in cells[name]]


def _check_abstain(abstain: float | None, classes: bool) -> None:
    """Refuse a threshold that nothing, or everything, would reach."""
    if abstain is None:
        return
    if classes and not 0 <= abstain <= 1:
        raise InputError(f"--abstain {abstain:g} is not a probability: write for example --abstain 0.8.")
    if not abstain > 0 and not classes:
        raise InputError(f"--abstain {abstain:g} is not the width of an interval: write a number above 0.")


def _read_model(path: Path, study_file: Path | None) -> Model:
    """Read a model, checked against its study where that is given."""
    from consilience.agreement.agreement import read
    from consilience.study.model import read_model

    if study_file is None:
        pooled = read_model(path, None)
        warn_unsigned(pooled.agreement)
        return pooled
    study = read(study_file)
    pooled = read_model(path, study)
    active = {site.name for site in study.active}
    gone = [name for name in pooled.facts.sites if name not in active]
    if gone:
        say(f"This is an outdated model: it includes {', '.join(gone)}, no longer in the study.", "yellow")
    return pooled


def _read_rows(table: Path, columns: Sequence[Column], id_: str | None) -> Rows:
    """Read a table whose rows can be told apart by their number."""
    from consilience.agreement.columns import bad_rows, inspect

    found = inspect(table, columns, None)
    _check_blank(table, found.blank)
    bad = bad_rows(columns, found)
    if bad and len(bad) == found.rows:
        found.sound()
    sound = np.ones(found.rows, dtype=np.bool_)
    sound[list(bad)] = False
    parts = [column.features(found.cells[column.name].select(sound)) for column in columns]
    x = torch.cat(parts, 1).float()
    return Rows(x, np.flatnonzero(sound).tolist(), bad, found.rows, _ids(found.cells, id_))


def _check_blank(table: Path, blank: int | None) -> None:
    """Refuse blank lines, by which programs count rows differently."""
    if blank is not None:
        raise InputError(
            f"{table.name}, line {blank} is blank, and programs number the rows below it differently. Remove it, "
            "so that every prediction can be matched to its row."
        )


def _predict(p: Distribution, target: Target, abstain: float | None) -> Predictions:
    from consilience.predictive import Categorical

    if isinstance(p, Categorical):
        return _class_predictions(p, target, abstain)
    return _number_predictions(p, target, abstain)


def _class_predictions(p: Categorical, target: Target, smallest: float | None) -> Predictions:
    """Probabilities of all classes; abstains unless one of them reaches the smallest probability."""
    top, label = p.probs.max(-1)
    rows = [[f"{v:.6f}" for v in row] for row in p.probs.tolist()]
    decisions = [target.classes[i] for i in label.tolist()]
    return Predictions([f"p({c})" for c in target.classes], rows, decisions, (~(top >= (smallest or 0))).tolist())


def _number_predictions(p: Normal, target: Target, widest: float | None) -> Predictions:
    """Means with 95 % intervals; abstains unless an interval is at most as wide as the widest."""
    if widest is None:
        widest = math.inf
    reach = Z95 * p.total.sqrt()
    rows = [[f"{v:.6g}" for v in row] for row in zip(p.mean, p.mean - reach, p.mean + reach, strict=True)]
    mean = "mean"
    if target.unit:
        mean = f"mean ({target.unit})"
    return Predictions([mean, "low95", "high95"], rows, [row[0] for row in rows], (~(2 * reach <= widest)).tolist())


def _csv(predictions: Predictions, parts: Mapping[str, Sequence[float]], rows: Rows, id_: str | None) -> str:
    """A line for each row: its prediction, the parts of its uncertainty, the decision; empty for a bad row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["row"]
    if id_ is not None:
        names.append(id_)
    writer.writerow([*names, *predictions.head, *parts, "decision"])
    lines = dict(zip(rows.places, _lines(predictions, parts), strict=True))
    empty = [*[""] * (len(predictions.head) + len(parts)), "not predicted"]
    for place in range(rows.total):
        writer.writerow([place + 1, *map(_inert, rows.ids[place : place + 1]), *lines.get(place, empty)])
    return text.getvalue()


def _lines(predictions: Predictions, parts: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    for i, row in enumerate(predictions.rows):
        decision = predictions.decisions[i]
        if predictions.abstains[i]:
            decision = "abstain"
        uncertainty = (f"{values[i]:.6f}" for values in parts.values())
        yield [*row, *uncertainty, _inert(decision)]


def _inert(text: str) -> str:
    """A text that no spreadsheet takes for a formula: with a quote before it, which is not shown there."""
    if text.startswith(FORMULA) and number(text) is None:
        return f"'{text}"
    return text


def _summarise(predictions: Predictions, parts: Mapping[str, Sequence[float]], abstain: float | None) -> None:
    """Say how many rows there are, and which parts of their uncertainty are not known."""
    rows = f"{len(predictions.rows):,} rows"
    if abstain is not None:
        rows += f", {sum(predictions.abstains):,} left open (abstain)"
    say(f"{rows}.")
    if not parts:
        say("This model holds a single set of weights: epistemic uncertainty and disagreement are not known.")
    elif "disagreement" not in parts:
        say("The study hands out samples without the sites' names: disagreement between sites is not known.")


@app.command(short_help="Write a run's model as ONNX or torch.export.")
def export(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    to: Annotated[str, typer.Option("--to", help="onnx, or pt2 for torch.export.")] = "onnx",
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="FOLDER/model.onnx by default.")] = None,
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
    say(f"Model: {export_module(result, path)}")
    columns = ", ".join(result.sites.feature_names or ())
    if columns:
        say(f"A row holds: {columns}.")
    if result.class_names:
        say(f"It gives the probabilities of: {', '.join(result.class_names)}.")
