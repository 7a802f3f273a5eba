"""How often 90 % intervals of the private glm hold the truth, in simulation.

    python experiments/private/coverage.py [REPEATS [NUMBER …]]   # adds to results/coverage.json, writes README's table

A setting is rows, columns, classes, ε and the variance of the prior, and NUMBER its place in `SETTINGS`; δ = 1e-5,
noise once. Columns are standard Normal, clipped at √D as `epsilon` does; weights are drawn from the prior, outcomes
from the model. An interval is mean ± 1.645 deviations of the posterior, of every weight's contrast, and of the latent
function at new rows. An ablation, "a line", is the Gaussian posterior that takes F for linear.

The posterior was written with seeds below 40 000 in view, and 40 000 to 60 060 had been measured before it was last
mended; the table's runs have seeds from 70 000 on.
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

from consilience.benchmark.trials import markdown_table, replace_between
from consilience.data import Data
from consilience.glm.derivatives import Quadratic
from consilience.glm.noisy_derivatives import (
    NoisyDerivatives,
    Normal,
    combine_rounds,
    contrast_prior,
    contrasts,
    join_rounds,
    read_derivatives,
    scale_of,
    sum_derivatives,
)
from consilience.glm.noisy_posterior import SEARCH, fit_curve, fit_line, gram_of
from consilience.glm.private import PRIVATE_ROUNDS, part_of
from consilience.key import Key
from consilience.models.bounded import Bounded
from consilience.privacy.dp.mechanisms import Privacy, add_released
from consilience.privacy.entropy import Simulated

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "coverage.json", HERE / "README.md"
BEGIN, END = "<!-- coverage.py -->", "<!-- end of coverage.py -->"
NINETY = 1.6449
FIRST = 70_000  # seed: none from there on was looked at before the posterior was as it is
PORTION = 10  # runs of a setting before the next one has its turn
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
    point, rounds = known.mean, None
    for t in range(PRIVATE_ROUNDS):
        part = part_of(t == PRIVATE_ROUNDS - 1)
        weights = q @ point.reshape(-1, width) * scale
        sums = sum_derivatives(itself, data, weights, privacy)
        total = add_released([privacy.add_noise(sums, Simulated(key.fold(2).fold(t)), part)])
        seen = read_derivatives(total, point, setting.classes, privacy, part)
        rounds = join_rounds(rounds, seen)
        gram = gram_of(NoisyDerivatives(*(leaf[0] for leaf in rounds)), setting.classes)
        if t < PRIVATE_ROUNDS - 1:
            point = fit_curve(rounds, known, gram, setting.classes, scale, SEARCH).mean
    assert isinstance(rounds, NoisyDerivatives)
    line = fit_line(combine_rounds(rounds), known)
    curve = fit_curve(rounds, known, gram, setting.classes, scale)
    truth = (q.mT @ (theta / scale)).flatten()
    rows = one[setting.rows :] * scale
    return {
        "weights": covered(truth - curve.mean, torch.linalg.inv(curve.precision).diagonal()),
        "function": functions(rows, curve, truth, setting.classes),
        "line": functions(rows, line, truth, setting.classes),
    }


def table(found: dict[str, list[dict[str, float]]]) -> str:
    head = ["rows, columns, classes, ε, prior variance", "runs", "weights", "function", "a line"]
    body = []
    for setting in SETTINGS:
        runs = found.get(name_of(setting), [])
        if not runs:
            continue
        cells = []
        for score in ("weights", "function", "line"):
            values = [100 * run[score] for run in runs]
            cells.append(f"{fmean(values):.1f} ± {stdev(values) / math.sqrt(len(values)):.1f} %")
        body.append([name_of(setting), str(len(runs)), *cells])
    return markdown_table(head, body)


def name_of(setting: Setting) -> str:
    return ", ".join(f"{value:g}" for value in setting)


def main(repeats: int, numbers: list[int]) -> None:
    torch.set_num_threads(1)
    for enough in range(PORTION, repeats + PORTION, PORTION):
        for number in numbers:
            name = name_of(SETTINGS[number])
            found = read_results()
            runs = found.setdefault(name, [])
            while len(runs) < min(enough, repeats):
                runs.append(trial(SETTINGS[number], FIRST + len(runs)))
            RESULTS.write_text(json.dumps(read_results() | {name: runs}) + "\n")
    replace_between(PAGE, BEGIN, table(read_results()), END)


def read_results() -> dict[str, list[dict[str, float]]]:
    if not RESULTS.exists():
        return {}
    found: dict[str, list[dict[str, float]]] = json.loads(RESULTS.read_text())
    return found


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    main(next(iter(words), 100), words[1:] or list(range(len(SETTINGS))))
