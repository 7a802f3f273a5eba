"""FuseFL's setting for its ensemble rows, with a smaller network: five clients, Dirichlet α, nothing at the server.

Facts of the release: pixels in [0, 1], ResNet-18, SGD with momentum 0.9, rate 0.01, batch 128, 200 epochs on a cosine,
and NIID-Bench's split (`Balanced`); its ensemble is the mean of the logits. 'small' has the five-layer CNN of
`oneshot/published` and 10 epochs in place of ResNet-18 and 200: not the printed setting, and never compared with it.

A column is data/α.
"""

from __future__ import annotations

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.inference import SGD, cosine

CLIENTS = 5
EPOCHS = {"small": 10, "smoke": 1}
ALPHAS = (0.1, 0.3, 0.5)
DATA = ("cifar10", "fashion_mnist", "mnist")
PRINTED = {  # accuracy of ResNet-18, Table 2: for the page, beside another network's
    "ensemble": {
        "mnist": (0.868, 0.968, 0.972),
        "fashion_mnist": (0.677, 0.873, 0.894),
        "cifar10": (0.575, 0.774, 0.799),
    },
    "DENSE": {
        "mnist": (0.666, 0.765, 0.958),
        "fashion_mnist": (0.503, 0.840, 0.859),
        "cifar10": (0.503, 0.598, 0.622),
    },
    "FuseFL (K = 2)": {
        "mnist": (0.970, 0.984, 0.985),
        "fashion_mnist": (0.832, 0.899, 0.895),
        "cifar10": (0.709, 0.814, 0.843),
    },
}


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    published = module("oneshot/published")
    name, alpha = column.split("/")
    sites = published.split_of(name, float(alpha), CLIENTS, scale, seed, data_dir)
    training = SGD(rate=0.01, momentum=0.9, epochs=EPOCHS[scale], batch=128, schedule=cosine)
    rows = {**published.ensembles(training), "evidence pooling": co.methods.EvidencePooling(training)}
    values: Values = published.score_methods(rows, sites, seed)
    return values


EXPERIMENT = Experiment(
    title="Ensembles in FuseFL's setting, with a smaller network: accuracy",
    columns=tuple(f"{data}/{alpha}" for data in DATA for alpha in ALPHAS),
    trial=trial,
    score="accuracy",
    digits=3,
    scales=("small", "smoke"),
)
