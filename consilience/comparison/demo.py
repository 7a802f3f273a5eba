"""The point of the project in under a minute: five sites that hardly share a class, one round, 30 labelled rows."""

from __future__ import annotations

import dataclasses
import json
import time
from importlib import resources
from typing import Any

from consilience.comparison.cells import line, outcomes
from consilience.comparison.rows import row
from consilience.data.sites import Sites
from consilience.errors import Diverged
from consilience.report.wording import percent
from consilience.runs.recipe import Recipe
from consilience.runs.store import FORMAT

HERE = resources.files("consilience.comparison")
RECIPE = Recipe(data="digits", sites=5, split="dirichlet:0.1", calibration=30)


def demo(seed: int = 0) -> dict[str, Any]:
    """Every row on the same split, start, passes over the data and server rows."""
    started = time.perf_counter()
    task, sites = dataclasses.replace(RECIPE, seed=seed).build_problem()
    plan = [row(word)._replace(name=name) for word, name in json.loads((HERE / "demo.json").read_text())]
    rows = []
    for planned, result, failure in outcomes(plan, task, sites, seed):
        if result is None:
            raise Diverged(failure)
        rows.append(line(planned.name, result))
    return comparison(rows, sites, seed, time.perf_counter() - started)


def comparison(rows: list[dict[str, Any]], sites: Sites, seed: int, seconds: float) -> dict[str, Any]:
    counts = sites.label_counts()
    return {
        "kind": "comparison",
        "format": FORMAT,
        "title": "Five sites that hardly share a class",
        "sentence": sentence(rows, len(sites.all_test.x)),
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "seed": seed,
        "rows": rows,
        "labels": [[int(c) for c in site] for site in counts],
        "site_names": list(sites.names),
        "rows_of_data": {
            "train": sum(len(d.x) for d in sites.train),
            "calibration": 0 if sites.calibration is None else len(sites.calibration.x),
            "test": len(sites.all_test.x),
        },
        "seconds": seconds,
    }


def sentence(rows: list[dict[str, Any]], tested: int) -> str:
    """What the table says, whichever way it comes out."""
    federated = [(r["name"], r["metrics"]) for r in rows if r["needs"] != "bound"]
    federated += [
        (f"{r['name']}, tempered", r["tempered"]["metrics"]) for r in rows if r["needs"] != "bound" and r["tempered"]
    ]
    name, best = min(federated, key=lambda pair: pair[1]["nll"])
    bound = {r["name"]: r["metrics"] for r in rows if r["needs"] == "bound"}
    top, alone = bound["All data in one place"], bound["Server's 30 rows alone"]
    accurate = {name: percent(m["accuracy"]) for name, m in (("best", best), ("top", top), ("alone", alone))}
    return (
        f"On this one split the best federated NLL is {best['nll']:.2f} ({name}, {accurate['best']} accurate), "
        f"against {top['nll']:.2f} ({accurate['top']}) with all data in one place and {alone['nll']:.2f} "
        f"({accurate['alone']}) from the server's 30 labelled rows alone; one seed and "
        f"{tested} test rows do not rank methods that are close."
    )
