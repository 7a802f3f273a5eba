"""Özer et al. 2022, Table 3: Table 1 with 100 clients, ten of them active in a round."""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, module

TABLE1 = module("ozer2022/table1")
COLUMNS = tuple(f"{column}:100" for column in TABLE1.COLUMNS)
trial = TABLE1.trial

EXPERIMENT = Experiment(
    title="Özer et al. 2022, Table 3: accuracy with 10 of 100 clients active, %",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=2,
    paper=TABLE1.read_printed("table3", "accuracy", ":100"),
    incomparable=tuple(column for column in COLUMNS if column.startswith("svhn")),
    scales=tuple(TABLE1.SCALES),
)
