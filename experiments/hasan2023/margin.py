"""Hasan 2023, Table 3.1, the margin of the BCM on larger sets: is it the rule, the clients' rate, or the order of rows?

Ours, not a table of the paper. In print the BCM is ahead of one-shot FL by 18 points on CIFAR-10 at h = 0.3 and behind
it by 3 at h = 0. Between these columns three things change: the split, the rate of clients that train a point (SGDM at
0.01 for h = 0 and 0.001 for h > 0, Tables B.2 and B.3; on EMNIST 0.1 and 0.001), and the order of rows, which the
released loaders shuffle for h = 0 alone. Here a column is how the clients learn (the sampler, whose rate is 0.1 in all
columns of print, or either rate; in either order), and a row how they are pooled, on the same split; no students.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.data.splits.labels import HeterogeneousHasan2023
from consilience.distributions.posterior import average, centre
from consilience.distributions.prior import Flat

ACCURACY = module("hasan2023/accuracy")
SHUFFLED = {"in order": False, "shuffled": True}
LEARNERS = {"cifar10": ("sampler", "rate 0.001", "rate 0.01"), "femnist": ("sampler", "rate 0.001", "rate 0.1")}
COLUMNS = tuple(
    f"{name}:0.3, {learner}, {order}" for name in LEARNERS for order in SHUFFLED for learner in LEARNERS[name]
)
POOLED: dict[str, co.Method] = {
    "BCM": co.methods.BCM(),
    "Mixture": co.methods.Mixture(),
    "Oneshot FL": co.methods.OneShotFL(distil=None),
}


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
    source, learner, order = column.split(", ")
    name, _, text = source.partition(":")
    setup = ACCURACY.SETUPS[name]
    sites = prepare(name, float(text), scale, seed, data_dir)
    task = co.classification(setup.network(sites.features, sites.classes), prior=Flat())
    epochs = setup.epochs
    if scale == "smoke":
        epochs = 5
    if learner == "sampler":
        target = task.tilted(co.task.decay(ACCURACY.DECAY))
        inference = ACCURACY.sampler(sites, scale, ACCURACY.SETTINGS[name, True]["sampler"], epochs)
    else:
        target = task
        inference = ACCURACY.optimiser("SGDM", float(learner.removeprefix("rate ")), epochs)
    inference = dataclasses.replace(inference, shuffle=SHUFFLED[order])
    engine = co.Compute("sequential", threads=1)
    learned = co.run(co.methods.Mixture(inference), target, sites, rounds=1, seed=seed, scored=False, engine=engine)
    test = sites.all_test
    values: Values = {}
    for row, method in POOLED.items():
        model = method.predictive(task, learned.pool(method, scored=False).state)
        values[row] = ACCURACY._score(model(test.x), test)
    means = [centre(reply.payload, task.like) for reply in learned.replies]
    averaged = task.predictive(average(means, torch.ones(len(means))))
    values["Weights averaged"] = ACCURACY._score(averaged(test.x), test)
    return values


EXPERIMENT = Experiment(
    title="Hasan 2023, Table 3.1: where the BCM's margin comes from; accuracy, %",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=2,
    scales=("full", "smoke"),
)
