"""Özer et al. 2022, Table 1: ten clients, all active; FedAvg against five rules for merging variational networks.

Two convolutions that are points, three linear layers that are Gaussian; SGD at 0.01 with momentum 0.9 and weight decay
1e-5, batches of 64, 10 local epochs; N(0, 1) prior; 10 draws at prediction; ECE with 100 bins. Rows as printed (eq.
4–8) start at log σ² = −9 and are not clamped above −20; 'released' rows follow the released program's clamps and
running sums. Beside the paper's rows: the bounds, and every row with a temperature from the same 100 labels.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values, resumable
from consilience.data import Data, datasets
from consilience.data.splits.text import parse
from consilience.distributions.posterior import Gaussian
from consilience.distributions.predictive import Categorical, Distribution, temperature, tempered
from consilience.distributions.prior import Flat, Isotropic
from consilience.inference import Descent
from consilience.method import is_personal
from consilience.method.declared import tempers
from consilience.metrics.calibration import ece, ece_debiased
from consilience.metrics.scores import scores
from consilience.models.cnn import cnn_ozer
from consilience.runs.result import Result

PAPER = json.loads((Path(__file__).parent / "paper.json").read_text())
RULES = {
    "EAA": co.aggregation.eaa,
    "GAA": co.aggregation.gaa,
    "AALV": co.aggregation.aalv,
    "PPA": co.aggregation.ppa,
    "CF": co.aggregation.cf,
}
BATCH, LABELS, BINS, DRAWS, ACTIVE = 64, 100, 100, 10, 10


class Scale(NamedTuple):
    data: tuple[str, ...]  # columns of other data stay empty
    rows: int | None  # training rows, all if None
    test: int | None  # test rows
    rounds: dict[int, int]  # by the number of clients
    epochs: int
    weightings: tuple[str, ...]  # FVBA: equal, FVBWA: by size
    printed: tuple[str, ...] = tuple(RULES)  # rules as printed
    released: tuple[str, ...] = tuple(RULES)  # and as the released program has them
    bounds: bool = True
    watched: bool = False  # FedAvg scored after every round: when does it become too sure?
    clients: int | None = None  # in place of the column's


WHOLE = 60_000  # training rows in print: 600 for each of a hundred clients
BY_SIZE = ("FVBWA",)
SCALES = {  # after the rounds: local epochs, and which weightings
    "full": Scale(("fashion_mnist", "cifar10", "svhn"), None, None, {10: 50, 100: 500}, 10, ("FVBA", "FVBWA")),
    "rounds": Scale(  # print's rounds and rows; the rules as printed, by size
        ("fashion_mnist",), None, None, {10: 50, 100: 500}, 10, BY_SIZE, released=(), bounds=False, watched=True
    ),
    "overnight": Scale(("fashion_mnist",), None, None, {10: 10, 100: 100}, 10, BY_SIZE),
    "evening": Scale(
        ("fashion_mnist",), None, None, {10: 2, 100: 20}, 10, BY_SIZE, (), ("EAA", "GAA"), bounds=False, watched=True
    ),
    "fedavg": Scale(("fashion_mnist",), None, None, {10: 2, 100: 10}, 10, (), (), (), bounds=False, watched=True),
    "few": Scale(  # ten of Table 3's clients with their 600 rows, and nobody else
        ("fashion_mnist",), 6_000, None, {10: 20, 100: 20}, 10, BY_SIZE, (), ("GAA",), False, watched=True, clients=10
    ),
    "rules": Scale(  # as `few`, with the five rules of equal weights
        ("fashion_mnist",), 6_000, None, {10: 20, 100: 20}, 10, ("FVBA",), released=(), bounds=False, clients=10
    ),
    "hundred": Scale(  # a fifth of print's rounds of a hundred clients: FedAvg and the rule that print has ahead
        ("fashion_mnist",), None, None, {10: 10, 100: 100}, 10, BY_SIZE, (), ("GAA",), bounds=False, watched=True
    ),
    "small": Scale(("fashion_mnist",), 6_000, 4_000, {10: 3, 100: 30}, 5, BY_SIZE),
    "others": Scale(("cifar10", "svhn"), 6_000, 4_000, {10: 3, 100: 30}, 5, BY_SIZE),
    "smoke": Scale(("fashion_mnist",), 200, None, {10: 1, 100: 1}, 1, ("FVBA", "FVBWA")),
}


def descent(epochs: int) -> co.SGD:
    return co.SGD(rate=0.01, momentum=0.9, epochs=epochs, batch=BATCH, weight_decay=1e-5)


def prior_weight(scale: Scale, printed: int, clients: int) -> float:
    """What the KL divergence is multiplied by, so that the prior weighs what it does in print with other rows a client.

    Args:
        scale: How many rows there are.
        printed: The paper's clients.
        clients: How many share the rows here.

    Returns:
        A client's rows, in those of print.
    """
    rows = scale.rows or WHOLE
    return (rows / clients) / (WHOLE / printed)


def mean_field(epochs: int, variant: str = "printed", kl: float = 1.0) -> co.MeanField:
    steps = Descent(rate=0.01, momentum=0.9)
    return co.MeanField(steps, epochs=epochs, batch=BATCH, start=-9.0, weight_decay=1e-5, kl=kl, variant=variant)


def merging(
    rule: str, weighting: str, epochs: int, variant: str = "printed", kl: float = 1.0
) -> co.methods.VariationalAveraging:
    return co.methods.VariationalAveraging(
        mean_field(epochs, variant, kl), RULES[rule], weighting == "FVBA", variant=variant
    )


def tasks(sites: co.Sites) -> tuple[co.Task, co.Task]:
    """For points: no prior but the decay; for Gaussians: N(0, 1)."""
    network = cnn_ozer(sites.features, sites.classes)
    gaussian = dataclasses.replace(co.classification(network, Isotropic(1.0)), draws=DRAWS)
    return co.classification(network, Flat()), gaussian


def clients_of(column: str) -> int:
    """How many clients a column has in print."""
    if column.count(":") == 2:
        return int(column.rpartition(":")[2])
    return 10


def prepare(column: str, seed: int, scale: Scale, data_dir: str | None) -> tuple[co.Sites, int]:
    name, partition, *_ = column.split(":")
    clients = scale.clients or clients_of(column)
    rows = datasets.load(name, data_dir)
    if scale.rows is not None:
        rows = dataclasses.replace(rows, x=rows.x[: scale.rows], y=rows.y[: scale.rows])
    if scale.test is not None and rows.x_test is not None and rows.y_test is not None:
        rows = dataclasses.replace(rows, x_test=rows.x_test[: scale.test], y_test=rows.y_test[: scale.test])
    split = parse("iid" if partition == "iid" else "dirichlet:0.5")
    clients = min(clients, len(rows.x) // 10)
    return rows.split(split, clients, calibration=min(LABELS, len(rows.x) // 10), seed=seed), clients


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    plan = SCALES[scale]
    if column.partition(":")[0] not in plan.data:
        return {}
    sites, clients = prepare(column, seed, plan, data_dir)
    point, gaussian = tasks(sites)
    rounds = plan.rounds[10 if clients <= 10 else 100]
    kl = prior_weight(plan, clients_of(column), clients)
    values: Values = {}

    def add(
        row: str, method: co.Method, task: co.Task, rounds: int, cohort: int | None = None, watched: bool = False
    ) -> None:
        extra: dict[str, Any] = {}
        if cohort is not None:
            extra["participation"] = cohort
        result = co.run(
            method,
            task,
            sites,
            rounds=rounds,
            seed=seed,
            scored=watched,
            engine=co.Compute("sequential", threads=1),
            **extra,
            **resumable(),
        )
        values.update(_rows(row, result))
        if watched:
            values[row].update(_history(result))

    cohort = ACTIVE if clients > ACTIVE else None
    if "FVBA" in plan.weightings:
        add("FED", co.methods.FedAvg(descent(plan.epochs), equal=True), point, rounds, cohort)
    add("FEDAVG", co.methods.FedAvg(descent(plan.epochs)), point, rounds, cohort, plan.watched)
    for weighting in plan.weightings:
        for rule in plan.printed:
            add(f"{weighting} {rule}", merging(rule, weighting, plan.epochs, kl=kl), gaussian, rounds, cohort)
    for rule in plan.released:
        row = f"FVBWA {rule}, released"
        add(row, merging(rule, "FVBWA", plan.epochs, "ozer2022", kl), gaussian, rounds, cohort)
    if not plan.bounds:
        return values
    passes = max(plan.epochs * rounds * min(ACTIVE, clients) // clients, 1)  # as many as the rows above make
    add("Centralised", co.methods.Centralised(descent(passes)), point, 1)
    add("Centralised, VI", co.methods.Centralised(mean_field(passes, kl=kl)), gaussian, 1)
    many = passes * sum(len(d.x) for d in sites.train) // LABELS  # as many steps as all the data get in one place
    add("Server only", co.methods.ServerOnly(descent(many)), point, 1)
    add("Local only", co.methods.LocalOnly(descent(passes)), point, 1)
    return values


def _rows(row: str, result: Result) -> Values:
    """A row's scores, and the same with a temperature from the server's labels."""
    task, state, sites, test = result.task, result.state, result.sites, result.sites.all_test
    if is_personal(result.method):
        each = [_scores(result.model(site)(test.x), test) for site in sites.names]
        return {row: {k: sum(e[k] for e in each) / len(each) for k in each[0]}}
    model, posterior = result.method.predictive(task, state), state.posterior
    p = model(test.x)
    metrics = _scores(p, test)
    if isinstance(posterior, Gaussian):
        metrics["spread"] = co.aggregation.spread(posterior)
        metrics["floored"] = float(getattr(state, "floored", 0))
    if sites.calibration is None or not tempers(result.method):
        return {row: dict(metrics)}
    t = temperature(model(sites.calibration.x), sites.calibration.y)
    return {row: dict(metrics), f"{row}, tempered": {**_scores(tempered(p, t), test), "temperature": t}}


def _history(result: Result) -> dict[str, float]:
    """What FedAvg's test scores were after every round; nothing is chosen by them."""
    kept = [(row["round"], key, row[key]) for row in result.report["history"] for key in ("accuracy", "nll", "ece")]
    return {f"{key}, round {number}": value for number, key, value in kept}


def _scores(p: Distribution, test: Data) -> dict[str, float]:
    assert isinstance(p, Categorical)
    metrics = scores(p, test.y)
    return {
        **{"accuracy": 100 * metrics["accuracy"], "nll": metrics["nll"], "brier": metrics["brier"]},
        **{"ece": 100 * ece(p, test.y, BINS), "ece_debiased": 100 * ece_debiased(p, test.y, BINS)},
        "ece15": 100 * metrics["ece"],
        "overconfidence": 100 * (float(p.probs.amax(-1).mean()) - metrics["accuracy"]),
    }


def read_printed(table: str, score: str, clients: str = "") -> dict[str, dict[str, tuple[float, float]]]:
    """A score of the paper's table, by row and column."""
    return {
        row: {column + clients: (cell[score][0], cell[score][1]) for column, cell in columns.items()}
        for row, columns in PAPER[table].items()
    }


COLUMNS = (
    "svhn:iid",
    "svhn:dirichlet",
    "cifar10:iid",
    "cifar10:dirichlet",
    "fashion_mnist:iid",
    "fashion_mnist:dirichlet",
)

EXPERIMENT = Experiment(
    title="Özer et al. 2022, Table 1: accuracy with 10 clients, %",
    columns=COLUMNS,
    trial=trial,
    score="accuracy",
    digits=2,
    paper=read_printed("table1", "accuracy"),
    incomparable=("svhn:iid", "svhn:dirichlet"),  # a part of SVHN, cut out again
    scales=tuple(SCALES),
)
