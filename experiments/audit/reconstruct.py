"""How near a coordinator comes to single rows from what one site sends.

    python experiments/audit/reconstruct.py DATA     # writes results/reconstruct.json, prints the table

Errors are ‖x̂ − x‖ / ‖x‖ in standardised features, medians over rows and five draws of the site; 100 % is what guessing
the mean of all sites gives. `up to a rotation` is the best over all rotations of the rows, which a Gram matrix cannot
tell apart.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.data import datasets
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.glm.sums import Sums
from consilience.inference.coreset import BPCfKL
from consilience.key import Key
from consilience.messages import Client, Server

RESULTS = Path(__file__).parent / "results" / "reconstruct.json"
DRAWS = range(5)
CLASSES = {"digits": 10, "heart_disease": 2}


def some_rows(name: str, count: int, seed: int, folder: str) -> Data:
    """Rows of a data set, standardised over all of it."""
    rows = datasets.load(name, folder)
    train = rows.split(rows.usual_split(), test=0.2, seed=0).standardised().pooled().train[0]
    chosen = Key(seed).fold(count).permutation(len(train.y))[:count]
    return Data(*(leaf[chosen] for leaf in train))


def gram_of(sums: Sums) -> Tensor:
    """The whole matrix Σ φφᵀ, φ₀ = 1."""
    size = sums.features
    gram = torch.zeros(size, size, dtype=torch.float64)
    upper = torch.triu_indices(size, size)
    gram[upper[0], upper[1]] = sums.gram.double().flatten()
    return gram + gram.triu(1).T


def factor(gram: Tensor, count: int) -> Tensor:
    """n rows with this Gram matrix, right up to a rotation among them."""
    values, vectors = torch.linalg.eigh(gram)
    top = values[-count:].clamp(min=0).sqrt()
    return top.unsqueeze(1) * vectors[:, -count:].T


def rotate(found: Tensor, truth: Tensor) -> Tensor:
    """The rotation of rows that comes nearest to the truth (Procrustes)."""
    u, _, v = torch.linalg.svd(truth @ found.T)
    return u @ v @ found


def errors(found: Tensor, truth: Tensor) -> list[float]:
    """Relative distance of every row."""
    return ((found - truth).norm(dim=1) / truth.norm(dim=1)).tolist()


def nearest(found: Tensor, truth: Tensor) -> list[float]:
    """For every row of the truth, the relative distance of the nearest row that was read out."""
    return (torch.cdist(truth, found).amin(1) / truth.norm(dim=1)).tolist()


def from_sums(data: Data, classes: int) -> dict[str, list[float]]:
    """The sums of exact pooling: a class with one row gives that row; the Gram matrix gives all up to a rotation."""
    task = co.classification(co.models.linear(data.x.shape[1], classes))
    method = co.methods.ExactPooling()
    sums: Sums = method.local(task, (), Client(data, (), Key(0).tensor)).send  # type: ignore[assignment]
    truth = torch.cat([torch.ones(len(data.x), 1), data.x], 1).double()
    found = rotate(factor(gram_of(sums), len(truth)), truth)
    alone = [c for c in range(classes) if int(sums.counts[c]) == 1]
    by_class = [
        float((sums.cross[c, 1:] - data.x[data.y == c][0]).norm() / data.x[data.y == c][0].norm()) for c in alone
    ]
    guess = data.x.double().mean(0).expand(len(data.x), -1)
    kept = {
        "up to a rotation": errors(found[:, 1:], truth[:, 1:]),
        "their mean, for comparison": errors(guess, data.x.double()),
    }
    if by_class:
        kept["the only row of its class"] = by_class
    return kept


def from_coreset(data: Data, classes: int, seed: int) -> dict[str, list[float]]:
    """A pseudo-coreset: how near its rows come to the site's, and to rows that the site does not have."""
    task = co.classification(co.models.linear(data.x.shape[1], classes))
    half = len(data.y) // 2
    own, others = Data(*(leaf[:half] for leaf in data)), data.x[half:]
    method = co.methods.CoresetFL(learn=BPCfKL(rows=10, trajectories=2, steps=150, updates=40, draws=3))
    state = method.init(task, Server(None, None, Key(seed), 1))
    learned = method.local(task, method.broadcast(state), Client(own, (), Key(seed).tensor)).send
    found: Tensor = learned.coreset.x  # type: ignore[union-attr]
    return {"nearest pseudo-row": nearest(found, own.x), "nearest to others' rows": nearest(found, others)}


def from_update(data: Data, classes: int, hidden: tuple[int, ...], epochs: int) -> dict[str, list[float]]:
    """FedAvg on one row: a layer's gradient is δaᵀ, so that its row over the bias's entry is the input.

    The prior's part of one step is known and taken off; of several steps it is not.
    """
    task = co.classification(co.models.mlp(data.x.shape[1], classes, hidden))
    inference = co.SGD(epochs=epochs, momentum=0.0)
    start = task.init(Key(0))
    pull = tree.unravel(task.prior.gradient(tree.ravel(start.params)), start.params)  # type: ignore[arg-type]
    weight, bias = list(start.params)[:2]
    found = []
    for i in range(len(data.y)):
        row = Data(*(leaf[i : i + 1] for leaf in data))
        sent: Point = co.methods.FedAvg(inference).local(task, start, Client(row, (), Key(i).tensor)).send  # type: ignore[assignment]
        steps = inference.rate * epochs
        change = ((start.params[weight] - sent.params[weight]) / steps - pull[weight]).double()
        shift = ((start.params[bias] - sent.params[bias]) / steps - pull[bias]).double()
        unit = int(shift.abs().argmax())
        found.append(change[unit] / shift[unit])
    return {"first layer over its bias": errors(torch.stack(found), data.x.double())}


def updates(data: Data, classes: int) -> dict[str, dict[str, list[float]]]:
    """One step and ten epochs, of a linear model and a perceptron."""
    return {
        f"FedAvg on 1 row, {words}, {'1 step' if epochs == 1 else f'{epochs} steps'}": from_update(
            data, classes, hidden, epochs
        )
        for words, hidden in (("linear", ()), ("perceptron", (100,)))
        for epochs in (1, 10)
    }


def main(folder: str) -> None:
    """All cases, five draws each."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, classes in CLASSES.items():
        cases: dict[str, dict[str, list[float]]] = {}
        for seed in DRAWS:
            made = {
                f"exact, {n} row{'s' * (n > 1)}": from_sums(some_rows(name, n, seed, folder), classes)
                for n in (1, 5, 20)
            }
            made["coreset of 10, 50 rows"] = from_coreset(some_rows(name, 100, seed, folder), classes, seed)
            made |= updates(some_rows(name, 5, seed, folder), classes)
            for case, kinds in made.items():
                for kind, values in kinds.items():
                    cases.setdefault(case, {}).setdefault(kind, []).extend(values)
            print(name, seed, flush=True)
        found[name] = {
            case: {kind: statistics.median(values) for kind, values in kinds.items()} for case, kinds in cases.items()
        }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """A line for each case and way of reading."""
    lines = ["| what is sent | read out as | digits | heart disease |", "| --- | --- | ---: | ---: |"]
    for case, kinds in found["digits"].items():
        names = [*kinds, *(kind for kind in found["heart_disease"].get(case, {}) if kind not in kinds)]
        for kind in names:
            cells = []
            for name in CLASSES:
                value = found[name].get(case, {}).get(kind)
                cells.append("–" if value is None else f"{100 * value:.1f} %")
            lines.append(f"| {case} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    main(sys.argv[1])
