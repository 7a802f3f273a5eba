"""Merging many clients' Gaussians: seconds and memory against stacking the payloads."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

import consilience as co
from benchmarks.timing import alternating, in_a_new_process, medians, peak
from consilience import tree
from consilience.distributions.payload import nbytes
from consilience.distributions.posterior import Gaussian

TITLE = "Merging Gaussians"
RULES = {
    "eaa": co.aggregation.eaa,
    "gaa": co.aggregation.gaa,
    "aalv": co.aggregation.aalv,
    "ppa": co.aggregation.ppa,
    "cf": co.aggregation.cf,
}
CLIENTS, WEIGHTS = 100, 1_000_000
SLOWEST, LARGEST = 4.0, 3.0  # wanted: × the time of stacking, × the payloads' memory


def clients_of(count: int) -> list[Gaussian]:
    """One large leaf of Gaussian weights and one of points at every client."""
    g, few = torch.Generator().manual_seed(0), WEIGHTS // 100
    return [
        Gaussian(
            {"layer": torch.randn(WEIGHTS - few, generator=g), "points": torch.randn(few, generator=g)},
            {"layer": torch.rand(WEIGHTS - few, generator=g) + 0.01},
        )
        for _ in range(count)
    ]


def alone(rule: str, count: int, repeats: int) -> dict[str, float]:
    """Time and peak memory of one rule."""
    torch.set_num_threads(1)
    gaussians, shares = clients_of(count), torch.rand(count) + 0.5
    payload, before = sum(nbytes(g) for g in gaussians) / 2**20, peak()
    co.aggregation.merge(gaussians, shares, RULES[rule])
    memory = payload + peak() - before  # the payloads themselves, and what merging needed beside them
    works = {
        "merging": lambda: co.aggregation.merge(gaussians, shares, RULES[rule]),
        "stacking": lambda: tree.stack(gaussians),
    }
    results = medians(alternating(works, repeats))
    ratios = {"time_ratio": results["merging"] / results["stacking"], "memory_ratio": memory / payload}
    return {**results, "payload_megabytes": payload, "held_megabytes": memory, **ratios}


def measure(options: Namespace) -> dict[str, Any]:
    count = max(2, round(CLIENTS * min(options.scale * 10, 1)))
    return {rule: in_a_new_process(alone, rule, count, options.repeats) for rule in RULES}


def table(results: dict[str, Any]) -> list[list[str]]:
    rows = [["rule", "merging, s", "stacking, s", f"time (wanted: ≤ {SLOWEST})", f"memory (≤ {LARGEST})"]]
    for rule, f in results.items():
        seconds = [f"{f[what]:.2f}" for what in ("merging", "stacking")]
        rows.append([rule, *seconds, f"{f['time_ratio']:.2f}", f"{f['memory_ratio']:.2f}"])
    return rows
