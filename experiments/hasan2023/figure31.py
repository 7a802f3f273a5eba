"""Hasan 2023, Figure 3.1: accuracy on image sets against heterogeneity, rows of one round and of many.

A trial is one of hasan2023/accuracy: given the same folder, neither trains twice. Above ours, with standard errors over
seeds as bars; below what the paper's tables print for the same cells.

`python experiments/hasan2023/figure31.py` draws the stored results again, without any training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from consilience.benchmark.reproduce import Experiment, load, module

ACCURACY = load("hasan2023/accuracy")
FIGURES = module("hasan2024/figures")
MANY = {"FedAvg, 5 rounds": ("#3b7d3b", "*-."), "FedPA, 5 rounds": ("#7a7a7a", "*-.")}
ROWS = {**{row: FIGURES.ROWS[row] for row in FIGURES.ROWS if row in (ACCURACY.paper or {})}, **MANY}


def draw(results: dict[str, Any], folder: Path) -> None:
    """figure31.svg: ours above, print below, one panel a data set."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    grid = figure.subplots(2, len(FIGURES.NAMES), sharex=True, sharey="col")
    for column, (name, title) in enumerate(FIGURES.NAMES.items()):
        panel(grid[0][column], results, name, "ours", "spread")
        panel(grid[1][column], results, name, "paper", "paper_spread")
        FIGURES.finish(grid[0][column], f"{title}, ours", "accuracy, %")
        FIGURES.finish(grid[1][column], f"{title}, printed", "accuracy, %")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(folder / "figure31.svg", metadata={"Date": None})


def panel(axes: Axes, results: dict[str, Any], name: str, value: str, error: str) -> None:
    for row, (colour, style) in ROWS.items():
        cells = {c["column"]: c for c in results["cells"] if c["row"] == row}
        means = {column: cell[value] for column, cell in cells.items()}
        FIGURES.plot_row(axes, name, means, 1, style, color=colour, label=row)
        own = [(float(c.partition(":")[2]), cell) for c, cell in cells.items() if c.startswith(f"{name}:")]
        bars = [(h, cell[value], cell[error] or 0) for h, cell in own if cell[value] is not None]
        if bars:
            axes.errorbar(*zip(*bars, strict=True), fmt="none", ecolor=colour, elinewidth=1)


EXPERIMENT = Experiment(
    title="Hasan 2023, Figure 3.1: accuracy against heterogeneity, %",
    columns=ACCURACY.columns,
    trial=ACCURACY.trial,
    score="accuracy",
    digits=2,
    paper=ACCURACY.paper,
    scales=ACCURACY.scales,
)

if __name__ == "__main__":
    draw(json.loads(FIGURES.STORED.read_text()), Path("experiments/hasan2023/results"))
