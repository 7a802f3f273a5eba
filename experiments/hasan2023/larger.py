"""Hasan 2023, Tables 3.1 and B.5–B.7: the larger sets, by the trial of `hasan2023/accuracy`.

EMNIST with the MLP as MNIST, CIFAR with the CNN, 50 epochs and 10 rounds. Our EMNIST is a part of LEAF's FEMNIST (the
paper's released program used 'bymerge' with 47 classes) and our CIFAR-100 is a part of it: both are other data. A full
column of CIFAR-10 is hours on one core, so that 2 000 rows and 10 epochs are the default.
"""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, load

ACCURACY = load("hasan2023/accuracy")
COLUMNS = tuple(f"{name}:{h}" for name in ("femnist", "cifar10", "cifar100") for h in (0.0, 0.3, 0.6, 0.9))

PAPER = {  # rows × (EMNIST, CIFAR-10, CIFAR-100) at h = 0.0, 0.3, 0.6, 0.9: Tables B.5, 3.1, B.6, B.7
    "FedAvg, many": [(80.46, 0.19), (84.02, 0.05), (83.18, 0.04), (79.81, 0.04)]
    + [(79.46, 0.07), (40.49, 0.33), (33.94, 0.25), (34.62, 0.22)]
    + [(38.86, 0.16), (9.74, 0.12), (7.79, 0.16), (7.28, 0.19)],
    "FedPA, many": [(75.52, 0.45), (71.11, 0.39), (67.54, 0.59), (59.70, 0.58)]
    + [(41.83, 0.47), (43.09, 0.23), (39.47, 0.31), (34.86, 0.40)]
    + [(5.03, 0.31), (8.04, 0.11), (7.96, 0.09), (6.88, 0.20)],
    "FedAvg": [(84.23, 0.11), (67.68, 0.80), (63.10, 0.95), (59.03, 0.56)]
    + [(69.89, 0.33), (38.18, 0.54), (25.06, 0.66), (16.16, 1.05)]
    + [(24.36, 0.31), (7.90, 0.18), (5.85, 0.18), (3.97, 0.15)],
    "FedPA": [(62.62, 6.37), (35.44, 1.17), (33.51, 1.02), (29.77, 0.81)]
    + [(40.71, 1.19), (23.19, 1.20), (14.52, 1.24), (13.52, 0.70)]
    + [(8.10, 0.46), (5.05, 0.36), (2.96, 0.29), (2.76, 0.24)],
    "EP MCMC": [(69.86, 6.89), (48.95, 1.05), (48.39, 1.26), (45.59, 0.83)]
    + [(67.94, 0.17), (21.65, 1.39), (11.35, 0.53), (10.21, 0.16)]
    + [(21.36, 0.16), (12.14, 0.25), (3.57, 0.39), (4.33, 0.54)],
    "FedProx": [(74.61, 0.85), (42.50, 1.02), (39.38, 0.77), (40.00, 1.23)]
    + [(71.40, 0.35), (10.08, 0.05), (10.03, 0.03), (10.17, 0.16)]
    + [(25.16, 0.26), (1.62, 0.11), (1.04, 0.03), (1.03, 0.03)],
    "AdaptFL": [(68.62, 0.55), (41.23, 1.33), (38.72, 0.93), (38.71, 0.93)]
    + [(46.27, 0.89), (13.64, 0.96), (11.49, 0.58), (12.18, 0.70)]
    + [(16.52, 0.32), (5.34, 0.18), (1.76, 0.13), (1.63, 0.15)],
    "FedBE": [(72.18, 1.24), (76.84, 0.28), (75.11, 0.28), (72.47, 0.18)]
    + [(73.65, 0.32), (42.01, 0.39), (35.71, 0.64), (23.13, 2.04)]
    + [(32.35, 0.09), (10.22, 0.14), (10.20, 0.18), (10.77, 0.25)],
    "Oneshot FL": [(78.64, 0.15), (82.06, 0.06), (81.33, 0.05), (77.98, 0.07)]
    + [(76.45, 0.14), (43.63, 0.25), (39.00, 0.56), (43.18, 0.81)]
    + [(30.66, 0.09), (10.68, 0.11), (10.14, 0.12), (9.36, 0.19)],
    "FedKT": [(81.01, 0.15), (83.52, 0.10), (82.47, 0.05), (77.55, 0.07)]
    + [(69.35, 0.25), (42.24, 0.24), (28.20, 0.57), (10.21, 0.28)]
    + [(28.88, 0.18), (9.91, 0.15), (6.54, 0.22), (5.10, 0.10)],
    "BCM": [(87.68, 0.10), (86.18, 0.14), (85.04, 0.23), (82.35, 0.24)]
    + [(73.85, 0.11), (62.42, 0.14), (59.26, 0.21), (52.15, 0.44)]
    + [(29.52, 0.11), (25.04, 0.13), (23.95, 0.31), (20.24, 0.40)],
    "D BCM": [(86.96, 0.08), (85.44, 0.14), (84.36, 0.23), (81.82, 0.26)]
    + [(72.74, 0.10), (61.79, 0.19), (58.48, 0.20), (52.62, 0.48)]
    + [(28.63, 0.11), (23.96, 0.17), (22.88, 0.25), (19.05, 0.39)],
}


def read_printed(row: str, cells: list[tuple[float, float]]) -> dict[str, dict[str, tuple[float, float]]]:
    """'many' is five rounds on EMNIST, ten on CIFAR."""
    by_column = dict(zip(COLUMNS, cells, strict=True))
    if not row.endswith("many"):
        return {row: by_column}
    rounds = {c: 5 if c.startswith("femnist") else 10 for c in COLUMNS}
    return {
        row.replace("many", f"{n} rounds"): {c: cell for c, cell in by_column.items() if rounds[c] == n}
        for n in (5, 10)
    }


EXPERIMENT = Experiment(
    title="Hasan 2023, Tables 3.1 and B.5–B.7, larger sets: accuracy, %",
    columns=COLUMNS,
    trial=ACCURACY.trial,
    score="accuracy",
    digits=2,
    paper={name: cells for row, columns in PAPER.items() for name, cells in read_printed(row, columns).items()},
    incomparable=tuple(c for c in COLUMNS if not c.startswith("cifar10:")),
    open_rows=ACCURACY.open_rows,
    scales=("quick", "full", "smoke"),
)
