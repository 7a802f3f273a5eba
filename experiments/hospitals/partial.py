"""Partial pooling on four hospitals, beside the product, each hospital alone and FedAvg, on the folds of table.py.

python experiments/hospitals/partial.py --data work --repeats 10     (goes on where it stopped; prints its tables)

Settings were chosen on validation rows of seeds 100 to 102: predictions are averaged over the posterior (NLL 0.4055
against 0.4081 at its mean), and the prior of τ has the scale 0.5 of OHDSI (0.25: 0.4074; 1: 0.4040; 2: 0.4033).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from summary import HOSPITALS, categorical, difference, interval, losses, markdown_table
from table import CHOOSE, FOLDS, HERE, LAPLACE, cut, folds, hospital, set_aside
from torch import Tensor

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Isotropic
from consilience.key import Key
from consilience.method.which import has_common
from consilience.methods.gaussian_product import GaussianProduct
from consilience.metrics.paired import difference as paired
from consilience.metrics.scores import scores

PLACES = (*HOSPITALS, "all")
SHOWN = ("nll", "brier", "auroc", "calibration_slope")
ONE = "Partial pooling, 1 round"
TWO = "Partial pooling, 2 rounds"
Models = dict[str, list[Any]]  # row of the table → a model for each hospital


def fit(train: list[Data], seed: int) -> tuple[Models, dict[str, Any]]:
    """Every row's models: a hospital's own where there is one, else the common one; and the common ones alone."""
    names = tuple(map(str, range(len(train))))
    sites = Sites(tuple(train), tuple(train), None, None, None, 2, train[0].x.shape[1], "heart", "natural", names)
    linear = co.classification(co.models.linear(sites.features, 2))
    task = co.Task(linear.model, linear.likelihood, Isotropic(), draws=100)
    own: Models = {}
    common: dict[str, Any] = {}
    for row, method, rounds in (
        ("Product of Laplace, linear", GaussianProduct(LAPLACE), 1),
        ("FedAvg (10 rounds), linear", co.methods.FedAvg(co.SGD(epochs=5)), 10),
        (ONE, co.methods.Hierarchical(averaged=False), 1),
        (TWO, co.methods.Hierarchical(averaged=False), 2),
        ("Alone, Laplace linear", co.methods.LocalOnly(LAPLACE), 1),
    ):
        result = co.run(method, task, sites, rounds=rounds, seed=seed, scored=False, engine=co.Compute(threads=1))
        if has_common(method):
            common[row] = result.model()
        own[row] = [result.model(site) for site in names]
    return own, common


def out_of_fold(data: list[Data], seed: int) -> dict[str, list[list[float]]]:
    """Every patient predicted by models that never saw them: row → hospital → p(yes)."""
    key = Key(seed)
    parts = [folds(d, k, key.fold(k)) for k, d in enumerate(data)]
    found: dict[str, list[Tensor]] = {}
    for f in range(FOLDS):
        train = []
        for k, (d, p) in enumerate(zip(data, parts, strict=True)):
            train.append(set_aside(cut(d, p != f), key.fold(10 + f).fold(k))[0])
        own, common = fit(train, seed * FOLDS + f)
        rows = {**own, f"{ONE}, newcomer's model": [common[ONE]] * len(data)}
        for row, models in rows.items():
            out = found.setdefault(row, [torch.zeros(len(d.y)) for d in data])
            for k, model in enumerate(models):
                mine = parts[k] == f
                out[k][mine] = model(data[k].x[mine])[0].exp()[:, 1]
    return {row: [p.tolist() for p in each] for row, each in found.items()}


def left_out(data: list[Data], seed: int) -> dict[str, list[list[float]]]:
    """Each hospital predicted by the three others: row → hospital → p(yes)."""
    found: dict[str, list[list[float]]] = {}
    for k in range(len(data)):
        train = [set_aside(d, Key(seed).fold(20 + k).fold(i))[0] for i, d in enumerate(data) if i != k]
        _, common = fit(train, seed)
        for row, model in common.items():
            found.setdefault(row, []).append(model(data[k].x)[0].exp()[:, 1].tolist())
    return found


def corrected(a: Tensor, b: Tensor, parts: list[Tensor]) -> dict[str, float]:
    """a − b [repeats, patients] → mean and 95 % interval over folds, corrected as Nadeau and Bengio do."""
    means: tuple[list[float], list[float]] = ([], [])
    for own, values in zip(means, (a, b), strict=True):
        for repeat, fold in zip(values.double(), parts, strict=True):
            own += [float(repeat[fold == f].mean()) for f in range(FOLDS)]
    found = paired(*means, overlap=1 / ((FOLDS - 1) * (1 - CHOOSE)))
    return {"mean": found.mean, "low": found.low, "high": found.high}


def summarise(kind: str, folder: Path) -> dict[str, Any]:
    """Scores of every row at every hospital, and differences from partial pooling."""
    trials = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]
    labels = [torch.tensor(y) for y in trials[0]["labels"]]
    found: dict[str, Any] = {}
    per: dict[tuple[str, str], dict[str, Tensor]] = {}
    for row in trials[0]["rows"]:
        found[row] = {}
        for k, place in enumerate(PLACES):
            y = torch.cat(labels) if place == "all" else labels[k]
            ps = []
            for trial in trials:
                each = [torch.tensor(p) for p in trial["rows"][row]]
                ps.append(torch.cat(each) if place == "all" else each[k])
            values = [scores(categorical(p), y) for p in ps]
            found[row][place] = {s: fmean(value[s] for value in values if s in value) for s in SHOWN}
            own = [losses(p, y) for p in ps]
            per[row, place] = {"nll": torch.stack([o["nll"] for o in own])}
    for row in found:
        for k, place in enumerate(PLACES):
            for reference in (ONE, TWO):
                own = per[reference, place]["nll"]
                found[row][place][f"{reference} less this"] = difference(own, per[row, place]["nll"])
                if kind == "partial-folds":
                    parts = [fold_of(trial["seed"], labels, None if place == "all" else k) for trial in trials]
                    gap = corrected(own, per[row, place]["nll"], parts)
                    found[row][place][f"{reference} less this, corrected"] = gap
    return {"repeats": len(trials), "patients": [len(y) for y in labels], "rows": found}


def fold_of(seed: int, labels: list[Tensor], k: int | None) -> Tensor:
    """The fold of every patient, of one hospital or of all."""
    each = [folds(Data.of(y.double().unsqueeze(1), y), i, Key(seed).fold(i)) for i, y in enumerate(labels)]
    if k is None:
        return torch.cat(each)
    return each[k]


def tables(found: dict[str, Any], kind: str) -> str:
    """Scores, then how much lower the NLL of partial pooling is, at every hospital."""
    rows = found["rows"]
    ranked = sorted(rows, key=lambda row: rows[row]["all"]["nll"])
    scored = []
    for row in ranked:
        cells = [f"{rows[row][place]['nll']:.3f}" for place in PLACES]
        scored.append([row, *cells, *(f"{rows[row]['all'][s]:.3f}" for s in SHOWN[1:])])
    text = [f"### {kind}, {found['repeats']} repeats", markdown_table((*PLACES, *SHOWN[1:]), scored)]
    for reference in (ONE, TWO):
        for end, what in (("", "over patients"), (", corrected", "over folds, corrected (Nadeau and Bengio)")):
            key = f"{reference} less this{end}"
            if key in rows[ONE]["all"]:
                listed = [row for row in ranked if row != reference]
                gaps = [[row, *(interval(rows[row][place][key]) for place in PLACES)] for row in listed]
                text += [f"NLL of '{reference}' less that of the row, 95 % intervals {what}"]
                text += [markdown_table(PLACES, gaps)]
    return "\n\n".join(text)


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
        for kind, trial in (("partial-folds", out_of_fold), ("partial-left-out", left_out)):
            path = options.out / f"{kind}-{seed}.json"
            if not path.exists():
                content = {"seed": seed, "labels": [d.y.tolist() for d in data], "rows": trial(data, seed)}
                path.write_text(json.dumps(content))
                print(path, flush=True)
    both = {kind: summarise(kind, options.out) for kind in ("partial-folds", "partial-left-out")}
    for kind, found in both.items():
        print(tables(found, kind), "\n")
    made = json.loads(json.dumps(both), parse_float=lambda text: round(float(text), 4))
    (HERE / "results" / "partial.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
