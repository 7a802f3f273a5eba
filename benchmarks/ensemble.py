"""An ensemble's prediction against as many single passes, and the memory it takes: `python -m benchmarks.ensemble`."""

from __future__ import annotations

import copy
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.key import Key
from consilience.models import model
from consilience.task import CHUNK, IMAGES

MEMBERS = 21  # ten drawn, ten clients, their average
BOUND = 1.3  # of the bare passes' time
NETWORKS = {"mlp": (784,), "cnn_chen": (3, 32, 32), "resnet20": (3, 32, 32)}


def measured(
    rows: int = 2048, repeats: int = 5, threads: int = 1, names: tuple[str, ...] = tuple(NETWORKS)
) -> dict[str, Any]:
    """For each network: median seconds of both, taken alternately, their ratio, and the memory for n and 4n inputs."""
    torch.set_num_threads(threads)
    return {name: {**timed(name, rows, repeats), "memory_mb": memory(name, rows)} for name in names}


def timed(name: str, rows: int, repeats: int) -> dict[str, Any]:
    task, members, x = problem(name, rows)
    networks = [filled(task.model, params) for params in tree.unstack(members.params, MEMBERS)]
    predict = task.predictive(members)
    seconds: dict[str, list[float]] = {"ensemble": [], "passes": []}
    for _ in range(repeats + 1):
        for which, call in (("ensemble", lambda: predict(x)), ("passes", lambda: passes(networks, x))):
            seconds[which].append(clock(call))
    middle = {which: statistics.median(values[1:]) for which, values in seconds.items()}  # the first warms up
    return {"rows": rows, "seconds": middle, "ratio": middle["ensemble"] / middle["passes"], "bound": BOUND}


@torch.no_grad()
def passes(networks: list[nn.Module], x: Tensor) -> None:
    """The same number of plain forward passes, with nothing combined."""
    for network in networks:
        for part in x.split(CHUNK if x.ndim == 2 else IMAGES):
            network(part)


def memory(name: str, rows: int) -> dict[str, float]:
    """How far the peak grows while predicting n and 4n inputs, each in a fresh process: the chunks, not the inputs."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {str(n): pool.apply(growth, (name, n)) for n in (rows, 4 * rows)}


def growth(name: str, rows: int) -> float:
    """Megabytes by which predicting raises the process's peak."""
    torch.set_num_threads(1)
    task, members, x = problem(name, rows)
    predict = task.predictive(members)
    before = peak()
    predict(x)
    return peak() - before


def problem(name: str, rows: int) -> tuple[co.Task, co.Samples, Tensor]:
    shape = NETWORKS[name]
    task = co.classification(model(name, shape if len(shape) > 1 else shape[0], 10))
    members = co.Samples(tree.stack([task.init(Key(i)).params for i in range(MEMBERS)]))
    return task, members, torch.rand(rows, *shape)


def filled(network: nn.Module, params: dict[str, Tensor]) -> nn.Module:
    made = copy.deepcopy(network).eval()
    made.load_state_dict(params, strict=False)
    return made


def clock(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


if __name__ == "__main__":
    print(json.dumps(measured(), indent=2))
