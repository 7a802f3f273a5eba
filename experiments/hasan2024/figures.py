"""Hasan et al. 2024, Figures 1 and 2 (thesis Figures 4.1 and 4.2): NLL and ECE on image sets against heterogeneity.

A trial is one of hasan2023/accuracy, which records all scores: given the same folder, neither trains twice. The paper
sums the means of the 100 test batches of 100 rows, which is 100 × the mean per point: the drawn NLL is that sum, the
recorded one the mean. The figures print no numbers, so there is nothing to stand beside ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from consilience.comparison.reproduce import Experiment, load

ACCURACY = load("hasan2023/accuracy")
BATCHES = 100
ROWS = {  # the one-round rows of the figures, and how they are drawn
    **{"β": ("#b3261e", "o:"), "D β": ("#b3261e", "s--"), "Mixture": ("#1f5a96", "o-"), "BCM": ("#c05a00", "o-")},
    **{"D BCM": ("#c05a00", "s--"), "EP MCMC": ("#6b4fa0", "^-"), "FedPA": ("#7a7a7a", "v-")},
    **{"FedAvg": ("#3b7d3b", "^-"), "Oneshot FL": ("#0f8a8a", "D-"), "FedKT": ("#a0862c", "D-")},
}
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


def draw(results: dict[str, Any], folder: Path) -> None:
    """nll.svg and ece.svg: one panel a data set, one line a row."""
    _draw(results, "nll", BATCHES, "NLL, sum of 100 batch means", folder / "nll.svg")
    _draw(results, "ece", 1, "ECE, 15 bins", folder / "ece.svg")


def _draw(results: dict[str, Any], score: str, factor: int, label: str, file: Path) -> None:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, len(NAMES))
    for axes, (name, title) in zip(panels, NAMES.items(), strict=True):
        for row, (colour, style) in ROWS.items():
            cells = [c for c in results["cells"] if c["row"] == row and c["column"].startswith(f"{name}:")]
            points = {float(c["column"].partition(":")[2]): c["scores"].get(score) for c in cells}
            points = {
                h: factor * value for h, value in sorted(points.items()) if value is not None
            }  # diverged: left out
            over = 4 if row == "β" else 3  # dotted above the mixture, with which it often coincides
            look = {"color": colour, "markersize": 4, "linewidth": 1.4, "zorder": over, "label": row}
            axes.plot(list(points), list(points.values()), style, **look)
        axes.set(title=title, xlabel="heterogeneity h", ylabel=label, yscale="log", xticks=(0, 0.3, 0.6, 0.9))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="both", alpha=0.2)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(file, metadata={"Date": None})


EXPERIMENT = Experiment(
    title="Hasan et al. 2024, Figures 1 and 2: NLL per point on image sets",
    columns=ACCURACY.columns,
    trial=ACCURACY.trial,
    score="nll",
    scales=ACCURACY.scales,
)
