"""Hasan 2023, Table 3.2: MSE on regression as the released scripts run it, from the trials of hasan2024/released."""

from __future__ import annotations

import dataclasses

from consilience.comparison.reproduce import load, module

NLL = module("hasan2024/released")

EXPERIMENT = dataclasses.replace(
    NLL.EXPERIMENT,
    title="Hasan 2023, Table 3.2 as the released scripts run it: MSE on regression, as the thesis sums it",
    score="mse_sum",
    digits=3,
    paper=NLL.printed(load("hasan2023/regression").paper),
)
