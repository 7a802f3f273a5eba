"""FedLPA's setting (Tables 1 and 18): ten clients, Dirichlet β, NIID-Bench's five-layer CNN, nothing at the server.

Facts of the release: pixels in [0, 1], SGD with momentum 0.9, rate 0.01, batch 64, decay 1e-5, 200 epochs; a class is
cut by Dirichlet(β) proportions in which a client that already has its share of all rows gets none (`Balanced`), drawn
anew until everyone has ten rows; λ = 0.001; of two solutions the one that has the higher test accuracy is printed. Ours
is the exact solution and nothing is chosen on test rows. 'short' has 20 epochs, and is not the printed setting.

A column is data/β. One training gives FedLPA, FedAvg and both ensembles; evidence pooling trains by its own likelihood.
The release's script has 10, 20, 50, 100 and 200 epochs; what is printed here as the paper's is of 200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import consilience as co
from consilience import datasets
from consilience.comparison.reproduce import Experiment, Values
from consilience.inference import SGD, Inference
from consilience.key import Key
from consilience.method import Method
from consilience.methods.fedlpa import FedLPA
from consilience.metrics.scores import scores
from consilience.models.cnn import cnn, image
from consilience.prior import Flat
from consilience.splits.split import Rows, Split, dirichlet_draws, follow_class, labels_of
from consilience.training.shared import share_training

CLIENTS, FEWEST = 10, 10
EPOCHS = {"full": 200, "short": 20, "smoke": 1}
BETAS = (0.05, 0.1, 0.3)
DATA = ("cifar10", "fashion_mnist", "mnist")
PRINTED = {  # accuracy
    "FedLPA": {
        "mnist": (0.701, 0.774, 0.858),
        "fashion_mnist": (0.543, 0.553, 0.682),
        "cifar10": (0.184, 0.200, 0.266),
    },
    "FedAvg": {
        "mnist": (0.386, 0.486, 0.662),
        "fashion_mnist": (0.187, 0.309, 0.452),
        "cifar10": (0.102, 0.128, 0.105),
    },
}


@dataclass(frozen=True)
class Balanced(Split):
    """NIID-Bench's split by class: Dirichlet proportions, of which a client with a full share of all rows gets none.

    Attributes:
        beta: The concentration.
    """

    beta: float

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal class by class, anew until every client has ten rows."""
        attempt = 0
        while True:
            dealt = self.deal_once(rows, sites, key.fold(attempt))
            if min(len(part) for part in dealt) >= FEWEST:
                return dealt
            attempt += 1

    def deal_once(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        labels, classes = labels_of(self, rows)
        shares = dirichlet_draws(self.beta, (classes, sites), key.fold(0))
        parts: list[list[Tensor]] = [[] for _ in range(sites)]
        for c in range(classes):
            full = torch.tensor([sum(map(len, part)) >= len(labels) / sites for part in parts])
            proportions = shares[c] * ~full
            own = (labels == c).nonzero().flatten()
            own = own[key.fold(1 + c).permutation(len(own))]
            ends = (proportions / proportions.sum()).cumsum(0)[:-1] * len(own)
            for part, piece in zip(parts, own.tensor_split(ends.long()), strict=True):
                part.append(piece)
        return [torch.cat(part) for part in parts]

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow the classes of the sites' training rows."""
        return follow_class(test, train, key)


def network(features: int | Sequence[int], classes: int) -> nn.Module:
    """Two convolutions of 5 × 5 with 6 and 16 kernels, pooling after each, then layers of 120 and 84."""
    channels = image(features)[0]
    first = [nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return cnn(features, classes, [*first, nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)], (120, 84))


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, beta = column.split("/")
    sites = split_of(name, float(beta), CLIENTS, scale, seed, data_dir)
    training = SGD(rate=0.01, momentum=0.9, epochs=EPOCHS[scale], batch=64, weight_decay=1e-5)
    return score_methods({"FedLPA": FedLPA(training)} | common_rows(training), sites, seed)


def split_of(name: str, beta: float, clients: int, scale: str, seed: int, data_dir: str | None) -> co.Sites:
    """A data set over clients as NIID-Bench deals it; nothing for the server."""
    rows = datasets.load(name, data_dir)
    if scale == "smoke":
        rows = replace(rows, x=rows.x[:200], y=rows.y[:200])
    return rows.split(Balanced(beta), clients, calibration=0, seed=seed)


def common_rows(training: Inference) -> dict[str, Method]:
    """The average of weights, of logits and of probabilities of the same networks; evidence pooling of its own."""
    return {
        "FedAvg": co.FedAvg(training),
        "ensemble, logits": co.OneShotFL(training, distil=None),
        "ensemble, probabilities": co.Mixture(training),
        "evidence pooling": co.EvidencePooling(training),
    }


def score_methods(methods: dict[str, Method], sites: co.Sites, seed: int) -> Values:
    """Test scores after one round; rows that begin with the same training share it."""
    shape = sites.features
    if sites.image is not None:
        shape = sites.image
    assert sites.classes is not None
    task = co.classification(network(shape, sites.classes), prior=Flat())  # the releases have weight decay alone
    engine = co.Compute("sequential", threads=1)
    test = sites.all_test
    values: Values = {}
    with share_training():
        for row, method in methods.items():
            result = co.run(method, task, sites, rounds=1, seed=seed, scored=False, engine=engine)
            known = scores(result.method.predictive(task, result.state)(test.x), test.y)
            values[row] = {score: known[score] for score in ("accuracy", "nll", "brier", "ece")}
    return values


def printed_cells() -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's accuracies by row and column; its deviations were not to be had."""
    cells: dict[str, dict[str, tuple[float, float]]] = {}
    for row, by_data in PRINTED.items():
        for data, values in by_data.items():
            for beta, value in zip(BETAS, values, strict=True):
                cells.setdefault(row, {})[f"{data}/{beta}"] = (value, 0.0)
    return cells


EXPERIMENT = Experiment(
    title="One-shot methods in FedLPA's setting: accuracy",
    columns=tuple(f"{data}/{beta}" for data in DATA for beta in BETAS),
    trial=trial,
    score="accuracy",
    digits=3,
    spread="0: not known",
    paper=printed_cells(),
    scales=("full", "short", "smoke"),
)
