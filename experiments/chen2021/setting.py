"""What the tables of Chen and Chao 2021 share: data, networks, training, and how a row is scored.

A column is a split and a network, `step:convnet`, and a reading of the release where a table has some. A row is a
function from a `Job` to results. Every row has its weight decay chosen in {1e-3, 1e-4} on validation rows in a third of
the rounds, where the scale says so; NLL, Brier and a temperature from 30 labelled rows, none of which the paper has,
stand beside the accuracy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, resumable
from consilience.data import Data, datasets
from consilience.data.splits.split import Split
from consilience.data.splits.text import parse
from consilience.distributions.predictive import temperature, tempered
from consilience.distributions.prior import Flat
from consilience.inference import SWA, stepwise
from consilience.inference.augmentation import CropAndFlip
from consilience.key import Key
from consilience.method import Bound, State, is_personal
from consilience.method.declared import tempers
from consilience.metrics.scores import scores
from consilience.models import model
from consilience.models.resnet import resnet
from consilience.runs.result import Result

NETWORKS = ("convnet", "resnet20", "resnet32", "resnet44", "resnet56")
LABELS = 30  # labelled rows at the server, for temperatures alone
SHOWN = ("accuracy", "nll", "brier", "ece")


@dataclass(frozen=True)
class Scale:
    rows: int | None  # of the clients together; None: all that the server leaves
    inputs: int  # unlabelled, at the server
    test: int | None
    rounds: Mapping[str, int]  # by network; one that is not there is left out
    epochs: int  # E
    long: int  # epochs where there is one round
    decays: tuple[float, ...]
    distil: tuple[int, int]  # epochs and batch
    seeds: Mapping[str, int] = dataclasses.field(default_factory=dict)  # how many, where not all
    few: Sequence[str] = ()  # networks for which only the first rows are run


OLD = dict.fromkeys(NETWORKS, 40)
SCALES = {
    "full": Scale(None, 10_000, None, OLD, 20, 200, (1e-3, 1e-4), (20, 128)),
    "overnight": Scale(
        8000,
        2000,
        5000,
        {"convnet": 15, "resnet20": 10},
        5,
        50,
        (1e-3, 1e-4),
        (20, 128),
        {"resnet20": 1},
        ("resnet20",),
    ),
    "evening": Scale(2000, 500, 1000, {"convnet": 15}, 5, 25, (1e-3,), (20, 32), few=("convnet",)),
    "small": Scale(1000, 256, 500, {"convnet": 5}, 10, 50, (1e-3,), (20, 16)),
    "smoke": Scale(120, 20, 40, dict.fromkeys(NETWORKS, 2), 1, 1, (1e-3, 1e-4), (1, 10)),
}


@dataclass(frozen=True)
class Job:
    """All that a row needs."""

    scale: str
    network: str
    sites: co.Sites
    truth: Data  # the server's inputs with their labels, for rows that are allowed to look
    seed: int
    weight_decay: float
    share: float = 1.0  # of the rounds
    data_dir: str | None = None
    reading: str = ""

    @property
    def size(self) -> Scale:
        return SCALES[self.scale]

    @property
    def training(self) -> co.SGD:
        """η 0.01, a tenth of it from 30 % and a hundredth from 60 % of the rounds on; momentum 0.9, batch 40."""
        step = co.SGD(rate=0.01, momentum=0.9, epochs=self.size.epochs, batch=40, augment=CropAndFlip(2))
        return dataclasses.replace(step, weight_decay=self.weight_decay, decay=stepwise)

    @property
    def long(self) -> co.SGD:
        """For rows of one round."""
        epochs = max(1, round(self.share * self.size.long))
        return dataclasses.replace(self.training, epochs=epochs, decay=co.inference.constant)

    @property
    def swa(self) -> co.aggregation.Distil:
        """1e-3 → 4e-4 in every 25 steps after the 250th."""
        epochs, batch = self.size.distil
        return co.aggregation.Distil(SWA(epochs=epochs, batch=batch, augment=CropAndFlip(2)), wide=False)

    @property
    def sgd(self) -> co.aggregation.Distil:
        epochs, batch = self.size.distil
        step = co.SGD(rate=1e-3, momentum=0.9, epochs=epochs, batch=batch, augment=CropAndFlip(2))
        return co.aggregation.Distil(step, wide=False)

    def task(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> co.Task:
        features, classes = self.sites.features, self.sites.classes
        if self.scale == "smoke":
            network = co.models.mlp(features, classes, hidden=(8,))
        elif self.network.startswith("resnet"):
            network = resnet(features, classes, int(self.network[6:]), norm)
        else:
            network = model({"convnet": "cnn_chen"}.get(self.network, self.network), features, classes)
        return co.classification(network, prior=Flat())

    def fedbe(
        self, inner: co.Method | None = None, ensemble: co.aggregation.Ensemble | None = None, **changes: Any
    ) -> co.methods.FedBE:
        made = co.methods.FedBE(
            inner or co.methods.FedAvg(self.training), ensemble or co.aggregation.Ensemble(), distil=self.swa
        )
        return dataclasses.replace(made, **changes)

    def run(self, method: co.Method, rounds: int | None = None, task: co.Task | None = None, **how: Any) -> Result:
        most = rounds or max(1, round(self.share * self.size.rounds[self.network]))
        watch = bool(getattr(method, "monitor", False)) and self.share == 1
        sites = how.pop("sites", self.sites)
        rounds = most
        if method.about.one_shot or isinstance(method, Bound):
            rounds = 1
        how = {**resumable(), **how}
        return co.run(method, task or self.task(), sites, rounds=rounds, seed=self.seed, scored=watch, **how)


Rows = Callable[[Job], Mapping[str, Result]]


def fedavg(job: Job) -> dict[str, Result]:
    """FedAvg, its ensemble watched in every round (Figure 3) and scored at the end (App. C.3)."""
    both = job.run(job.fedbe(distil=None, monitor=True))
    alone = dataclasses.replace(both, method=co.methods.FedAvg(), state=State(both.state.posterior))
    return {"FedAvg": alone, "FedAvg, ensemble at the end": both}


def fedbe(job: Job) -> dict[str, Result]:
    return {"FedBE": job.run(job.fedbe(monitor=True))}


def bounds() -> list[Rows]:
    """All rows in one place, each client alone, the server with its 30 labels: each with one long training."""
    return [
        one("Centralised", lambda job: co.methods.Centralised(job.long)),
        one("Local only, mean", lambda job: co.methods.LocalOnly(job.long)),
        one("Server only, 30 labels", lambda job: co.methods.ServerOnly(dataclasses.replace(job.long, batch=10))),
    ]


def one(name: str, method: Callable[[Job], co.Method], **how: Any) -> Rows:
    """A row of one method."""
    return lambda job: {name: job.run(method(job), **how)}


def table(
    title: str,
    rows: Sequence[Rows],
    columns: Sequence[str],
    paper: Mapping[str, Mapping[str, tuple[float, float]]],
    few: int | None = None,
    data: str = "cifar10",
    clients: int = 10,
    incomparable: Sequence[str] = (),
    make: type[Job] = Job,
) -> Experiment:
    """A table whose columns are `split:network`; `few` rows are run where the scale has time for no more."""

    def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
        kind, network, reading = (*column.split(":"), "")[:3]
        size = SCALES[scale]
        if network not in size.rounds or seed >= size.seeds.get(network, seed + 1):
            return {}
        sites, truth = prepare(data, kind, clients, size, seed, data_dir)
        values: Values = {}
        for row in rows[: few if network in size.few else None]:
            job = make(scale, network, sites, truth, seed, size.decays[0], data_dir=data_dir, reading=reading)
            chosen = tune(job, row)
            for name, result in row(chosen).items():
                values[name] = {**score_result(result, sites), "weight_decay": chosen.weight_decay, **watch(result)}
        return values

    return Experiment(
        title=title,
        columns=tuple(columns),
        trial=trial,
        score="accuracy",
        digits=1,
        spread="standard error over seeds (the paper: standard deviation)",
        paper={row: dict(cells) for row, cells in paper.items()},
        incomparable=tuple(incomparable),
        scales=tuple(SCALES),
    )


def prepare(data: str, kind: str, clients: int, size: Scale, seed: int, data_dir: str | None) -> tuple[co.Sites, Data]:
    """The sites, a part of the official rows each, and the server's inputs with labels that only bounds look at."""
    rows, key = datasets.load(data, data_dir), Key(seed).fold(7)
    assert rows.x_test is not None and rows.y_test is not None
    most = len(rows.x) - LABELS - size.inputs
    count = LABELS + size.inputs + min(most, size.rows or most)
    chosen_rows = key.fold(0).permutation(len(rows.x))[:count]
    test_rows = key.fold(1).permutation(len(rows.x_test))[: size.test]
    rows = dataclasses.replace(
        rows, x=rows.x[chosen_rows], y=rows.y[chosen_rows], x_test=rows.x_test[test_rows], y_test=rows.y_test[test_rows]
    )
    clients = min(clients, count // 30)
    share = 0.0
    if len(size.decays) > 1:
        share = 0.1
    sites = rows.split(
        split(kind, clients, count), clients, calibration=LABELS + size.inputs, validation=share, seed=seed,
        standardise=True,
    )  # fmt: skip
    both = sites.calibration
    assert both is not None
    labelled, truth = Data(*(leaf[:LABELS] for leaf in both)), Data(*(leaf[LABELS:] for leaf in both))
    return dataclasses.replace(sites, calibration=labelled, inputs=truth.x), truth


def split(kind: str, clients: int, rows: int) -> Split:
    """Two major classes, and ten images of each other class where a client has 4 000, fewer where it has fewer; of a
    hundred classes, five major ones and one image."""
    if kind == "dirichlet":
        return parse("dirichlet:0.1")
    if kind == "iid":
        return parse("iid")
    major, minor = 2, max(1, round(10 * rows / 40_000))
    if kind == "step100":
        major, minor = 5, 1
    return co.splits.step(major, minor)


def tune(job: Job, row: Rows) -> Job:
    """The weight decay with the best accuracy on the validation rows, in a third of the rounds."""
    if len(job.size.decays) < 2:
        return job
    rows = job.sites.all_validation

    def accuracy(decay: float) -> float:
        tried = dataclasses.replace(job, weight_decay=decay, share=1 / 3)
        first = next(iter(row(tried).values()))
        return _mean([scores(p(rows.x), rows.y) for p in models(first)])["accuracy"]

    return dataclasses.replace(job, weight_decay=max(job.size.decays, key=accuracy))


def models(result: Result) -> Sequence[Callable[[torch.Tensor], Any]]:
    if not is_personal(result.method):
        return [result.model()]
    return [result.model(site) for site in result.sites.names]


def score_result(result: Result, sites: co.Sites) -> dict[str, float | None]:
    """Each row as it is, and with a temperature from the same 30 labels."""
    rows, labelled = sites.all_test, sites.calibration
    assert labelled is not None
    each: list[dict[str, float]] = []
    for p in models(result):
        t = temperature(p(labelled.x), labelled.y) if tempers(result.method) else 1.0
        plain = scores(p(rows.x), rows.y)
        cooled = scores(tempered(p(rows.x), t), rows.y)
        each.append(
            {
                **{k: plain[k] for k in SHOWN},
                **{f"{k}, tempered": cooled[k] for k in ("nll", "brier", "ece")},
                "t": t,
            }
        )
    mean = _mean(each)
    return {k: 100 * v if k == "accuracy" else v for k, v in mean.items()}


def score_rows(rows: Mapping[str, co.Method], task: co.Task, sites: co.Sites, rounds: int, seed: int) -> Values:
    """Run every row by itself, and score its end."""
    values: Values = {}
    for name, method in rows.items():
        result = co.run(method, task, sites, rounds=rounds, seed=seed, scored=False)
        values[name] = score_result(result, sites)
    return values


def watch(result: Result) -> dict[str, float | None]:
    """Accuracy after every round of a watched run, of the single model and of the ensemble beside it."""
    has_student = (
        isinstance(result.method, co.methods.FedBE) and result.method.distil is not None
    )  # the student is the model
    single, ensemble = "average_accuracy", "accuracy"
    if has_student:
        single, ensemble = "accuracy", "ensemble_accuracy"
    history = [row for row in result.report["history"] if single in row and ensemble in row]
    percentages: dict[str, float | None] = {f"round {row['round']}": 100 * row[single] for row in history}
    return {**percentages, **{f"ensemble, round {row['round']}": 100 * row[ensemble] for row in history}}


def _mean(each: list[dict[str, float]]) -> dict[str, float]:
    return {k: sum(s[k] for s in each) / len(each) for k in each[0]}


def read_printed(text: str, columns: Sequence[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """A paper's table: a row's name, then 'mean±deviation' for every column; '–' where there is none."""
    rows = {}
    for line in text.strip().splitlines():
        name, _, cells = line.partition("|")
        pairs = [cell.partition("±") for cell in cells.split()]
        values = [(float(a), float(b or 0)) if a != "–" else None for a, _, b in pairs]
        rows[name.strip()] = {c: v for c, v in zip(columns, values, strict=True) if v is not None}
    return rows
