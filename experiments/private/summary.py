"""Write results/table.json and the tables of README.md: python experiments/private/summary.py [FOLDER]

FOLDER is where table.py kept its trials; without one the tables are written from results/table.json as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.comparison.reproduce import load

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "table.json", HERE / "README.md"
BEGIN, END = "<!-- tables: summary.py -->", "<!-- end of the tables -->"
Trials = dict[str, dict[str, dict[str, dict[str, float | None]]]]  # column → seed → row → score → value
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
TITLES |= {"heart_disease": "heart disease"}
PLACES = {"once, 10": "once", "site, 5": "5 sites, each", "site, 10": "10 sites, each", "site, 50": "50 sites, each"}
EPSILONS = ("0.3", "1", "3", "8")


def collect(folder: Path) -> Trials:
    """All trials that have ended, numbers cut to seven digits."""
    trials: Trials = {}
    for column in load("private/table").columns:
        place = folder / "trials" / "full" / column.replace(":", "-").replace("/", "-")
        for file in sorted(place.glob("seed-*.json"), key=lambda f: int(f.stem.removeprefix("seed-"))):
            values = json.loads(file.read_text())["values"]
            trials.setdefault(column, {})[file.stem.removeprefix("seed-")] = {
                row: {score: None if v is None else float(f"{v:.7g}") for score, v in cells.items()}
                for row, cells in values.items()
            }
    return trials


def mean(trials: Trials, column: str, row: str, score: str) -> float | None:
    known = [v for rows in trials.get(column, {}).values() if (v := rows.get(row, {}).get(score)) is not None]
    if not known:
        return None
    return fmean(known)


def chosen_map(trials: Trials, data: str, row: str) -> str:
    """The map, with the bound that was run on test rows, of the lowest NLL on validation rows of other seeds."""
    tested = [column for column in trials if column.startswith(f"{data}/") and column.endswith("/test")]
    maps = sorted(column.removeprefix(f"{data}/").removesuffix("/test") for column in tested)
    return min(maps, key=lambda m: mean(trials, f"{data}/{m}/validation", row, "nll") or 0.0)


def cell(trials: Trials, data: str, row: str) -> str:
    map_ = chosen_map(trials, data, row)
    column = f"{data}/{map_}/test"
    values = [mean(trials, column, row, score) for score in ("accuracy", "nll", "ece")]
    if None in values:
        return "–"
    accuracy, nll, ece = values
    width = map_.partition("/")[0].partition(":")[2]
    return f"{accuracy:.1%}; {nll:.3f}; {ece:.3f}" + (f" ({width})" if width else "")


def lines(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *body))


def table(trials: Trials, data: str) -> str:
    body = []
    for method in ("exact", "tuned"):
        for place, title in PLACES.items():
            cells = [cell(trials, data, f"{method}, ε = {epsilon}, {place}") for epsilon in EPSILONS]
            body.append([f"{method}, noise {title}", *cells])
    free = cell(trials, data, "no noise")
    body.append(["exact on the same features, no noise (ε = ∞)", free, free, free, free])
    return lines(["accuracy; NLL; ECE (D)", *(f"ε = {epsilon}" for epsilon in EPSILONS)], body)


def page(trials: Trials) -> str:
    """Everything between the marks of README.md."""
    parts = []
    for data, title in TITLES.items():
        columns = [column for column in trials if column.startswith(f"{data}/") and column.endswith("/test")]
        if columns:
            seeds = min(len(trials[column]) for column in columns)
            bound = columns[0].split("/")[2]
            parts += [f"### {title}, {seeds} seed{'s' * (seeds > 1)}, bound: {bound}", table(trials, data)]
    return "\n\n".join(parts)


def main(words: list[str]) -> None:
    if words:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(collect(Path(words[0])), ensure_ascii=False, separators=(",", ":")) + "\n")
    trials: Any = json.loads(RESULTS.read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(trials)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
