"""A training step of convolutional networks against matrix products in the same run: the whole, and layer by layer.

Batches of 100 images, processor time on one thread. Plain torch is the same network with autograd as users write it.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import consilience as co
from benchmarks.timing import alternating, medians, processor_seconds
from consilience import tree
from consilience.data import Data
from consilience.distributions.prior import Flat
from consilience.inference.fast.backprop_cnn import write_stage
from consilience.inference.gradient import gradient_of
from consilience.inference.optimisers import descend
from consilience.key import Key
from consilience.models import model
from consilience.models.plain_cnn import channels_last, plain_cnn
from consilience.runs.engines.memory import keep_memory
from consilience.runs.engines.workers import using_threads
from consilience.tree import Params

TITLE = "Convolutions against matrix products"
BATCH, CLASSES, SIDE, RATE = 100, 10, 1024, 0.01
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
PLAIN = ("cnn_hasan", "cnn_ozer", "cnn_chen", "cnn_dhondt")  # cnn_ozer is NIID-Bench's
OTHERS = ("resnet20", "resnet20_batchnorm")
TARGET = 0.6  # wanted: of the products' rate

Work = dict[str, Callable[[], Any]]


def count_operations(network: nn.Module, shape: tuple[int, ...]) -> dict[str, float]:
    """Multiplications and additions of each layer's forward pass."""
    counts: dict[str, float] = {}
    handles = []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):

            def note(layer: nn.Module, _: Any, out: Tensor, name: str = name) -> None:
                counts[name] = 2.0 * out.numel() * layer.weight[0].numel()

            handles.append(layer.register_forward_hook(note))
    with torch.no_grad():
        network(torch.zeros(BATCH, *shape))
    for handle in handles:
        handle.remove()
    return counts


def step_of(task: co.Task, data: Data) -> Callable[[], None]:
    """Our step: the gradient, and the weights moved along it."""
    like = task.init(Key(0)).params
    vector = tree.ravel(like)
    gradient = gradient_of(task, like, data.size)

    def step() -> None:
        descend(vector, gradient(vector, data), RATE, overwrite=True)

    return torch.no_grad()(step)


def plain_step_of(network: nn.Module, data: Data) -> Callable[[], None]:
    """The same in plain torch."""
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(network(data.x), data.y).backward()
        optimiser.step()

    return step


def product() -> Callable[[], Tensor]:
    """A matrix product that fills the processor's units."""
    a, b = Key(0).normal((2, SIDE, SIDE))
    out = torch.empty(SIDE, SIDE)
    return lambda: torch.mm(a, b, out=out)


def layers_of(task: co.Task, data: Data) -> Work:
    """The stages of a plain network, each forward and backward by itself, the pooling and ReLU behind it included."""
    net = plain_cnn(task.model)
    assert net is not None
    params = task.init(Key(0)).params
    gradients: Params = {name: torch.empty_like(value) for name, value in params.items()}
    x = channels_last(data.x)
    work: Work = {}
    for stage in net.stages:
        passed = stage.passed(params, x)
        delta = torch.ones_like(passed.outputs)
        name = stage.weight.removesuffix(".weight")
        first = stage is net.stages[0]
        work[f"{name}, forward"] = lambda stage=stage, x=x: stage.passed(params, x)
        work[f"{name}, backward"] = lambda stage=stage, passed=passed, delta=delta, first=first: write_stage(
            stage, params, passed, delta, gradients, by_inputs=not first
        )
        x = passed.outputs
    return work


def measure_network(name: str, shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Medians of one network's rows, in turn with the product."""
    network = model(name, shape, CLASSES)
    task = co.classification(network, prior=Flat())
    data = Data.of(Key(1).normal((BATCH, *shape)), torch.arange(BATCH) % CLASSES)
    weights = task.like
    work: Work = {
        "product": product(),
        "step": step_of(task, data),
        "plain step": plain_step_of(network, data),
        "prediction": lambda: task.outputs(weights, data.x),
        "plain prediction": lambda: network(data.x),
    }
    if name in PLAIN:
        work |= layers_of(task, data)
    no_gradient = {key: torch.no_grad()(call) for key, call in work.items() if key != "plain step"}
    every = alternating({**work, **no_gradient}, repeats, clock=processor_seconds)
    counts = count_operations(network, shape)
    first = next(iter(counts.values()))  # images get no gradient
    return {
        **{"seconds": medians(every), "every_run": every, "operations": counts},
        "step_operations": 3 * sum(counts.values()) - first,
        "ratio": statistics.median(a / b for a, b in zip(every["step"], every["plain step"], strict=True)),
    }


def measure(options: Namespace) -> dict[str, Any]:
    keep_memory()  # as every engine does
    results = {}
    with using_threads(1):
        for shape in (GREY, COLOUR):
            for name in (*PLAIN, *OTHERS):
                about = f"{name}, {' × '.join(map(str, shape))}"
                results[about] = measure_network(name, shape, options.repeats)
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    wanted = f"of the products' rate (wanted: ≥ {TARGET:g})"
    rows = [["network or layer", "ms", "plain torch, ms", "ratio", "GFLOP/s", wanted, "prediction, ms", "plain, ms"]]
    for about, part in results.items():
        s = part["seconds"]
        product_rate = 2 * SIDE**3 / s["product"]
        rate = part["step_operations"] / s["step"]
        times = [f"{1000 * s['step']:.1f}", f"{1000 * s['plain step']:.1f}", f"{part['ratio']:.2f}"]
        predictions = [f"{1000 * s['prediction']:.1f}", f"{1000 * s['plain prediction']:.1f}"]
        rows.append([about, *times, f"{rate / 1e9:.0f}", f"{rate / product_rate:.2f}", *predictions])
        for number, layer in enumerate(key.removesuffix(", forward") for key in s if key.endswith(", forward")):
            for way in ("forward", "backward"):
                taken = s[f"{layer}, {way}"]
                passes = 1 + (way == "backward" and number > 0)  # by the weights, and by the inputs after the first
                rate = passes * part["operations"][layer] / taken
                label = f"– layer {layer}, {way}"
                speed = [f"{rate / 1e9:.0f}", f"{rate / product_rate:.2f}"]
                rows.append([label, f"{1000 * taken:.2f}", "", "", *speed, "", ""])
    return rows
