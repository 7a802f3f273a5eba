"""Merging many clients' Gaussians: seconds and memory against stacking the payloads. `python -m benchmarks.merging`."""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import consilience as co
from consilience import tree
from consilience.payload import nbytes
from consilience.posterior import Gaussian

RULES = {"eaa": co.eaa, "gaa": co.gaa, "aalv": co.aalv, "ppa": co.ppa, "cf": co.cf}
SLOWEST, LARGEST = 4.0, 3.0  # the gates: × the time of stacking, × the payloads' memory


def clients_of(count: int, weights: int) -> list[Gaussian]:
    """One large leaf of Gaussian weights and one of points at every client."""
    g, few = torch.Generator().manual_seed(0), weights // 100
    return [
        Gaussian(
            {"layer": torch.randn(weights - few, generator=g), "points": torch.randn(few, generator=g)},
            {"layer": torch.rand(weights - few, generator=g) + 0.01},
        )
        for _ in range(count)
    ]


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median of several runs, after one that warms the caches."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def measured(rule: str, count: int, weights: int, repeats: int) -> dict[str, float]:
    """Time and peak memory of one rule; in a process of its own, whose peak is nobody else's."""
    torch.set_num_threads(1)
    gaussians, shares = clients_of(count, weights), torch.rand(count) + 0.5
    payload, before = float(sum(nbytes(g) for g in gaussians)), _peak()
    co.merge(gaussians, shares, RULES[rule])
    held = payload + max(_peak() - before, 0.0)  # the payloads themselves, and what merging needed beside them
    merging = seconds(lambda: co.merge(gaussians, shares, RULES[rule]), repeats)
    stacking = seconds(lambda: tree.stack(gaussians), repeats)
    return {
        **{"merging": merging, "stacking": stacking, "time_ratio": merging / stacking},
        **{"payload_bytes": payload, "held_bytes": held, "memory_ratio": held / payload},
    }


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def merging(count: int = 100, weights: int = 1_000_000, repeats: int = 3) -> dict[str, dict[str, float]]:
    """Every rule, one process after another."""
    found = {}
    for rule in RULES:
        with get_context("spawn").Pool(1) as pool:
            found[rule] = pool.apply(measured, (rule, count, weights, repeats))
    return found


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.merging", description=__doc__)
    words.add_argument("--clients", type=int, default=100)
    words.add_argument("--weights", type=int, default=1_000_000)
    words.add_argument("--repeats", type=int, default=3)
    given = words.parse_args()
    found = merging(given.clients, given.weights, given.repeats)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rule", "merging, s", "stacking, s", "time", "memory", "within the gates"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for rule, f in found.items():
        within = f["time_ratio"] <= SLOWEST and f["memory_ratio"] <= LARGEST
        ratios = (f"{f['time_ratio']:.2f} ×", f"{f['memory_ratio']:.2f} ×")
        table.add_row(rule, f"{f['merging']:.2f}", f"{f['stacking']:.2f}", *ratios, "yes" if within else "NO")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
