"""d'Hondt et al. 2024, Table 8: how many pseudo-rows a writer; BPC-FL + SGD, NLL on unseen writers."""

from __future__ import annotations

import dataclasses
import warnings

import consilience as co
from consilience.comparison.reproduce import Experiment, Values, module
from consilience.metrics.scores import scores

table1 = module("dhondt2024/table1")


def score_writers(
    writers: int, rows: int, seed: int, scale: str, data_dir: str | None, column: str = ""
) -> dict[str, float | None]:
    """One run of BPC-FL + SGD with so many writers and pseudo-rows, scored on writers nobody trained on."""
    size = table1.SIZES[scale]
    sites, others = table1.prepare(writers, size.unseen, seed, data_dir)
    task = table1.regularised(size, column)
    learn = dataclasses.replace(size.learn, rows=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = co.CoresetFL(learn, co.SGD(1e-2, 0.9, size.steps, 100))
        result = co.run(method, task, sites, seed=seed, engine="parallel")
    metrics = scores(method.predictive(task, result.state)(others.x), others.y)
    diagnosis = result.report["diagnostics"]["coresets"]
    return {
        **{k: metrics[k] for k in ("nll", "accuracy", "ece")},
        "copies": float(sum(s["copies"] for s in diagnosis)),
        "closest": min(s["closest"] for s in diagnosis),
    }


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    rows = int(column.split(maxsplit=1)[0])
    return {"BPC-FL + SGD": score_writers(table1.SIZES[scale].writers, rows, seed, scale, data_dir)}


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Table 8: NLL on unseen writers by pseudo-rows a writer",
    columns=("30 rows", "62 rows", "100 rows"),
    trial=trial,
    score="nll",
    paper={"BPC-FL + SGD": {"30 rows": (1.504, 0.150), "62 rows": (1.118, 0.051), "100 rows": (1.00, 0.03)}},
    incomparable=("30 rows", "62 rows", "100 rows"),
    scales=table1.EXPERIMENT.scales,
)
