"""The same audit of what is sent with noise: does it refute what is promised?

    python experiments/audit/private.py DATA     # writes results/private.json, and prints the table

`moments` are the sums of exact pooling with rows cut to length 1 and Gaussian noise for (ε, δ); `weights` are those of
one round of FedAvg whose site trains by DPSGD. ε = ∞ is the same without noise to speak of.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from table import DELTA, SEEDS, problem
from torch import Tensor
from torch.nn.functional import one_hot

import consilience as co
from consilience.data.sites import Data
from consilience.inference import DPSGD
from consilience.key import Key
from consilience.privacy.audit.one_run import Bound, bound, flip
from consilience.privacy.dp.subsampled import noise_for
from consilience.runs.audit import audit_method, fit_coins

RESULTS = Path(__file__).parent / "results" / "private.json"
EPSILONS = (1.0, 3.0, 8.0, math.inf)
RUNS = 5


def parts(rows: Data, classes: int) -> Tensor:
    """What each row adds to the moments [m, P]: φφᵀ and y φᵀ of φ = (1, x) cut to length 1, so √2 at most."""
    features = torch.cat([torch.ones(len(rows.x), 1), rows.x], 1).double()
    features = features / features.norm(dim=1, keepdim=True).clamp(min=1)
    upper = torch.triu_indices(features.shape[1], features.shape[1])
    gram = (features.unsqueeze(2) * features.unsqueeze(1))[:, upper[0], upper[1]]
    cross = (one_hot(rows.y, classes).double().unsqueeze(2) * features.unsqueeze(1)).flatten(1)
    return torch.cat([gram, cross], 1)


def audit_moments(canaries: Data, classes: int, epsilon: float, key: Key) -> Bound:
    """Coins that fit the noisy sums best; the site's other rows are known and taken off."""
    deviation = 0.0
    if not math.isinf(epsilon):
        deviation = math.sqrt(2) * noise_for(epsilon, DELTA, 1.0, 1)
    included = flip(len(canaries.y), key.fold(0))
    scores = torch.empty(len(canaries.y), dtype=torch.float64)
    for i in range(RUNS):
        added = parts(Data(*(leaf[i::RUNS] for leaf in canaries)), classes)
        total = included[i::RUNS].double() @ added
        noise = key.fold(1).fold(i).normal(total.shape).double()
        scores[i::RUNS] = fit_coins(added, total + deviation * noise)
    return bound(scores, included, DELTA)


def audit_weights(name: str, seed: int, folder: str, epsilon: float, key: Key) -> Bound:
    """One round of FedAvg."""
    task, known, canaries = problem(name, seed, folder, False)
    inference = DPSGD(epsilon, DELTA, share=0.5, steps=20)
    if math.isinf(epsilon):
        inference = DPSGD(noise_multiplier=1e-6, share=0.5, steps=20)
    return audit_method(co.methods.FedAvg(inference), task, known, canaries, key, delta=DELTA, runs=RUNS).bound


def main(folder: str) -> None:
    """All cases, five seeds."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    if RESULTS.exists():
        found = json.loads(RESULTS.read_text())
    for seed in SEEDS:
        for name, classes in (("heart_disease", 2), ("digits", 10)):
            for epsilon in EPSILONS:
                cells = found.setdefault(name, {})
                for kind in ("moments", "weights"):
                    done = cells.setdefault(f"{kind} {epsilon}", {})
                    if str(seed) in done:
                        continue
                    key = Key(seed).fold(20)
                    if kind == "moments":
                        canaries = problem(name, seed, folder, True).canaries
                        found_bound = audit_moments(canaries, classes, epsilon, key)
                    else:
                        found_bound = audit_weights(name, seed, folder, epsilon, key)
                    done[str(seed)] = found_bound._asdict()
                    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(seed, flush=True)
    print(table(found))


def table(found: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> str:
    """Means over the seeds, and the largest."""
    lines = ["| what is sent | promised ε | digits | heart disease |", "| --- | ---: | ---: | ---: |"]
    for kind, words in (("moments", "moments with noise"), ("weights", "weights, trained by DPSGD")):
        for epsilon in EPSILONS:
            cells = []
            for name in ("digits", "heart_disease"):
                bounds = [cell["epsilon"] for cell in found[name][f"{kind} {epsilon}"].values()]
                cells.append(f"{statistics.mean(bounds):.2f} ({min(bounds):.2f} – {max(bounds):.2f})")
            promised = "none" if math.isinf(epsilon) else f"{epsilon:g}"
            lines.append(f"| {words} | {promised} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1])
