"""Chen and Chao 2021 on Fashion-MNIST with an MLP: FedBE with and without sharpening and the released 0.1 σ.

Ours, not a table of the paper: a comparison that converges on two cores, which CIFAR-10 does not. Step split, ten
clients, no augmentation, no weight decay; otherwise the paper's steps. `full` has its rounds, epochs and rows.
"""

from __future__ import annotations

import dataclasses

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.distributions.prior import Flat
from consilience.inference import SWA, stepwise

SETTING = module("chen2021/setting")
Scale = SETTING.Scale
SCALES = {
    "full": Scale(40_000, 10_000, None, {"mlp": 40}, 20, 20, (0.0,), (20, 128)),
    "longer": Scale(10_000, 5_000, 4_000, {"mlp": 40}, 5, 5, (0.0,), (10, 128)),
    "evening": Scale(10_000, 2_000, 4_000, {"mlp": 20}, 5, 5, (0.0,), (10, 128)),
    "smoke": Scale(120, 20, 40, {"mlp": 2}, 1, 1, (0.0,), (1, 10)),
}
TEACHERS = [(sharpen, scale) for sharpen in (1.0, 2.0) for scale in (1.0, 0.1)]


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    kind, _, network = column.partition(":")
    size = SCALES[scale]
    sites, _ = SETTING.prepare("fashion_mnist", kind, 10, size, seed, data_dir)
    task = co.classification(co.models.mlp(sites.features, sites.classes), prior=Flat())
    steps = co.SGD(rate=0.01, momentum=0.9, epochs=size.epochs, batch=40, decay=stepwise)
    fedavg = co.methods.FedAvg(steps)
    epochs, batch = size.distil
    distil = co.aggregation.Distil(SWA(epochs=epochs, batch=batch), wide=False)
    rows: dict[str, co.Method] = {"FedAvg": fedavg}
    for sharpen, deviation in TEACHERS:
        ensemble = co.aggregation.Ensemble(co.aggregation.GaussianModels(deviation))
        made = co.methods.FedBE(fedavg, ensemble, distil=distil)
        rows[f"FedBE, sharpen {sharpen:g}, {deviation:g} σ"] = dataclasses.replace(made, sharpen=sharpen)
    values: Values = SETTING.score_rows(rows, task, sites, size.rounds[network], seed)
    return values


EXPERIMENT = Experiment(
    title="FedBE's teachers on Fashion-MNIST, Step, ten clients, an MLP: accuracy, %",
    columns=("step:mlp",),
    trial=trial,
    score="accuracy",
    digits=1,
    scales=tuple(SCALES),
)
