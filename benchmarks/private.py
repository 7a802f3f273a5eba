"""A step of DP-SGD against a bare torch step on as many rows, and against Opacus where it is installed.

Processor time on one thread: a Poisson batch of 100 of 2000 rows on average, clipping, noise and the step.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import consilience as co
from benchmarks.timing import processor_seconds
from consilience.data import Data
from consilience.inference import DPSGD
from consilience.key import Key
from consilience.messages import Client
from consilience.models import model

TITLE = "Private steps"
ROWS, BATCH, STEPS, SHAPE, CLASSES = 2000, 100, 10, (1, 28, 28), 10
TARGET = 2.0  # wanted: × a bare step, for perceptrons


def networks() -> dict[str, nn.Module]:
    """Two perceptrons, whose norms are ghosts, and a CNN, whose gradients are made row by row."""
    return {
        "mlp, 100 and 100": co.models.mlp(SHAPE, CLASSES),
        "mlp, 400 and 400": co.models.mlp(SHAPE, CLASSES, (400, 400)),
        "cnn_ozer": model("cnn_ozer", SHAPE, CLASSES),
    }


def bare(network: nn.Module, data: Data) -> None:
    """Plain torch code: batches of a fixed size."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % ROWS
        optimiser.zero_grad()
        cross_entropy(network(data.x[rows]), data.y[rows]).backward()
        optimiser.step()


def private(task: co.Task, data: Data) -> None:
    """The same number of steps, each on as many rows on average."""
    inference = DPSGD(noise_multiplier=1.0, share=BATCH / ROWS, steps=STEPS, rate=0.05)
    with torch.no_grad():
        inference(task, task.init(Key(0)), Client(data, (), Key(1).tensor))


def with_opacus(network: nn.Module, data: Data) -> Callable[[], None] | None:
    """The same by Opacus, batches of a fixed size; None where it is not installed."""
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    wrapped = GradSampleModule(network)
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.05),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )

    def work() -> None:
        for step in range(STEPS):
            rows = torch.arange(step * BATCH, (step + 1) * BATCH) % ROWS
            optimiser.zero_grad()
            cross_entropy(wrapped(data.x[rows]), data.y[rows]).backward()
            optimiser.step()

    return work


def measure(options: Namespace) -> dict[str, Any]:
    """Median milliseconds a step, in turn."""
    data = Data.of(Key(0).normal((ROWS, *SHAPE)), torch.arange(ROWS) % CLASSES)
    found: dict[str, Any] = {}
    for (name, network), again in zip(networks().items(), networks().values(), strict=True):
        task = co.classification(network)
        work: dict[str, Callable[[], None]] = {
            "bare": lambda network=network: bare(network, data),  # type: ignore[misc]
            "private": lambda task=task: private(task, data),  # type: ignore[misc]
        }
        rival = with_opacus(again, data)
        if rival is not None and name.startswith("mlp"):  # of a CNN it holds a hundred gradients at once
            work["opacus"] = rival
        for job in work.values():
            job()
        times: dict[str, list[float]] = {key: [] for key in work}
        for _ in range(options.repeats):
            for key, job in work.items():
                times[key].append(1000 * processor_seconds(job) / STEPS)
        found[name] = {key: median(values) for key, values in times.items()}
    return found


def table(found: dict[str, Any]) -> list[list[str]]:
    """Milliseconds a step, and their ratios."""
    rows = [["a step on 100 images, ms", "bare torch", "DPSGD", "ratio", "wanted", "Opacus", "its ratio"]]
    for name, times in found.items():
        wanted = f"≤ {TARGET:g}" if name.startswith("mlp") else "–"
        rival = ["–", "–"]
        if "opacus" in times:
            rival = [f"{times['opacus']:.2f}", f"{times['opacus'] / times['bare']:.1f} ×"]
        ratio = f"{times['private'] / times['bare']:.2f} ×"
        rows.append([name, f"{times['bare']:.2f}", f"{times['private']:.2f}", ratio, wanted, *rival])
    return rows
