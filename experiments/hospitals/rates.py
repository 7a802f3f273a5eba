"""FedAvg of the linear model on four hospitals, its rate chosen on validation rows of other seeds.

    python experiments/hospitals/rates.py --data work --repeats 8     (goes on where it stopped; prints its table)

Folds, training rows, rounds and passes are those of partial.py. Rates are tried on the eighth of the training rows that
only chooses, in every fold of seeds 100 to 102, and by factors of √10 beyond an end of the grid that is the best.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from partial import ONE, PLACES
from summary import interval, losses, markdown_table
from table import CHOOSE, FOLDS, HERE, HOSPITALS, cut, folds, hospital, set_aside
from torch import Tensor

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.key import Key
from consilience.metrics.paired import difference as paired

ROUNDS, EPOCHS, USUAL = 10, 5, 0.05
RATES, STEP = (0.005, 0.016, USUAL, 0.16, 0.5), 10**0.5
TRIED = (100, 101, 102)
RESULTS = HERE / "results" / "rates.json"


def run(method: co.Method, rounds: int, train: list[Data], seed: int) -> co.Result:
    """A method on the four hospitals' training rows."""
    names = tuple(map(str, range(len(train))))
    sites = Sites(tuple(train), tuple(train), None, None, None, 2, train[0].x.shape[1], "heart", "natural", names)
    task = co.classification(co.models.linear(sites.features, 2))
    return co.run(method, task, sites, rounds=rounds, seed=seed, scored=False, engine=co.Compute(threads=1))


def fedavg(rate: float) -> co.Method:
    method: co.Method = co.methods.FedAvg(co.SGD(epochs=EPOCHS, rate=rate))
    return method


def splits(data: list[Data], seed: int, f: int) -> tuple[list[tuple[Data, Data]], list[Tensor]]:
    """Of every hospital the rows to train on and to choose by; and which of its rows are the fold's."""
    key = Key(seed)
    held = [folds(d, k, key.fold(k)) == f for k, d in enumerate(data)]
    pairs = zip(data, held, strict=True)
    return [set_aside(cut(d, ~h), key.fold(10 + f).fold(k)) for k, (d, h) in enumerate(pairs)], held


def validation(data: list[Data], rate: float) -> float:
    """The mean NLL of the rows that only choose, over all folds of the seeds that no table has."""
    found = []
    for seed in TRIED:
        for f in range(FOLDS):
            both, _ = splits(data, seed, f)
            model = run(fedavg(rate), ROUNDS, [own[0] for own in both], seed * FOLDS + f).model()
            x, y = (torch.cat([own[1][leaf] for own in both]) for leaf in (0, 1))
            found.append(float(losses(model(x)[0].exp()[:, 1], y)["nll"].mean()))
    return fmean(found)


def try_rates(data: list[Data], known: dict[str, float]) -> dict[str, float]:
    """Every rate's NLL on validation rows; the grid grows until its best is not at an end."""
    tried, asked = dict(known), [*RATES]
    while True:
        tried |= {str(rate): validation(data, rate) for rate in asked if str(rate) not in tried}
        rates = sorted(map(float, tried))
        best = chosen(tried)
        if rates[0] < best < rates[-1]:
            return tried
        asked = [float(f"{best * (STEP if best == rates[-1] else 1 / STEP):.2g}")]


def chosen(tried: dict[str, float]) -> float:
    return float(min(tried, key=lambda rate: tried[rate]))


def out_of_fold(data: list[Data], seed: int, rate: float) -> dict[str, dict[str, list[float]]]:
    """NLL of patients under models that never saw them: row → hospital, or all → the mean in every fold."""
    found: dict[str, dict[str, list[float]]] = {}
    for f in range(FOLDS):
        both, held = splits(data, seed, f)
        train = [own[0] for own in both]
        ours = run(co.methods.Hierarchical(averaged=False), 1, train, seed * FOLDS + f)
        models = {ONE: [ours.model(str(k)) for k in range(len(data))]}
        for each in (USUAL, rate):
            models[named(each)] = [run(fedavg(each), ROUNDS, train, seed * FOLDS + f).model()] * len(data)
        for row, own in models.items():
            nll = []
            for model, d, rows in zip(own, data, held, strict=True):
                nll.append(losses(model(d.x[rows])[0].exp()[:, 1], d.y[rows])["nll"])
            for place, values in zip(PLACES, (*nll, torch.cat(nll)), strict=True):
                found.setdefault(row, {}).setdefault(place, []).append(round(float(values.mean()), 6))
    return found


def named(rate: float) -> str:
    return f"FedAvg (10 rounds), linear, rate {rate}"


def table(found: dict[str, Any]) -> str:
    """NLL at every hospital, and by how much partial pooling is ahead: over folds, corrected as in partial.py."""
    rows = {row: {p: [v for s in found["seeds"] for v in s[row][p]] for p in PLACES} for row in found["seeds"][0]}
    lines = [[row, *(f"{fmean(places[p]):.3f}" for p in PLACES)] for row, places in rows.items()]
    for row, places in rows.items():
        if row != ONE:
            gaps = [paired(rows[ONE][p], places[p], overlap=1 / ((FOLDS - 1) * (1 - CHOOSE))) for p in PLACES]
            lines.append([f"{ONE} less {row}", *(interval(gap._asdict()) for gap in gaps)])
    return markdown_table(PLACES, lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", type=Path, default=Path("work"), help="what examples/hospitals/prepare.py wrote")
    words.add_argument("--repeats", type=int, default=8)
    options = words.parse_args()
    torch.set_num_threads(1)
    data = [hospital(name, options.data) for name in HOSPITALS]
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    tried = try_rates(data, found.get("validation", {}))
    if found.get("rate") != chosen(tried):
        found = {"rate": chosen(tried), "validation": tried, "seeds": []}
    for seed in range(len(found["seeds"]), options.repeats):
        found["seeds"].append(out_of_fold(data, seed, found["rate"]))
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
