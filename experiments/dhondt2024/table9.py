"""d'Hondt et al. 2024, Table 9: how many writers; BPC-FL + SGD with 62 pseudo-rows each, NLL on unseen writers.

Our FEMNIST has 300 writers: with all of them training none is left to test on, so 300 becomes 280. At scale `small` a
tenth of the writers take part. Three scales beside `evening` take one thing each from Table 2: `patient` its 500
updates, `averaged` its sets of weights and noises an update, `wide` its network. Further columns read Table 2's 1e-2
as weight decay on the mean loss, begin pseudo-rows at rows of the writer's own, or weights as FedJAX's; see Table 1.
"""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, Values, module

table8 = module("dhondt2024/table8")
PRINTED = {30: (1.822, 0.132), 50: (1.385, 0.006), 100: (1.210, 0.029), 200: (1.152, 0.073), 300: (1.01, 0.002)}
DECAYED = f"30 writers, {table8.table1.DECAY}"
STARTS = tuple(f"30 writers, {start}" for start in (table8.table1.OWN, table8.table1.HAIKU))
BOTH = f"{STARTS[0]}, {table8.table1.HAIKU}"
A_TENTH = ("small", "smoke")  # scales at which a tenth of the writers take part
COLUMNS = (*(f"{n} writers" for n in PRINTED), DECAYED, *STARTS, BOTH)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    writers = min(int(column.split(maxsplit=1)[0]), 280)
    if scale in A_TENTH:
        writers //= 10
    values = table8.score_writers(writers, table8.table1.SIZES[scale].learn.rows, seed, scale, data_dir, column)
    return {row: {**cell, "writers": float(writers)} for row, cell in values.items()}


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Table 9: NLL on unseen writers by the number that train",
    columns=COLUMNS,
    trial=trial,
    score="nll",
    paper={
        "BPC-FL + SGD": {
            **{f"{n} writers": cell for n, cell in PRINTED.items()},
            **dict.fromkeys((DECAYED, *STARTS, BOTH), PRINTED[30]),
        }
    },
    incomparable=COLUMNS,
    scales=table8.EXPERIMENT.scales,
)
