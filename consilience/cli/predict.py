"""The command that uses a pooled model: predict."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from consilience.cli.handed import Model_, say, warn_unsigned, write_files
from consilience.cli.options import app
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.predictive import Categorical, Normal
    from consilience.study.columns import Target

Z95 = 1.959964


@app.command(short_help="Predictions and their uncertainty for a table.")
def predict(
    model: Model_,
    table: Annotated[Path, typer.Argument(help="Rows to predict: CSV UTF-8 with the study's columns.")],
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="TABLE.predictions.csv by default.")] = None,
    abstain: Annotated[
        float | None,
        typer.Option(help="Leave open what is less probable than this; for numbers, what has a wider 95 % interval."),
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="The study's file, to see that the model is its own and who has left since.")
    ] = None,
) -> None:
    """Probabilities, or a mean and interval, with their uncertainty's parts and the sites' disagreement."""
    from consilience.predictive import Categorical
    from consilience.study.agreement import read
    from consilience.study.columns import features, inspect
    from consilience.study.model import read_model

    found = read(study) if study else None
    pooled = read_model(model, found)
    if found is None:
        warn_unsigned(pooled.agreement)
    gone = [name for name in pooled.facts.sites if found and name not in {site.name for site in found.active}]
    if gone:
        say(f"This is an old model: it holds {', '.join(gone)}, who left the study.", "yellow")
    columns, target = pooled.agreement.columns, pooled.agreement.target
    given = inspect(table, columns, None)
    if given.blank is not None:
        raise InputError(
            f"{table.name}, line {given.blank} is blank, and programmes number the rows below it differently: "
            "remove it, so that every prediction can be told its row."
        )
    x = features(columns, given)
    p, parts = pooled(x), pooled.uncertainty(x)
    told = classes_told(p, target, abstain) if isinstance(p, Categorical) else numbers_told(p, target, abstain)
    uncertain = [[f"{v:.6f}" for v in row] for row in zip(*(t.tolist() for t in parts.values()), strict=True)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *told.head, *parts, "decision"])
    for i, (row, said, unsure) in enumerate(zip(told.rows, told.said, told.unsure, strict=True)):
        writer.writerow([i + 1, *row, *(uncertain[i] if uncertain else ()), "abstain" if unsure else said])
    write_files(out_ or table.with_name(f"{table.stem}.predictions.csv"), text.getvalue(), "Predictions")
    say(f"{len(told.rows):,} rows" + (f", {sum(told.unsure):,} left open (abstain)." if abstain is not None else "."))
    if not parts:
        say("One set of weights is all this model holds: no epistemic part, no disagreement.")
    elif "disagreement" not in parts:
        say("The study hands out samples without names: what of the epistemic part lies between sites is not known.")


class Told(NamedTuple):
    """What a table of predictions says of each row, beside the parts of its uncertainty."""

    head: list[str]
    rows: list[list[str]]
    said: list[str]  # the most probable class, or the mean
    unsure: list[bool]  # whether the decision is left open


def classes_told(p: Categorical, target: Target, least: float | None) -> Told:
    top, label = p.probs.max(-1)
    rows = [[f"{v:.6f}" for v in row] for row in p.probs.tolist()]
    said = [target.classes[i] for i in label.tolist()]
    return Told([f"p({c})" for c in target.classes], rows, said, (top < (least or 0)).tolist())


def numbers_told(p: Normal, target: Target, widest: float | None) -> Told:
    reach = Z95 * p.total.sqrt()
    rows = [[f"{v:.6g}" for v in row] for row in zip(p.mean, p.mean - reach, p.mean + reach, strict=True)]
    head = [f"mean ({target.unit})" if target.unit else "mean", "low95", "high95"]
    unsure = (2 * reach > (widest if widest is not None else float("inf"))).tolist()
    return Told(head, rows, [row[0] for row in rows], unsure)
