"""Chen and Chao 2021, Figure 1 and §3.3: the swiss roll, three clients, models drawn from a Dirichlet distribution.

Three clients with 80 % of one class each, ten rounds of FedAvg with two epochs, then ten models drawn with α = 0.5. The
paper prints one run, 69 % for their ensemble and 64 % for FedAvg, and leaves open the roll's size and noise, the
network's width, the step and the batch: here eight settings, chosen beforehand, and as many seeds as asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import consilience as co
from consilience import tree
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data import Data
from consilience.distributions.posterior import Point, Posterior, Samples
from consilience.distributions.prior import Flat
from consilience.metrics.scores import scores
from consilience.runs.result import Result

SETTINGS = {
    f"{rows} rows, width {width}, rate {rate}": (rows, width, rate)
    for rows in (300, 1500)
    for width in (16, 64)
    for rate in (0.01, 0.1)
}
ROUNDS = {"full": 10, "smoke": 1}
ALPHA, DRAWS = 0.5, 10
SHOWN = ("accuracy", "nll", "brier")
COLOURS = ("#1f5a96", "#c05a00", "#3b7d3b")


def train(column: str, seed: int, scale: str) -> Result:
    rows, width, rate = SETTINGS[column]
    sites = co.datasets.swiss_roll(rows, seed=seed).split(
        co.splits.dominant(0.8), 3, test=0.5, calibration=0, seed=seed
    )
    task = co.classification(co.models.mlp(2, 3, hidden=(width,)), prior=Flat())
    inner = co.methods.FedAvg(co.SGD(rate=rate, momentum=0.9, epochs=2, batch=20))
    ensemble = co.aggregation.Ensemble(co.aggregation.DirichletModels(ALPHA), DRAWS, average=False, clients=False)
    method = co.methods.FedBE(inner, ensemble, distil=None)
    return co.run(method, task, sites, rounds=ROUNDS[scale], seed=seed, scored=False)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    result = train(column, seed, scale)
    points, shares = [r.payload for r in result.replies], co.messages.weights(result.replies)
    test, key = result.sites.all_test, result.server.key

    def score_model(posterior: Posterior) -> dict[str, float | None]:
        metrics = scores(result.task.predictive(posterior)(test.x), test.y)
        return {k: 100 * metrics[k] if k == "accuracy" else metrics[k] for k in SHOWN}

    models = co.aggregation.DirichletModels(ALPHA)
    union = co.aggregation.Ensemble(models, DRAWS)(points, shares, result.state.posterior, key)
    values: Values = {
        "FedAvg": score_model(result.state.posterior),
        "Ensemble, Dirichlet": score_model(result.state.posteriors[0]),
        "Ensemble, Gaussian": score_model(co.aggregation.GaussianModels()(points, shares, key, DRAWS)),
        "Ensemble, Dirichlet + average + clients": score_model(union),
        "Ensemble, clients": score_model(Samples(tree.stack([p.params for p in points]))),
        "One client, mean": _mean([score_model(p) for p in points]),
        "One drawn model, mean": _mean(
            [score_model(Point(m)) for m in tree.unstack(result.state.posteriors[0].params, DRAWS)]
        ),
    }
    for row in [r for r in values if r.startswith("Ensemble")]:
        values[f"{row} − FedAvg"] = {k: values[row][k] - values["FedAvg"][k] for k in SHOWN}  # type: ignore[operator]
    return values


def _mean(each: list[dict[str, float | None]]) -> dict[str, float | None]:
    return {k: sum(s[k] for s in each) / len(each) for k in SHOWN}  # type: ignore[misc]


def draw(results: dict[str, Any], folder: Path) -> None:
    """figure1.svg, for the first seed and setting: the roll with its clients, the triangle of models coloured by their
    accuracy, and how sure clients and drawn models are when right and wrong."""
    result = train(next(iter(SETTINGS)), results["seeds"][0], results["scale"])
    points, test = [r.payload for r in result.replies], result.sites.all_test
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(1, 1.25, 1.2))
    _roll(figure.add_subplot(grid[:, 0]), result.sites)
    _triangle(figure.add_subplot(grid[:, 1]), figure, result, points)
    draws = [Point(m) for m in tree.unstack(result.state.posteriors[0].params, DRAWS)]
    panels = [figure.add_subplot(grid[0, 2]), figure.add_subplot(grid[1, 2])]
    _confidences(panels, {"clients": points, "drawn models": draws}, result.task, test)
    figure.savefig(folder / "figure1.svg", metadata={"Date": None})


def _roll(axes: Axes, sites: co.Sites) -> None:
    for k, (rows, mark) in enumerate(zip(sites.train, ("o", "s", "^"), strict=True)):
        colours = [COLOURS[int(c)] for c in rows.y]
        axes.scatter(*rows.x.T, c=colours, marker=mark, s=9, linewidths=0, alpha=0.8, label=f"client {k + 1}")
    axes.set(title="training rows\ncolour: class, shape: client", aspect="equal", xticks=(), yticks=())
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(handles, labels, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3)
    for handle in legend.legend_handles:
        handle.set_facecolor("#666666")  # type: ignore[union-attr]
    axes.spines[:].set_visible(False)


CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])


def _triangle(axes: Axes, figure: Figure, result: Result, points: list[Point], steps: int = 40) -> None:
    grid = torch.tensor([(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]) / steps
    test, sizes = result.sites.all_test, co.messages.weights(result.replies)

    def accuracy(gamma: torch.Tensor) -> float:
        p = result.task.predictive(co.aggregation.average(points, gamma.double() * sizes))(test.x)
        return 100 * scores(p, test.y)["accuracy"]

    metrics, places = np.array([accuracy(g) for g in grid]), grid.numpy() @ CORNERS
    shades = axes.tricontourf(*places.T, metrics, levels=12, cmap="viridis")
    figure.colorbar(shades, ax=axes, label="test accuracy, %", shrink=0.8)
    centre, best = CORNERS.mean(0), places[metrics.argmax()]
    axes.plot(*centre, "o", color="white", markeredgecolor="black", markersize=7, label="FedAvg")
    axes.plot(*best, "*", color="white", markeredgecolor="black", markersize=13, label="best")
    for k, (corner, shift) in enumerate(zip(CORNERS, ((-6, -12), (6, -12), (0, 6)), strict=True)):
        axes.annotate(f"client {k + 1}", corner, shift, textcoords="offset points", ha="center")
    axes.set(
        title=f"models between the clients\nFedAvg {accuracy(torch.ones(3) / 3):.1f} %, best {metrics.max():.1f} %"
    )
    axes.set(aspect="equal", xticks=(), yticks=(), xlim=(-0.1, 1.1), ylim=(-0.1, 0.98))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[:].set_visible(False)


def _confidences(panels: list[Axes], models: dict[str, list[Point]], task: co.Task, test: Data) -> None:
    edges = np.linspace(1 / 3, 1, 11)
    for axes, (name, each) in zip(panels, models.items(), strict=True):
        probs = [task.predictive(p)(test.x).probs for p in each]  # type: ignore[union-attr]
        sure = torch.cat([p.max(-1).values for p in probs]).numpy()
        right = torch.cat([p.argmax(-1) == test.y for p in probs]).numpy()
        scale = np.full(len(sure), 100 / len(sure))
        parts = {"right": right, "wrong": ~right}
        axes.hist(
            [sure[chosen] for chosen in parts.values()], edges, weights=[scale[chosen] for chosen in parts.values()],
            label=list(parts), color=(COLOURS[0], COLOURS[1]), stacked=True, rwidth=0.92,
        )  # fmt: skip
        axes.set(title=f"{name}: {100 * right.mean():.0f} % right", ylabel="% of test rows")
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].set(xlabel="confidence")
    panels[0].legend(frameon=False, loc="upper right")


EXPERIMENT = Experiment(
    title="Chen and Chao 2021, Figure 1: the swiss roll, accuracy, %",
    columns=tuple(SETTINGS),
    trial=trial,
    score="accuracy",
    digits=1,
    paper={"FedAvg": dict.fromkeys(SETTINGS, (64.0, 0.0)), "Ensemble, Dirichlet": dict.fromkeys(SETTINGS, (69.0, 0.0))},
    scales=("full", "smoke"),
)
