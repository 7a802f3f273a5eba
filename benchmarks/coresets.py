"""What a coreset costs to learn: seconds of BPC-fKL at the sites over FedAvg's, in the rounds FedAvg needs.

The problem is that of d'Hondt et al. 2024, Figure 2, whose authors speak of 10 to 100 ×.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.distributions.prior import Isotropic
from consilience.models.mlp import mlp_swish

TITLE = "Learning coresets"
TARGET = 50  # × FedAvg's seconds


def measure(options: Namespace) -> dict[str, Any]:
    """Seconds at the sites, and their ratio; FedAvg is stopped at its best validation NLL."""
    figure2 = module("dhondt2024/figure2")
    scale = "smoke"
    if options.scale >= 0.1:
        scale = "small"
    learn, _, _, rounds = figure2.SCALES[scale]
    sites = figure2.prepare(100, 0)
    task = co.regression(mlp_swish(1), noise=figure2.NOISE, prior=Isotropic(100.0))
    average = co.methods.FedAvg(co.Adam(rate=1e-2, epochs=2, batch=20))
    history = co.run(average, task, sites, rounds=rounds).report["history"]
    best = min(history, key=lambda row: row["validation_nll"])["round"]
    fedavg = co.run(average, task, sites, rounds=best, scored=False).report["seconds"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = co.methods.CoresetFL(learn, co.Adam(rate=1e-2, epochs=1, batch=1000))
        coreset = co.run(method, task, sites, scored=False).report["seconds"]
    seconds = {"coreset_seconds": coreset, "fedavg_seconds": fedavg}
    return {"scale": scale, **seconds, "fedavg_rounds": best, "ratio": coreset / fedavg}


def table(results: dict[str, Any]) -> list[list[str]]:
    heads = ["scale", "coresets, s", "FedAvg, s", "FedAvg's rounds", f"ratio (wanted: ≤ {TARGET})"]
    seconds = [f"{results[f'{what}_seconds']:.1f}" for what in ("coreset", "fedavg")]
    return [heads, [results["scale"], *seconds, str(results["fedavg_rounds"]), f"{results['ratio']:.1f}"]]
