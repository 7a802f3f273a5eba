"""How often 90 % intervals of the private glm hold the truth, in simulation.

    python experiments/private/coverage.py OUT [REPEATS [SETTINGS]]   # adds to OUT as it goes, prints its table

The posterior was written with seeds below 200 in view; these runs have seeds from 1000 on.

A setting is rows, columns, classes, ε and the variance of the prior; δ = 1e-5, noise once. Columns are
standard Normal, clipped at √D as `epsilon` does; weights are drawn from the prior, outcomes from the model.
An interval is mean ± 1.645 deviations of the posterior, of every weight's contrast, and of the latent function at new
rows. Two ablations: "once", one release at 0 with the whole budget, and no rounds to find a point; "line", the
Gaussian posterior of the last round that takes F for linear.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data import Data
from consilience.key import Key
from consilience.linear.private import PRIVATE_ROUNDS, part_of
from consilience.models.bounded import Bounded
from consilience.pooling.derivatives import Quadratic
from consilience.pooling.noisy_derivatives import (
    NoisyDerivatives,
    Normal,
    contrast_prior,
    contrasts,
    fit_curve,
    fit_line,
    gram_of,
    read_derivatives,
    scale_of,
    sum_derivatives,
)
from consilience.privacy.entropy import Simulated
from consilience.privacy.mechanisms import Privacy, add_released

NINETY = 1.6449
FIRST = 1000  # seed: those before were looked at while the posterior was written
ABLATED = 20  # runs of a setting with the ablation "once", which takes as long as all the rest
PORTION = 20  # runs of a setting before the next one has its turn
NEW = 200  # rows at which the function is looked at


class Setting(NamedTuple):
    rows: int
    columns: int
    classes: int
    epsilon: float
    var: float = 1.0  # of the prior over weights of features of length 1


SETTINGS = (
    Setting(1000, 5, 2, 1.0),
    Setting(5000, 5, 2, 0.3),
    Setting(300, 5, 2, 8.0),
    Setting(700, 13, 2, 1.0),
    Setting(1000, 20, 2, 1.0),
    Setting(5000, 20, 2, 1.0),
    Setting(5000, 20, 2, 3.0),
    Setting(1000, 20, 2, 0.3),
    Setting(5000, 5, 3, 1.0),
    Setting(1000, 5, 3, 3.0),
    Setting(1000, 5, 2, 1.0, 4.0),
    Setting(5000, 20, 2, 1.0, 4.0),
)


def itself(x: Tensor) -> Tensor:
    return x


def covered(error: Tensor, var: Tensor) -> float:
    return float((error.abs() <= NINETY * var.sqrt()).double().mean())


def functions(rows: Tensor, posterior: Normal, truth: Tensor, classes: int) -> float:
    """The share of new rows and contrasts whose latent function lies in its interval."""
    width = rows.shape[1]
    error = rows @ (truth - posterior.mean).reshape(classes - 1, width).mT
    spread = torch.linalg.inv(posterior.precision).reshape(classes - 1, width, classes - 1, width)
    var = torch.stack([((rows @ spread[j, :, j, :]) * rows).sum(1) for j in range(classes - 1)], 1)
    return covered(error, var)


def trial(setting: Setting, seed: int) -> dict[str, float]:
    key = Key(seed)
    generator = key.generator()
    bound = Bounded(math.sqrt(setting.columns))
    width = setting.columns + 1
    like = torch.zeros(0, dtype=torch.float64)
    psi = bound(key.fold(0).normal((setting.rows + NEW, setting.columns), like))
    theta = math.sqrt(setting.var) * key.fold(1).normal((setting.classes, width), like)
    one = torch.cat([torch.ones_like(psi[:, :1]), psi], 1)
    p = torch.softmax(one @ theta.mT, 1)
    y = torch.multinomial(p, 1, generator=generator).squeeze(1)
    data = Data.of(psi[: setting.rows], y[: setting.rows])
    privacy = Privacy(setting.epsilon, 1e-5)
    prior = Quadratic(torch.zeros_like(theta), torch.full_like(theta, 1 / setting.var))
    scale = scale_of(width, True, privacy)
    known = contrast_prior(prior, scale)
    q = contrasts(setting.classes)
    point, gram, seen = known.mean, torch.zeros(0), None
    for t in range(PRIVATE_ROUNDS):
        part = part_of(t == PRIVATE_ROUNDS - 1)
        weights = q @ point.reshape(-1, width) * scale
        sums = sum_derivatives(itself, data, weights, privacy)
        total = add_released([privacy.add_noise(sums, Simulated(key.fold(2).fold(t)), part)])
        seen = read_derivatives(total, point, setting.classes, privacy, part)
        if t == 0:
            gram = gram_of(seen, setting.classes)
        line = fit_line(seen, known)
        point = line.mean
    assert isinstance(seen, NoisyDerivatives)
    curve = fit_curve(seen, known, gram, setting.classes, scale)
    truth = (q.mT @ (theta / scale)).flatten()
    rows = one[setting.rows :] * scale
    scores = {
        "weights": covered(truth - curve.mean, torch.linalg.inv(curve.precision).diagonal()),
        "function": functions(rows, curve, truth, setting.classes),
        "line": functions(rows, line, truth, setting.classes),
    }
    if seed < FIRST + ABLATED:
        sums = sum_derivatives(itself, data, torch.zeros_like(theta), privacy)
        total = add_released([privacy.add_noise(sums, Simulated(key.fold(3)))])
        first = read_derivatives(total, torch.zeros_like(known.mean), setting.classes, privacy, 1.0)
        once = fit_curve(first, known, gram_of(first, setting.classes), setting.classes, scale)
        scores["once"] = functions(rows, once, truth, setting.classes)
    return scores


def table(found: dict[str, list[dict[str, float]]]) -> str:
    lines = [
        "| rows, columns, classes, ε, prior variance | runs | weights | function | once | a line |",
        "| --- " * 6 + "|",
    ]
    for name, runs in found.items():
        cells = []
        for score in ("weights", "function", "once", "line"):
            values = [100 * run[score] for run in runs if score in run]
            cells.append(f"{fmean(values):.1f} ± {stdev(values) / math.sqrt(len(values)):.1f}")
        lines.append(f"| {name} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(out: Path, repeats: int, settings: int) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {}
    if out.exists():
        found = json.loads(out.read_text())
    for enough in range(PORTION, repeats + PORTION, PORTION):
        for setting in SETTINGS[:settings]:
            name = ", ".join(f"{value:g}" for value in setting)
            runs = found.setdefault(name, [])
            while len(runs) < min(enough, repeats):
                runs.append(trial(setting, FIRST + len(runs)))
            out.write_text(json.dumps(found) + "\n")
        print(table(found), flush=True)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    main(Path(sys.argv[1]), int(given.get(2, 100)), int(given.get(3, len(SETTINGS))))
