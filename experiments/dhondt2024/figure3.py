"""d'Hondt et al. 2024, Figure 3: two moons, five sites with 20 points each, K = 5 pseudo-points a site.

Settings are those of Tables 2, 3, 4 and 7 at scale `full`; `SCALES` says what the others make smaller. Points are dealt
at random, as the paper does not say otherwise; 20 further points a site validate and 200 test. HMC's step is tuned to
an acceptance of 80 % while burning, because the potential's scale behind Table 7 is not given.

Table 2's "prior precision / regularization" λ has two readings, a column each: −log p(θ)/n beside the mean loss, and
λ‖θ‖² added to the mean loss, at the sites and at the server, as FedJAX's regularisers are.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.distributions.predictive import Categorical
from consilience.inference import BPCfKL, Distillation
from consilience.inference.unrolled import rows_of
from consilience.models.mlp import mlp_groupnorm
from consilience.runs.result import Result

FIGURE2 = module("dhondt2024/figure2")
REGULARISATION = 0.1  # Table 2
LEARN = BPCfKL(  # Table 2, second column
    rows=5, trajectories=100, steps=400, interval=5, batch=50, updates=700, draws=20, data_steps=150,
    coreset_steps=200, noises=10, noise=1e-2, rate_x=1e-3, rate_y=0.0, spread=0.6,
)  # fmt: skip
SCALES = {  # proposals, chains, rounds of FedAvg and updates of DOSFL
    "full": (LEARN, 40, 50, 100, 50),
    "overnight": (dataclasses.replace(LEARN, updates=300, **FIGURE2.FEWER["overnight"]), 40, 50, 100, 50),
    "small": (dataclasses.replace(LEARN, updates=150, **FIGURE2.FEWER["small"]), 60, 16, 60, 3),
    "smoke": (dataclasses.replace(LEARN, updates=2, **FIGURE2.FEWER["smoke"]), 2, 2, 2, 1),
}
SIDE = torch.linspace(0, 1, 61)
GRID = torch.cartesian_prod(-1.8 + 4.6 * SIDE, -1.4 + 3.3 * SIDE)
PANELS = ("FedAvg", "DOSFL", "BPC-FL + SGD", "BPC-FL + HMC")


def score_result(result: Result) -> dict[str, float | None]:
    m, sent = result.metrics, result.report["ledger"]
    metrics: dict[str, float | None] = {k: m[k] for k in ("nll", "brier", "accuracy", "ece")}
    return {**metrics, "floats": sent["up_floats"] + sent["down_floats"], "seconds": result.report["seconds"]}


def field(result: Result) -> list[float]:
    """The probability of the second class on the grid."""
    p = result.method.predictive(result.task, result.state)(GRID)
    assert isinstance(p, Categorical)
    return [round(v, 4) for v in p.probs[:, 1].tolist()]


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    points = int(column.split(maxsplit=1)[0])
    each = points + 20 + 200
    sites = co.datasets.moons(5 * each, noise=0.14, seed=seed).split(
        co.splits.iid(), sites=5, test=200 / each, validation=20 / (points + 20), calibration=0, seed=seed
    )
    task = FIGURE2.regularised(co.classification(mlp_groupnorm(2, 2)), REGULARISATION, column)
    learn, proposals, chains, rounds, updates = SCALES[scale]
    total = 1 if scale == "smoke" else 500
    distil = Distillation(  # Table 4; the number of updates is not given
        steps=30, batch=30, epochs=1 if scale == "smoke" else 20, updates=updates, rate=0.01, rate_x=0.01, rate_y=0.0,
        rate_rate=1e-4, spread=0.6,
    )  # fmt: skip
    hmc = co.HMC(rate=2e-3, leapfrogs=30, burn=proposals, samples=2, every=5, chains=chains)
    average, stopped = FIGURE2.best_round(
        co.methods.FedAvg(co.Adam(rate=1e-2, epochs=10, batch=50)), task, sites, rounds, seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = co.SGD(rate=2e-2, momentum=0.0, epochs=total, batch=1000)  # Table 7 has no momentum
        first = co.run(co.methods.CoresetFL(learn, plain), task, sites, seed=seed, engine="vectorised")
        runs = {
            "FedAvg": average,
            "DOSFL": co.run(co.methods.DOSFL(distil), task, sites, seed=seed),
            "BPC-FL + SGD": first,
            "BPC-FL + SGD, momentum 0.9": first.pool(
                co.methods.CoresetFL(learn, dataclasses.replace(plain, momentum=0.9))
            ),
            "BPC-FL + HMC": first.pool(co.methods.CoresetFL(learn, hmc)),
            "all rows in one place, SGD": co.run(
                co.methods.Centralised(co.SGD(rate=2e-2, epochs=total, batch=1000)), task, sites, seed=seed
            ),
            "each site alone, SGD": co.run(
                co.methods.LocalOnly(co.SGD(rate=2e-2, epochs=total, batch=1000)), task, sites, seed=seed
            ),
        }
    values: Values = {row: score_result(result) for row, result in runs.items()}
    diagnosis = runs["BPC-FL + HMC"].report["diagnostics"]
    values["FedAvg"] |= {"rounds": float(stopped)}
    values["BPC-FL + HMC"] |= {"accepted": diagnosis["accepted"]}
    values["BPC-FL + SGD"] |= {
        "copies": sum(s["copies"] for s in diagnosis["coresets"]),
        "closest": min(s["closest"] for s in diagnosis["coresets"]),
        "halved": float(sum(s["halved"] for s in diagnosis["coresets"])),
        "seconds_over_fedavg": first.report["seconds"] / average.report["seconds"],
    }
    learned = {
        "DOSFL": [rows_of(lessons) for lessons in runs["DOSFL"].state.lessons],
        "BPC-FL": [each_.coreset for each_ in first.state.learned],
    }
    values["_drawing"] = {  # type: ignore[assignment]
        "sites": [[d.x.tolist(), d.y.tolist()] for d in sites.train],
        "fields": {row: field(runs[row]) for row in PANELS},
        "pseudo": {row: [[s.x.tolist(), s.y.tolist()] for s in every] for row, every in learned.items()},
    }
    return values


def draw(results: dict[str, Any], folder: Path) -> None:
    """One picture a seed: the probability of a class as a field, training points as dots, pseudo-points as crosses."""
    for column in dict.fromkeys(c["column"] for c in results["cells"]):
        for seed, drawn in results["drawings"].get(column, {}).items():
            figure = Figure(figsize=(8.4, 6.2), layout="constrained")
            grid = figure.subplots(2, 2, sharex=True, sharey=True)
            for axes, row in zip(grid.flat, PANELS, strict=True):
                shades = panel(axes, row, drawn)
            figure.colorbar(shades, ax=grid, shrink=0.7, label="probability of the red class")
            figure.suptitle(f"{column}, seed {seed}, scale {results['scale']}", fontsize=10)
            FIGURE2.save(figure, folder / FIGURE2.file("figure3", column, seed))


def panel(axes: Axes, row: str, drawn: dict[str, Any]) -> Any:
    height = torch.tensor(drawn["fields"][row]).reshape(len(SIDE), len(SIDE)).T
    x, y = GRID[:: len(SIDE), 0], GRID[: len(SIDE), 1]
    shades = axes.contourf(x, y, height, levels=torch.linspace(0, 1, 21).tolist(), cmap="coolwarm", alpha=0.85)
    colours = ("#16356f", "#8e1616")
    for points, labels in drawn["sites"]:
        for (a, b), label in zip(points, labels, strict=True):
            axes.plot(a, b, ".", color=colours[label], markersize=4)
    for points, labels in drawn["pseudo"].get("BPC-FL" if row.startswith("BPC") else row, []):
        for (a, b), label in zip(points, labels, strict=True):
            if row.startswith("BPC"):
                axes.plot(a, b, "X", color=colours[label], markersize=8, mec="white")
            else:
                axes.plot(a, b, "x", color=colours[label], markersize=2.5, alpha=0.15, zorder=1)
    axes.set(xlim=(-1.8, 2.8), ylim=(-1.4, 1.9))
    axes.set_title(row, fontsize=10)
    return shades


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Figure 3: NLL per test point on moons, 20 points a site",
    columns=FIGURE2.columns(20),
    trial=trial,
    score="nll",
    scales=tuple(SCALES)[:-1],
)
