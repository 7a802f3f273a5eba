"""FedAvg of a head, ten short rounds, with its rate chosen for each data set on validation rows of other seeds.

    python experiments/exact/rates.py DATA [NAME…]     # what is missing joins results/rates.json; prints the table

Everything but the rate is as in table.py: features, split, passes, batches and start, seed by seed. Rates are tried on
a fifth of the training rows of seeds from 100 on, and by factors of √10 beyond an end of the grid that is the best.
The rows of the table are seeds from 0 on.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from consilience.benchmark.reproduce import module
from consilience.benchmark.trials import cut
from consilience.metrics.paired import difference
from consilience.metrics.scores import scores

TABLE = module("exact/table")


class Column(NamedTuple):
    features: str
    split: str
    sites: int
    seeds: int  # of the table's rows
    tried: int  # seeds on whose validation rows the rate is chosen
    overlap: float  # test rows / training rows, where seeds re-split one table


COLUMNS = {
    "digits": Column("conv:512", "dirichlet:0.1", 5, 10, 3, 0.25),
    "fashion_mnist": Column("conv:1024", "dirichlet:0.1", 10, 10, 3, 0.0),
    "mnist": Column("conv:1024", "dirichlet:0.1", 10, 10, 3, 0.0),
    "cifar10": Column("conv:1024", "dirichlet:0.1", 10, 10, 3, 0.0),
    "femnist": Column("conv:1024", "natural", 50, 10, 3, 0.0),
}
USUAL = 0.05  # table.py's
RATES = (0.005, 0.016, USUAL, 0.16, 0.5)
STEP = 10**0.5
LAST = "10 short rounds"
ROW = f"FedAvg, head, {LAST}"
RESULTS = Path(__file__).parent / "results" / "rates.json"


def run(name: str, seed: int, rate: float, folder: str, validate: bool) -> dict[str, dict[str, float | None]]:
    """Scores after one, three and ten short rounds, on validation or on test rows."""
    column = COLUMNS[name]
    part = 0.2 * validate
    sites = TABLE.split_features(name, column.features, column.split, column.sites, seed, folder, part)
    sites = sites.standardised().map_x(lambda x: TABLE.SCALE * x)
    task = TABLE.linear_task(sites)
    rows = sites.all_validation if validate else sites.all_test
    found = {}
    for result, rounds in TABLE.run_rounds(task, sites, TABLE.SIZES.get(name, TABLE.USUAL), seed, rate, 0):
        values = scores(result.method.predictive(task, result.state)(rows.x), rows.y)
        found[rounds] = {score: cut(values[score]) for score in ("nll", "brier", "accuracy", "ece")}
        found[rounds]["up_bytes"] = result.report["ledger"]["up_bytes"] / len(sites)
    return found


def try_rates(name: str, known: dict[str, float], folder: str) -> dict[str, float]:
    """Every rate's mean NLL on validation rows; the grid grows until its best is not at an end."""
    tried = dict(known)
    asked = [*RATES]
    while True:
        new = [rate for rate in asked if str(rate) not in tried]
        losses: dict[float, list[float]] = {rate: [] for rate in new}
        for seed in range(100, 100 + COLUMNS[name].tried):  # rates share a seed's features
            for rate in new:
                losses[rate].append(run(name, seed, rate, folder, True)[LAST]["nll"] or math.inf)
        tried |= {str(rate): statistics.mean(losses[rate]) for rate in new}
        rates = sorted(float(rate) for rate in tried)
        best = chosen(tried)
        if rates[0] < best < rates[-1]:
            return tried
        asked = [float(f"{best * (STEP if best == rates[-1] else 1 / STEP):.2g}")]


def chosen(tried: dict[str, float]) -> float:
    """The rate with the least NLL on validation rows."""
    return float(min(tried, key=lambda rate: tried[rate]))


def fill(name: str, known: dict[str, Any], folder: str, seeds: int) -> dict[str, Any]:
    """A column with the seeds that it lacks; all of them where another rate is better than the one they had."""
    tried = try_rates(name, known.get("validation", {}), folder)
    runs: list[dict[str, dict[str, float | None]]] = []
    if chosen(tried) == USUAL:
        runs = of_the_table(name)
    elif known.get("rate") == chosen(tried):
        runs = known["runs"]
    for seed in range(len(runs), seeds):
        runs.append(run(name, seed, chosen(tried), folder, False))
    return {"rate": chosen(tried), "validation": tried, "runs": runs}


def of_the_table(name: str) -> list[dict[str, dict[str, float | None]]]:
    """What table.py's rate gave: these runs are there already."""
    column = COLUMNS[name]
    stored = json.loads((RESULTS.parent / "table.json").read_text())
    rows = stored[f"{name}/{column.features}/{column.split}/{column.sites}"]
    shown = ("nll", "brier", "accuracy", "ece", "up_bytes")
    return [{LAST: {k: rows[str(seed)][ROW][k] for k in shown}} for seed in range(column.seeds)]


def table(found: dict[str, dict[str, Any]]) -> str:
    """A line a data set: the rate, and scores after ten short rounds."""
    lines = ["| FedAvg of a head, ten short rounds | rate | seeds | NLL | accuracy | ECE |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, values in found.items():
        runs = [run[LAST] for run in values["runs"]]
        nll = f"{statistics.mean(r['nll'] for r in runs):.3f}"
        if len(runs) > 2:
            spread = difference([r["nll"] for r in runs], [0.0] * len(runs), overlap=COLUMNS[name].overlap)
            nll += f" ± {(spread.high - spread.low) / 2:.3f}"
        accuracy, ece = (statistics.mean(r[score] for r in runs) for score in ("accuracy", "ece"))
        lines.append(f"| {name} | {values['rate']} | {len(runs)} | {nll} | {100 * accuracy:.1f} % | {ece:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for count in range(1, 1 + max(column.seeds for column in COLUMNS.values())):  # a seed of each, then the next
        for asked in sys.argv[2:] or COLUMNS:
            results[asked] = fill(asked, results.get(asked, {}), sys.argv[1], min(count, COLUMNS[asked].seeds))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
