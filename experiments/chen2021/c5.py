"""Chen and Chao 2021, App. C.5: batch against group normalisation; the paper's numbers are after 200 rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = ("step:resnet20",)
NORMS = {"BatchNorm": nn.BatchNorm2d, "GroupNorm": lambda channels: nn.GroupNorm(8, channels)}


def with_norm(name: str, method: Callable[[Any], co.Method], norm: str) -> Callable[[Any], Any]:
    return lambda job: {f"{name}, {norm}": job.run(method(job), task=job.task(NORMS[norm]))}


PAPER = """
FedAvg, BatchNorm | 74.6
FedAvg, GroupNorm | 76.4
FedBE, BatchNorm  | 80.2
FedBE, GroupNorm  | 79.6
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, App. C.5: batch and group normalisation on Step CIFAR-10, %",
    [with_norm("FedAvg", lambda job: co.methods.FedAvg(job.training), norm) for norm in NORMS]
    + [with_norm("FedBE", lambda job: job.fedbe(), norm) for norm in NORMS],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
