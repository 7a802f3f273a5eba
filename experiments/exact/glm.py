"""Rows of `glm`: the pooled logistic model on the same features after 3, 10 and 40 rounds.

    python experiments/exact/glm.py DATA      # writes results/glm.json and prints its table

The prior's variance is chosen on validation rows of seeds 100 to 102; the rows of the table are seeds 0 to 9.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path

import consilience as co
from consilience import datasets
from consilience.data import map_sites
from consilience.metrics.paired import difference
from consilience.metrics.scores import scores
from consilience.models import features
from consilience.prior import Isotropic

COLUMNS = {"digits": "conv:512", "heart_disease": "identity"}
ROUNDS = (3, 10, 40)
VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0)
RESULTS = Path(__file__).parent / "results" / "glm.json"


def run(name: str, seed: int, variance: float, rounds: int, folder: str, validate: bool) -> dict[str, float]:
    rows = datasets.load(name, folder)
    sites = rows.split(rows.usual_split(), test=0.2, validation=0.2 * validate, seed=seed)
    mapped = map_sites(sites, features(COLUMNS[name], sites.shape))
    task = co.classification(co.models.linear(mapped.features, mapped.classes), prior=Isotropic(variance))
    method = co.GLM()
    result = co.run(method, task, mapped, rounds=rounds, seed=seed, scored=False)
    scored = mapped.all_validation if validate else mapped.all_test
    found = scores(method.predictive(result.task, result.state)(scored.x), scored.y)
    distance = method.diagnose(result.task, result.state, scored.x)["relative_gradient"]
    return {**{score: found[score] for score in ("nll", "brier", "accuracy", "ece")}, "relative_gradient": distance}


def column(name: str, folder: str) -> dict[str, object]:
    tried = {
        v: statistics.mean(run(name, seed, v, ROUNDS[-1], folder, True)["nll"] for seed in range(100, 103))
        for v in VARIANCES
    }
    best = min(tried, key=lambda v: tried[v])
    rows = {str(t): [run(name, seed, best, t, folder, False) for seed in range(10)] for t in ROUNDS}
    return {"variance": best, "validation": {str(v): nll for v, nll in tried.items()}, "rounds": rows}


def table(found: dict[str, dict[str, object]]) -> str:
    lines = ["| glm | rounds | NLL | accuracy | ECE | ‖∇U‖, relative |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, values in found.items():
        for rounds, runs in values["rounds"].items():  # type: ignore[attr-defined]
            zero = [0.0] * len(runs)
            spread = difference([r["nll"] for r in runs], zero, overlap=0.25)
            means = {k: statistics.mean(r[k] for r in runs) for k in runs[0]}
            half = (spread.high - spread.low) / 2
            lines.append(
                f"| {name}, {COLUMNS[name]} | {rounds} | {means['nll']:.3f} ± {half:.3f} | "
                f"{100 * means['accuracy']:.1f} % | {means['ece']:.3f} | {means['relative_gradient']:.0e} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    results = {name: column(name, sys.argv[1]) for name in COLUMNS}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
