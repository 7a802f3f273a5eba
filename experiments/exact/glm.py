"""Rows of `glm`: the pooled logistic model on the same features after 3, 10 and 40 rounds.

    python experiments/exact/glm.py DATA [NAME…]     # what is missing joins results/glm.json; prints the table

The prior's variance is chosen on validation rows of seeds from 100 on; the rows of the table are seeds from 0 on.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import consilience as co
from consilience.data import datasets, map_sites
from consilience.distributions.prior import Isotropic
from consilience.metrics.paired import difference
from consilience.metrics.scores import scores
from consilience.models import features


class Column(NamedTuple):
    features: str
    seeds: int  # of the table's rows
    tried: int  # seeds on whose validation rows the variance is chosen
    variances: tuple[float, ...]
    overlap: float  # test rows / training rows, where seeds re-split one table


SMALL = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
LARGE = (1.0, 100.0, 10000.0)
COLUMNS = {
    "digits": Column("conv:512", 10, 3, SMALL, 0.25),
    "heart_disease": Column("identity", 10, 3, SMALL, 0.25),
    "mnist": Column("conv:1024", 10, 1, LARGE, 0.0),
    "fashion_mnist": Column("conv:1024", 10, 1, LARGE, 0.0),
    "cifar10": Column("conv:1024", 10, 1, LARGE, 0.0),
    "femnist": Column("conv:1024", 10, 1, LARGE, 0.0),
}
WRITERS = 50  # of FEMNIST
ROUNDS = (3, 10, 40)
RESULTS = Path(__file__).parent / "results" / "glm.json"


def run(
    name: str, seed: int, variance: float, rounds: tuple[int, ...], folder: str, validate: bool
) -> dict[int, dict[str, float]]:
    """Scores after each of some numbers of rounds of one run."""
    mapped = load_sites(name, seed, folder, validate)
    task = co.classification(co.models.linear(mapped.features, mapped.classes), prior=Isotropic(variance))
    method = co.methods.GLM()
    scored = mapped.all_validation if validate else mapped.all_test
    found = {}
    with tempfile.TemporaryDirectory() as out:
        for t in rounds:
            result = co.run(
                method,
                task,
                mapped,
                rounds=t,
                seed=seed,
                scored=False,
                out=out,
                resume=t > rounds[0],
                keep_replies="none",
            )
            values = scores(method.predictive(result.task, result.state)(scored.x), scored.y)
            distance = method.diagnose(result.task, result.state, scored.x)["relative_gradient"]
            found[t] = {score: values[score] for score in ("nll", "brier", "accuracy", "ece")}
            found[t]["relative_gradient"] = distance
    return found


@lru_cache(maxsize=1)  # variances share them
def load_sites(name: str, seed: int, folder: str, validate: bool) -> co.Sites:
    """Sites whose rows are features, as in table.py: filters of the seed, FEMNIST's ink light on dark."""
    rows = datasets.load(name, folder)
    count = None
    if name == "femnist":
        count = WRITERS
    sites = rows.split(rows.usual_split(), count, test=0.2, calibration=0, validation=0.2 * validate, seed=seed)
    if name == "femnist":
        sites = sites.map_x(lambda x: 1 - x)
    chosen = COLUMNS[name].features
    if chosen != "identity":
        chosen = f"{chosen}:{seed}"
    return map_sites(sites, features(chosen, sites.shape))


def try_variances(name: str, known: dict[str, float], folder: str) -> dict[str, float]:
    """Every variance's mean NLL on validation rows."""
    column = COLUMNS[name]
    seeds = range(100, 100 + column.tried)
    last = ROUNDS[-1]
    tried = dict(known)
    for v in column.variances:
        if str(v) not in tried:
            tried[str(v)] = statistics.mean(run(name, seed, v, (last,), folder, True)[last]["nll"] for seed in seeds)
    return tried


def fill(name: str, known: dict[str, Any], folder: str, seeds: int) -> dict[str, Any]:
    """A column with the seeds that it lacks below this one; all where another variance is better than theirs."""
    tried = try_variances(name, known.get("validation", {}), folder)
    best = float(min(tried, key=lambda v: tried[v]))
    rows = {str(t): [] for t in ROUNDS}
    if known.get("variance") == best:
        rows = known["rounds"]
    for seed in range(len(rows[str(ROUNDS[0])]), seeds):
        for rounds, values in run(name, seed, best, ROUNDS, folder, False).items():
            rows[str(rounds)].append(values)
    return {"variance": best, "validation": tried, "rounds": rows}


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| glm | rounds | seeds | NLL | accuracy | ECE | ‖∇U‖, relative |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, values in found.items():
        for rounds, runs in values["rounds"].items():
            means = {k: statistics.mean(r[k] for r in runs) for k in runs[0]}
            nll = f"{means['nll']:.3f}"
            if len(runs) > 2:
                spread = difference([r["nll"] for r in runs], [0.0] * len(runs), overlap=COLUMNS[name].overlap)
                nll += f" ± {(spread.high - spread.low) / 2:.3f}"
            lines.append(
                f"| {name}, {COLUMNS[name].features} | {rounds} | {len(runs)} | {nll} | "
                f"{100 * means['accuracy']:.1f} % | {means['ece']:.3f} | {means['relative_gradient']:.0e} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text())
    for count in range(1, 1 + max(column.seeds for column in COLUMNS.values())):  # a seed of each, then the next
        for asked in sys.argv[2:] or COLUMNS:
            results[asked] = fill(asked, results.get(asked, {}), sys.argv[1], min(count, COLUMNS[asked].seeds))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
