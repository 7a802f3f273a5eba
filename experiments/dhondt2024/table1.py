"""d'Hondt et al. 2024, Table 1: FEMNIST by its natural writers; scores on writers nobody trained on, and what was sent.

The paper's sizes cost about 19 core-hours and 72 GB of kept weights a writer (Table 2, third column), so every scale
but `full` is smaller, and each number stands beside its scale. `floats_to_…` is what a row sent, both ways, until it
was as good on the validation rows as BPC-FL + SGD; the paper does not say which rows decide. Our FEMNIST is a part of
LEAF's, inverted (white on black) as FedJAX's loader, on which the paper is built, gives it.

Table 2's "prior precision / regularization" 1e-2 has two readings, a column each: −log p(θ)/n beside the mean loss,
with n the rows of whoever trains, and weight decay on the mean loss itself. The second concerns BPC-FL alone.

Two more things that the text leaves open are columns of Table 9: pseudo-rows that begin at rows of the writer's own
(Algorithm 2, line 4; §3.3 has noise around the mean), and weights that begin as FedJAX's do. The row of real rows is
the former with no update: what the server makes of as many rows that nobody learned. Columns `real rows` have it alone,
in seconds, with either start of weights.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.data import Data, datasets
from consilience.data.dataset import Dataset
from consilience.distributions.penalties import decay
from consilience.distributions.posterior import Point, Posterior, Samples
from consilience.distributions.prior import Flat, Isotropic
from consilience.inference import AdamSteps, BPCfKL, Descent, constant
from consilience.inference.chain import keep_after_burn_in, sample
from consilience.inference.kernels import Optimise
from consilience.key import Key
from consilience.messages import Client
from consilience.method import Bound, is_personal
from consilience.metrics.communication import Curve, bytes_sent, bytes_to_reach, curve
from consilience.metrics.scores import scores
from consilience.models.cnn import cnn
from consilience.runs.result import Result

ALL_ROWS = 10_000  # more than a writer has
DECAY = "decay 0.01"
OWN, HAIKU = "own rows", "haiku"  # where pseudo-rows and weights begin
REAL = "real rows, as many, the server's SGD"
UNLEARNED = "real rows"  # columns of that row alone
WITH_MOMENTUM = "BPC-FL + SGD, momentum 0.9"


@dataclass(frozen=True)
class Iterates:
    """FedPA's chain (Table 5): SGD with momentum, of whose full-batch steps the last ten are samples.

    Attributes:
        rate: The step size.
        momentum: The share of the last step that goes on.
        steps: Steps a round.
    """

    rate: float = 0.01
    momentum: float = 0.9
    steps: int = 10

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Samples:
        kernel = Optimise(Descent(self.rate, self.momentum), constant, 1.0)
        last = keep_after_burn_in(self.steps, max(self.steps - 10, 0), 1)
        return sample(task, start, client, kernel, self.steps, ALL_ROWS, last)


class HaikuTask(co.Task):
    """Weights that begin as haiku's, on which FedJAX is built: normal, 1/√fan-in, cut off at twice that; biases 0."""

    def init(self, key: Key) -> Point:
        """Draw fresh weights from the key."""
        generator = key.generator()
        params = super().init(key).params
        for leaf in params.values():
            leaf.zero_()
            if leaf.ndim > 1:
                deviation = leaf[0].numel() ** -0.5
                nn.init.trunc_normal_(leaf, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
        return Point(params)


class Size(NamedTuple):
    writers: int
    unseen: int  # further writers, to test on
    channels: tuple[int, int]
    hidden: int
    learn: BPCfKL
    rounds: int
    steps: int  # the server's, in batches of 100
    hmc: co.HMC
    long: bool  # also the rows with 100 local steps


LEARN = BPCfKL(  # Table 2, third column
    rows=62, trajectories=100, steps=750, interval=5, batch=25, updates=500, draws=5, data_steps=200, coreset_steps=250,
    noises=10, noise=1e-4, chain=Descent(1e-2), rate_x=1e2, rate_y=0.0, spread=1e-3, memory=8e9,
)  # fmt: skip
QUICK = Descent(0.1)  # trajectories five times shorter, steps ten times larger
NIGHT = dataclasses.replace(
    LEARN, trajectories=10, steps=150, interval=10, updates=100, draws=1, data_steps=50, coreset_steps=50, noises=5,
    chain=QUICK,
)  # fmt: skip
SMALL = dataclasses.replace(NIGHT, trajectories=4, steps=100, updates=30, data_steps=20, coreset_steps=20, noises=2)
PATIENT = dataclasses.replace(SMALL, updates=500)  # as many as Table 2 has
AVERAGED = dataclasses.replace(SMALL, draws=5, noises=10)  # M and S of Table 2
SMOKE = dataclasses.replace(
    SMALL, rows=10, trajectories=1, steps=2, interval=1, updates=1, data_steps=1, coreset_steps=1, noises=1
)
SIZES = {
    "full": Size(100, 100, (32, 64), 128, LEARN, 1000, 2000, co.HMC(2e-4, 10.0, 10, 150, 1, 1, 10), True),
    "overnight": Size(100, 100, (8, 16), 128, NIGHT, 200, 2000, co.HMC(1e-3, 1.0, 10, 50, 2, 2, 4), True),
    "evening": Size(30, 50, (8, 16), 64, SMALL, 40, 2000, co.HMC(1e-3, 1.0, 5, 10, 2, 1, 2), False),
    "patient": Size(30, 50, (8, 16), 64, PATIENT, 40, 2000, co.HMC(1e-3, 1.0, 5, 10, 2, 1, 2), False),
    "averaged": Size(30, 50, (8, 16), 64, AVERAGED, 40, 2000, co.HMC(1e-3, 1.0, 5, 10, 2, 1, 2), False),
    "wide": Size(30, 50, (32, 64), 128, SMALL, 40, 2000, co.HMC(1e-3, 1.0, 5, 10, 2, 1, 2), False),
    "small": Size(10, 20, (8, 16), 64, SMALL, 40, 2000, co.HMC(1e-3, 1.0, 5, 10, 2, 1, 2), False),
    "smoke": Size(2, 2, (2, 2), 4, SMOKE, 2, 0, co.HMC(1e-3, 1.0, 1, 1, 1, 1, 2), False),
}


def network(size: Size) -> nn.Module:
    """The ConvNet of App. C.1 with as many channels as the scale has."""
    a, b = size.channels
    layers = [nn.Conv2d(1, a, 3), nn.ReLU(), nn.Conv2d(a, b, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return cnn((1, 28, 28), 62, layers, hidden=(size.hidden,))


def prepare(writers: int, unseen: int, seed: int, data_dir: str | None) -> tuple[co.Sites, Data]:
    """So many writers with all their rows, 20 % of them held out and a tenth of the rest to validate on; and the rows
    of other writers. White on black, as FedJAX has it."""
    rows = datasets.load("femnist", data_dir)
    assert rows.site is not None and rows.site_test is not None and rows.x_test is not None and rows.y_test is not None
    x, y, site = (
        1 - torch.cat([rows.x, rows.x_test]),
        torch.cat([rows.y, rows.y_test]),
        torch.cat([rows.site, rows.site_test]),
    )
    ids = sorted(set(site.tolist()))
    order = [ids[int(i)] for i in Key(seed).fold(9).permutation(len(ids))]
    chosen, others = order[:writers], order[writers : writers + unseen]
    number = {old: new for new, old in enumerate(chosen)}
    keep, other = torch.isin(site, torch.tensor(chosen)), torch.isin(site, torch.tensor(others))
    own = Dataset(
        "femnist", x[keep], y[keep], classes=62, site=torch.tensor([number[int(i)] for i in site[keep]]), public=True
    )
    return own.split(co.splits.natural(), test=0.2, validation=0.1, calibration=0, seed=seed), Data.of(
        x[other], y[other]
    )


def regularised(size: Size, column: str) -> co.Task:
    """The task with Table 2's 1e-2 as a prior's precision, or as weight decay, and with haiku's weights, where the
    column says so."""
    if column.endswith(DECAY):
        return co.classification(network(size), prior=Flat()).tilted(decay(1e-2))
    task = co.classification(network(size), prior=Isotropic(100.0))
    if column.endswith(HAIKU):
        return HaikuTask(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})
    return task


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    size = SIZES[scale]
    sites, others = prepare(size.writers, size.unseen, seed, data_dir)
    task = regularised(size, column)
    if column.endswith(DECAY):
        return {row: score_unseen(result, others) for row, result in pseudocoresets(task, sites, size, seed).items()}
    if UNLEARNED in column:
        result = real_rows(task, sites, size, seed)
        return {REAL: score_unseen(result, others) | exposure(result, sites)}
    rows = sum(len(d.w) for d in sites.train) / len(sites)
    batch = max(round(rows / 10), 1)  # ten steps a pass

    def execute(method: co.Method, rounds: int | None = None, **more: Any) -> Result:
        return co.run(method, task, sites, rounds=rounds, seed=seed, engine="parallel", **more)

    runs: dict[str, Result] = {}
    curves: dict[str, Curve] = {}
    for steps in (10, 100) if size.long else (10,):
        passes = steps // 10
        runs |= {
            f"FedAvg ({steps} local steps)": execute(co.methods.FedAvg(co.SGD(0.1, 0.0, passes, batch)), size.rounds),
            f"MIME ({steps} local steps)": execute(co.methods.Mime(AdamSteps(1e-3), passes, batch), 2 * size.rounds),
        }
        row, burn = f"FedPA ({steps} local steps)", co.SGD(0.01, 0.9, passes, batch)
        with tempfile.TemporaryDirectory() as folder:  # half of the rounds: one sample each, which is their end
            before = execute(co.methods.FedPA(burn, 0.1, Descent(0.5, 0.9)), size.rounds // 2, out=folder)
            runs[row] = execute(
                co.methods.FedPA(Iterates(steps=steps), 0.1, Descent(0.5, 0.9)),
                size.rounds - size.rounds // 2,
                start=folder,
            )
        curves[row] = [*curve(before.report), *curve(runs[row].report)]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        runs |= pseudocoresets(task, sites, size, seed, Path(folder) / "coreset")
        first = runs["BPC-FL + SGD"]
        runs |= {
            "BPC-FL → FedAvg": execute(
                co.methods.FedAvg(co.SGD(0.1, 0.0, 1, batch)), size.rounds, start=Path(folder) / "coreset"
            ),
            "all rows in one place, SGD": execute(
                co.methods.Centralised(co.SGD(0.1, 0.0, 2 * size.rounds // 10 + 1, 25))
            ),
            "each site alone, SGD": execute(co.methods.LocalOnly(co.SGD(0.1, 0.0, size.rounds, batch))),
        }
    targets = {k: first.report["history"][-1][f"validation_{k}"] for k in ("nll", "accuracy")}
    own = bytes_sent(curve(first.report)[-1], "floats")
    for row, result in runs.items():
        federated = not isinstance(result.method, Bound)
        if row == "BPC-FL + SGD" or (federated and result.replies is not first.replies):
            curves.setdefault(row, curve(result.report))
    values: Values = {}
    for row, result in runs.items():
        values[row] = score_unseen(result, others)
        for key, target in targets.items():
            point = bytes_to_reach(curves.get(row, []), key, target)
            values[row] |= {f"floats_to_{key}": None, f"times_to_{key}": None}
            if point is not None:
                floats = bytes_sent(point, "floats")
                values[row] |= {f"floats_to_{key}": floats, f"times_to_{key}": floats / own}
    values["BPC-FL + SGD"] |= exposure(first, sites)
    values[REAL] |= exposure(runs[REAL], sites)
    values["_drawing"] = {"curves": curves, "pictures": pictures(first, sites)}  # type: ignore[dict-item]
    return values


def passes(size: Size, rows: int) -> int:
    """How often the server goes over so many pseudo-rows: 2 000 steps in batches of 100 (Table 7)."""
    return max(1, size.steps * 100 // rows)


def descent(size: Size, rows: int, momentum: float = 0.0) -> co.SGD:
    """The server's SGD on the union, which in print has no momentum."""
    return co.SGD(1e-2, momentum, passes(size, rows), 100)


def pseudocoresets(
    task: co.Task, sites: co.Sites, size: Size, seed: int, folder: Path | None = None
) -> dict[str, Result]:
    """BPC-FL with each inference at the server, on the same coresets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = len(sites) * size.learn.rows
        method = co.methods.CoresetFL(size.learn, descent(size, rows))
        first = co.run(method, task, sites, seed=seed, engine="parallel", out=folder)
        return {
            "BPC-FL + SGD": first,
            REAL: real_rows(task, sites, size, seed),
            WITH_MOMENTUM: first.pool(co.methods.CoresetFL(size.learn, descent(size, rows, 0.9))),
            "BPC-FL + Adam": first.pool(co.methods.CoresetFL(size.learn, co.Adam(1e-2, passes(size, rows), 100))),
            "BPC-FL + HMC": first.pool(co.methods.CoresetFL(size.learn, size.hmc)),
        }


def real_rows(task: co.Task, sites: co.Sites, size: Size, seed: int) -> Result:
    """As many rows of each writer's own as there would be pseudo-rows, and the server's SGD on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = co.methods.CoresetFL(unlearned(size.learn), descent(size, len(sites) * size.learn.rows))
        return co.run(method, task, sites, seed=seed, engine="parallel")


def unlearned(learn: BPCfKL) -> BPCfKL:
    """Pseudo-rows that begin at rows of the writer's own and stay there."""
    return dataclasses.replace(learn, own=True, updates=0, trajectories=1, steps=1, interval=1, data_steps=1)


def score_unseen(result: Result, others: Data) -> dict[str, float | None]:
    """Scores on writers nobody trained on; the mean over models where each site has one."""
    sites: list[str | None] = [None]
    if is_personal(result.method):
        sites = [*result.sites.names]
    models = [result.model(site) for site in sites]
    each = [scores(model(others.x), others.y) for model in models]
    means = {k: sum(s[k] for s in each) / len(each) for k in ("nll", "accuracy", "ece", "brier")}
    return {**means, "nll_own_writers": result.metrics["nll"], "seconds": result.report["seconds"]}


def exposure(first: Result, sites: co.Sites) -> dict[str, float | None]:
    """How near pseudo-inputs come to rows, for classes of which a writer has one or two rows and for the others."""
    near: dict[bool, list[float]] = {True: [], False: []}
    for learned, data in zip(first.state.learned, sites.train, strict=True):
        z, x = learned.coreset.x.flatten(1), data.x.flatten(1)
        usual = (torch.cdist(x, x) + torch.eye(len(x)) * 1e9).amin(1).median()
        away = torch.cdist(z, x).amin(1) / usual
        counts = torch.bincount(data.y, minlength=62)[learned.coreset.y]
        for distance, count in zip(away.tolist(), counts.tolist(), strict=True):
            near[count <= 2].append(distance)
    diagnosis = first.report["diagnostics"]["coresets"]
    return {
        "nearest_rare_classes": sum(near[True]) / len(near[True]) if near[True] else None,
        "nearest_other_classes": sum(near[False]) / len(near[False]) if near[False] else None,
        "closest": min(s["closest"] for s in diagnosis),
        "copies": float(sum(s["copies"] for s in diagnosis)),
        "halved": float(sum(s["halved"] for s in diagnosis)),
    }


def pictures(first: Result, sites: co.Sites) -> list[dict[str, Any]]:
    """The first twelve pseudo-inputs of two writers, each with the row nearest to it."""
    shown = []
    for learned, data in list(zip(first.state.learned, sites.train, strict=True))[:2]:
        z = learned.coreset.x[:12]
        nearest = data.x[torch.cdist(z.flatten(1), data.x.flatten(1)).argmin(1)]
        shown.append(
            {"labels": learned.coreset.y[:12].tolist(), "pseudo": round_values(z), "nearest": round_values(nearest)}
        )
    return shown


def round_values(x: Tensor) -> list[Any]:
    values: list[Any] = (x.squeeze(1) * 100).round().int().tolist()
    return values


def draw(results: dict[str, Any], folder: Path) -> None:
    """Pseudo-inputs above the rows nearest to them."""
    names = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    for column, trials in results.get("drawings", {}).items():
        for seed, drawn in list(trials.items())[:1]:
            figure = Figure(figsize=(9, 3.9), layout="constrained")
            grid = figure.subplots(2 * len(drawn["pictures"]), 12)
            for writer, shown in enumerate(drawn["pictures"]):
                for row, kind in enumerate(("pseudo", "nearest")):
                    for axes, image, label in zip(grid[2 * writer + row], shown[kind], shown["labels"], strict=False):
                        axes.imshow(torch.tensor(image), cmap="gray")
                        axes.set_title(names[label] if kind == "pseudo" else "", fontsize=8)
                    grid[2 * writer + row][0].set_ylabel(kind, fontsize=8)
            for axes in grid.flat:
                axes.set(xticks=[], yticks=[])
            figure.suptitle(
                f"{column}, seed {seed}, scale {results['scale']}: learned, and the row nearest", fontsize=9
            )
            module("dhondt2024/figure2").save(figure, folder / "pseudo-inputs")


def mean_of(curves: list[Curve], key: str) -> tuple[list[float], list[float]]:
    """Floats and scores, averaged over seeds."""
    pairs = [[(bytes_sent(p, "floats"), p[key]) for p in same] for same in zip(*curves, strict=False)]
    return [sum(x for x, _ in s) / len(s) for s in pairs], [sum(y for _, y in s) / len(s) for s in pairs]


PAPER = {  # NLL and accuracy, mean and standard deviation over five seeds
    "FedAvg (10 local steps)": (1.038, 0.035),
    "FedPA (10 local steps)": (1.538, 0.083),
    "MIME (10 local steps)": (2.254, 0.113),
    "FedAvg (100 local steps)": (1.703, 0.058),
    "FedPA (100 local steps)": (4.960, 0.259),
    "MIME (100 local steps)": (1.471, 0.461),
    "BPC-FL + SGD": (1.203, 0.004),
    "BPC-FL + Adam": (1.750, 0.001),
    "BPC-FL + HMC": (1.349, 0.011),
}
COLUMNS = ("femnist", f"femnist, {DECAY}", f"femnist, {UNLEARNED}", f"femnist, {UNLEARNED}, {HAIKU}")
EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Table 1: NLL on unseen writers of FEMNIST",
    columns=COLUMNS,
    trial=trial,
    score="nll",
    paper={row: {"femnist": cell} for row, cell in PAPER.items()},
    incomparable=COLUMNS,
    scales=tuple(SIZES)[:-1],
)
