"""The tables of README.md: python experiments/hasan2023/summary.py FOLDER, or --released FOLDER

FOLDER is the `--out` of `consilience reproduce hasan2023/accuracy`, or of `hasan2023/released`, whose cells go to
`results/released.json` first; the MSE of regression comes from `results/regression.json` and
`results/regression_released.json`. Means and standard errors over seeds; differences are paired over seeds, which deal
out one table anew: their intervals are those of Nadeau and Bengio.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.benchmark.reproduce import collect, load, module
from consilience.metrics.paired import difference

PAGE, BEGIN = Path("experiments/hasan2023/README.md"), "<!-- tables: summary.py -->"
RESULTS = Path("experiments/hasan2023/results")
ACCURACY = load("hasan2023/accuracy")
COLUMNS = ACCURACY.columns
SHARED = module("evidence/summary")
CALIBRATED = (
    "BCM",
    "BCM, tempered",
    "D BCM",
    "Mixture",
    "Mixture, tempered",
    "β",
    "D β",
    "Oneshot FL",
    "FedKT",
    "FedBE",
)
CALIBRATED += ("FedAvg", "FedAvg, 5 rounds", "Local only, mean", "Server only, all labels", "Server only, 30 labels")
CALIBRATED += ("Centralised",)
PAIRS = [("β", "Mixture"), ("β", "Mixture, tempered"), ("β", "BCM, tempered"), ("D β", "β"), ("D β", "D BCM")]
OVERLAP = 10_000 / 60_000  # test rows / training rows
PAIRS += [("β", "Oneshot FL"), ("β", "Server only, all labels"), ("D β", "FedAvg, 5 rounds")]


def cells(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(row, column) → ours, its error, the paper's; one entry a cell that has trials."""
    results_by_cell = collect("hasan2023/accuracy", ACCURACY, range(1000), "full", folder)["cells"]
    return {(c["row"], c["column"]): c for c in results_by_cell if c["ours"] is not None}


def accuracies(results_by_cell: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Ours ± its standard error (the paper's)."""
    body = []
    for row in dict.fromkeys([*(ACCURACY.paper or {}), *(row for row, _ in results_by_cell)]):
        if not row.endswith("tempered"):  # which changes no class
            body.append([row, *(format_cell(results_by_cell.get((row, column))) for column in COLUMNS)])
    return str(SHARED.lines(["accuracy, % (paper)", *headings(results_by_cell)], body))


def format_cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    error = ""
    if cell["spread"] is not None:
        error = f" ± {cell['spread']:.2f}"
    printed = ""
    if cell["paper"] is not None:
        printed = f" ({cell['paper']:.2f})"
    return f"{cell['ours']:.2f}{error}{printed}"


def distances(results_by_cell: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Ours minus the paper's in standard errors of the difference."""
    rows = [[row, *(away(results_by_cell.get((row, column))) for column in COLUMNS)] for row in ACCURACY.paper or {}]
    return str(SHARED.lines(["", *COLUMNS], rows))


def away(cell: dict[str, Any] | None) -> str:
    errors = None if cell is None else cell["away_in_standard_errors"]
    return "–" if errors is None else f"{errors:+.1f}".replace("-", "−")


def regression(name: str = "regression") -> str:
    """Table 3.2: ours ± its standard error (the paper's), and the distance in standard errors of the difference."""
    results = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
    results_by_cell = {(c["row"], c["column"]): c for c in results}
    columns = list(dict.fromkeys(column for _, column in results_by_cell))
    body = []
    for row in dict.fromkeys(row for row, _ in results_by_cell):
        cells = [results_by_cell.get((row, column)) for column in columns]
        texts = [format_cell(c if c and c["ours"] is not None else None) for c in cells]
        body.append([row, *(t if away(c) == "–" else f"{t} {away(c)}" for t, c in zip(texts, cells, strict=True))])
    return str(SHARED.lines(["MSE, summed (paper), distance", *(c.replace("_", " ") for c in columns)], body))


def headings(results_by_cell: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    return [
        f"{column} ({max((c['seeds'] for (_, k), c in results_by_cell.items() if k == column), default=0)})"
        for column in COLUMNS
    ]


def means(trials: dict[str, list[dict[str, Any]]], score: str) -> str:
    body = []
    for row in CALIBRATED:
        values = [[t[row][score] for t in trials[column] if row in t] for column in COLUMNS]
        body.append([row, *(f"{fmean(v):.3f}" if v else "–" for v in values)])
    return str(SHARED.lines([score.upper(), *COLUMNS], body))


def pairs(trials: dict[str, list[dict[str, Any]]]) -> str:
    """NLL of one row minus another's with its 95 % interval, where there are three seeds or more."""
    body = []
    for ours, theirs in PAIRS:
        line = [f"{ours} − {theirs}"]
        for column in COLUMNS:
            both = [(t[ours]["nll"], t[theirs]["nll"]) for t in trials[column] if ours in t and theirs in t]
            d = difference(*zip(*both, strict=True), overlap=OVERLAP) if len(both) > 2 else None
            line.append("–" if d is None else SHARED.interval(d))
        body.append(line)
    return str(SHARED.lines(["NLL", *COLUMNS], body))


def page(folder: Path) -> str:
    results_by_cell = cells(folder)
    trials = {column: SHARED.trials(folder, column) for column in COLUMNS}
    return f"""Mean ± standard error over seeds (their number after the column's name; some rows have fewer, see
`results/accuracy.json`), the paper's mean in brackets.

{accuracies(results_by_cell)}

The difference in standard errors (of the difference; the paper's errors are small, so a point of accuracy is many):

{distances(results_by_cell)}

NLL per point:

{means(trials, "nll")}

ECE:

{means(trials, "ece")}

NLL, paired over seeds, with 95 % intervals that allow for seeds sharing their rows (negative: the first is better):

{pairs(trials)}"""


def collect_released(folder: Path) -> dict[str, Any]:
    """The cells of the released variant; FedAvg's are those of its own scale where that has more seeds."""
    experiment = load("hasan2023/released")
    whole, alone = (
        collect("hasan2023/released", experiment, range(10), scale, folder) for scale in experiment.scales[:2]
    )
    more = {(c["row"], c["column"]): c for c in alone["cells"] if c["seeds"]}
    for i, cell in enumerate(whole["cells"]):
        other = more.get((cell["row"], cell["column"]), cell)
        if other["seeds"] > cell["seeds"]:
            whole["cells"][i] = other
    return whole


def released(results_by_cell: dict[tuple[str, str], dict[str, Any]]) -> str:
    """As released ± its standard error, the same shuffled in square brackets (the paper's), seeds × and distance."""
    shuffled = json.loads((RESULTS / "accuracy.json").read_text())["cells"]
    before = {(c["row"], c["column"]): c["ours"] for c in shuffled}
    columns = [c for c in COLUMNS if any(column == c for _, column in results_by_cell)]
    body = []
    for row in dict.fromkeys([*(ACCURACY.paper or {}), *(row for row, _ in results_by_cell)]):
        cells = [(results_by_cell.get((row, column)), before.get((row, column))) for column in columns]
        body.append([row, *(format_released(cell, old) for cell, old in cells)])
    return str(SHARED.lines(["accuracy, % as released [shuffled] (paper), seeds, distance", *columns], body))


def format_released(cell: dict[str, Any] | None, shuffled: float | None) -> str:
    """'42.63 ± 5.59 [91.20] (50.28) 4× −1.1'; one seed has no error, and so no distance."""
    if cell is None:
        return "–"
    ours, bracket, printed = format_cell(cell).partition(" (")
    parts = [ours]
    if shuffled is not None:
        parts.append(f"[{shuffled:.2f}]")
    if bracket:
        parts.append(f"({printed}")
    parts.append(f"{cell['seeds']}×")
    if cell["spread"] is not None and cell["paper"] is not None:
        parts.append(away(cell))
    return " ".join(parts)


def read_released() -> dict[tuple[str, str], dict[str, Any]]:
    """(row, column) → the stored cell of the released variant."""
    stored = json.loads((RESULTS / "released.json").read_text())["cells"]
    return {(c["row"], c["column"]): c for c in stored if c["ours"] is not None}


def write_page(folder: Path, with_released: bool) -> None:
    """Renew the tables of one variant, and those of regression."""
    text = PAGE.read_text()
    if with_released:
        (RESULTS / "released.json").write_text(json.dumps(collect_released(folder), indent=1, ensure_ascii=False))
        text = SHARED.between(text, "<!-- released: summary.py -->", released(read_released()))
    else:
        text = SHARED.between(text, BEGIN, page(folder))
    text = SHARED.between(text, "<!-- regression: summary.py -->", regression())
    PAGE.write_text(
        SHARED.between(text, "<!-- regression, released: summary.py -->", regression("regression_released"))
    )


if __name__ == "__main__":
    write_page(Path(sys.argv[-1]), "--released" in sys.argv)
