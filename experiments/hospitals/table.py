"""Four hospitals, every way of learning together: out-of-fold scores, leave-one-hospital-out, and switzerland's effect.

python experiments/hospitals/table.py --data work --repeats 8     (goes on where it stopped)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.distributions.predictive import tempered
from consilience.distributions.prior import Isotropic
from consilience.inference import Newton
from consilience.key import Key
from consilience.method.declared import turn
from consilience.methods.gaussian_product import GaussianProduct
from consilience.study.choice import choose_value, knob_of, log_scores
from consilience.study.protocol.columns import inspect, labelled_rows
from consilience.study.protocol.toml import read_columns

HERE = Path(__file__).parent
DICTIONARY = HERE.parent.parent / "examples" / "hospitals" / "columns.toml"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FOLDS, CHOOSE = 5, 0.125  # share of the training rows that only choose β, λ and temperature
SAMPLER, NEWTON = co.Sampler(), Newton()
LAPLACE = co.Laplace(mode=NEWTON, dense=True)
Predictions = dict[str, Tensor]  # row of the table → p(yes) of every test row


def hospital(name: str, folder: Path) -> Data:
    target, columns = read_columns(DICTIONARY)
    return labelled_rows(columns, target, inspect(folder / name / "patients.csv", columns, target))


def folds(data: Data, number: int, key: Key) -> Tensor:
    """The fold of every row, each class spread evenly."""
    found = torch.empty(len(data.y), dtype=torch.int64)
    for label in (0, 1):
        own = (data.y == label).nonzero().flatten()
        found[own[key.fold(label).permutation(len(own))]] = (torch.arange(len(own)) + number) % FOLDS
    return found


def cut(data: Data, rows: Tensor) -> Data:
    return Data(*(leaf[rows] for leaf in data))


def set_aside(data: Data, key: Key) -> tuple[Data, Data]:
    """Rows to train on and rows to choose by, within each class."""
    picked = torch.zeros(len(data.y), dtype=torch.bool)
    for label in (0, 1):
        own = (data.y == label).nonzero().flatten()
        picked[own[key.fold(label).permutation(len(own))[: round(CHOOSE * len(own))]]] = True
    return cut(data, ~picked), cut(data, picked)


def compare(train: list[Data], choose: list[Data], test: Tensor, seed: int, prefix: str = "") -> Predictions:
    """Every federated row and the pooled bounds, as they come and at the temperature the sites' statistics choose."""
    names = tuple(map(str, range(len(train))))
    sites = Sites(tuple(train), tuple(train), None, None, None, 2, train[0].x.shape[1], "heart", "natural", names)
    found: Predictions = {}

    def add(row: str, result: co.Result, method: co.Method | None = None) -> None:
        own = method or result.method
        state = result.state
        if method is not None:  # the same replies under another rule
            begin = own.init(result.task, result.server)
            state = own.aggregate(result.task, begin, result.replies, result.server)
        total = torch.stack([log_scores(own, result.task, state, rows) for rows in choose]).sum(0)
        knob = knob_of(own, state)
        found[row] = own.predictive(result.task, state)(test)[0].exp()[:, 1]
        value, t = choose_value(total, knob)
        best, new = turn(own, state, value)
        label = {"beta": "β and temperature", "penalty": "λ and temperature", "": "temperature"}[knob.name]
        found[f"{row} + {label}"] = tempered(best.predictive(result.task, new)(test), t)[0].exp()[:, 1]

    def execute(method: co.Method, task: co.Task, rounds: int | None = None) -> co.Result:
        return co.run(method, task, sites, rounds=rounds, seed=seed, scored=False, engine=co.Compute(threads=1))

    for kind, network in (("linear", co.models.linear), ("MLP", co.models.mlp)):
        task = co.classification(network(sites.features, 2))
        sampled = execute(co.methods.Mixture(SAMPLER), task)
        add(f"{prefix}Mixture, {kind}", sampled)
        add(f"{prefix}BCM, {kind}", sampled, co.methods.BCM(SAMPLER))
        add(f"{prefix}β, {kind}", sampled, co.methods.BetaPredictiveBayes(SAMPLER))
        if not prefix:
            add(f"Evidence, {kind}", execute(co.methods.EvidencePooling(SAMPLER), task))
            add(f"FedAvg (10 rounds), {kind}", execute(co.methods.FedAvg(co.SGD(epochs=5)), task, 10))
            add(f"Pooled data, {kind} sampled", execute(co.methods.Centralised(SAMPLER), task))
    task = co.Task(
        co.models.linear(sites.features, 2),
        co.classification(co.models.linear(2, 2)).likelihood,
        Isotropic(),
        draws=100,
    )
    add(f"{prefix}Product of Laplace, linear", execute(GaussianProduct(LAPLACE), task))
    if not prefix:
        add("Pooled data, logistic regression", execute(co.methods.Centralised(NEWTON), task))
        add("Pooled data, Laplace linear", execute(co.methods.Centralised(LAPLACE), task))
    return found


def alone(train: Data, choose: Data, test: Tensor, seed: int) -> Predictions:
    """One hospital without the others."""
    sites = Sites((train,), (train,), None, None, None, 2, train.x.shape[1], "heart", "natural", ("0",))
    found: Predictions = {}
    for row, network, inference in (
        ("Alone, logistic regression", co.models.linear, NEWTON),
        ("Alone, Laplace linear", co.models.linear, LAPLACE),
        ("Alone, MLP sampled", co.models.mlp, SAMPLER),
    ):
        result = co.run(
            co.methods.Centralised(inference),
            co.classification(network(sites.features, 2)),
            sites,
            seed=seed,
            scored=False,
        )
        p = result.method.predictive(result.task, result.state)(test)
        _, t = choose_value(
            log_scores(result.method, result.task, result.state, choose), knob_of(result.method, result.state)
        )
        found[row], found[f"{row} + temperature"] = p[0].exp()[:, 1], tempered(p, t)[0].exp()[:, 1]
    return found


def out_of_fold(data: list[Data], seed: int) -> dict[str, list[list[float]]]:
    """Every patient predicted by models that never saw them: row → hospital → p(yes)."""
    key, found = Key(seed), dict[str, list[Tensor]]()
    parts = [folds(d, k, key.fold(k)) for k, d in enumerate(data)]
    for f in range(FOLDS):
        both = [
            set_aside(cut(d, p != f), key.fold(10 + f).fold(k))
            for k, (d, p) in enumerate(zip(data, parts, strict=True))
        ]
        train, choose = ([pair[i] for pair in both] for i in (0, 1))
        test = [d.x[p == f] for d, p in zip(data, parts, strict=True)]
        sizes = [len(t) for t in test]
        rows = compare(train, choose, torch.cat(test), seed * FOLDS + f)
        keep = [0, 1, 3]  # without switzerland
        rows |= compare(
            [train[k] for k in keep],
            [choose[k] for k in keep],
            torch.cat(test),
            seed * FOLDS + f,
            "Without switzerland: ",
        )
        own = [alone(*both[k], test[k], seed * FOLDS + f) for k in range(4)]
        rows |= {row: torch.cat([p[row] for p in own]) for row in own[0]}
        for row, p in rows.items():
            out = found.setdefault(row, [torch.zeros(len(d.y)) for d in data])
            for k, part in enumerate(p.split(sizes)):
                out[k][parts[k] == f] = part
    return {row: [p.tolist() for p in each] for row, each in found.items()}


def left_out(data: list[Data], seed: int) -> dict[str, list[list[float]]]:
    """Each hospital predicted by the three others: row → hospital → p(yes)."""
    found: dict[str, list[list[float]]] = {}
    for k in range(4):
        both = [set_aside(d, Key(seed).fold(20 + k).fold(i)) for i, d in enumerate(data) if i != k]
        for row, p in compare([b[0] for b in both], [b[1] for b in both], data[k].x, seed).items():
            found.setdefault(row, []).append(p.tolist())
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", type=Path, default=Path("work"), help="what examples/hospitals/prepare.py wrote")
    words.add_argument("--repeats", type=int, default=10)
    words.add_argument("--out", type=Path, default=HERE / "trials")
    options = words.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = [hospital(name, options.data) for name in HOSPITALS]
    for seed in range(options.repeats):
        for kind, trial in (("folds", out_of_fold), ("left-out", left_out)):
            path = options.out / f"{kind}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps({"labels": [d.y.tolist() for d in data], "rows": trial(data, seed)}))
                print(path, flush=True)


if __name__ == "__main__":
    main()
