"""The command that uses a pooled model: predict."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.handed import Model_, say, written
from consilience.cli.options import app

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
    study: Annotated[Path | None, typer.Option(help="The study's file, to see whether a site has left since.")] = None,
) -> None:
    """Probabilities, or a mean and interval, with their uncertainty's parts and the sites' disagreement."""
    from consilience.data.columns import features, inspect
    from consilience.modelfile import read_model
    from consilience.predictive import Categorical
    from consilience.study import read

    found = read(study) if study else None
    pooled = read_model(model, found)
    gone = [name for name in pooled.facts.sites if found and name not in {site.name for site in found.active}]
    if gone:
        say(f"This is an old model: it holds {', '.join(gone)}, who left the study.", "yellow")
    columns = pooled.agreement.columns
    x = features(columns, inspect(table, columns, None))
    p, parts = pooled(x), pooled.uncertainty(x)
    if isinstance(p, Categorical):
        classes = pooled.agreement.target.classes
        head = [f"p({c})" for c in classes]
        rows = [[f"{v:.6f}" for v in row] for row in p.probs.tolist()]
        top, label = p.probs.max(-1)
        said = [classes[i] for i in label.tolist()]
        open_ = (top < (abstain or 0)).tolist()
    else:
        unit = f" ({pooled.agreement.target.unit})" if pooled.agreement.target.unit else ""
        reach = Z95 * p.total.sqrt()
        head = [f"mean{unit}", "low95", "high95"]
        rows = [[f"{v:.6g}" for v in row] for row in zip(p.mean, p.mean - reach, p.mean + reach, strict=True)]
        said = [row[0] for row in rows]
        open_ = (2 * reach > (abstain if abstain is not None else float("inf"))).tolist()
    names = ["aleatoric", "epistemic", "disagreement"] if parts else []
    extra = [[f"{v:.6f}" for v in row] for row in zip(*(t.tolist() for t in parts), strict=True)] if parts else rows
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *head, *names, "decision"])
    for i, (row, u, what, unsure) in enumerate(zip(rows, extra, said, open_, strict=True), 1):
        writer.writerow([i, *row, *(u if parts else ()), "abstain" if unsure else what])
    written(out_ or table.with_name(f"{table.stem}.predictions.csv"), text.getvalue(), "Predictions")
    say(f"{len(rows):,} rows" + (f", {sum(open_):,} left open (abstain)." if abstain is not None else "."))
    if not parts:
        say("One set of weights is all this model holds: no epistemic part, no disagreement.")
