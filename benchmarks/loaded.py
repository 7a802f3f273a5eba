"""FedAvg beside two busy processes, which this part starts and ends: the engine of `auto` against one after another.

The rounds of `floor`. Beside others, what counts is processor time: cores that are taken cannot be shared out.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import consilience as co
from benchmarks import peers
from benchmarks.floor import BATCH, RATE, ROWS, a_round, bare, draw_rows
from consilience.distributions.prior import Flat
from consilience.runs.engines import choose_engine, engine
from consilience.runs.engines.workers import using_threads

TITLE = "FedAvg beside two busy processes"
CLIENTS, BUSY = (10, 50, 100), 2


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that do nothing else than use a core each, until the block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def both_clocks(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(options: Namespace) -> dict[str, Any]:
    results = {}
    for clients in CLIENTS:
        count = max(2, round(clients * min(options.scale * 10, 1)))  # the whole at the default scale
        data = draw_rows(count, ROWS, (784,))
        task = co.classification(co.models.mlp(784, 10), prior=Flat())
        method = co.methods.FedAvg(co.SGD(rate=RATE, momentum=0.0, epochs=1, batch=BATCH))
        name = choose_engine("auto", task, data)
        rows: dict[str, Callable[[], Any]] = {
            "ours": a_round(method, task, data, engine(name, data)),
            "sequential": a_round(method, task, data, engine("sequential", data), threads=1),
            "bare": lambda data=data: bare(co.models.mlp(784, 10), data, BATCH),  # type: ignore[misc]
        }
        every: dict[str, list[tuple[float, float]]] = {key: [] for key in rows}
        others = {}
        with using_threads(1), busy_processes(BUSY):
            for turn in range(max(options.repeats, 5) + 1):
                for key, work in rows.items():
                    taken = both_clocks(work)
                    if turn:  # the first is to warm up
                        every[key].append(taken)
            if options.peers:
                others = peers.measure(count, options)
        results[str(clients)] = {
            **{"clients": count, "engine": name, "every_run": every, "peers": others},
            "wall": {key: statistics.median(wall for wall, _ in times) for key, times in every.items()},
            "processor": {key: statistics.median(own for _, own in times) for key, times in every.items()},
        }
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    names = list(dict.fromkeys(name for part in results.values() for name in part["peers"]))
    heading = ["clients", "engine", "ours, s", "sequential, s", "bare, s", *(f"{name}, s" for name in names)]
    rows = [[*heading, "ours / sequential (wanted: ≤ 1)", "the same in processor time"]]
    for part in results.values():
        wall, processor = part["wall"], part["processor"]
        times = [f"{wall[key]:.3f}" for key in ("ours", "sequential", "bare")]
        for name in names:
            times.append("–")
            if name in part["peers"]:
                times[-1] = f"{part['peers'][name]:.3f}"
        ratios = [f"{clock['ours'] / clock['sequential']:.2f}" for clock in (wall, processor)]
        rows.append([str(part["clients"]), part["engine"], *times, *ratios])
    return rows
