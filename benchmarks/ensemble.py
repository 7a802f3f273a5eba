"""An ensemble's prediction against as many single passes, and the memory it takes."""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

import consilience as co
from benchmarks.timing import alternating, in_a_new_process, medians, peak
from consilience import tree
from consilience.distributions.posterior import Samples
from consilience.key import Key
from consilience.models import model
from consilience.task import CHUNK, IMAGES

TITLE = "Predictions of an ensemble"
MEMBERS = 21  # ten drawn, ten clients, their average
FEW = 3  # members whose memory is measured: it is that of a chunk
BOUND = 1.3  # wanted: × the bare passes' time
NETWORKS = {"mlp": (784,), "cnn_chen": (3, 32, 32), "resnet20": (3, 32, 32)}
ROWS = {"mlp": 2048, "cnn_chen": 128, "resnet20": 64}


def problem(name: str, rows: int, count: int = MEMBERS) -> tuple[co.Task, Samples, Tensor]:
    shape = NETWORKS[name]
    task = co.classification(model(name, shape if len(shape) > 1 else shape[0], 10))
    members = Samples(tree.stack([task.init(Key(i)).params for i in range(count)]))
    return task, members, torch.rand(rows, *shape)


def fill(network: nn.Module, params: dict[str, Tensor]) -> nn.Module:
    filled_copy = copy.deepcopy(network).eval()
    filled_copy.load_state_dict(params, strict=False)
    return filled_copy


@torch.no_grad()
def passes(networks: list[nn.Module], x: Tensor) -> None:
    """The same number of plain forward passes, with nothing combined."""
    for network in networks:
        for part in x.split(CHUNK if x.ndim == 2 else IMAGES):
            network(part)


def time_network(name: str, rows: int, repeats: int) -> dict[str, Any]:
    task, members, x = problem(name, rows)
    networks = [fill(task.model, params) for params in tree.unstack(members.params, MEMBERS)]
    predict = task.predictive(members)
    results = medians(alternating({"ensemble": lambda: predict(x), "passes": lambda: passes(networks, x)}, repeats))
    return {"rows": rows, "seconds": results, "ratio": results["ensemble"] / results["passes"]}


def growth(name: str, rows: int) -> float:
    """Megabytes by which predicting raises the process's peak: the chunks decide, not the inputs."""
    torch.set_num_threads(1)
    task, members, x = problem(name, rows, FEW)
    predict = task.predictive(members)
    before = peak()
    predict(x)
    return peak() - before


def measure(options: Namespace) -> dict[str, Any]:
    """For each network: median seconds of both, their ratio, and the memory for one and two chunks of inputs."""
    results = {}
    for name, rows in ROWS.items():
        count = max(16, round(rows * min(options.scale * 10, 1)))
        chunk = IMAGES
        if name == "mlp":
            chunk = CHUNK
        memory = {str(n): in_a_new_process(growth, name, n) for n in (chunk, 2 * chunk)}
        results[name] = {**time_network(name, count, options.repeats), "memory_mb": memory}
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    heads = ["network", "inputs", "ensemble, s", f"{MEMBERS} passes, s", f"ratio (wanted: ≤ {BOUND})"]
    rows = [[*heads, f"memory of a chunk, {FEW} members, MB", "of two chunks, MB"]]
    for name, f in results.items():
        seconds = [f"{f['seconds'][what]:.2f}" for what in ("ensemble", "passes")]
        memory = [f"{megabytes:.0f}" for megabytes in f["memory_mb"].values()]
        rows.append([name, str(f["rows"]), *seconds, f"{f['ratio']:.2f}", *memory])
    return rows
