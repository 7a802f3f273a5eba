"""Chen and Chao 2021, Table 1 and Figures 3 and 13: FedBE and its rivals on non-iid CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.methods.ensembles import one_ensemble, v_distillation

SETTING = module("chen2021/setting")
COLUMNS = tuple(f"{split}:{network}" for split in ("step", "dirichlet") for network in SETTING.NETWORKS)


PAPER = """
1-Ensemble      | 60.5±0.28 49.9±0.46 35.5±0.50 32.8±0.38 23.3±0.52 63.3±0.56 45.2±1.06 39.5±0.78 31.5±0.77 27.2±0.65
FedAvg          | 72.0±0.25 70.2±0.17 66.5±0.36 60.5±0.26 51.4±0.15 72.3±0.12 74.4±0.36 73.4±0.23 67.1±0.54 62.2±0.45
v-Distillation  | 69.2±0.18 72.6±0.62 68.4±0.33 60.4±0.53 56.4±1.10 67.7±0.98 73.1±0.78 70.8±0.64 66.9±0.85 62.8±0.66
FedBE (w/o SWA) | 72.1±1.21 74.9±1.41 71.1±0.75 61.0±0.75 56.6±0.85 70.1±0.42 75.9±0.56 73.9±0.55 68.2±0.72 63.2±0.71
FedBE           | 74.5±0.51 77.5±0.42 72.7±0.27 65.5±0.32 60.7±0.45 73.9±0.45 78.2±0.36 77.7±0.45 71.5±0.38 67.0±0.30
Centralised     | 84.5 91.7 92.6 93.1 93.4 84.5 91.7 92.6 93.1 93.4
"""

LINES = {  # row, score → label, colour, style
    ("FedAvg", "round"): ("FedAvg", "#1f5a96", "o-"),
    ("FedAvg", "ensemble, round"): ("FedAvg's ensemble", "#1f5a96", "o:"),
    ("FedBE", "round"): ("FedBE", "#c05a00", "s-"),
    ("FedBE", "ensemble, round"): ("FedBE's ensemble", "#c05a00", "s:"),
}


def draw(results: dict[str, Any], folder: Path) -> None:
    """rounds.svg: accuracy after every round, of the single models and of their ensembles; a panel for each column."""
    cells = {(c["row"], c["column"]): c["scores"] for c in results["cells"] if c["ours"] is not None}
    columns = [c for c in COLUMNS if ("FedBE", c) in cells]
    figure = Figure(figsize=(4.6 * max(len(columns), 1), 3.4), layout="constrained")
    for axes, column in zip(figure.subplots(1, len(columns), squeeze=False, sharey=True)[0], columns, strict=True):
        for (row, kind), (label, colour, style) in LINES.items():
            cell = cells.get((row, column), {})
            points = {int(k.rpartition(" ")[2]): v for k, v in cell.items() if k.rpartition(" ")[0] == kind}
            axes.plot(list(points), list(points.values()), style, color=colour, markersize=4, label=label)
        axes.set(title=column.replace(":", ", "), xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, alpha=0.25)
    figure.axes[0].set_ylabel("test accuracy, %")
    figure.axes[0].legend(frameon=False)
    figure.savefig(folder / "rounds.svg", metadata={"Date": None})


EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 1: accuracy on non-iid CIFAR-10, %",
    [
        SETTING.fedavg,
        SETTING.fedbe,
        SETTING.one("FedBE (w/o SWA)", lambda job: job.fedbe(distil=job.sgd)),
        SETTING.one("v-Distillation", lambda job: v_distillation(co.methods.FedAvg(job.training), job.sgd.inference)),
        SETTING.one("1-Ensemble", lambda job: one_ensemble(job.long), rounds=1),
        *SETTING.bounds(),
    ],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
    few=2,
)
