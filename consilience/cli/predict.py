"""The command that uses a pooled model: predict."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from consilience.cli.handed import Model_, say, warn_unsigned, write_files
from consilience.cli.options import app
from consilience.data.cells import number
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.agreement.columns import Column, Inspection, Target
    from consilience.predictive import Categorical, Distribution, Normal
    from consilience.study.model import Model

Z95 = 1.959964
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula of a spreadsheet may begin with


class Predictions(NamedTuple):
    """What a table of predictions says of each row, beside the parts of its uncertainty."""

    head: list[str]
    rows: list[list[str]]
    decisions: list[str]  # the most probable class, or the mean
    abstains: list[bool]  # whether the decision is left open


@app.command(short_help="Predict for a table, with uncertainty.")
def predict(
    model: Model_,
    table: Annotated[Path, typer.Argument(help="Rows to predict: a CSV file in UTF-8 with the study's columns.")],
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="TABLE.predictions.csv by default.")] = None,
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
    """Write probabilities, or means and intervals, with the parts of their uncertainty."""
    from consilience.agreement.columns import features
    from consilience.predictive import check_finite

    pooled = _read_model(model, study)
    _check_abstain(abstain, bool(pooled.agreement.target.classes))
    columns = pooled.agreement.columns
    x = features(columns, _read_rows(table, columns))
    parts = {name: values.tolist() for name, values in pooled.uncertainty(x).items()}
    predicted = pooled(x)
    check_finite(predicted)
    predictions = _predict(predicted, pooled.agreement.target, abstain)
    path = out_ or table.with_name(f"{table.stem}.predictions.csv")
    write_files(path, _csv(predictions, parts), "Predictions")
    _summarise(predictions, parts, abstain)


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


def _read_rows(table: Path, columns: Sequence[Column]) -> Inspection:
    """Read a table whose rows can be told apart by their number."""
    from consilience.agreement.columns import inspect

    rows = inspect(table, columns, None)
    if rows.blank is not None:
        raise InputError(
            f"{table.name}, line {rows.blank} is blank, and programs number the rows below it differently. Remove it, "
            "so that every prediction can be matched to its row."
        )
    return rows


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


def _csv(predictions: Predictions, parts: Mapping[str, Sequence[float]]) -> str:
    """A line for each row: its prediction, the parts of its uncertainty, the decision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *predictions.head, *parts, "decision"])
    for i, row in enumerate(predictions.rows):
        decision = predictions.decisions[i]
        if predictions.abstains[i]:
            decision = "abstain"
        uncertainty = (f"{values[i]:.6f}" for values in parts.values())
        writer.writerow([i + 1, *row, *uncertainty, _inert(decision)])
    return text.getvalue()


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
