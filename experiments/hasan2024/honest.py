"""The five regression sets of Hasan et al. 2024 under our protocol: what their table would say with equal treatment.

Honest data (no leaks, scaled on training rows), five sites cut along the feature of largest variance, test rows from
each site's own range, 30 labelled rows at the server, a fifth of the rest as unlabelled inputs; learned noise, added
once; the true posterior (T = 1) under N(0, 1); bounds; every row also with a variance scale from the same 30 labels.
"""

from __future__ import annotations

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data import datasets
from consilience.data.splits.text import parse
from consilience.inference import SWA
from consilience.runs.result import Result

EPOCHS = {"full": (60, 200, 100), "smoke": (10, 10, 1)}  # of clients, of the server alone, of distillation
COLUMNS = ("air_quality", "bike", "wine", "real_estate", "forest_fire")


def trial(name: str, seed: int, scale: str, data_dir: str | None) -> Values:
    rows = datasets.load(name, data_dir)
    sites = rows.split(parse("sorted_feature"), 5, test=0.2, calibration=30, inputs=0.2, seed=seed)
    task = co.regression(co.models.mlp(sites.features))
    epochs, alone, distilled = EPOCHS[scale]
    sampler = co.CyclicalSGHMC(rate=0.02, epochs=epochs, batch=50)
    training = co.SGD(rate=0.02, epochs=epochs, batch=50)
    distil = co.aggregation.Distil(co.Adam(rate=3e-3, epochs=distilled, batch=100))
    swa = co.aggregation.Distil(SWA(epochs=max(1, 2 * distilled // 5), batch=20), wide=False)
    sampled = co.run(co.methods.Mixture(sampler), task, sites, seed=seed)
    snapshots = co.run(
        co.methods.Mixture(co.CyclicalSGHMC(rate=0.02, epochs=epochs, batch=50, temperature=0.0)),
        task,
        sites,
        seed=seed,
    )
    local = co.run(co.methods.FedAvg(training), task, sites, rounds=1, seed=seed)
    rows: dict[str, Result] = {
        "Local only": sampled.pool(co.methods.LocalOnly()),
        "Server only": co.run(
            co.methods.ServerOnly(co.CyclicalSGHMC(rate=0.02, epochs=alone, batch=10)), task, sites, seed=seed
        ),
        "Centralised": co.run(co.methods.Centralised(sampler), task, sites, seed=seed),
        "FedAvg, 1 round": local,
        "FedAvg, 10 rounds": co.run(
            co.methods.FedAvg(co.SGD(rate=0.02, epochs=epochs // 10, batch=50)), task, sites, rounds=10, seed=seed
        ),
        "FedBE, 1 round": local.pool(
            co.methods.FedBE(sharpen=1.0, distil=co.aggregation.Distil(distil.inference, wide=False))
        ),
        "FedBE, 10 rounds": co.run(
            co.methods.FedBE(
                co.methods.FedAvg(co.SGD(rate=0.02, epochs=epochs // 10, batch=50)), sharpen=1.0, distil=swa
            ),
            task,
            sites,
            rounds=10,
            seed=seed,
        ),
        "OneshotFL": local.pool(co.methods.OneShotFL(distil=distil)),
        "EP-MCMC": sampled.pool(co.methods.EPMCMC()),
        "Mixture": sampled,
        "Mixture, T = 0": snapshots,
        "Product": sampled.pool(co.methods.BCM()),
        "Product, robust": sampled.pool(co.methods.BCM(powers=co.aggregation.robust)),
        "β-PredBayes": sampled.pool(co.methods.BetaPredictiveBayes()),
        "D-β-PredBayes": sampled.pool(co.methods.BetaPredictiveBayes(distil=distil)),
    }
    values: Values = {}
    for row, result in rows.items():
        values[row] = {k: result.metrics[k] for k in ("nll", "crps", "rmse", "coverage95")}
        if result.report["tempered"]:
            values[f"{row}, tempered"] = {
                k: result.report["tempered"]["metrics"][k] for k in ("nll", "crps", "rmse", "coverage95")
            }
    return values


EXPERIMENT = Experiment(
    title="The regression sets of Hasan et al. 2024 under our protocol: NLL per point",
    columns=COLUMNS,
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)
