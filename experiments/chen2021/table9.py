"""Chen and Chao 2021, Table 9: ten of a hundred clients a round, CIFAR-100. Ours is a part of it, counts scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = ("step100:convnet", "step100:resnet20", "step100:resnet32")


def a_tenth(name: str, method: Callable[[Any], co.Method]) -> Callable[[Any], Any]:
    return lambda job: {name: job.run(method(job), participation=max(2, len(job.sites) // 10))}


PAPER = """
FedAvg | 32.5±0.78 37.5±0.65 33.3±0.55
FedBE  | 36.6±0.52 43.5±0.89 37.7±0.69
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 9: ten of a hundred clients a round, non-iid CIFAR-100, %",
    [a_tenth("FedAvg", lambda job: co.methods.FedAvg(job.training)), a_tenth("FedBE", lambda job: job.fedbe())],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
    data="cifar100",
    clients=100,
    incomparable=COLUMNS,
)
