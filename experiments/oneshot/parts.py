"""Does evidence pooling improve with better parts? Each variant on validation rows of other seeds and on test rows.

A column is data/split/sites. Variants: what a site infers (one point, samples, SWAG, a diagonal Laplace), the unknown
class of FedOV as the offset (evidence is log p(c) of a network that may say 'unknown', not adjusted for frequencies),
and a linear layer on fixed features in place of the network. Seeds below 100 are tested; 100 and above are for
validation rows, which decide.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import consilience as co
from consilience.aggregation.evidence import class_log_probs, class_scores, strengths
from consilience.benchmark.reproduce import Experiment, Values, run_plan
from consilience.data import datasets
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical, Predictive
from consilience.inference import SGD, SWAG, CyclicalSGHMC, Laplace
from consilience.methods.fedov import FedOV, open_set
from consilience.metrics.scores import scores
from consilience.models import model
from consilience.models.maps import features, on_features, usual_features
from consilience.task import label_counts, smooth

EPOCHS = {"digits": 50, "mnist": 15, "fashion_mnist": 15}
VALIDATION = 100  # seeds from here on show validation rows alone


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, split, count = column.split("/")
    epochs = EPOCHS[name]
    rows = datasets.load(name, data_dir)
    if scale == "smoke":
        epochs = 10
        rows = replace(rows, x=rows.x[:240], y=rows.y[:240])
    sites = rows.split(parse(split), int(count), calibration=0, validation=0.2, seed=seed)
    point = SGD(epochs=epochs)
    variants = {
        "one point": co.methods.EvidencePooling(point),
        "samples": co.methods.EvidencePooling(CyclicalSGHMC(epochs=epochs)),
        "SWAG": co.methods.EvidencePooling(SWAG(epochs=epochs, burn=epochs // 2)),
        "Laplace": co.methods.EvidencePooling(Laplace(mode=point)),
    }
    network = co.classification(model("mlp", sites.features, sites.classes))
    predictions = {}
    for row, method in variants.items():
        result = co.run(method, network, sites, seed=seed, scored=False, engine=co.Compute(threads=1))
        predictions[row] = method.predictive(network, result.state)
    predictions["the unknown as offset"] = open_set_evidence(network, sites, point, seed)
    predictions["fixed features"] = on_fixed_features(sites, point, seed)
    return {row: score(predict, sites, seed) for row, predict in predictions.items()}


def score(predict: Predictive, sites: co.Sites, seed: int) -> dict[str, float | None]:
    """Test scores of a seed that is tested, and the validation NLL of one that is not."""
    if seed >= VALIDATION:
        rows = sites.all_validation
        return {"nll_validation": scores(predict(rows.x), rows.y)["nll"]}
    test = sites.all_test
    known = scores(predict(test.x), test.y)
    return {name: known[name] for name in ("nll", "brier", "accuracy", "ece")}


def open_set_evidence(task: co.Task, sites: co.Sites, inference: SGD, seed: int) -> Predictive:
    """FedOV's networks, whose p(c) is small where they say 'unknown', pooled by the two-way fit."""
    result = co.run(FedOV(inference), task, sites, seed=seed, scored=False, engine=co.Compute(threads=1))
    counts = torch.stack([label_counts(rows, sites.classes) for rows in sites.train])
    frequencies = smooth(counts.sum(0))
    pool = class_scores(strengths(counts, 1.0), 0.3)
    voters = [open_set(task).predictive(posterior) for posterior in result.state.posteriors]

    def predict(x: Tensor) -> Categorical:
        views = torch.stack([voter(x)[0][:, :-1] for voter in voters]) - smooth(counts).log().unsqueeze(1)
        return Categorical(class_log_probs(pool(views), frequencies, counts.sum(0) > 0))

    return predict


def on_fixed_features(sites: co.Sites, inference: SGD, seed: int) -> Predictive:
    """Evidence pooling of linear layers on the features that exact pooling uses."""
    shape = sites.features
    if sites.image is not None:
        shape = sites.image
    chosen = features(f"{usual_features(shape)}:{seed}", sites.features)
    width = int(chosen(sites.train[0].x[:1]).shape[1])
    task = co.classification(on_features(chosen, model("linear", width, sites.classes)))
    method = co.methods.EvidencePooling(replace(inference, rate=0.03))
    result = co.run(method, task, sites, seed=seed, scored=False, engine=co.Compute(threads=1))
    return method.predictive(task, result.state)


CHOSEN, TESTED = range(100, 103), range(5)
PLAN = tuple((f"digits/{split}/5", seeds) for seeds in (CHOSEN, TESTED) for split in ("dirichlet:0.1", "dirichlet:0.5"))
EXPERIMENT = Experiment(
    title="Evidence pooling of other parts: NLL",
    columns=tuple(dict.fromkeys(column for column, _ in PLAN)),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)


if __name__ == "__main__":
    run_plan(EXPERIMENT, PLAN, Path(sys.argv[1]), sys.argv[2])
