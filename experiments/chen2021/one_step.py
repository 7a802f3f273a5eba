"""Chen and Chao 2021, Tables 3 and 7 and Figures 2, 5 and 11 in one step: FedBE's choices after rounds of FedAvg.

Ours: FedAvg is trained once on Fashion-MNIST with an MLP (Step, ten clients), at the rate that the paper has before it
drops, and the clients' models of the last round are pooled in every way. So all rows share one training, and differ in
the ensemble and the student alone; what a student does to the rounds after it is not seen. `chen2021/table3` and
others have the paper's own form, in which every row is trained by itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.distributions.prior import Flat
from consilience.inference import SWA

SETTING = module("chen2021/setting")
UNIONS = module("chen2021/table3").UNIONS
Scale = SETTING.Scale
SCALES = {
    "full": Scale(40_000, 10_000, None, {"mlp": 12}, 20, 20, (0.0,), (20, 128)),
    "evening": Scale(10_000, 5_000, 4_000, {"mlp": 10}, 5, 5, (0.0,), (10, 128)),
    "smoke": Scale(120, 20, 40, {"mlp": 2}, 1, 1, (0.0,), (1, 10)),
}
DEFAULT = co.aggregation.Ensemble()


def student(optimiser: type[Any], epochs: int, batch: int) -> co.aggregation.Distil:
    """The paper's SWA, or SGD at the rate SWA begins with."""
    if optimiser is SWA:
        return co.aggregation.Distil(SWA(epochs=epochs, batch=batch), wide=False)
    return co.aggregation.Distil(co.SGD(rate=1e-3, momentum=0.9, epochs=epochs, batch=batch), wide=False)


def released(epochs: int, batch: int) -> co.aggregation.Distil:
    """The released loss is a mean over rows and ten classes: a tenth of the gradient, and so of each step."""
    steps = SWA(epochs=epochs, batch=batch)
    return co.aggregation.Distil(dataclasses.replace(steps, rate=steps.rate / 10, low=steps.low / 10), wide=False)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    kind, _, network = column.partition(":")
    size = SCALES[scale]
    sites, _ = SETTING.prepare("fashion_mnist", kind, 10, size, seed, data_dir)
    task = co.classification(co.models.mlp(sites.features, sites.classes), prior=Flat())
    fedavg = co.methods.FedAvg(co.SGD(rate=0.01, momentum=0.9, epochs=size.epochs, batch=40))
    trained = co.run(fedavg, task, sites, rounds=size.rounds[network], seed=seed, scored=False)
    epochs, batch = size.distil
    values: Values = {"FedAvg": SETTING.score_result(trained, sites)}

    def add(
        row: str,
        ensemble: co.aggregation.Ensemble,
        distil: co.aggregation.Distil | None,
        share: float = 1.0,
        **more: Any,
    ) -> None:
        inputs = sites.inputs[: round(share * len(sites.inputs))]
        given = dataclasses.replace(trained, server=trained.server._replace(inputs=inputs))
        pooled = given.pool(co.methods.FedBE(fedavg, ensemble, distil=distil, **more), scored=False)
        values[row] = SETTING.score_result(pooled, sites)

    usual = student(SWA, epochs, batch)
    for name, (samples, average, clients) in UNIONS.items():  # Table 3
        union = co.aggregation.Ensemble(samples=samples, average=average, clients=clients)
        add(f"Table 3, {name}, ensemble", union, None)
        add(f"Table 3, {name}", union, usual)
    add("Table 3, S + A + C, not sharpened", DEFAULT, usual, sharpen=1.0)
    add("Released, loss a mean over classes too", DEFAULT, released(epochs, batch))
    for alpha in (0.1, 0.5, 1.0, 2.0):
        add(f"Table 7, α = {alpha:g}", co.aggregation.Ensemble(co.aggregation.DirichletModels(alpha)), usual)
    for samples in (0, 5, 20, 50):
        add(f"Figure 2, {samples} drawn", co.aggregation.Ensemble(samples=samples), usual)
    for share in (0.1, 0.3, 0.5):
        add(f"Figure 5, {share:.0%} of the inputs", DEFAULT, usual, share)
    for times in (1, 2, 4):
        for name, optimiser in {"SWA": SWA, "SGD": co.SGD}.items():
            add(f"Figure 11, {times * epochs} epochs, {name}", DEFAULT, student(optimiser, times * epochs, batch))
    return values


EXPERIMENT = Experiment(
    title="FedBE's choices in one step after FedAvg, Fashion-MNIST, Step, an MLP: accuracy, %",
    columns=("step:mlp",),
    trial=trial,
    score="accuracy",
    digits=1,
    scales=tuple(SCALES),
)
