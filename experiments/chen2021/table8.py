"""Chen and Chao 2021, Table 8: one round of long training; the same clients' models, combined in seven ways."""

from __future__ import annotations

from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.runs.result import Result

SETTING = module("chen2021/setting")
COLUMNS = ("step:convnet",)
OWN, BAYES = co.aggregation.Ensemble(samples=0, average=False, clients=True), co.aggregation.Ensemble()


def combine(job: Any) -> dict[str, Result]:
    """Trained once; every way to combine is only another rule on the same replies."""
    average = job.run(co.methods.FedAvg(job.long), rounds=1)
    rows = {"(a) Weight average": average}
    for name, members in (("(b) Model ensemble", OWN), ("(c) Bayesian model ensemble", BAYES)):
        for how, distil in (("", None), (", SGD", job.sgd), (", SWA", job.swa)):
            rows[name + how] = average.pool(
                co.methods.FedBE(co.methods.FedAvg(job.long), members, distil=distil), scored=False
            )
    return {**rows, "One client, mean": average.pool(co.methods.LocalOnly(job.long), scored=False)}


PAPER = """
(a) Weight average               | 24.7±0.85
(b) Model ensemble               | 60.5±0.28
(b) Model ensemble, SGD          | 32.0±0.74
(b) Model ensemble, SWA          | 33.1±1.02
(c) Bayesian model ensemble      | 62.5±0.35
(c) Bayesian model ensemble, SGD | 35.1±0.76
(c) Bayesian model ensemble, SWA | 35.7±0.86
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 8: one round on Step CIFAR-10, %",
    [combine],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
