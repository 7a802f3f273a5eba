"""Hasan et al. 2024, Theorems 1–4 (thesis ch. 4): variances of product and mixture against the truth as data grow.

Exact Gaussian processes: k(x, x) = 1 with an RBF kernel, f(x) = sin 3x, observation noise σ_o² = 0.2. Homogeneous:
every client draws its n inputs from [0, 1]. Separated: client k draws them from [10k, 10k + 1], where the others know
nothing. The variance of an observation at x = ½ should be σ_o². Its limits for n → ∞, K clients and σ_p² = σ_o² + 1:

                 homogeneous                           separated
    product      1 / (K/σ_o² − (K−1)/σ_p²)             σ_o²
    mixture      σ_o²                                  σ_o² + (1 − 1/K) + f(x)² (K−1)/K²
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from consilience.benchmark.reproduce import Experiment, Values
from consilience.distributions.predictive import Normal, mixture, product

OBSERVED, LENGTH, PRIOR = 0.2, 0.3, 1.2  # σ_o², the kernel's length, σ_p²
AT = 0.5
CLIENTS = (2, 4, 8)
SIZES = {"full": (10, 30, 100, 300, 1000), "smoke": (5, 20)}  # n, rows a client


def truth(x: Any) -> Any:
    return np.sin(3 * x)


def predict(x: np.ndarray, y: np.ndarray) -> Normal:
    """One client's prediction of an observation at x = ½."""
    model = GaussianProcessRegressor(RBF(LENGTH), alpha=OBSERVED, optimizer=None).fit(x[:, None], y)
    mean, deviation = model.predict(np.array([[AT]]), return_std=True)
    return Normal(torch.tensor(mean), torch.tensor(deviation**2 + OBSERVED), torch.zeros(1).double())


def limit(rule: str, column: str, clients: int) -> float:
    if rule == "product":
        if column == "homogeneous":
            return 1 / (clients / OBSERVED - (clients - 1) / PRIOR)
        return OBSERVED
    away = (1 - 1 / clients) + float(truth(AT)) ** 2 * (clients - 1) / clients**2
    return OBSERVED if column == "homogeneous" else OBSERVED + away


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    rng, sizes = np.random.default_rng(seed), SIZES[scale]
    prior = Normal(torch.zeros(1).double(), torch.full((1,), PRIOR).double(), torch.zeros(1).double())
    values: Values = {f"{rule}, K = {k}": {} for k in CLIENTS for rule in ("product", "mixture")}
    for n in sizes:
        parts = []
        for client in range(max(CLIENTS)):
            x = rng.uniform(0, 1, n) + (10.0 * client if column == "separated" else 0.0)
            parts.append(predict(x, truth(x) + OBSERVED**0.5 * rng.normal(size=n)))
        for k in CLIENTS:
            pooled = {"product": product(parts[:k], prior), "mixture": mixture(parts[:k], torch.ones(k))}
            for rule, p in pooled.items():
                assert isinstance(p, Normal)
                values[f"{rule}, K = {k}"][f"n = {n}"] = p.var.item()
    for row in list(values):
        rule, _, k = row.partition(", K = ")
        values[row]["variance"] = values[row][f"n = {sizes[-1]}"]
        values[f"limit of the {row}"] = {"variance": limit(rule, column, int(k))}
    return values


def draw(results: dict[str, Any], folder: Path) -> None:
    """theory.svg: a panel for each rule and partition, a line for each K, its limit dashed."""
    cells = {(c["row"], c["column"]): c["scores"] for c in results["cells"]}
    figure = Figure(figsize=(8, 6), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True)
    for axes_row, rule in zip(grid, ("product", "mixture"), strict=True):
        for axes, column in zip(axes_row, ("homogeneous", "separated"), strict=True):
            for k, colour in zip(CLIENTS, ("#1f5a96", "#c05a00", "#3b7d3b"), strict=True):
                scores = cells[f"{rule}, K = {k}", column]
                points = {int(s[4:]): v for s, v in scores.items() if s.startswith("n = ")}
                axes.plot(list(points), list(points.values()), "o-", color=colour, markersize=4, label=f"K = {k}")
                end = cells[f"limit of the {rule}, K = {k}", column]["variance"]
                axes.axhline(end, color=colour, linestyle="--", linewidth=1)
            axes.axhline(OBSERVED, color="black", linewidth=2.5, alpha=0.25, label="truth")
            axes.set(title=f"{rule}, {column}", xscale="log", ylim=(0, None))
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(True, alpha=0.25)
    grid[0, 0].legend(frameon=False)
    figure.supxlabel("rows a client")
    figure.supylabel("variance of an observation at x = ½; limits dashed")
    figure.savefig(folder / "theory.svg", metadata={"Date": None})


EXPERIMENT = Experiment(
    title="Hasan et al. 2024, Theorems 1–4: the variance of an observation, whose truth is 0.2, and its limits",
    columns=("homogeneous", "separated"),
    trial=trial,
    score="variance",
    scales=("full", "smoke"),
)
