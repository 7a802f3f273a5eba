"""Özer et al. 2022, Table 5: seconds per round against how many clients run at a time; CIFAR-10, IID, 100 clients.

Merging is the rules' own; PPA draws its population of 1 000 as the paper's does. Seconds are this machine's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.data import Data, datasets
from consilience.runs.engines import Parallel

TABLE1 = module("ozer2022/table1")
ROUNDS = {"full": 5, "overnight": 5, "evening": 1, "small": 2, "smoke": 1}
ROWS = {"small": 6_000, "smoke": 200}  # training rows, where not all
COLUMNS = ("10 at a time", "5 at a time", "2 at a time", "1 at a time")


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    workers, rounds = int(column.split(maxsplit=1)[0]), ROUNDS[scale]
    rows = datasets.load("fashion_mnist" if scale == "smoke" else "cifar10", data_dir)
    count = ROWS.get(scale, len(rows.x))
    clients = min(100, count // 10)
    rows = dataclasses.replace(rows, x=rows.x[:count], y=rows.y[:count])
    sites = rows.split(co.splits.iid(), clients, calibration=0, seed=seed)
    point, gaussian = TABLE1.tasks(sites)
    epochs = 1 if scale in ROWS else 10

    def engine(data: Sequence[Data]) -> Parallel:
        return Parallel(data, workers)

    def seconds(method: co.Method, task: co.Task) -> dict[str, float | None]:
        result = co.run(
            method, task, sites, rounds=rounds, seed=seed, scored=False, engine=engine, participation=TABLE1.ACTIVE
        )
        return {"seconds": result.report["seconds"] / rounds}

    values: Values = {"FED": seconds(co.methods.FedAvg(TABLE1.descent(epochs), equal=True), point)}
    values["FEDAVG"] = seconds(co.methods.FedAvg(TABLE1.descent(epochs)), point)
    for weighting in ("FVBA", "FVBWA") if scale not in ("evening", "small") else ("FVBWA",):
        for rule in TABLE1.RULES:
            method = TABLE1.merging(rule, weighting, epochs)
            values[f"{weighting} {rule}"] = seconds(method, gaussian)
    drawing = co.methods.VariationalAveraging(TABLE1.mean_field(epochs), co.aggregation.ppa, population=1_000)
    values["FVBWA PPA, drawn"] = seconds(drawing, gaussian)
    return values


EXPERIMENT = Experiment(
    title="Özer et al. 2022, Table 5: seconds per round",
    columns=COLUMNS,
    trial=trial,
    score="seconds",
    digits=2,
    paper={row: {c: tuple(cell) for c, cell in cells.items()} for row, cells in TABLE1.PAPER["table5"].items()},
    incomparable=COLUMNS,  # another machine
    scales=tuple(ROUNDS),
)
