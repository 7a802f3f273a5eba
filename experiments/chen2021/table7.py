"""Chen and Chao 2021, Table 7: models drawn from a Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = ("step:convnet", "step:resnet20")


def with_alpha(alpha: float) -> Callable[[Any], Any]:
    return SETTING.one(
        f"α = {alpha:g}", lambda job: job.fedbe(ensemble=co.aggregation.Ensemble(co.aggregation.DirichletModels(alpha)))
    )


PAPER = """
α = 0.1 | 72.5±0.44 75.9±0.66
α = 0.5 | 73.6±0.73 77.3±0.86
α = 1   | 74.2±0.51 77.1±0.71
α = 2   | 73.2±0.83 76.8±0.55
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 7: FedBE with Dirichlet models on Step CIFAR-10, %",
    [with_alpha(alpha) for alpha in (0.1, 0.5, 1.0, 2.0)],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
