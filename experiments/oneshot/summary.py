"""Write results/*.json and the tables of docs/one-shot.md: python experiments/oneshot/summary.py [TABLE [PARTS]]

TABLE and PARTS are where table.py and parts.py kept their trials, which join the stored ones; without them the tables
are written from the stored trials as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

from consilience.comparison.trials import (
    Cell,
    Trials,
    collect_trials,
    markdown_table,
    mean_with_interval,
    paired_difference,
    replace_between,
)

HERE = Path(__file__).parent
TABLE, PARTS, PAGE = HERE / "results/table.json", HERE / "results/parts.json", HERE.parents[1] / "docs/one-shot.md"
BEGIN, END = "<!-- tables: experiments/oneshot/summary.py -->", "<!-- end of the tables -->"
RESPLIT = {"digits": 0.25}  # test rows / training rows, where seeds re-split one table
REFERENCE = "evidence"
NETWORKS_APART = (
    "exact",
    "exact_tuned",
    "exact, as AFL",
    "exact, as FedCGS",
)  # a linear layer on fixed random features; all others train the same network
BOUNDS = ("centralised", "server_only")
TITLES = {
    "digits/dirichlet:0.1/5": "Digits, Dirichlet(0.1), five sites",
    "digits/dirichlet:0.5/5": "Digits, Dirichlet(0.5), five sites",
    "digits/iid/5": "Digits, split at random, five sites",
    "mnist/dirichlet:0.1/10": "MNIST, Dirichlet(0.1), ten sites",
    "fashion_mnist/dirichlet:0.1/10": "Fashion-MNIST, Dirichlet(0.1), ten sites",
    "femnist/natural/50": "FEMNIST, fifty writers",
}
SCORES = {"NLL": ("nll", ".3f"), "Brier": ("brier", ".3f"), "accuracy": ("accuracy", ".1%"), "ECE": ("ece", ".3f")}
SCORES |= {"NLL tempered": ("nll_tempered", ".3f"), "worst site's NLL": ("worst_nll", ".2f")}


def row_values(trials: Trials, column: str, row: str) -> Cell:
    """A row's scores by seed."""
    return {seed: rows[row] for seed, rows in trials[column].items() if row in rows}


def mean(values: Cell, score: str) -> float:
    return fmean(scores[score] or 0.0 for scores in values.values())


def name_of(row: str) -> str:
    if row in NETWORKS_APART:
        return f"{row} *"
    if row in BOUNDS:
        return f"bound: {row}"
    return row


def needs_of(values: Cell) -> str:
    """What the server must have."""
    first = next(iter(values.values()))
    if first["labels"]:
        return "labels"
    if first["inputs"]:
        return "inputs"
    return "–"


def size_of(values: Cell) -> str:
    return f"{mean(values, 'up_bytes') / 1e3:,.0f}".replace(",", " ")


def column_table(trials: Trials, column: str) -> str:
    """A line for every row, lowest NLL first, bounds last."""
    overlap = RESPLIT.get(column.partition("/")[0], 0.0)
    rows = {row for seeds in trials[column].values() for row in seeds}
    cells = {row: row_values(trials, column, row) for row in rows}
    reference = cells[REFERENCE]
    body = []
    for row in sorted(rows, key=lambda row: (row in BOUNDS, mean(cells[row], "nll"))):
        values = cells[row]
        numbers = [mean_with_interval(values, score, overlap, form) for score, form in SCORES.values()]
        against = paired_difference(values, reference, overlap)
        seconds = f"{mean(values, 'seconds'):.1f}"
        body.append([name_of(row), *numbers, against, size_of(values), seconds, needs_of(values)])
    heading = ["row", *SCORES, "NLL less evidence's", "a site sends, kB", "core seconds", "server needs"]
    return markdown_table(heading, body)


def parts_table(trials: Trials) -> str:
    """Validation and test NLL of each variant of evidence pooling, by column."""
    body = []
    for column, seeds in trials.items():
        rows = dict.fromkeys(row for by_row in seeds.values() for row in by_row)
        overlap = RESPLIT.get(column.partition("/")[0], 0.0)
        reference = row_values(trials, column, "one point")
        for row in rows:
            values = row_values(trials, column, row)
            chosen = mean_with_interval(values, "nll_validation", overlap, ".3f")
            tested = mean_with_interval(values, "nll", overlap, ".3f")
            against = paired_difference(values, reference, overlap)
            body.append([f"{column}: {row}", chosen, tested, against])
    return markdown_table(["evidence pooling of …", "validation NLL", "test NLL", "less one point's"], body)


def page(table: Trials, parts: Trials) -> str:
    """Everything between the marks of the page."""
    sections = []
    for column, title in TITLES.items():
        if column in table:
            seeds = len(table[column])
            sections += [f"### {title}: {seeds} seed{'s' * (seeds > 1)}", column_table(table, column)]
    if parts:
        sections += ["### Evidence pooling of other parts", parts_table(parts)]
    return "\n\n".join(sections)


def main(words: list[str]) -> None:
    for word, experiment, results in zip(words, ("oneshot/table", "oneshot/parts"), (TABLE, PARTS), strict=False):
        trials = collect_trials(experiment, Path(word), results)
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(trials, ensure_ascii=False, separators=(",", ":")) + "\n")
    stored = [json.loads(results.read_text()) for results in (TABLE, PARTS) if results.exists()]
    replace_between(PAGE, BEGIN, page(stored[0], stored[1] if len(stored) > 1 else {}), END)


if __name__ == "__main__":
    main(sys.argv[1:])
