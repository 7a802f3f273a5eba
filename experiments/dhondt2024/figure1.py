"""d'Hondt et al. 2024, Figure 1: accuracy and NLL against floats sent; trials are those of Table 1.

Scores along the way are on the held-out rows of the training writers, as the paper's are on a sample of clients; the
one-shot solution is the black dot, and FedAvg started from it the red line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from consilience.benchmark.reproduce import Experiment, load, module

TABLE1 = load("dhondt2024/table1")
mean_of = module("dhondt2024/table1").mean_of
LOOKS = {
    **{"FedAvg": "#1f5a96", "FedPA": "#2e7d32", "MIME": "#c05a00"},
    **{"BPC-FL → FedAvg": "#b3261e", "BPC-FL + SGD": "black"},
}


def draw(results: dict[str, Any], folder: Path) -> None:
    """A row of panels for each number of local steps; accuracy left, NLL right, as in the paper."""
    trials = [t["curves"] for column in results.get("drawings", {}).values() for t in column.values()]
    steps = [n for n in ("10", "100") if any(f"({n} local" in row for t in trials for row in t)]
    figure = Figure(figsize=(9, 3.4 * len(steps)), layout="constrained")
    grid = figure.subplots(len(steps), 2, squeeze=False)
    for panels, n in zip(grid, steps, strict=True):
        for axes, (key, name) in zip(panels, (("accuracy", "accuracy"), ("nll", "NLL")), strict=True):
            for row, colour in LOOKS.items():
                word = f"{row} ({n} local steps)" if row in ("FedAvg", "FedPA", "MIME") else row
                x, y = mean_of([t[word] for t in trials if word in t], key)
                style = "o" if len(x) == 1 else "-"
                axes.plot(
                    x, y, style, color=colour, label=word, markersize=8, linewidth=1.5, zorder=5 if len(x) == 1 else 3
                )
            axes.set(xscale="log", xlabel="float32s sent, up and down", ylabel=name)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(True, alpha=0.25)
        panels[1].set_ylim(top=min(panels[1].get_ylim()[1], 6.0))
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(
        f"FEMNIST, scale {results['scale']}, {len(trials)} seed{'s' if len(trials) > 1 else ''}", fontsize=10
    )
    module("dhondt2024/figure2").save(figure, folder / "figure1")


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Figure 1: NLL on unseen writers after all rounds",
    columns=TABLE1.columns,
    trial=TABLE1.trial,
    score="nll",
    scales=TABLE1.scales,
)
