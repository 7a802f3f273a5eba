"""Write results/*.json and the tables of docs/one-shot.md: python experiments/oneshot/summary.py [FOLDER …]

Folders are where the experiments kept their trials: that of table.py, parts.py, and `consilience reproduce` with
oneshot/published at scale short, oneshot/fusefl, and oneshot/published at scales evidence and full, in this order; "-"
in place of one leaves what is stored of it. Their trials join the stored ones; without folders the tables are written
from the stored trials as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

from consilience.benchmark.reproduce import module
from consilience.benchmark.trials import (
    Cell,
    Trials,
    collect_trials,
    markdown_table,
    mean_with_interval,
    paired_difference,
    replace_between,
)

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/one-shot.md"
STORED = {  # an experiment and the scale that was run: where its trials are stored
    ("oneshot/table", "full"): HERE / "results/table.json",
    ("oneshot/parts", "full"): HERE / "results/parts.json",
    ("oneshot/published", "short"): HERE / "results/published.json",
    ("oneshot/fusefl", "small"): HERE / "results/fusefl.json",
    ("oneshot/published", "evidence"): HERE / "results/published-evidence.json",
    ("oneshot/published", "full"): HERE / "results/published-full.json",
}
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
PRINTED_SCORES = (("accuracy", ".1%"), ("nll", ".3f"), ("ece", ".3f"))
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


def printed_table(trials: Trials, printed: dict[str, dict[str, str]], last: str = "printed, of another setting") -> str:
    """Accuracy and NLL of ours, and what is printed, by column."""
    body = []
    for column, seeds in trials.items():
        rows = dict.fromkeys(row for by_row in seeds.values() for row in by_row)
        for row in rows:
            values = row_values(trials, column, row)
            ours = [mean_with_interval(values, score, 0.0, form) for score, form in PRINTED_SCORES]
            body.append([column, row, *ours, str(len(values)), printed[column].get(row, "–")])
        for row in [row for row in printed[column] if row not in rows]:
            body.append([column, row, *["–" for _ in PRINTED_SCORES], "", printed[column][row]])
    heading = ["column", "row", "accuracy", "NLL", "ECE", "seeds", last]
    return markdown_table(heading, body)


def printed_by_column(experiment: str, names: dict[str, str]) -> dict[str, dict[str, str]]:
    """What a paper prints: column → our name of the row → accuracy."""
    paper = module(experiment)
    strengths = getattr(paper, "BETAS", None) or paper.ALPHAS
    cells: dict[str, dict[str, str]] = {}
    for row, by_data in paper.PRINTED.items():
        for data, values in by_data.items():
            for strength, value in zip(strengths, values, strict=True):
                cells.setdefault(f"{data}/{strength}", {})[names.get(row, row)] = f"{value:.1%}"
    return cells


def page(table: Trials, parts: Trials, published: Trials, fusefl: Trials, evidence: Trials, whole: Trials) -> str:
    """Everything between the marks of the page."""
    sections = []
    for column, title in TITLES.items():
        if column in table:
            sections += [f"### {title}: {seed_count(table[column])}", column_table(table, column)]
    if parts:
        sections += ["### Evidence pooling of other parts", parts_table(parts)]
    if published:
        printed = printed_by_column("oneshot/published", {})
        title = "### FedLPA's setting with 20 passes in place of 200"
        sections += [title, printed_table(join_rows(published, evidence), printed)]
    if whole:
        printed = printed_by_column("oneshot/published", {})
        sections += ["### FedLPA's setting, 200 passes", printed_table(whole, printed, "printed")]
    if fusefl:
        printed = printed_by_column("oneshot/fusefl", {"ensemble": "ensemble, logits"})
        title = "### FuseFL's setting with a five-layer CNN and 10 passes in place of ResNet-18 and 200"
        sections += [title, printed_table(fusefl, printed)]
    return "\n\n".join(sections)


def join_rows(trials: Trials, more: Trials) -> Trials:
    """Trials with further rows, and further seeds of their columns."""
    joined: Trials = {}
    for column, seeds in trials.items():
        others = more.get(column, {})
        joined[column] = {seed: {**seeds.get(seed, {}), **others.get(seed, {})} for seed in sorted({*seeds, *others})}
    return joined


def seed_count(seeds: dict[str, Cell]) -> str:
    if len(seeds) == 1:
        return "1 seed"
    return f"{len(seeds)} seeds"


def stored_trials() -> list[Trials]:
    """What is stored of every experiment; nothing where nothing is."""
    known: list[Trials] = []
    for file in STORED.values():
        trials: Trials = {}
        if file.exists():
            trials = json.loads(file.read_text())
        known.append(trials)
    return known


def main(folders: list[str]) -> None:
    for folder, ((experiment, scale), file) in zip(folders, STORED.items(), strict=False):
        if folder == "-":
            continue
        trials = collect_trials(experiment, Path(folder), file, scale)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(trials, ensure_ascii=False, separators=(",", ":")) + "\n")
    replace_between(PAGE, BEGIN, page(*stored_trials()), END)


if __name__ == "__main__":
    main(sys.argv[1:])
