"""Rules that no single site decides: what they cost when nobody lies, and what they save when one site does.

python experiments/robust/table.py --seeds 0-4

One site of each data set (the last) lies in every round: it sends its weights with the sign turned, ten times as large;
or, where Gaussians are multiplied, its mean with the sign turned and a precision a million times its own. NLL and
accuracy over all test rows; differences are paired over seeds with the rule that the method has by default, with 95 %
intervals.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import consilience as co
from consilience.aggregation import median, trimmed
from consilience.data.splits.text import parse
from consilience.distributions.posterior import Dense, Gaussian
from consilience.errors import Diverged
from consilience.inference import Newton
from consilience.messages import Received
from consilience.methods.gaussian_product import GaussianProduct
from consilience.metrics.paired import difference
from consilience.tree import scale

HERE = Path(__file__).parent
DATA = {"heart_disease": ("natural", None), "digits": ("dirichlet:0.5", 10)}
ENGINE = co.Compute("sequential", threads=1)
SGD = co.SGD(epochs=5)
LAPLACE = co.Laplace(mode=Newton(), dense=True)
METHODS = {
    "FedAvg, average": co.methods.FedAvg(SGD),
    "FedAvg, median": co.methods.FedAvg(SGD, rule=median),
    "FedAvg, trimmed": co.methods.FedAvg(SGD, rule=trimmed),
    "Product, no cap": GaussianProduct(LAPLACE),
    "Product, cap 3": GaussianProduct(LAPLACE, cap=3.0),
    "Product, cap 1": GaussianProduct(LAPLACE, cap=1.0),
}
BASES = {"FedAvg": "FedAvg, average", "Product": "Product, no cap"}


def lie(reply: Received) -> Received:
    """What the liar sends instead."""
    sent = reply.payload
    if isinstance(sent, Dense):
        return reply._replace(payload=Dense(-sent.mean, 1e6 * sent.precision))
    if isinstance(sent, Gaussian):
        return reply._replace(payload=Gaussian({k: -v for k, v in sent.mean.items()}, sent.var))
    return reply._replace(payload=scale(sent, -10.0))


def lied_to(method: co.Method, liar: int) -> co.Method:
    """The same method, whose server hears a lie from one client in every round."""
    kind: Any = type(method)

    @dataclass(frozen=True)
    class LiedTo(kind):  # type: ignore[misc]
        def aggregate(self, task: co.Task, state: Any, replies: Sequence[Received], server: Any) -> Any:
            heard = [lie(reply) if reply.client == liar else reply for reply in replies]
            return super().aggregate(task, state, heard, server)

        @property
        def averages(self) -> bool:
            return False

    return LiedTo(**{field.name: getattr(method, field.name) for field in dataclasses.fields(kind)})


def trial(name: str, seed: int) -> dict[str, dict[str, Any]]:
    """Every method's scores, without a liar and with one; `failure` where no model could be made."""
    split, count = DATA[name]
    sites = co.datasets.load(name).split(parse(split), sites=count, test=0.25, seed=seed)
    task = co.classification(co.models.linear(sites.features, sites.classes))
    fitted = co.run(METHODS["Product, no cap"], task, sites, seed=seed, engine=ENGINE, scored=False)
    found = {}
    for row, method in METHODS.items():
        for liars in (0, 1):
            chosen = lied_to(method, len(sites) - 1) if liars else method
            try:
                if method.about.one_shot:
                    result = fitted.pool(chosen)  # the same replies under another rule
                else:
                    result = co.run(chosen, task, sites, seed=seed, engine=ENGINE)
                found[f"{row}, {liars} liar"] = {key: result.metrics[key] for key in ("nll", "accuracy")}
            except Diverged as error:
                found[f"{row}, {liars} liar"] = {"failure": str(error)}
    return found


def table(trials: dict[str, dict[str, dict[str, Any]]], name: str) -> list[str]:
    """The lines of one data set's table."""
    lines = [f"| {name} | NLL | Δ NLL | accuracy | NLL with a liar | Δ NLL with a liar | accuracy with a liar |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    seeds = [trial for key, trial in trials.items() if key.startswith(f"{name}/")]
    for row in METHODS:
        base = BASES[row.split(",")[0]]
        cells = []
        for liars in (0, 1):
            own = [seed[f"{row}, {liars} liar"] for seed in seeds]
            other = [seed[f"{base}, {liars} liar"] for seed in seeds]
            if any("failure" in scores for scores in (*own, *other)):
                cells += ["diverged", "", ""]
                continue
            nll = [scores["nll"] for scores in own]
            d = difference(nll, [scores["nll"] for scores in other])
            gap = "" if row == base else f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"
            accuracy = sum(scores["accuracy"] for scores in own) / len(own)
            cells += [f"{sum(nll) / len(nll):.3f}", gap, f"{100 * accuracy:.1f} %"]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seeds", default="0-4")
    words.add_argument("--out", type=Path, default=HERE / "results" / "table.json")
    options = words.parse_args()
    first, _, last = options.seeds.partition("-")
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trials = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in DATA:
        for seed in range(int(first), int(last or first) + 1):
            if f"{name}/{seed}" not in trials:
                trials[f"{name}/{seed}"] = trial(name, seed)
                options.out.write_text(json.dumps(trials, indent=1) + "\n")
        print("\n".join(table(trials, name)), flush=True)


if __name__ == "__main__":
    main()
