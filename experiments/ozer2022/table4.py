"""Özer et al. 2022, Table 4: the norm of all standard deviations of the final model, non-IID, weighted by size.

The runs are those of Tables 1 and 3: give the same --out folder, and nothing is trained twice.
"""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, module

TABLE1 = module("ozer2022/table1")
COLUMNS = tuple(f"{column}{clients}" for clients in (":100", "") for column in TABLE1.COLUMNS if "dirichlet" in column)

EXPERIMENT = Experiment(
    title="Özer et al. 2022, Table 4: the norm of all standard deviations",
    columns=COLUMNS,
    trial=TABLE1.trial,
    score="spread",
    paper={row: {c: tuple(cell) for c, cell in cells.items()} for row, cells in TABLE1.PAPER["table4"].items()},
    incomparable=tuple(column for column in COLUMNS if column.startswith("svhn")),
    scales=("full", "overnight", "small", "others"),
)
