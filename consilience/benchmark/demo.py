"""The point of the project in under a minute: five sites that hardly share a class, and one round."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from importlib import resources

from consilience.benchmark.cells import Cell, Json, count_rows
from consilience.benchmark.outcomes import outcomes
from consilience.benchmark.row_words import row
from consilience.data.sites import Sites
from consilience.errors import Diverged
from consilience.metrics.baselines import lines_to_beat
from consilience.report.schema.wording import percent
from consilience.runs.problem import Problem
from consilience.runs.store import FORMAT

HERE = resources.files("consilience.benchmark")
KEYS = (
    *("name", "method", "needs", "rounds", "metrics", "intervals", "tempered", "reliability", "seconds"),
    *("up_bytes", "down_bytes", "settings", "curve", "own_rows", "models", "newcomer"),
)  # of a cell, in a row of the demo


def demo(seed: int = 0) -> Json:
    """Run every row on the same split, start, passes over the data and server rows, some on fixed features.

    Returns:
        What compare.json holds.

    Raises:
        Diverged: A row diverged.
    """
    started = time.perf_counter()
    lines = json.loads((HERE / "demo.json").read_text())  # a row's word, its name, and perhaps its features
    cells = {}
    problem = Problem("digits", sites=5, split="dirichlet:0.1", calibration=30)
    for features in dict.fromkeys((*line, None)[2] for line in lines):
        task, sites = dataclasses.replace(problem, features=features).build(seed)
        rows = [row(line[0])._replace(name=line[1]) for line in lines if (*line, None)[2] == features]
        for outcome in outcomes(rows, task, sites, seed):
            if outcome.result is None:
                raise Diverged(outcome.failure)
            cells[outcome.row.name] = Cell.from_outcome(outcome)
    return comparison([cells[line[1]] for line in lines], sites, seed, time.perf_counter() - started)


def comparison(cells: Sequence[Cell], sites: Sites, seed: int, seconds: float) -> Json:
    """Write the demo as a comparison.

    Args:
        cells: The rows on the one split and seed.
        seconds: How long it took.

    Returns:
        What compare.json holds.
    """
    counts = count_rows(sites)
    return {
        "kind": "comparison",
        "format": FORMAT,
        "title": "Five sites that hardly share a class",
        "sentence": sentence(cells, counts["test"]),
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "seed": seed,
        "rows": [{key: getattr(cell, key) for key in KEYS} for cell in cells],
        "baselines": lines_to_beat(sites),
        "labels": [[int(count) for count in site] for site in sites.label_counts()],
        "site_names": list(sites.names),
        "rows_of_data": {role: counts[role] for role in ("train", "calibration", "test")},
        "seconds": seconds,
    }


def sentence(cells: Sequence[Cell], test_rows: int) -> str:
    """Say what the table says, whichever way it comes out.

    Args:
        test_rows: How many rows they are scored on.
    """
    federated = [cell for cell in cells if cell.needs != "bound"]
    ranked = [(cell.name, cell.metrics or {}) for cell in federated]
    ranked += [(f"{cell.name}, tempered", cell.tempered["metrics"]) for cell in federated if cell.tempered]
    name, best = min(ranked, key=lambda entry: entry[1]["nll"] or 0.0)
    bounds = {cell.name: cell.metrics or {} for cell in cells if cell.needs == "bound"}
    top = bounds["All data in one place"]
    alone = bounds["Server's 30 rows alone"]
    return (
        f"On this one split the best federated NLL is {best['nll']:.2f} "
        f"({name}, {percent(best['accuracy'])} accurate), "
        f"against {top['nll']:.2f} ({percent(top['accuracy'])}) for the network on all data in one place "
        f"and {alone['nll']:.2f} "
        f"({percent(alone['accuracy'])}) from the server's 30 labelled rows alone; one seed and "
        f"{test_rows} test rows do not rank methods that are close."
    )
