"""FLamby's Fed-Heart-Disease (Ogier du Terrail et al., NeurIPS Datasets and Benchmarks 2022): every row beside ours.

Its filter, split, scaling and model are those of its repository (flamby/datasets/fed_heart_disease); its rows are the
means over the seeds 42 to 46 of flamby/results/results_benchmark_fed_heart_disease, with their standard errors.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data.datasets.published import read_columns
from consilience.data.sites import Data, Sites
from consilience.disk.data_folder import find
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.distributions.predictive import Categorical
from consilience.distributions.prior import Flat, Isotropic, Prior
from consilience.inference import Laplace, Newton
from consilience.messages import Client
from consilience.method import Method
from consilience.methods import METHODS
from consilience.metrics.scores import scores
from consilience.task import Task
from consilience.tree import Params

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
DUMMIES = {"cp": ("2", "3", "4"), "restecg": ("1", "2")}  # the first level is dropped
TRAIN = 0.66
SPLIT = 43  # its `random_state`, the same for all seeds
ROUNDS, UPDATES, BATCH = 15, 100, 4
ADAPTIVE: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8}


def rows_of(path: str | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The complete cases of every centre: thirteen features and disease, yes or no.

    A pressure or a cholesterol of 0 means unknown, and FLamby takes it for a number: so does this.
    """
    table = read_columns(find("heart_disease.csv", path))
    names = (*NUMBERS, *DUMMIES)
    centres = {}
    for centre_ in CENTRES:
        chosen = [i for i, site in enumerate(table["site"]) if site == centre_]
        complete = [i for i in chosen if all(table[name][i] for name in (*names, "num"))]
        numbers = [[float(table[name][i]) for name in NUMBERS] for i in complete]
        marks = [[float(table[n][i] == level) for n, levels in DUMMIES.items() for level in levels] for i in complete]
        disease = np.array([int(table["num"][i] != "0") for i in complete])
        centres[centre_] = (np.concatenate([numbers, marks], 1).astype(np.float32), disease)
    return centres


def sites_of(data_dir: str | None, pooled: bool = False) -> Sites:
    """Its split, and the columns scaled by each centre's own training rows, or by those of all centres."""
    rows = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in rows_of(data_dir).values()]
    parts = [split(y.numpy()) for _, y in rows]
    everyone = torch.cat([x[own] for (x, _), (own, _) in zip(rows, parts, strict=True)])
    train = []
    test = []
    for (x, y), (own, held) in zip(rows, parts, strict=True):
        reference = x[own]
        if pooled:
            reference = everyone
        scaled = (x - reference.mean(0)) / (reference.std(0) + 1e-9)
        train.append(Data.of(scaled[own], y[own]))
        test.append(Data.of(scaled[held], y[held]))
    return Sites(tuple(train), tuple(test), None, None, None, 2, 13, "fed_heart_disease", "natural", CENTRES)


def split(y: np.ndarray) -> tuple[Tensor, Tensor]:
    """The rows of one centre to train and to test on, in their order."""
    stratify = None
    if min(np.bincount(y, minlength=2)) > 2:
        stratify = y
    own, held = train_test_split(
        np.arange(len(y)),
        train_size=TRAIN,
        test_size=1 - TRAIN,
        random_state=SPLIT,
        shuffle=True,
        stratify=stratify,
    )
    return torch.from_numpy(np.sort(own)), torch.from_numpy(np.sort(held))


@dataclass(frozen=True)
class Updates:
    """So many steps of plain SGD, whatever a client's size, through its rows in a new order every pass.

    Attributes:
        rate: Of FLamby's one output; two logits move by half of it each.
        updates: How many.
        batch: Rows a step.
    """

    rate: float
    updates: int = UPDATES
    batch: int = BATCH

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        params = centre(start, task.like).params
        names = sorted(params, key=lambda name: -params[name].ndim)
        weight, bias = (params[name].clone() for name in names)
        data = client.data
        rows = int(data.size)
        order = torch.cat([client.key.fold(i).permutation(rows) for i in range(self.updates * self.batch // rows + 2)])
        steps = -(-rows // self.batch)
        for i in range(self.updates):
            epoch, step = divmod(i, steps)
            chosen = order[epoch * rows : (epoch + 1) * rows][step * self.batch : (step + 1) * self.batch]
            away = self._away(weight, bias, data.x[chosen], data.y[chosen])
            pull = self._pull(task, {names[0]: weight, names[1]: bias})
            weight -= self.rate / 2 * (away.T @ data.x[chosen] / len(chosen) + pull[names[0]])
            bias -= self.rate / 2 * (away.mean(0) + pull[names[1]])
        return Point({names[0]: weight, names[1]: bias})

    def _pull(self, task: Task, params: Params) -> Params:
        """The gradient of what a method adds to the loss."""
        if not task.tilts:
            return {name: torch.zeros_like(leaf) for name, leaf in params.items()}
        gradient: Params = torch.func.grad(lambda at: sum(tilt(at) for tilt in task.tilts))(params)
        return gradient

    def _away(self, weight: Tensor, bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        probs = torch.softmax(x @ weight.T + bias, 1)
        return probs - nn.functional.one_hot(y, 2)


def published() -> dict[str, tuple[Method, int]]:
    """FLamby's strategies with its settings, and how many rounds they take."""
    return {
        "FedAvg": (co.methods.FedAvg(inference=Updates(0.001)), ROUNDS),
        "FedProx": (co.methods.FedProx(inference=Updates(0.001), mu=0.02), ROUNDS),  # twice its 0.01, for half the rate
        "FedAdam": (co.methods.FedAdam(inference=Updates(0.01), rate=0.01, **ADAPTIVE), ROUNDS),
        "FedYogi": (co.methods.FedYogi(inference=Updates(0.003162), rate=0.01, **ADAPTIVE), ROUNDS),
    }


def ours() -> dict[str, tuple[Method, int]]:
    """What this project would do: one round of posteriors or sums, or Newton steps; nothing was tuned."""
    methods: dict[str, tuple[Method, int]] = {
        "product of posteriors, 1 round": (
            co.methods.GaussianProduct(inference=Laplace(mode=Newton(), dense=True)),
            1,
        ),
        "glm, the pooled logistic model": (co.methods.GLM(), 8),
        "exact, one-hot ridge, 1 round": (co.methods.ExactPooling(), 1),
        "FedAvg, defaults": (co.methods.FedAvg(), 10),
        "each centre alone": (co.methods.LocalOnly(inference=Laplace(mode=Newton(), dense=True)), 1),
    }
    methods["partial pooling (hierarchical), 1 round"] = (METHODS["hierarchical"](), 1)
    return methods


@lru_cache(maxsize=2)
def fitted(seed: int, data_dir: str | None) -> dict[str, dict[str, dict[str, float]]]:
    """Every row's scores at every centre: one training for all columns of the table."""
    sites = sites_of(data_dir)
    found = {}
    for row, (method, rounds) in published().items():
        found[row] = scored(method, Flat(), sites, rounds, seed)
    alike = sites_of(data_dir, pooled=True)
    crossed = replace(alike, test=sites.test)  # as in its results: trained on columns scaled one way, tested on another
    found["Pooled training"] = scored(co.methods.GLM(), Flat(), crossed, 12, seed)
    for row, (method, rounds) in ours().items():
        found[f"Ours, {row}"] = scored(method, Isotropic(), sites, rounds, seed)
        found[f"Ours, {row}, columns scaled alike"] = scored(method, Isotropic(), alike, rounds, seed)
    found["Base rate of each centre"] = base_rates(sites)
    return found


def base_rates(sites: Sites) -> dict[str, dict[str, float]]:
    """What a centre's own share of ill patients says of all its test rows: the line that no model should be below."""
    found = {}
    for name, own, held in zip(sites.names, sites.train, sites.test, strict=True):
        share = own.y.double().mean().clamp(1e-6, 1 - 1e-6)
        log_probs = torch.stack([1 - share, share]).log().expand(len(held.y), 2)
        found[name] = scores(Categorical(log_probs), held.y)
    return found


def scored(method: Method, prior: Prior, sites: Sites, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    task = co.classification(nn.Linear(13, 2), prior)
    result = co.run(method, task, sites, rounds=rounds, seed=seed, engine="sequential", scored=False)
    models = [result.model(site) for site in sites.names]
    parts = zip(sites.names, models, sites.test, strict=True)
    return {name: scores(model(part.x), part.y) for name, model, part in parts}


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    values: Values = {}
    sizes = [len(part.y) for part in sites_of(data_dir).test]
    weights = {name: 1 for name in CENTRES}
    if column == WEIGHTED:
        weights = dict(zip(CENTRES, sizes, strict=True))
    chosen = [name for name in CENTRES if column in (name, "mean", WEIGHTED)]
    shares = [weights[name] for name in chosen]
    for row, by_centre in fitted(seed, data_dir).items():
        mean = {
            key: statistics.fmean([by_centre[name][key] for name in chosen], shares)
            for key in ("accuracy", "nll", "brier")
        }
        values[row] = {**mean, "accuracy": 100 * mean["accuracy"]}
    return values


WEIGHTED = "all test rows"  # the mean of centres, each counted by its test rows
COLUMNS = (*CENTRES, "mean", WEIGHTED)
PRINTED = {  # accuracy in %, and the standard error over its five seeds
    "FedAvg": (
        (73.08, 0.96),
        (71.91, 1.46),
        (65.0, 5.08),
        (64.0, 2.27),
        (68.5, 1.27),
    ),
    "FedProx": (
        (73.08, 0.96),
        (71.91, 1.46),
        (65.0, 5.08),
        (64.0, 2.27),
        (68.5, 1.27),
    ),
    "SCAFFOLD": (
        (72.69, 0.84),
        (71.91, 1.46),
        (65.0, 5.08),
        (64.0, 2.27),
        (68.4, 1.25),
    ),
    "FedAdam": (
        (75.19, 0.77),
        (74.61, 0.84),
        (73.75, 1.25),
        (66.67, 1.99),
        (72.55, 0.62),
    ),
    "FedYogi": (
        (75.96, 0.8),
        (75.28, 0.79),
        (73.75, 1.25),
        (67.56, 1.81),
        (73.14, 0.56),
    ),
    "FedAdagrad": (
        (75.96, 0.8),
        (75.28, 0.79),
        (73.75, 1.25),
        (67.56, 1.81),
        (73.14, 0.56),
    ),
    "Cyclic": (
        (75.77, 0.64),
        (76.18, 0.66),
        (71.25, 4.24),
        (64.0, 0.83),
        (71.8, 1.29),
    ),
    "Pooled training": (
        (78.27, 0.49),
        (76.4, 0.0),
        (75.0, 0.0),
        (64.44, 0.0),
        (73.53, 0.12),
    ),
    "Local, own rows": (
        (74.62, 0.72),
        (74.61, 0.28),
        (72.5, 5.45),
        (70.22, 2.29),
        (72.99, 1.28),
    ),
}

EXPERIMENT = Experiment(
    title="FLamby, Fed-Heart-Disease: accuracy in % on each centre's test rows",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=1,
    paper={row: dict(zip(COLUMNS[:-1], cells, strict=True)) for row, cells in PRINTED.items()},
    open_rows=("SCAFFOLD", "FedAdagrad", "Cyclic"),
)
