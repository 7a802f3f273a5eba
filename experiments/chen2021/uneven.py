"""Chen and Chao 2021, Table 6 on Fashion-MNIST with an MLP: clients whose local epochs are drawn evenly from 1 to E.

Ours, beside `chen2021/table6`: the setting of `chen2021/sharpening`, which converges on two cores, with FedBE as its
paper has it.
"""

from __future__ import annotations

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.distributions.prior import Flat
from consilience.inference import SWA, stepwise

SETTING = module("chen2021/setting")
SCALES = module("chen2021/sharpening").SCALES


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    kind, _, network = column.partition(":")
    size = SCALES[scale]
    sites, _ = SETTING.prepare("fashion_mnist", kind, 10, size, seed, data_dir)
    task = co.classification(co.models.mlp(sites.features, sites.classes), prior=Flat())
    steps = co.SGD(rate=0.01, momentum=0.9, epochs=size.epochs, batch=40, decay=stepwise, fewest=1)
    epochs, batch = size.distil
    distil = co.aggregation.Distil(SWA(epochs=epochs, batch=batch), wide=False)
    inner = {"FedAvg": co.methods.FedAvg(steps), "FedProx": co.methods.FedProx(steps)}
    rows: dict[str, co.Method] = {**inner, "FedBE": co.methods.FedBE(inner["FedAvg"], distil=distil)}
    rows["FedBE + FedProx"] = co.methods.FedBE(inner["FedProx"], distil=distil)
    values: Values = SETTING.score_rows(rows, task, sites, size.rounds[network], seed)
    return values


EXPERIMENT = Experiment(
    title="Chen and Chao 2021, Table 6 on Fashion-MNIST, Step, ten clients, an MLP: accuracy, %",
    columns=("step:mlp",),
    trial=trial,
    score="accuracy",
    digits=1,
    scales=tuple(SCALES),
)
