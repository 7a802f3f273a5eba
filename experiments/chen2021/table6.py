"""Chen and Chao 2021, Table 6: clients with unequal numbers of local epochs, drawn evenly from 1 to E."""

from __future__ import annotations

import dataclasses
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = ("step:convnet", "step:resnet20", "step:resnet32")


def uneven_passes(job: Any) -> co.SGD:
    return dataclasses.replace(job.training, fewest=1)


PAPER = """
FedAvg          | 70.6±0.46 69.9±0.59 64.0±0.50
FedProx         | 71.2±0.55 69.4±0.48 65.9±0.63
FedBE           | 73.3±0.56 77.1±0.61 70.2±0.39
FedBE + FedProx | 73.7±0.24 77.5±0.51 71.6±0.37
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 6: systems heterogeneity on Step CIFAR-10, %",
    [
        SETTING.one("FedAvg", lambda job: co.methods.FedAvg(uneven_passes(job))),
        SETTING.one("FedProx", lambda job: co.methods.FedProx(uneven_passes(job))),
        SETTING.one("FedBE", lambda job: job.fedbe(co.methods.FedAvg(uneven_passes(job)))),
        SETTING.one("FedBE + FedProx", lambda job: job.fedbe(co.methods.FedProx(uneven_passes(job)))),
    ],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
