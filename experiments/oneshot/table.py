"""Every one-shot method at the same network, passes, splits and seeds: NLL, Brier, accuracy, ECE, worst site, bytes.

A column is data/split/sites. Rows are the methods that need one round of training, found by themselves: those that say
so (`one_shot`), and those whose further rounds send only small things (`SMALL`). All share split, start, passes over
the rows and the server's rows; methods that sample have as many passes as those that train. Settings are the methods'
defaults: published ones, or chosen on validation rows of digits (seeds 100 to 102). Nothing is chosen on test rows.
Exact pooling learns a linear layer on the usual fixed features, as do its rows with the heads of AFL (least squares)
and FedCGS (linear discriminant analysis); the table says which rows do. Rows that begin with the same training share
it, and their seconds are those of each alone.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import NamedTuple

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, run_plan
from consilience.data import datasets
from consilience.data.sites import Data
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical, temperature, tempered
from consilience.glm.fitting import LEAST
from consilience.glm.heads import Discriminant, OneHot
from consilience.inference import SGD, Adam, CyclicalSGHMC, Inference, Laplace, MeanField, Sampler
from consilience.inference.fast.shared import SharedTraining, share_training
from consilience.method import Bound, Method, Needs, OnFeatures, needs
from consilience.methods import METHODS
from consilience.metrics.scores import scores
from consilience.models import model
from consilience.models.maps import features, on_features, usual_features
from consilience.models.remembered import remember_values

SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased")
SMALL = ("ccvr", "fens", "exact_tuned", "evidence_tuned")  # one round of training, then small messages
APART = (
    "coreset",
    "dosfl",
    "ep_mcmc",
)  # pseudo-rows have settings of their own per data set; densities only for few weights
BY_STUDENT = ("fedkt", "evidence_logits")  # they predict by a student alone


class Size(NamedTuple):
    epochs: int
    batch: int
    inputs: int  # unlabelled rows at the server
    distilled: int  # epochs of a student


SIZES = {
    "digits": Size(50, 50, 200, 150),
    "mnist": Size(15, 100, 5000, 30),
    "fashion_mnist": Size(15, 100, 5000, 30),
    "femnist": Size(40, 50, 2000, 60),
}
SMOKE = Size(10, 50, 20, 2)


def rows_of(size: Size) -> dict[str, Method]:
    """Every row of the table, as a method with its settings."""
    rows: dict[str, Method] = {"fedavg": co.methods.FedAvg(SGD(epochs=size.epochs, batch=size.batch))}
    for name, kind in sorted(METHODS.items()):
        small = kind.about.one_shot or name in SMALL
        if issubclass(kind, Bound) or name in APART or "classification" not in kind.about.tasks or not small:
            continue
        rows[name] = with_passes(kind(), size)
        if getattr(rows[name], "distil", None) is not None and name not in BY_STUDENT:
            rows[name] = dataclasses.replace(rows[name], distil=None)  # the ensemble; its student is a row of its own
    student = co.aggregation.Distil(Adam(epochs=size.distilled, batch=100))
    for name in ("oneshot", "evidence", "mixture"):
        rows[f"{name}, student"] = dataclasses.replace(rows[name], distil=student)
    for name in BY_STUDENT:
        rows[name] = dataclasses.replace(rows[name], distil=student)
    rows["exact, as AFL"] = co.methods.ExactPooling(OneHot(), share=LEAST)  # least squares on ones and zeros, no prior
    rows["exact, as FedCGS"] = co.methods.ExactPooling(Discriminant(plain=True))  # a Gaussian a class, one covariance
    return rows


def with_passes(method: Method, size: Size) -> Method:
    """A method whose clients pass over their rows as often as everybody's do."""
    if method.inference is None:
        return method
    return dataclasses.replace(method, inference=passes(method.inference, size))


def passes(inference: Inference, size: Size) -> Inference:
    if isinstance(inference, Laplace):
        return dataclasses.replace(inference, mode=SGD(epochs=size.epochs, batch=size.batch))
    if isinstance(inference, (Sampler, CyclicalSGHMC)):
        return CyclicalSGHMC(epochs=size.epochs, batch=size.batch)
    if isinstance(inference, (SGD, Adam, MeanField)):
        return dataclasses.replace(inference, epochs=size.epochs, batch=size.batch)
    return inference


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    with remember_values(), share_training() as shared:
        return score_column(column, seed, scale, data_dir, shared)


def score_column(column: str, seed: int, scale: str, data_dir: str | None, shared: SharedTraining) -> Values:
    name, split, count = column.split("/")
    size = SMOKE
    if scale == "full":
        size = SIZES[name]
    dataset = datasets.load(name, data_dir)
    if scale == "smoke":
        dataset = dataclasses.replace(dataset, x=dataset.x[:240], y=dataset.y[:240])
    sites = dataset.split(parse(split), int(count), calibration=30, inputs=size.inputs, seed=seed)
    if name == "femnist":
        sites = sites.map_x(lambda x: 1 - x)  # ink on paper → light on dark, mostly zeros
    rows = rows_of(size)
    rows["centralised"] = co.methods.Centralised(CyclicalSGHMC(epochs=size.epochs, batch=size.batch))
    rows["server_only"] = co.methods.ServerOnly()
    network = co.classification(model("mlp", sites.features, sites.classes))
    head = head_on_features(sites, seed)
    test = sites.all_test
    values: Values = {}
    for row, method in rows.items():
        task = network
        if isinstance(method, OnFeatures):
            task = head
        values[row] = score_row(method, task, sites, test, seed, shared)
    return values


def head_on_features(sites: co.Sites, seed: int) -> co.Task:
    """A linear layer on the usual features."""
    shape = sites.features
    if sites.image is not None:
        shape = sites.image
    chosen = features(f"{usual_features(shape)}:{seed}", sites.features)
    width = int(chosen(sites.train[0].x[:1]).shape[1])
    return co.classification(on_features(chosen, model("linear", width, sites.classes)))


def score_row(
    method: Method, task: co.Task, sites: co.Sites, test: Data, seed: int, shared: SharedTraining
) -> dict[str, float | None]:
    """Scores plain and tempered by the server's labelled rows, those of the worst site, bytes and seconds."""
    compute = co.Compute("sequential", threads=1)  # one site after another, whose training rows can share
    began = time.process_time() + shared.spared
    result = co.run(method, task, sites, seed=seed, scored=False, rounds=rounds_of(method), engine=compute)
    seconds = time.process_time() + shared.spared - began  # as if no other row had trained before
    predict = result.method.predictive(task, result.state)
    labelled = sites.calibration
    assert labelled is not None
    p = predict(test.x)
    plain = scores(p, test.y)
    warm = scores(tempered(p, temperature(predict(labelled.x), labelled.y)), test.y)
    sizes = [len(rows.y) for rows in sites.test]
    parts = zip(p[0].split(sizes), test.y.split(sizes), strict=True)
    own = [scores(Categorical(log_probs), y) for log_probs, y in parts if len(y)]
    values: dict[str, float | None] = {k: plain[k] for k in SHOWN}
    values |= {f"{k}_tempered": warm[k] for k in SHOWN}
    values |= {"worst_nll": max(s["nll"] for s in own), "worst_accuracy": min(s["accuracy"] for s in own)}
    values |= {"up_bytes": result.report["ledger"]["up_bytes"] / len(sites), "seconds": seconds}
    asked = needs(result.method)
    values |= {"inputs": float(Needs.INPUTS in asked), "labels": float(Needs.LABELS in asked)}
    return values


def rounds_of(method: Method) -> int | None:
    """One of training; further ones where a method says how many it needs."""
    if isinstance(method, co.methods.FedAvg):
        return 1
    return None


IMAGES = ("mnist/dirichlet:0.1/10", "femnist/natural/50", "fashion_mnist/dirichlet:0.1/10")
DIGITS = tuple(f"digits/{split}/5" for split in ("dirichlet:0.1", "dirichlet:0.5", "iid"))
PLAN: tuple[tuple[str, range], ...] = (
    *((column, range(3)) for column in IMAGES),
    *((column, range(10)) for column in DIGITS),
    *((column, range(seed, seed + 1)) for seed in range(3, 10) for column in IMAGES),
)
EXPERIMENT = Experiment(
    title="One-shot methods: NLL",
    columns=tuple(sorted([*IMAGES, *DIGITS])),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)


if __name__ == "__main__":
    run_plan(EXPERIMENT, PLAN, Path(sys.argv[1]), sys.argv[2])
