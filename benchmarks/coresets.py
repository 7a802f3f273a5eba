"""What a coreset costs to learn: seconds of BPC-fKL at the sites over FedAvg's, in the rounds FedAvg needs.

    python -m benchmarks.coresets [--scale small] [--seed 0]

The problem is that of d'Hondt et al. 2024, Figure 2, whose authors speak of 10 to 100 ×; the aim here is under 50 ×.
"""

from __future__ import annotations

import argparse
import json
import warnings

import consilience as co
from consilience.models.mlp import mlp_swish
from consilience.reproduce import module


def coreset_over_fedavg(scale: str = "small", seed: int = 0) -> dict[str, float]:
    """Seconds at the sites, and their ratio; FedAvg is stopped at its best validation NLL."""
    figure2 = module("dhondt2024/figure2")
    learn, _, _, rounds = figure2.SCALES[scale]
    sites = figure2.prepared(100, seed)
    task = co.regression(mlp_swish(1), noise=figure2.NOISE, prior=co.Isotropic(100.0))
    average = co.FedAvg(co.Adam(rate=1e-2, epochs=2, batch=20))
    history = co.run(average, task, sites, rounds=rounds, seed=seed).report["history"]
    best = min(history, key=lambda row: row["validation_nll"])["round"]
    fedavg = co.run(average, task, sites, rounds=best, seed=seed, scored=False).report["seconds"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = co.CoresetFL(learn, co.Adam(rate=1e-2, epochs=1, batch=1000))
        coreset = co.run(method, task, sites, seed=seed, scored=False).report["seconds"]
    return {"coreset_seconds": coreset, "fedavg_seconds": fedavg, "fedavg_rounds": best, "times": coreset / fedavg}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="small", help="a scale of dhondt2024/figure2")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(json.dumps(coreset_over_fedavg(asked.scale, asked.seed), indent=2))
