"""Chen and Chao 2021, App. C.6 and Figure 12: FedBE around SCAFFOLD."""

from __future__ import annotations

import dataclasses
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = ("step:convnet", "step:resnet20", "step:resnet32")


def scaffold(job: Any) -> co.methods.Scaffold:
    return co.methods.Scaffold(dataclasses.replace(job.training, momentum=0.0))


PAPER = """
SCAFFOLD         | – 59.4 55.3
FedBE + SCAFFOLD | – 76.4 72.7
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, App. C.6: FedBE with SCAFFOLD on Step CIFAR-10, %",
    [
        SETTING.one("SCAFFOLD", scaffold),
        SETTING.one("FedBE + SCAFFOLD", lambda job: job.fedbe(scaffold(job), monitor=True)),
    ],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
