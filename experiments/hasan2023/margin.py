"""Hasan 2023, Table 3.1, the margin of the BCM on larger sets: is it the rule, the clients' rate, or the order of rows?

Ours, not a table of the paper. In print the BCM is ahead of one-shot FL by 18 points on CIFAR-10 at h = 0.3 and behind
it by 3 at h = 0. Between these columns three things change: the split, the rate of clients that train a point (SGDM at
0.01 for h = 0 and 0.001 for h > 0, Tables B.2 and B.3; on EMNIST 0.1 and 0.001), and the order of rows, which the
released loaders shuffle for h = 0 alone. Here clients train with both rates and in both orders, on the same split; the
sampler, whose rate is 0.1 in all these columns, in both orders. No students, so that only the pooling differs. Each
order is a column of its own, kept as it ends.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

import consilience as co
from consilience.comparison.reproduce import Experiment, Values, module
from consilience.prior import Flat
from consilience.runs.result import Result
from consilience.splits.labels import HeterogeneousHasan2023

ACCURACY = module("hasan2023/accuracy")
SHUFFLED = {"in order": False, "shuffled": True}
COLUMNS = tuple(f"{name}:0.3, {order}" for name in ("cifar10", "femnist") for order in SHUFFLED)


def prepare(name: str, h: float, scale: str, seed: int, data_dir: str | None) -> co.Sites:
    """As hasan2023/accuracy, with a client's own classes first."""
    rows, setup = co.datasets.load(name, data_dir), ACCURACY.SETUPS[name]
    if scale == "smoke":
        rows = ACCURACY.fewer(rows, *setup.smoke)
    else:
        rows = ACCURACY.fewer(rows, len(rows.x), len(rows.x_test))  # writers do not matter here
    split = HeterogeneousHasan2023(h, oversize=1.25, ordered=True)
    sites = rows.split(split, ACCURACY.CLIENTS, calibration=round(0.2 * len(rows.x)), seed=seed)

    def scaled(x: Tensor) -> Tensor:
        if setup.inverted:
            x = 1 - x
        return (x - setup.mean) / setup.deviation

    return sites.map_x(scaled)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    source, order = column.split(", ")
    name, _, text = source.partition(":")
    setup, tables = ACCURACY.SETUPS[name], ACCURACY.SETTINGS
    sites = prepare(name, float(text), scale, seed, data_dir)
    test = sites.all_test
    network = setup.network(sites.features, sites.classes)
    task = co.classification(network, prior=Flat())
    decayed = task.tilted(co.task.decay(ACCURACY.DECAY))
    epochs = setup.epochs
    if scale == "smoke":
        epochs = 5
    rates = [tables[name, heterogeneous]["local"][1] for heterogeneous in (True, False)]
    values: Values = {}

    def execute(method: co.Method, on: co.Task) -> Result:
        return co.run(method, on, sites, seed=seed, scored=False, engine=co.Compute("sequential", threads=1))

    def add(row: str, model: co.Predictive) -> None:
        values[row] = ACCURACY._score(model(test.x), test)

    sampler = ACCURACY.sampler(sites, scale, tables[name, True]["sampler"], epochs)
    sampled = execute(co.Mixture(dataclasses.replace(sampler, shuffle=SHUFFLED[order])), decayed)
    for row, method in {"BCM": co.BCM(), "Mixture": co.Mixture()}.items():
        add(row, method.predictive(task, sampled.pool(method, scored=False).state))
    for rate in rates:
        trained = dataclasses.replace(ACCURACY.optimiser("SGDM", rate, epochs), shuffle=SHUFFLED[order])
        local = execute(co.FedAvg(trained), task)
        ensemble = co.OneShotFL(distil=None)
        add(f"FedAvg, rate {rate:g}", task.predictive(local.state.posterior))
        add(f"Oneshot FL, rate {rate:g}", ensemble.predictive(task, local.pool(ensemble, scored=False).state))
    return values


EXPERIMENT = Experiment(
    title="Hasan 2023, Table 3.1: where the BCM's margin comes from; accuracy, %",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=2,
    scales=("full", "smoke"),
)
