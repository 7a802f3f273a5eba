"""Rows of DP-SGD: FedAvg whose sites train privately, at the (ε, δ) of the other rows of the table.

    python experiments/private/dpsgd.py DATA [COLUMN …]     # writes results/dpsgd.json as it goes, prints its table

Every site adds noise of its own, in every step. Settings are chosen on validation rows of seed 100; the rows of the
table are seeds 0 to 2, or to 9 where rows are few. Run again, it goes on. ε = ∞ clips as the others do and adds no
noise to speak of. Columns named with their δ have that of table.py, and the same agreed constants where columns of a
table are scaled.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.data import datasets, map_sites
from consilience.data.sites import Sites
from consilience.distributions.prior import Flat
from consilience.inference import DPSGD
from consilience.metrics.scores import scores
from consilience.models import features

RESULTS = Path(__file__).parent / "results" / "dpsgd.json"
EPSILONS = (0.3, 1.0, 3.0, 8.0, math.inf)
VALIDATION_SEED = 100
KEPT = ("accuracy", "nll", "ece", "brier")


class Column(NamedTuple):
    """A data set, what is learned on it, and which settings are tried.

    Attributes:
        data: Its name.
        features: A fixed map under the model; empty: none.
        hidden: Widths of hidden layers; none: a linear model.
        rounds: How many rounds, and steps a round, as pairs.
        shares: Of the rows, in a step.
        rates: Step sizes.
        delta: δ of the whole training.
        epsilons: Every ε that is tried.
        seeds: How many.
    """

    data: str
    features: str
    hidden: tuple[int, ...]
    rounds: tuple[tuple[int, int], ...]
    shares: tuple[float, ...]
    rates: tuple[float, ...]
    delta: float = 1e-5
    epsilons: tuple[float, ...] = EPSILONS
    seeds: int = 3


STEPS = (10, 10), (10, 40), (10, 160)
IMAGES = STEPS, (0.05,), (8.0, 32.0, 128.0)  # one round of 100 steps and smaller rates did worse on MNIST
COLUMNS = {
    "digits, conv:512": Column(
        "digits", "conv:512", (), ((1, 30), (10, 5)), (0.5,), (1.0, 4.0, 16.0), epsilons=EPSILONS[1:]
    ),
    "digits, perceptron": Column("digits", "", (100,), ((1, 50), (10, 10)), (0.5,), (0.5, 2.0), epsilons=EPSILONS[1:]),
    "digits, conv:128, δ = 1e-4": Column(
        "digits", "conv:128", (), ((1, 30), (10, 5)), (0.5,), (1.0, 4.0, 16.0, 64.0), 1e-4, seeds=10
    ),
    "digits, conv:512, δ = 1e-4": Column(
        "digits", "conv:512", (), ((1, 30), (10, 5)), (0.5,), (1.0, 4.0, 16.0, 64.0), 1e-4, seeds=10
    ),
    "heart_disease, δ = 1e-4": Column(
        "heart_disease", "", (), ((1, 30), (10, 5)), (0.5,), (0.02, 0.06, 0.25, 1.0, 4.0), 1e-4, seeds=10
    ),
    "mnist, conv:512": Column("mnist", "conv:512", (), *IMAGES),
    "mnist, conv:128": Column("mnist", "conv:128", (), *IMAGES),
    "fashion_mnist, conv:512": Column("fashion_mnist", "conv:512", (), *IMAGES),
    "fashion_mnist, conv:128": Column("fashion_mnist", "conv:128", (), *IMAGES),
}
Settings = tuple[int, int, float, float]  # rounds, steps, share, rate


def sites_of(column: Column, seed: int, folder: str, validate: bool) -> Sites:
    """The usual split, mapped to its features; columns of a table are scaled by agreed constants."""
    rows = datasets.load(column.data, folder)
    share = 0.0
    if validate:
        share = 0.2
    if rows.feature_names and column.data == "heart_disease":
        rows = dataclasses.replace(rows, x=scale_agreed(rows.x, rows.feature_names), standardise=False)
    sites = rows.split(rows.usual_split(), test=0.2, validation=share, seed=seed)
    if not column.features:
        return sites
    return map_sites(sites, features(column.features, sites.shape))


def scale_agreed(x: Tensor, names: Sequence[str]) -> Tensor:
    """Columns by the constants of table.py, which nobody computed from these rows."""
    centres = module("private/table").CENTRES
    agreed = torch.tensor([centres.get(name, (0.5, 0.5)) for name in names])
    return (x - agreed[:, 0]) / agreed[:, 1]


def run(
    column: Column, sites: Sites, settings: Settings, epsilon: float, seed: int, validate: bool
) -> dict[str, float]:
    """One private training, scored."""
    rounds, steps, share, rate = settings
    assert sites.classes is not None
    network = co.models.linear(sites.features, sites.classes)
    if column.hidden:
        network = co.models.mlp(sites.features, sites.classes, column.hidden)
    inference = DPSGD(epsilon, column.delta, share=share, steps=steps, rate=rate)
    if math.isinf(epsilon):
        inference = DPSGD(noise_multiplier=1e-6, share=share, steps=steps, rate=rate)
    method = co.methods.FedAvg(inference)
    task = co.classification(network, prior=Flat())
    result = co.run(method, task, sites, rounds=rounds, seed=seed, scored=False, engine="sequential")
    scored = sites.all_validation if validate else sites.all_test
    found = scores(method.predictive(result.task, result.state)(scored.x), scored.y)
    return {score: found[score] for score in KEPT}


def main(folder: str, names: list[str]) -> None:
    """Choose settings for each ε, then run the seeds."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        column = COLUMNS[name]
        cells = found.setdefault(name, {})
        grid = [(*r, s, rate) for r, s, rate in itertools.product(column.rounds, column.shares, column.rates)]
        chosen: dict[float, Settings] = {}
        sites = sites_of(column, VALIDATION_SEED, folder, True)
        for epsilon in column.epsilons:
            tried = cells.setdefault(str(epsilon), {}).setdefault("validation", {})
            for settings in grid:
                if json.dumps(settings) not in tried:
                    scored = run(column, sites, settings, epsilon, VALIDATION_SEED, True)
                    tried[json.dumps(settings)] = scored["nll"]
                    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            chosen[epsilon] = min(grid, key=lambda settings: tried[json.dumps(settings)])
            if cells[str(epsilon)].get("chosen") != list(chosen[epsilon]):
                cells[str(epsilon)].pop("seeds", None)  # of other settings
            cells[str(epsilon)]["chosen"] = list(chosen[epsilon])
        for seed in range(column.seeds):
            if all(str(seed) in cells[str(epsilon)].get("seeds", {}) for epsilon in column.epsilons):
                continue
            sites = sites_of(column, seed, folder, False)
            for epsilon in column.epsilons:
                done = cells[str(epsilon)].setdefault("seeds", {})
                if str(seed) not in done:
                    done[str(seed)] = run(column, sites, chosen[epsilon], epsilon, seed, False)
                    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
                    print(name, epsilon, seed, done[str(seed)], flush=True)
    print(table(found))


def table(found: dict[str, Any]) -> str:
    """Means over the seeds."""
    lines = [
        "| DP-SGD, FedAvg | ε | rounds × steps | accuracy | NLL | ECE |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, cells in found.items():
        for epsilon, cell in cells.items():
            runs = list(cell.get("seeds", {}).values())
            if not runs:
                continue
            means = {k: statistics.mean(r[k] for r in runs) for k in KEPT}
            low, high = min(r["accuracy"] for r in runs), max(r["accuracy"] for r in runs)
            shown = "∞" if math.isinf(float(epsilon)) else f"{float(epsilon):g}"
            rounds, steps = cell["chosen"][:2]
            lines.append(
                f"| {name} | {shown} | {rounds} × {steps} | {100 * means['accuracy']:.1f} % "
                f"({100 * low:.1f} – {100 * high:.1f}) | {means['nll']:.3f} | {means['ece']:.3f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:] or list(COLUMNS))
