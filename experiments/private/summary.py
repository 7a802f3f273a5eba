"""Write results/table.json and the tables of README.md: python experiments/private/summary.py [FOLDER]

FOLDER is where table.py kept its trials, which join the stored ones; without one the tables are written from
results/table.json as it is. Rows of DP-SGD are those of results/dpsgd.json, which dpsgd.py writes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from consilience.benchmark.trials import (
    Cell,
    Trials,
    collect_trials,
    markdown_table,
    mean_with_interval,
    replace_between,
)

HERE = Path(__file__).parent
RESULTS, DPSGD, PAGE = HERE / "results" / "table.json", HERE / "results" / "dpsgd.json", HERE / "README.md"
BEGIN, END = "<!-- tables: summary.py -->", "<!-- end of the tables -->"
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
TITLES |= {"heart_disease": "heart disease"}
PLACES = {"once, 10": "once", "site, 5": "5 sites, each", "site, 10": "10 sites, each", "site, 50": "50 sites, each"}
EPSILONS = ("0.3", "1", "3", "8")
SCORES = ("accuracy", "nll", "ece")
RIVALS = {  # columns of dpsgd.py with the δ of table.py, among which validation rows choose, and what their sites are
    "mnist": (("mnist, conv:128", "mnist, conv:512"), "5 sites, each"),
    "fashion_mnist": (("fashion_mnist, conv:128", "fashion_mnist, conv:512"), "5 sites, each"),
    "digits": (("digits, conv:128, δ = 1e-4", "digits, conv:512, δ = 1e-4"), "5 sites, each"),
    "heart_disease": (("heart_disease, δ = 1e-4",), "4 hospitals, each"),
}
RESPLIT = {"digits": 0.25, "heart_disease": 0.25}  # test rows / training rows, where seeds re-split one table
ROWS = {"mnist": 60_000, "fashion_mnist": 60_000, "digits": 1_437}  # n, of the image sets with two widths
HELD_OUT = {"cifar10": 50_000}
WIDTHS = ((3_000, 64), (100_000, 128), (math.inf, 512))  # up to which n·ε/√sites, and D
Rivals = dict[str, dict[str, Any]]  # column → ε → what was tried, chosen and found, as dpsgd.py writes it


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
    values = [mean(trials, column, row, score) for score in SCORES]
    return write(values, map_.partition("/")[0].partition(":")[2])


def write(values: list[float | None], width: str) -> str:
    """Accuracy, NLL and ECE, and how many features there are."""
    if None in values:
        return "–"
    accuracy, nll, ece = values
    text = f"{accuracy:.1%}; {nll:.3f}; {ece:.3f}"
    if width:
        text += f" ({width})"
    return text


def rival_runs(rivals: Rivals, data: str, epsilon: str) -> tuple[Cell, str]:
    """DP-SGD's runs by seed, of the features with the lowest NLL on validation rows, and how many features."""
    found = []
    for column in RIVALS[data][0]:
        cell = rivals.get(column, {}).get(str(float(epsilon)), {})
        if cell.get("seeds"):
            width = column.partition("conv:")[2].partition(",")[0]
            found.append((cell["validation"][json.dumps(cell["chosen"])], cell["seeds"], width))
    if not found:
        return {}, ""
    _, runs, width = min(found, key=lambda each: each[0])
    return runs, width


def rival_rows(rivals: Rivals, data: str) -> list[list[str]]:
    """FedAvg by DP-SGD at the same ε and δ, where it was run, and without noise."""
    if data not in RIVALS:
        return []
    cells = []
    for epsilon in (*EPSILONS, "inf"):
        runs, width = rival_runs(rivals, data, epsilon)
        text = "–"
        if runs:
            text = write([fmean(run[score] or 0.0 for run in runs.values()) for score in SCORES], width)
        cells.append(text)
    *private, free = cells
    if set(cells) == {"–"}:
        return []
    return [
        [f"FedAvg by DP-SGD, noise {RIVALS[data][1]}", *private],
        ["the same, no noise (ε = ∞)", free, free, free, free],
    ]


def table(trials: Trials, rivals: Rivals, data: str) -> str:
    body = []
    for method in ("exact", "tuned"):
        for place, title in PLACES.items():
            cells = [cell(trials, data, f"{method}, ε = {epsilon}, {place}") for epsilon in EPSILONS]
            body.append([f"{method}, noise {title}", *cells])
    free = cell(trials, data, "no noise")
    body.append(["exact on the same features, no noise (ε = ∞)", free, free, free, free])
    body += rival_rows(rivals, data)
    return markdown_table(["accuracy; NLL; ECE (D)", *(f"ε = {epsilon}" for epsilon in EPSILONS)], body)


def beside(trials: Trials, rivals: Rivals) -> str:
    """One or two messages beside DP-SGD with all of the noise at each site: NLL with its interval over seeds."""
    body = []
    for data, (_, sites) in RIVALS.items():
        overlap = RESPLIT.get(data, 0.0)
        own = []
        for method in ("exact", "tuned"):
            cells = []
            for epsilon in EPSILONS:
                row = f"{method}, ε = {epsilon}, site, 5"
                seeds = trials[f"{data}/{chosen_map(trials, data, row)}/test"]
                known = {seed: rows[row] for seed, rows in seeds.items()}
                cells.append(mean_with_interval(known, "nll", overlap, ".3f"))
            own.append([f"{TITLES[data]}: {method}, 5 sites, each ({len(known)} seeds)", *cells])
        found = [rival_runs(rivals, data, epsilon)[0] for epsilon in EPSILONS]
        if any(found):
            runs = max(len(seeds) for seeds in found)
            cells = [mean_with_interval(seeds, "nll", overlap, ".3f") for seeds in found]
            body += [*own, [f"{TITLES[data]}: DP-SGD, {sites} ({runs} seeds)", *cells]]
    return markdown_table(["NLL", *(f"ε = {epsilon}" for epsilon in EPSILONS)], body)


def width_by_rule(trials: Trials, data_rows: dict[str, int]) -> str:
    """What it costs to take D by n, ε and the number of sites, which are no secret, and not by validation rows."""
    agree, regrets = 0, []
    for data, rows in data_rows.items():
        widths = sorted(int(column.split(":")[1].split("/")[0]) for column in trials if is_test(column, data))
        for method in ("exact", "tuned"):
            for place in PLACES:
                for epsilon in EPSILONS:
                    noises = 1
                    if place.startswith("site"):
                        noises = int(place.split(", ")[1])
                    amount = rows * float(epsilon) / math.sqrt(noises)
                    wanted = next(width for limit, width in WIDTHS if amount < limit)
                    taken = min(widths, key=lambda width: abs(math.log(width / wanted)))
                    row = f"{method}, ε = {epsilon}, {place}"
                    chosen = chosen_map(trials, data, row)
                    own = f"conv:{taken}/{chosen.partition('/')[2]}"
                    agree += own == chosen
                    scores = [mean(trials, f"{data}/{m}/test", row, "nll") or 0.0 for m in (own, chosen)]
                    regrets.append(scores[0] - scores[1])
    return (
        f"the rule takes what validation rows chose in {agree} of {len(regrets)} cells; NLL on test rows is "
        f"{fmean(regrets):.3f} higher on average, {max(regrets):.3f} where it is worst."
    )


def is_test(column: str, data: str) -> bool:
    return column.startswith(f"{data}/") and column.endswith("/test")


def page(trials: Trials, rivals: Rivals) -> str:
    """Everything between the marks of README.md."""
    parts = []
    for data, title in TITLES.items():
        columns = [column for column in trials if column.startswith(f"{data}/") and column.endswith("/test")]
        if columns:
            seeds = min(len(trials[column]) for column in columns)
            bound = columns[0].split("/")[2]
            parts += [f"### {title}, {seeds} seed{'s' * (seeds > 1)}, bound: {bound}", table(trials, rivals, data)]
    parts += ["### D by a rule", f"Where its limits were chosen, {width_by_rule(trials, ROWS)}"]
    parts += [f"On CIFAR-10, which had no part in that, {width_by_rule(trials, HELD_OUT)}"]
    parts += ["### Beside DP-SGD, at equal ε, δ and place of the noise", beside(trials, rivals)]
    return "\n\n".join(parts)


def main(words: list[str]) -> None:
    if words:
        trials = collect_trials("private/table", Path(words[0]), RESULTS)
        RESULTS.write_text(json.dumps(trials, ensure_ascii=False, separators=(",", ":")) + "\n")
    stored: Any = json.loads(RESULTS.read_text())
    replace_between(PAGE, BEGIN, page(stored, json.loads(DPSGD.read_text())), END)


if __name__ == "__main__":
    main(sys.argv[1:])
