"""d'Hondt et al. 2024, Figure 2: five sites with 100 points of one curve each, K = 6 pseudo-points a site.

Settings are those of Tables 2, 3, 4 and 7 at scale `full`; `SCALES` says what the others make smaller. The paper gives
neither the noise its networks assume nor how FedAvg is stopped: here the noise is the data's own, 0.3 as a deviation,
the steps of pseudo-rows are in units of that variance, and FedAvg ends at the round with the best NLL on 20 further
validation points a site. Scores are over 200 test points a site. The server holds no labelled rows.

Table 2's "prior precision / regularization" has two readings, a column each; see Figure 3.
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
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data.datasets.synthetic import INTERVALS, sine_truth
from consilience.distributions.penalties import decay
from consilience.distributions.predictive import Normal
from consilience.distributions.prior import Flat, Isotropic
from consilience.inference import BPCfKL, Distillation
from consilience.inference.unrolled import rows_of
from consilience.models.mlp import mlp_swish
from consilience.runs.result import Result

NOISE = 0.3**2
REGULARISATION = 0.01  # Table 2
ON_THE_MEAN = "on the mean loss"
LEARN = BPCfKL(  # Table 2, first column; steps 0.01 and 1.0 for unit noise become × the noise variance
    rows=6, trajectories=100, steps=300, interval=5, batch=20, updates=400, draws=10, data_steps=150,
    coreset_steps=200, noises=10, noise=1e-2, rate_x=0.01 * NOISE, rate_y=1.0 * NOISE, spread=1.0,
)  # fmt: skip
FEWER = {  # of what costs most, at every scale but the full one
    "overnight": {"trajectories": 20, "draws": 4, "noises": 4},
    "small": {
        **{"trajectories": 10, "interval": 10, "draws": 2, "noises": 2},
        **{"data_steps": 50, "coreset_steps": 50},
    },
    "smoke": {
        **{"trajectories": 2, "interval": 2, "draws": 1, "noises": 1},
        **{"steps": 6, "data_steps": 2, "coreset_steps": 2},
    },
}
SCALES = {  # proposals, chains and rounds
    "full": (LEARN, 200, 40, 100),
    "overnight": (dataclasses.replace(LEARN, updates=200, **FEWER["overnight"]), 200, 40, 100),
    "small": (dataclasses.replace(LEARN, updates=100, **FEWER["small"]), 100, 16, 100),
    "smoke": (dataclasses.replace(LEARN, updates=2, **FEWER["smoke"]), 2, 2, 2),
}
GRID = torch.linspace(-1.2, 1.2, 121)
COLOURS = ("#1f77b4", "#d9822b", "#2e8b57", "#b3261e", "#7b5aa6")
PANELS = {"FedAvg": "FedAvg", "DOSFL": "DOSFL", "BPC-FL + Adam": "BPC-FL + Adam", "BPC-FL + HMC": "BPC-FL + HMC"}


def columns(points: int) -> tuple[str, str]:
    """A column for each reading of the regularisation."""
    return f"{points} points a site", f"{points} points a site, {ON_THE_MEAN}"


def regularised(task: co.Task, strength: float, column: str) -> co.Task:
    """The task with Table 2's figure as a prior's precision, or as strength · ‖θ‖² beside the mean loss."""
    if column.endswith(ON_THE_MEAN):
        return task.with_prior(Flat()).tilted(decay(2 * strength))
    return task.with_prior(Isotropic(1 / strength))


def file(name: str, column: str, seed: int) -> str:
    """The picture's name."""
    if column.endswith(ON_THE_MEAN):
        return f"{name}-mean-seed-{seed}"
    return f"{name}-seed-{seed}"


def prepare(points: int, seed: int) -> co.Sites:
    """Exactly `points` training points a site, 20 to validate on, 200 to test."""
    each = points + 20 + 200
    return co.datasets.sine(each, seed=seed).split(
        co.splits.natural(), test=200 / each, validation=20 / (points + 20), calibration=0, seed=seed
    )


def best_round(method: co.Method, task: co.Task, sites: co.Sites, rounds: int, seed: int) -> tuple[Result, int]:
    """The run stopped at the round that was best on the validation rows."""
    history = co.run(method, task, sites, rounds=rounds, seed=seed).report["history"]
    best = min(history, key=lambda row: row["validation_nll"])["round"]
    return co.run(method, task, sites, rounds=best, seed=seed), best


def score_result(result: Result) -> dict[str, float | None]:
    m, sent = result.metrics, result.report["ledger"]
    return {
        **{k: m[k] for k in ("nll", "rmse", "crps", "coverage95")},
        "floats": sent["up_floats"] + sent["down_floats"],
        "seconds": result.report["seconds"],
    }


def curve(result: Result) -> dict[str, list[float]]:
    """Mean and deviation of the function on the grid: what the figure draws."""
    p = result.method.predictive(result.task, result.state)(GRID.unsqueeze(1))
    assert isinstance(p, Normal)
    return {"mean": p.mean.tolist(), "deviation": p.var.sqrt().tolist()}


def width(result: Result) -> dict[str, float | None]:
    """The mean deviation of the function inside the intervals and between the outermost of them."""
    deviation = torch.tensor(curve(result)["deviation"])
    inside = torch.stack([(low <= GRID) & (high >= GRID) for low, high in INTERVALS]).any(0)
    between = ~inside & (INTERVALS[0][1] < GRID) & (INTERVALS[-1][0] > GRID)
    return {"deviation_inside": float(deviation[inside].mean()), "deviation_between": float(deviation[between].mean())}


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    points = int(column.split(maxsplit=1)[0])
    sites = prepare(points, seed)
    task = regularised(co.regression(mlp_swish(1), noise=NOISE), REGULARISATION, column)
    learn, proposals, chains, rounds = SCALES[scale]
    epochs = 10 // max(points // 20, 1)  # ten local steps of 20 points
    local = co.Adam(rate=1e-2, epochs=epochs, batch=20)
    total = 1 if scale == "smoke" else 300  # steps on the union, one batch
    hmc = co.HMC(rate=1e-3, leapfrogs=20, burn=proposals, samples=2, every=5, chains=chains)
    distil = Distillation(updates=2 if scale == "smoke" else 50)  # Table 4; the number of updates is not given

    average, stopped = best_round(co.methods.FedAvg(local), task, sites, rounds, seed)
    adaptive, _ = best_round(co.methods.FedAdam(local, rate=0.1), task, sites, rounds, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = co.run(
            co.methods.CoresetFL(learn, co.Adam(rate=1e-2, epochs=total, batch=1000)),
            task,
            sites,
            seed=seed,
            engine="vectorised",
        )
        runs = {
            "FedAvg": average,
            "FedAvg, server Adam": adaptive,
            "DOSFL": co.run(co.methods.DOSFL(distil), task, sites, seed=seed),
            "BPC-FL + Adam": first,
            "BPC-FL + HMC": first.pool(co.methods.CoresetFL(learn, hmc)),
            "all rows in one place, Adam": co.run(
                co.methods.Centralised(co.Adam(rate=1e-2, epochs=max(total // 5, 1), batch=100)), task, sites, seed=seed
            ),
            "each site alone, Adam": co.run(
                co.methods.LocalOnly(co.Adam(rate=1e-2, epochs=total, batch=1000)), task, sites, seed=seed
            ),
        }
    values: Values = {row: score_result(result) for row, result in runs.items()}
    values["FedAvg"] |= {"rounds": float(stopped)}
    values["BPC-FL + HMC"] |= {
        **width(runs["BPC-FL + HMC"]),
        "accepted": runs["BPC-FL + HMC"].report["diagnostics"]["accepted"],
    }
    values["BPC-FL + Adam"] |= {
        "seconds_over_fedavg": first.report["seconds"] / average.report["seconds"],
        "halved": float(sum(s["halved"] for s in first.report["diagnostics"]["coresets"])),
        "copies": float(sum(s["copies"] for s in first.report["diagnostics"]["coresets"])),
    }
    learned = {
        "DOSFL": [rows_of(lessons) for lessons in runs["DOSFL"].state.lessons],
        "BPC-FL + Adam": [each.coreset for each in first.state.learned],
    }
    values["_drawing"] = {  # type: ignore[assignment]
        "sites": [[d.x.flatten().tolist(), d.y.tolist()] for d in sites.train],
        "curves": {row: curve(runs[row]) for row in PANELS},
        "pseudo": {row: [[s.x.flatten().tolist(), s.y.tolist()] for s in every] for row, every in learned.items()},
    }
    return values


def draw(results: dict[str, Any], folder: Path) -> None:
    """One picture a seed, laid out as the paper's: the rivals above, coresets below."""
    for column in dict.fromkeys(c["column"] for c in results["cells"]):
        for seed, trial_ in results["drawings"].get(column, {}).items():
            figure = Figure(figsize=(9, 5.6), layout="constrained")
            for axes, row in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, PANELS, strict=True):
                panel(axes, row, trial_)
            figure.suptitle(f"{column}, seed {seed}, scale {results['scale']}", fontsize=10)
            save(figure, folder / file(results["experiment"].split("/")[-1], column, seed))


def save(figure: Figure, path: Path) -> None:
    """For the page and for slides."""
    figure.savefig(f"{path}.svg", metadata={"Date": None})
    figure.savefig(f"{path}.png", dpi=110)


def panel(axes: Axes, row: str, drawn: dict[str, Any]) -> None:
    for (x, y), colour in zip(drawn["sites"], COLOURS, strict=True):
        axes.plot(x, y, ".", color=colour, markersize=3, alpha=0.55, zorder=1)
    axes.plot(GRID, sine_truth(GRID), "--", color="#888888", linewidth=1, zorder=2)
    mean, deviation = (torch.tensor(drawn["curves"][row][k]) for k in ("mean", "deviation"))
    axes.plot(GRID, mean, color="#6a1b9a", linewidth=1.6, zorder=3)
    if row.endswith("HMC"):
        axes.fill_between(GRID, mean - deviation, mean + deviation, color="#6a1b9a", alpha=0.2, linewidth=0)
    for x, y in drawn["pseudo"].get("BPC-FL + Adam" if row.startswith("BPC") else row, []):
        axes.plot(x, y, "x", color="black", markersize=5 if row.startswith("BPC") else 2.5, zorder=4)
    axes.set(xlim=(-1.2, 1.2), ylim=(-3.2, 3.2))
    axes.set_title(row, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Figure 2: NLL per test point, 100 points a site",
    columns=columns(100),
    trial=trial,
    score="nll",
    scales=tuple(SCALES)[:-1],
)
