"""Hasan 2023, Table 3.2: MSE on regression as the released scripts run it, from the trials of hasan2024/released.

The clients' rows are cut by chance: without a sort after the random split that gives the server its rows, a contiguous
cut is that. The sorted columns stand beside them.
"""

from __future__ import annotations

import dataclasses

from consilience.benchmark.reproduce import load, module

NLL = module("hasan2024/released")
CHANCE = tuple(c for c in NLL.COLUMNS if NLL.BY_CHANCE in c)


def printed() -> dict[str, dict[str, tuple[float, float]]]:
    """The thesis's figures; its EP-MCMC is the mean of the clients' means."""
    paper = NLL.printed(load("hasan2023/regression").paper)
    return {"EP-MCMC, mean" if row == "EP-MCMC" else row: cells for row, cells in paper.items()}


EXPERIMENT = dataclasses.replace(
    NLL.EXPERIMENT,
    title="Hasan 2023, Table 3.2 as the released scripts run it: MSE on regression, as the thesis sums it",
    columns=(*CHANCE, *NLL.SETTINGS),
    score="mse_sum",
    digits=3,
    paper=printed(),
)
