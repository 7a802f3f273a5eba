"""d'Hondt et al. 2024, Table 8: how many pseudo-rows a writer; BPC-FL + SGD, NLL on unseen writers."""

from __future__ import annotations

import dataclasses
import warnings

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.metrics.scores import scores

table1 = module("dhondt2024/table1")


def score_writers(writers: int, rows: int, seed: int, scale: str, data_dir: str | None, column: str = "") -> Values:
    """BPC-FL with so many writers and pseudo-rows, scored on writers nobody trained on.

    Table 7 gives the server's SGD no momentum; 0.9 stands beside, as our tables had it before. The bound has the same
    SGD on all rows in place of the pseudo-rows: what the network and the server's steps allow. Real rows, as many as
    there are pseudo-rows, are what is lost by sending so few rows, without what learning them adds or takes.
    """
    size = table1.SIZES[scale]
    sites, others = table1.prepare(writers, size.unseen, seed, data_dir)
    task = table1.regularised(size, column)
    learn = dataclasses.replace(size.learn, rows=rows, own=table1.OWN in column)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = [table1.descent(size, writers * rows, momentum) for momentum in (0.0, 0.9)]
        plain = co.run(co.methods.CoresetFL(learn, steps[0]), task, sites, seed=seed, engine="parallel")
        still = co.methods.CoresetFL(table1.unlearned(learn), steps[0])
        together = co.methods.Centralised(table1.descent(size, sum(len(d.w) for d in sites.train)))
        runs = {
            "BPC-FL + SGD": plain,
            table1.REAL: co.run(still, task, sites, seed=seed, engine="parallel"),
            table1.WITH_MOMENTUM: plain.pool(co.methods.CoresetFL(learn, steps[1])),
            "all rows in one place, the server's SGD": co.run(together, task, sites, seed=seed, engine="parallel"),
        }
    values: Values = {}
    for row, result in runs.items():
        metrics = scores(result.method.predictive(task, result.state)(others.x), others.y)
        values[row] = {k: metrics[k] for k in ("nll", "accuracy", "ece")}
    values["BPC-FL + SGD"] |= table1.exposure(plain, sites)
    values[table1.REAL] |= table1.exposure(runs[table1.REAL], sites)
    return values


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    rows = int(column.split(maxsplit=1)[0])
    return score_writers(table1.SIZES[scale].writers, rows, seed, scale, data_dir)


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Table 8: NLL on unseen writers by pseudo-rows a writer",
    columns=("30 rows", "62 rows", "100 rows"),
    trial=trial,
    score="nll",
    paper={"BPC-FL + SGD": {"30 rows": (1.504, 0.150), "62 rows": (1.118, 0.051), "100 rows": (1.00, 0.03)}},
    incomparable=("30 rows", "62 rows", "100 rows"),
    scales=table1.EXPERIMENT.scales,
)
