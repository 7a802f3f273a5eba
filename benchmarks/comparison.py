"""Ten methods × ten seeds: seconds with one process, and with one per core, which must give the same numbers."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from typing import Any

from benchmarks.timing import seconds
from consilience.benchmark.plan import Plan
from consilience.benchmark.running import compare_plan
from consilience.benchmark.summary import Comparison
from consilience.runs.engines.workers import cores
from consilience.runs.problem import Problem

TITLE = "A comparison on all cores"
ROWS = (
    *("mixture", "bcm", "beta", "evidence", "gaussian_product", "ep_mcmc"),
    *("fedavg[rounds=5]", "fedprox[rounds=5]", "scaffold[rounds=5]", "fedpa[rounds=5]"),
)
SEEDS = 10
SHORT = ("inference.epochs=10",)


def scores(comparison: Comparison) -> list[Any]:
    """What the table shows of every row."""
    return [row.scores for row in comparison.rows]


def measure(options: Namespace) -> dict[str, Any]:
    count = max(2, round(SEEDS * min(options.scale * 10, 1)))
    recipe = Problem("moons", model="linear", sites=3)
    plan = Plan(ROWS, recipe, seeds=tuple(range(count)), common=SHORT, bounds=False)
    taken = {}
    found = {}
    for workers in (1, cores()):
        with tempfile.TemporaryDirectory() as folder:

            def work(workers: int = workers, folder: str = folder) -> None:
                found[workers] = scores(compare_plan(plan, folder, workers=workers))

            taken[str(workers)] = seconds(work)
    return {"seeds": count, "rows": len(ROWS), "seconds": taken, "equal": found[1] == found[cores()]}


def table(results: dict[str, Any]) -> list[list[str]]:
    lines = [["processes", "rows × seeds", "s", "× as fast", "the same numbers"]]
    first = results["seconds"]["1"]
    for workers, taken in results["seconds"].items():
        about = f"{results['rows']} × {results['seeds']}"
        same = "–"
        if workers != "1":
            same = "no"
            if results["equal"]:
                same = "yes"
        lines.append([workers, about, f"{taken:.1f}", f"{first / taken:.2f}", same])
    return lines
