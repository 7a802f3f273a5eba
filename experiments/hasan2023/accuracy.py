"""Hasan 2023, Tables 3.1 and B.5–B.7: accuracy on image sets against heterogeneity; and what the tables leave out.

MNIST and Fashion here; EMNIST, CIFAR-10 and CIFAR-100, by the same trial, are `hasan2023/larger`.

The released split (every client shares one homogeneous part, and has 12 000 rows), 12 000 labelled rows at the server,
pixels scaled by MNIST's mean and deviation, the tuned settings of Tables B.2 and B.3, 25 epochs, batch 100. Beside the
paper's rows: the bounds, the mixture, β and its student, each row's NLL, Brier and ECE, and the server alone with its
12 000 and with 30 labels.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import consilience as co
from consilience import tree
from consilience.benchmark.reproduce import Experiment, Values, module
from consilience.data import datasets
from consilience.data.dataset import Dataset
from consilience.data.sites import Data
from consilience.data.splits.labels import HeterogeneousHasan2023
from consilience.distributions.posterior import as_samples
from consilience.distributions.predictive import Distribution, temperature, tempered
from consilience.distributions.prior import Flat
from consilience.errors import Diverged
from consilience.inference import Descent
from consilience.methods.fedpa import delta
from consilience.metrics.scores import scores
from consilience.models import Factory
from consilience.models.cnn import cnn_hasan
from consilience.runs.result import Result

TABLE2 = module("hasan2024/table2")  # the same authors' program
DECAY, FRICTION, BATCH, CLIENTS = TABLE2.DECAY, TABLE2.FRICTION, TABLE2.BATCH, TABLE2.CLIENTS
optimiser = TABLE2.optimiser
DISTILLED = {"full": 100, "quick": 20, "smoke": 1}  # epochs
SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased")


class Setup(NamedTuple):
    """What a data set is trained with (§3.3.3, §3.3.5)."""

    network: Factory = co.models.mlp
    epochs: int = 25  # a client, over all rounds
    rounds: int = 5  # of the methods that have many
    quick: tuple[int, int] = (10_000, 10_000)  # training and test rows at the scale of that name
    smoke: tuple[int, int] = (500, 500)
    mean: float = 0.1307  # of the pixels
    deviation: float = 0.3081
    inverted: bool = False  # black on white: 1 − x


# The text gives no scaling for colours.
COLOURS = Setup(cnn_hasan, epochs=50, rounds=10, quick=(2_000, 1_000), smoke=(60, 20), mean=0.5, deviation=0.5)
SETUPS = {
    **{"mnist": Setup(), "fashion_mnist": Setup(), "femnist": Setup(inverted=True)},
    **{"cifar10": COLOURS, "cifar100": COLOURS},
}
HOMOGENEOUS_COLOURS = {
    **{"local": ("SGDM", 1e-2), "prox": ("SGDM", 1e-2, 1e-3), "yogi": ("SGD", 1e-1), "server": 5e-1},
    **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
}
HETEROGENEOUS_COLOURS = {**HOMOGENEOUS_COLOURS, "local": ("SGDM", 1e-3)}

# Tables B.2 (h = 0) and B.3 (h > 0): (optimiser, rate), server rates, sampler rates; λ and τ.
SETTINGS = {
    ("mnist", False): {
        **{"local": ("SGDM", 1e-1), "prox": ("SGDM", 1e-1, 1e-2), "yogi": ("SGDM", 1e-2), "server": 1.0},
        **{"sampler": 5e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    ("mnist", True): {
        **{"local": ("SGDM", 1e-2), "prox": ("Adam", 1e-3, 1e-2), "yogi": ("SGD", 1e-1), "server": 1.0},
        **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    ("fashion_mnist", False): {
        **{"local": ("SGDM", 1e-1), "prox": ("Adam", 1e-3, 1e-3), "yogi": ("SGDM", 1e-2), "server": 5e-1},
        **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    ("fashion_mnist", True): {
        **{"local": ("SGDM", 1e-2), "prox": ("Adam", 1e-3, 1e-2), "yogi": ("SGD", 1e-1), "server": 5e-1},
        **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    ("femnist", False): {
        **{"local": ("SGDM", 1e-1), "prox": ("Adam", 1e-3, 1e-3), "yogi": ("SGDM", 1e-2), "server": 1e-1},
        **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    ("femnist", True): {
        **{"local": ("SGDM", 1e-3), "prox": ("Adam", 1e-3, 1e-2), "yogi": ("SGD", 1e-1), "server": 1e-1},
        **{"sampler": 1e-1, "gaussian": 1e-1, "many": 1e-2},
    },
    **{(name, False): HOMOGENEOUS_COLOURS for name in ("cifar10", "cifar100")},
    **{(name, True): HETEROGENEOUS_COLOURS for name in ("cifar10", "cifar100")},
}


def prepare(name: str, h: float, scale: str, seed: int, data_dir: str | None) -> co.Sites:
    """The sites, and a fifth of the rows at the server, which distil and tune β."""
    rows, setup = datasets.load(name, data_dir), SETUPS[name]
    if scale != "full":
        rows = fewer(rows, *(setup.quick if scale == "quick" else setup.smoke))
    labelled = round(0.2 * len(rows.x))
    sites = rows.split(HeterogeneousHasan2023(h, oversize=1.25), CLIENTS, calibration=labelled, seed=seed)
    sites = sites.map_x(lambda x: ((1 - x if setup.inverted else x) - setup.mean) / setup.deviation)
    assert sites.calibration is not None
    return dataclasses.replace(sites, inputs=sites.calibration.x)


def sampler(sites: co.Sites, scale: str, rate: float, epochs: int) -> co.CyclicalSGHMC:
    """'1/|D|': their noise √(2εα/N²) is ours, √(2εαT/nₖ), with T = nₖ/N²."""
    n, cycles = sum(len(d.x) for d in sites.train), min(5, epochs)
    samples, keep = min(2, epochs // cycles), 2 if scale == "smoke" else 6
    return co.CyclicalSGHMC(rate, FRICTION, epochs, cycles, samples, keep, BATCH, (n / CLIENTS) / n**2)


def one_round_of_fedpa(sampled: Result, server: Descent) -> Result:
    """FedPA's step from samples that were drawn already, from the same start."""
    task, method = sampled.task, co.methods.FedPA(sampled.method.inference, 0.4, server)  # type: ignore[attr-defined]
    start = tree.ravel(task.init(sampled.server.key).params)
    moved = [delta(start, tree.ravel(r.payload.params, batch_dims=1), 0.4) for r in sampled.replies]
    steps = [r._replace(payload=tree.unravel(step, task.like)) for r, step in zip(sampled.replies, moved, strict=True)]
    return dataclasses.replace(sampled, method=method, replies=steps).pool(method, scored=False)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, _, text = column.partition(":")
    h, setup = float(text), SETUPS[name]
    s, rounds = SETTINGS[name, h > 0], setup.rounds
    epochs = {"full": setup.epochs, "quick": 10, "smoke": setup.rounds}[scale]
    sites = prepare(name, h, scale, seed, data_dir)
    test, labelled = sites.all_test, sites.calibration
    assert labelled is not None
    network = setup.network(sites.features, sites.classes)
    task = co.classification(network, prior=Flat()).tilted(co.task.decay(DECAY))
    sampling = partial(sampler, sites, scale)

    def execute(method: co.Method, rounds: int = 1, where: co.Sites = sites) -> Result:
        return co.run(
            method, task, where, rounds=rounds, seed=seed, scored=False, engine=co.Compute("sequential", threads=1)
        )

    values: Values = {}

    def add(row: str, result: Result, also_tempered: bool = False) -> None:
        model = result.method.predictive(task, result.state)
        p = model(test.x)
        values[row] = _score(p, test)
        if also_tempered:
            values[f"{row}, tempered"] = _score(tempered(p, temperature(model(labelled.x), labelled.y)), test)

    def attempt(row: str, method: co.Method, rounds: int = 1, where: co.Sites = sites) -> None:
        """A row of its own; where the paper's rate leaves the finite numbers, the cell rests on the other seeds."""
        with suppress(Diverged):
            add(row, execute(method, rounds, where))

    distil = co.aggregation.Distil(
        co.Adam(rate=1e-4, epochs=DISTILLED[scale], batch=BATCH), start=co.aggregation.at_client
    )
    local = execute(co.methods.FedAvg(optimiser(*s["local"], epochs)))
    sampled = execute(co.methods.Mixture(sampling(s["sampler"], epochs)))
    gaussian = sampled
    if s["sampler"] != s["gaussian"]:
        gaussian = execute(co.methods.Mixture(sampling(s["gaussian"], epochs)))
    server = Descent(s["server"], 0.9)

    attempt(f"FedAvg, {rounds} rounds", co.methods.FedAvg(optimiser(*s["local"], epochs // rounds)), rounds)
    attempt(f"FedPA, {rounds} rounds", co.methods.FedPA(sampling(s["many"], epochs // rounds), 0.4, server), rounds)
    add("FedAvg", local)
    add("FedPA", one_round_of_fedpa(gaussian, server))
    add("EP MCMC", gaussian.pool(co.methods.EPMCMC(), scored=False))
    attempt("FedProx", co.methods.FedProx(optimiser(s["prox"][0], s["prox"][1], epochs), mu=s["prox"][2]))
    attempt("AdaptFL", co.methods.FedYogi(optimiser(*s["yogi"], epochs), rate=1e-1, tau=1e-2))
    add("FedBE", local.pool(co.methods.FedBE(sharpen=1.0, distil=distil), scored=False))
    add("Oneshot FL", local.pool(co.methods.OneShotFL(distil=distil), scored=False))
    voting = dataclasses.replace(local, replies=[r._replace(payload=as_samples(r.payload)) for r in local.replies])
    add("FedKT", voting.pool(co.methods.FedKT(models=1, consistent=False, distil=distil), scored=False))
    add("BCM", sampled.pool(co.methods.BCM(), scored=False), also_tempered=True)
    add("D BCM", sampled.pool(co.methods.BCM(distil=distil), scored=False))
    add("Mixture", sampled, also_tempered=True)
    add("β", sampled.pool(co.methods.BetaPredictiveBayes(), scored=False), also_tempered=True)
    add("D β", sampled.pool(co.methods.BetaPredictiveBayes(distil=distil), scored=False))

    local_scores = [_score(task.predictive(r.payload)(test.x), test) for r in sampled.replies]
    values["Local only, mean"] = {k: sum(v[k] for v in local_scores) / len(local_scores) for k in SHOWN}  # type: ignore[misc]
    attempt("Centralised", co.methods.Centralised(sampling(s["sampler"], epochs)))
    attempt("Server only, all labels", co.methods.ServerOnly(sampling(s["sampler"], epochs)))
    alone = co.methods.ServerOnly()
    if scale == "smoke":
        alone = co.methods.ServerOnly(sampling(s["sampler"], epochs))
    attempt("Server only, 30 labels", alone, where=with_labels(sites, labelled, 30))
    return values


def with_labels(sites: co.Sites, labelled: Data, count: int) -> co.Sites:
    """The same sites with only the first of the server's labelled rows."""
    return dataclasses.replace(sites, calibration=Data(*(leaf[:count] for leaf in labelled)))


def fewer(rows: Dataset, training: int, testing: int) -> Dataset:
    """The first rows of a set."""
    assert rows.x_test is not None and rows.y_test is not None
    return dataclasses.replace(
        rows,
        **{"x": rows.x[:training], "y": rows.y[:training], "site": None, "site_test": None},
        **{"x_test": rows.x_test[:testing], "y_test": rows.y_test[:testing]},
    )


def _score(p: Distribution, test: Data) -> dict[str, float | None]:
    metrics = scores(p, test.y)
    return {k: 100 * metrics[k] if k == "accuracy" else metrics[k] for k in SHOWN}


PAPER = {  # rows × (MNIST, Fashion) at h = 0.0, 0.3, 0.6, 0.9: Tables B.5, 3.1, B.6, B.7
    "FedAvg, 5 rounds": [(97.61, 0.04), (95.27, 0.05), (93.59, 0.11), (86.64, 1.04)]
    + [(83.24, 0.36), (79.14, 1.12), (76.39, 0.72), (62.75, 1.80)],
    "FedPA, 5 rounds": [(95.48, 0.28), (91.21, 0.08), (89.41, 0.08), (86.39, 0.17)]
    + [(76.59, 1.09), (78.32, 0.45), (79.59, 0.38), (78.33, 0.17)],
    "FedAvg": [(93.63, 0.32), (73.74, 1.59), (50.28, 4.51), (28.23, 2.26)]
    + [(86.61, 0.09), (37.52, 2.28), (33.46, 1.54), (24.01, 1.48)],
    "FedPA": [(95.30, 0.07), (87.36, 0.71), (86.81, 0.85), (83.69, 0.94)]
    + [(84.29, 0.26), (70.16, 1.68), (63.72, 1.60), (57.24, 1.80)],
    "EP MCMC": [(96.09, 0.05), (90.99, 0.37), (90.07, 0.05), (87.63, 0.39)]
    + [(86.22, 0.09), (71.75, 1.40), (67.17, 1.69), (63.73, 1.50)],
    "FedProx": [(94.34, 0.21), (84.11, 1.36), (83.95, 0.87), (81.99, 0.83)]
    + [(85.30, 0.17), (69.63, 1.34), (68.78, 1.57), (66.05, 1.13)],
    "AdaptFL": [(94.27, 0.28), (91.60, 0.34), (90.81, 0.39), (88.41, 0.26)]
    + [(83.61, 0.20), (74.48, 0.87), (71.60, 1.20), (70.03, 1.35)],
    "FedBE": [(94.70, 0.16), (91.22, 0.42), (86.57, 1.74), (71.95, 4.43)]
    + [(79.85, 0.72), (80.39, 0.92), (77.43, 3.48), (59.31, 4.38)],
    "Oneshot FL": [(95.39, 0.07), (93.70, 0.09), (92.92, 0.08), (91.40, 0.09)]
    + [(83.91, 0.06), (83.72, 0.13), (82.37, 0.14), (77.77, 0.42)],
    "FedKT": [(94.81, 0.05), (94.01, 0.04), (92.93, 0.05), (89.81, 0.14)]
    + [(84.38, 0.08), (84.03, 0.10), (82.48, 0.17), (75.26, 0.56)],
    "BCM": [(97.01, 0.05), (95.68, 0.04), (94.54, 0.08), (91.75, 0.06)]
    + [(86.96, 0.04), (85.60, 0.06), (84.76, 0.10), (81.52, 0.18)],
    "D BCM": [(96.39, 0.08), (95.55, 0.04), (94.47, 0.05), (91.68, 0.07)]
    + [(86.57, 0.03), (85.25, 0.08), (84.47, 0.11), (81.17, 0.16)],
}
COLUMNS = tuple(f"{name}:{h}" for name in ("mnist", "fashion_mnist") for h in (0.0, 0.3, 0.6, 0.9))

EXPERIMENT = Experiment(
    title="Hasan 2023, Tables 3.1 and B.5–B.7: accuracy, %",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=2,
    paper={row: dict(zip(COLUMNS, cells, strict=True)) for row, cells in PAPER.items()},
    scales=("full", "quick", "smoke"),
)
