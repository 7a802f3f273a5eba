"""FedAvg against the floor: the time its bare torch steps would take on one thread each, shared by all cores.

The papers' MNIST MLP, 600 examples a client, one epoch, batch 100; gather and aggregate only, no store, no scores.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import consilience as co
from benchmarks import peers
from benchmarks.timing import alternating, medians, seconds
from consilience.data import Data
from consilience.distributions.prior import Flat
from consilience.key import Key
from consilience.messages import Server
from consilience.runs.engines import Engine, Turn, choose_engine, engine, threads_for, using_threads
from consilience.runs.engines.workers import cores

TITLE = "FedAvg against the floor"
CLIENTS, ROWS, BATCH, RATE = (10, 100), 600, 100, 0.05
TARGET = 1.2


def draw_rows(clients: int, rows: int, shape: tuple[int, ...], classes: int = 10) -> list[Data]:
    x, y = Key(0).normal((clients, rows, *shape)), (Key(1).uniform(clients * rows) * classes).long()
    return [Data.of(a, b) for a, b in zip(x, y.reshape(clients, rows), strict=True)]


def bare(model: torch.nn.Module, data: list[Data], batch: int) -> None:
    """Plain torch, one client after another: nothing but the steps."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for part in data:
        for x, y in zip(part.x.split(batch), part.y.split(batch), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimiser.step()


def a_round(
    method: co.Method, task: co.Task, data: list[Data], where: Engine, threads: int | None = None
) -> Callable[[], Any]:
    """One round after another: gather and aggregate; on as many BLAS threads as a run would have, unless given."""
    server = Server(None, None, Key(2), len(data))
    state, rounds = method.init(task, server), iter(range(10**9))
    with using_threads(cores()):
        used = threads or threads_for(task)

    def work() -> None:
        nonlocal state
        with using_threads(used):
            replies = where.gather(method, task, method.broadcast(state), where.clients, Turn(next(rounds), Key(3)))
            state = method.aggregate(task, state, replies, server)

    return work


def measure(options: Namespace) -> dict[str, Any]:
    results = {}
    for clients in CLIENTS:
        count = max(2, round(clients * min(options.scale * 10, 1)))  # the whole at the default scale
        data = draw_rows(count, ROWS, (784,))
        task = co.classification(co.models.mlp(784, 10), prior=Flat())
        method = co.methods.FedAvg(co.SGD(rate=RATE, momentum=0.0, epochs=1, batch=BATCH))
        name = choose_engine("auto", task, data)
        rows = {
            "ours": a_round(method, task, data, engine(name, data)),
            "sequential": a_round(method, task, data, engine("sequential", data), threads=1),
            "bare": lambda data=data: bare(co.models.mlp(784, 10), data, BATCH),  # type: ignore[misc]
        }
        with using_threads(1):
            every = alternating(rows, max(options.repeats, 5))
        with using_threads(cores()):
            every["bare, all threads"] = [seconds(rows["bare"]) for _ in range(options.repeats)]
        middle, steps = medians(every), count * ROWS // BATCH
        others = {}
        if options.peers:
            others = peers.measure(count, options)
        results[str(clients)] = {
            **{"clients": count, "steps": steps, "engine": name, "seconds": {**middle, **others}, "every_run": every},
            "floor": middle["bare"] / cores(),
            "ratio": statistics.median(a / b * cores() for a, b in zip(every["ours"], every["bare"], strict=True)),
        }
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    names = list(dict.fromkeys(n for f in results.values() for n in f["seconds"]))
    rows = [["clients", "engine", "floor, s", *(f"{n}, s" for n in names), f"ours / floor (wanted: {TARGET})"]]
    for f in results.values():
        known = {n: f"{seconds:.3f}" for n, seconds in f["seconds"].items()}
        times = [known.get(n, "–") for n in names]
        rows.append([str(f["clients"]), f["engine"], f"{f['floor']:.3f}", *times, f"{f['ratio']:.2f}"])
    return rows
