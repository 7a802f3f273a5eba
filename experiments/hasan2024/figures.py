"""Hasan et al. 2024, Figures 1 and 2 (thesis Figures 4.1 and 4.2): NLL and ECE on image sets against heterogeneity.

A trial is one of hasan2023/accuracy, which records all scores: given the same folder, neither trains twice. The paper
sums the means of the 100 test batches of 100 rows, which is 100 × the mean per point: the drawn NLL is that sum, the
recorded one the mean. The figures print no numbers, so there is nothing to stand beside ours.

`python experiments/hasan2024/figures.py` draws the stored results again, without any training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from consilience.benchmark.reproduce import Experiment, load

ACCURACY = load("hasan2023/accuracy")
STORED = Path("experiments/hasan2023/results/accuracy.json")
BATCHES = 100
ROWS = {  # the one-round rows, all baselines of the tables, and how they are drawn
    **{"β": ("#b3261e", "o:"), "D β": ("#b3261e", "s--"), "Mixture": ("#1f5a96", "o-"), "BCM": ("#c05a00", "o-")},
    **{"D BCM": ("#c05a00", "s--"), "EP MCMC": ("#6b4fa0", "^-"), "FedPA": ("#7a7a7a", "v-")},
    **{"FedAvg": ("#3b7d3b", "^-"), "FedProx": ("#3b7d3b", "v--"), "AdaptFL": ("#8a5a2b", "^--")},
    **{"FedBE": ("#c2478e", "D--"), "Oneshot FL": ("#0f8a8a", "D-"), "FedKT": ("#a0862c", "D-")},
}
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def draw(results: dict[str, Any], folder: Path) -> None:
    """nll.svg and ece.svg: one panel a data set, one line a row."""
    _draw(results, "nll", BATCHES, "NLL, sum of 100 batch means", folder / "nll.svg")
    _draw(results, "ece", 1, "ECE, 15 bins", folder / "ece.svg")


def _draw(results: dict[str, Any], score: str, factor: int, label: str, file: Path) -> None:
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(1, len(NAMES))
    for axes, (name, title) in zip(panels, NAMES.items(), strict=True):
        for row, (colour, style) in ROWS.items():
            scores = {c["column"]: c["scores"].get(score) for c in results["cells"] if c["row"] == row}
            over = 3
            if row == "β":
                over = 4  # dotted above the mixture, with which it often coincides
            plot_row(axes, name, scores, factor, style, color=colour, zorder=over, label=row)
        finish(axes, title, label)
        axes.set_yscale("log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(file, metadata={"Date": None})


def plot_row(
    axes: Axes, name: str, scores: dict[str, float | None], factor: float, style: str, **look: str | float
) -> None:
    """A row's line over h on one data set; what diverged is left out."""
    parts = [(column.partition(":"), value) for column, value in scores.items() if value is not None]
    points = sorted((float(h), factor * value) for (data, _, h), value in parts if data == name)
    axes.plot([h for h, _ in points], [v for _, v in points], style, markersize=4, linewidth=1.4, **look)  # type: ignore[arg-type]


def finish(axes: Axes, title: str, label: str) -> None:
    axes.set(title=title, xlabel="heterogeneity h", ylabel=label, xticks=(0, 0.3, 0.6, 0.9))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="both", alpha=0.2)


EXPERIMENT = Experiment(
    title="Hasan et al. 2024, Figures 1 and 2: NLL per point on image sets",
    columns=ACCURACY.columns,
    trial=ACCURACY.trial,
    score="nll",
    scales=ACCURACY.scales,
)

if __name__ == "__main__":
    draw(json.loads(STORED.read_text()), Path("experiments/hasan2024/results"))
