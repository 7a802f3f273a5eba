"""Exact pooling on MNIST's shape, ten sites: features and sums against training a CNN. Processor time, one thread."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import consilience as co
from benchmarks.plain import loader
from benchmarks.problems import load_rows
from benchmarks.timing import processor_seconds
from consilience.data import Data
from consilience.glm.sums import summarise
from consilience.methods.exact import ExactPooling
from consilience.models import mlp, model
from consilience.models.maps import features, on_features
from consilience.runs.engines.memory import keep_memory

TITLE = "Exact pooling against training a CNN"
SITES, WIDTH, ROUNDS, BATCH = 10, 1024, 10, 100
NETWORKS = ("cnn_ozer", "cnn_chen")  # the first, which is the cheaper, is federated too
SLOWEST, FASTER = 1.0, 5.0  # wanted: × a CNN's epoch; ten rounds of FedAvg × the whole job
ENGINE = co.Compute("sequential", threads=1)


def split_images(rows: co.data.Dataset, count: int, sites: int) -> co.Sites:
    part = dataclasses.replace(rows, x=rows.x[:count], y=rows.y[:count])
    return part.split(co.splits.dirichlet(0.5), sites, calibration=0, seed=0)


def add_up(sites: co.Sites) -> None:
    """What all sites do: features and sums of their rows, with memory as engines keep it."""
    keep_memory()
    network = features(f"conv:{WIDTH}", sites.features)
    with torch.no_grad():
        for part in sites.train:
            summarise(network, part, sites.classes)


def whole_job(sites: co.Sites) -> None:
    """One round of exact pooling, the server's part included."""
    network = on_features(features(f"conv:{WIDTH}", sites.features), mlp(WIDTH, sites.classes, hidden=()))
    co.run(ExactPooling(), co.classification(network), sites, scored=False, engine=ENGINE)


def train_epoch(network: nn.Module, rows: Data) -> None:
    """One pass of plain torch code over all rows in one place."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for x, y in loader(rows, shuffle=True):
        optimiser.zero_grad()
        cross_entropy(network(x), y).backward()
        optimiser.step()


def federate(network: nn.Module, sites: co.Sites) -> None:
    """Ten rounds of FedAvg, an epoch each."""
    method = co.methods.FedAvg(co.SGD(epochs=1, batch=BATCH))
    co.run(method, co.classification(network), sites, rounds=ROUNDS, scored=False, engine=ENGINE)


def measure(options: Namespace) -> dict[str, Any]:
    """Median seconds of each, in turn; how sums grow with rows and sites."""
    rows, source = load_rows("mnist", options.data_dir)
    count = max(500, round(options.scale * len(rows.x)))
    sites = split_images(rows, count, SITES)
    pooled = sites.pooled().train[0]
    networks = {name: model(name, sites.features, sites.classes) for name in NETWORKS}
    work: dict[str, Callable[[], None]] = {
        "sums": lambda: add_up(sites),
        "exact": lambda: whole_job(sites),
        "half the rows": lambda: add_up(split_images(rows, count // 2, SITES)),
        "half the sites": lambda: add_up(split_images(rows, count, SITES // 2)),
    }
    for name, network in networks.items():
        work[f"epoch, {name}"] = partial(train_epoch, network, pooled)
    work["FedAvg"] = partial(federate, networks[NETWORKS[0]], sites)
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(options.repeats):
        for name, call in work.items():
            if turn == 0 or name != "FedAvg":  # which takes longest by far
                times[name].append(processor_seconds(call))
    return {"rows": count, "source": source, "seconds": {name: median(values) for name, values in times.items()}}


def table(results: dict[str, Any]) -> list[list[str]]:
    s = results["seconds"]
    about = f"{results['rows']} images, {SITES} sites, {results['source']}"
    rows = [[about, "exact pooling, s", "against", "s", "ratio", "wanted"]]
    for name in NETWORKS:
        epoch = s[f"epoch, {name}"]
        ratio = f"{s['sums'] / epoch:.2f} × as long"
        rows.append(
            ["features and sums", f"{s['sums']:.2f}", f"an epoch of {name}", f"{epoch:.2f}", ratio, f"≤ {SLOWEST:g}"]
        )
    ratio = f"{s['FedAvg'] / s['exact']:.1f} × faster"
    against = f"FedAvg of {NETWORKS[0]}, {ROUNDS} rounds"
    rows.append(["the whole job", f"{s['exact']:.2f}", against, f"{s['FedAvg']:.2f}", ratio, f"≥ {FASTER:g}"])
    for less in ("half the rows", "half the sites"):
        ratio = f"{s[less] / s['sums']:.2f} × as long"
        rows.append([f"sums of {less}", f"{s[less]:.2f}", "all of them", f"{s['sums']:.2f}", ratio, ""])
    return rows
