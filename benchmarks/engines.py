"""Every engine on networks of every kind, and whether `auto` picks the fastest; seconds a round."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from torch import nn

import consilience as co
from benchmarks.floor import a_round, draw_rows
from benchmarks.timing import alternating, medians
from consilience.data import Data
from consilience.models import model
from consilience.runs.engines import choose_engine, engine

TITLE = "Engines"
EMBEDDED = ("sequential", "vectorised", "parallel")  # Flower has a benchmark of its own
THREADED = "sequential, all threads"  # as a run has it: more than one BLAS thread for larger networks


def problems(scale: float) -> dict[str, tuple[Callable[[], nn.Module], list[Data]]]:
    """`scale` of the rows."""
    tabular, digits, pictures = (12,), (784,), (3, 32, 32)
    rows = lambda count: max(100, round(count * min(10 * scale, 1)))  # the whole at the default scale
    return {
        "tabular MLP, 5": (lambda: co.models.mlp(12, 10), draw_rows(5, rows(500), tabular)),
        "tabular MLP, 50": (lambda: co.models.mlp(12, 10), draw_rows(50, rows(500), tabular)),
        "tabular MLP, 100": (lambda: co.models.mlp(12, 10), draw_rows(100, rows(500), tabular)),
        "MNIST MLP, 5": (lambda: co.models.mlp(784, 10), draw_rows(5, rows(600), digits)),
        "MNIST MLP, 50": (lambda: co.models.mlp(784, 10), draw_rows(50, rows(600), digits)),
        "small CNN, 5": (lambda: model("cnn_hasan", pictures, 10), draw_rows(5, rows(200), pictures)),
        "ResNet-20, 5": (lambda: model("resnet20", pictures, 10), draw_rows(5, 100, pictures)),
    }


def measure(options: Namespace) -> dict[str, Any]:
    results = {}
    for name, (network, data) in problems(options.scale).items():
        task = co.classification(network())
        method = co.methods.FedAvg(co.SGD(rate=0.01, epochs=1, batch=100))
        rows = {kind: a_round(method, task, data, engine(kind, data)) for kind in EMBEDDED[1:]}
        rows["sequential"] = a_round(method, task, data, engine("sequential", data), threads=1)
        rows[THREADED] = a_round(method, task, data, engine("sequential", data))
        every = alternating(rows, options.repeats)
        middle, auto = medians(every), choose_engine("auto", task, data)
        best = min(middle, key=lambda kind: middle[kind])
        results[name] = {
            **{"seconds": middle, "every_run": every, "auto": auto, "best": best},
            "auto_over_best": middle[auto] / middle[best],
            "speed_up": middle["sequential"] / middle[auto],
        }
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    kinds = (EMBEDDED[0], THREADED, *EMBEDDED[1:])
    rows = [["network, clients", *(f"{kind}, s" for kind in kinds), "auto", "auto / best", "against sequential"]]
    for name, f in results.items():
        times = [f"{f['seconds'][kind]:.3f}" for kind in kinds]
        rows.append([name, *times, f["auto"], f"{f['auto_over_best']:.2f}", f"{f['speed_up']:.1f} ×"])
    return rows
