"""One round with differential privacy: exact pooling against ε, for both places of the noise and many sites.

A column is data/map/part, where the map is a feature map ('conv:512', 'identity') and the part is

    test        scored on test rows, trained on all others
    validation  scored on a sixth of the training rows, trained on the rest: other seeds choose D by it

Sums do not depend on the split, so that rows are summed once; noise is added as often as there are sites. A row is
'ε, noise, sites'. 'exact' is one message; 'tuned' spends a tenth of μ² on a second one that chooses a temperature.
Seeds draw the filters, the noise and, where there is no official test part, the test rows. All noise is simulated.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import datasets
from consilience.comparison.reproduce import Experiment, Values, run_plan
from consilience.data import Data
from consilience.key import Key
from consilience.methods.exact_tuned import SCORES
from consilience.metrics.scores import scores
from consilience.models.bounded import usual_bound
from consilience.models.features import features, width_of
from consilience.pooling.heads import OneHot, fit
from consilience.pooling.noisy import (
    LOG_TEMPERATURES,
    Noisy,
    choose_temperature,
    fit_noisy,
    read_release,
    sum_bounded,
    sum_scores,
)
from consilience.pooling.sums import summarise
from consilience.predictive import Distribution, tempered
from consilience.privacy.discrete import Simulated
from consilience.privacy.mechanisms import Clipped, Privacy, Released, add_released

EPSILONS = (0.3, 1.0, 3.0, 8.0)
DELTAS = {"heart_disease": 1e-4, "digits": 1e-4}  # below 1/n: 740 and 1 437 training rows
DELTA = 1e-5
PLACES = (("once", 10), ("site", 5), ("site", 10), ("site", 50))  # once: the number of sites changes nothing
SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased")
CENTRES = {"age": (54, 10), "trestbps": (130, 20), "chol": (240, 50), "thalach": (140, 25), "oldpeak": (1, 1)}
CENTRES |= {"ca": (0.5, 1)}  # round numbers that nobody computed from these rows; all other columns are 0 or 1


class Rows(NamedTuple):
    train: Data
    test: Data
    classes: int


@lru_cache(maxsize=1)
def load_features(name: str, kind: str, seed: int, data_dir: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """ψ and labels of training and test rows, with agreed constants alone."""
    rows = datasets.load(name, data_dir)
    x, y, x_test, y_test = rows.x, rows.y, rows.x_test, rows.y_test
    if rows.feature_names and name == "heart_disease":
        agreed = torch.tensor([CENTRES.get(column, (0.5, 0.5)) for column in rows.feature_names])
        x = (x - agreed[:, 0]) / agreed[:, 1]
    map_ = features(kind, rows.features)
    if kind != "identity":
        map_ = features(f"{kind}:{seed}", rows.features)
    bound = usual_bound(map_, width_of(map_, rows.features))
    if x_test is None or y_test is None:
        order = Key(seed).permutation(len(x))
        held = len(x) // 5
        x_test, y_test, x, y = x[order[:held]], y[order[:held]], x[order[held:]], y[order[held:]]
    with torch.no_grad():
        psi, psi_test = bound(map_(x.float())), bound(map_(x_test.float()))
    return psi, y, psi_test, y_test, int(y.max()) + 1


def load_rows(name: str, kind: str, part: str, seed: int, data_dir: str | None) -> Rows:
    psi, y, psi_test, y_test, classes = load_features(name, kind, seed, data_dir)
    if part == "validation":
        order = Key(seed).fold(1).permutation(len(psi))
        held, rest = order[: len(psi) // 6], order[len(psi) // 6 :]
        psi, y, psi_test, y_test = psi[rest], y[rest], psi[held], y[held]
    return Rows(Data.of(psi, y), Data.of(psi_test, y_test), classes)


def measure(p: Distribution, y: Tensor) -> dict[str, float | None]:
    known = scores(p, y)
    return {name: known[name] for name in SHOWN if name in known}


def release(sums: Clipped, privacy: Privacy, sites: int, key: Key, part: float = 1.0) -> Released:
    """What as many sites release together, whoever holds which rows."""
    nothing = Clipped(torch.zeros_like(sums.values))
    first = privacy.add_noise(sums, Simulated(key.fold(0)), part)
    return add_released([first, *(privacy.add_noise(nothing, Simulated(key.fold(k)), part) for k in range(1, sites))])


def itself(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, kind, part = column.split("/")
    rows = load_rows(name, kind, part, seed, data_dir)
    width, classes = int(rows.train.x.shape[1]), rows.classes
    plain = fit(OneHot(), summarise(itself, rows.train, classes))
    values: Values = {"no noise": measure(OneHot().predict(plain, rows.test.x), rows.test.y)}
    sums = sum_bounded(itself, rows.train, classes, Privacy())
    epsilons, places = EPSILONS, PLACES
    if scale == "smoke":
        epsilons, places = (3.0,), (("once", 3), ("site", 3))
    for e, epsilon in enumerate(epsilons):
        for p, (noise, sites) in enumerate(places):
            honest = sites if noise == "once" else 0
            privacy = Privacy(epsilon, DELTAS.get(name, DELTA), noise=noise, honest=honest)
            privacy.check(sites, len(rows.train.y))
            key = Key(seed).fold(2).fold(e).fold(p)
            head = Noisy(OneHot(), privacy)
            row = f"ε = {epsilon:g}, {noise}, {sites}"
            whole = read_release(release(sums, privacy, sites, key.fold(0)), width, classes, classes, privacy)
            values[f"exact, {row}"] = measure(head.predict(fit_noisy(whole), rows.test.x), rows.test.y)
            most = release(sums, privacy, sites, key.fold(1), 1 - SCORES)
            fitted = fit_noisy(read_release(most, width, classes, classes, privacy, 1 - SCORES))
            gains = release(sum_scores(head, fitted, itself, rows.train), privacy, sites, key.fold(2), SCORES)
            t = choose_temperature(gains, privacy.deviation(len(LOG_TEMPERATURES), SCORES))
            values[f"tuned, {row}"] = measure(tempered(head.predict(fitted, rows.test.x), t), rows.test.y)
            values[f"tuned, {row}"]["temperature"] = t
    return values


WIDTHS = {"digits": (64, 128), "mnist": (128, 512), "fashion_mnist": (128, 512), "cifar10": (128, 512)}
CHOOSING = (100,)  # seeds whose validation rows choose D
LARGE = ("fashion_mnist", "mnist", "cifar10")


def columns(name: str, part: str, seeds: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}/conv:{width}/{part}", seeds) for width in WIDTHS[name]]


PLAN = (
    ("heart_disease/identity/test", (0, 1, 2, 3, 4)),
    *(column for name in LARGE[:2] for column in columns(name, "validation", CHOOSING)),
    *(column for name in LARGE[:2] for column in columns(name, "test", (0,))),
    *columns("digits", "validation", CHOOSING),
    *columns("digits", "test", (0, 1, 2)),
    *columns("cifar10", "validation", CHOOSING),
    *columns("cifar10", "test", (0,)),
    *(column for seed in (1, 2) for name in LARGE for column in columns(name, "test", (seed,))),
)

EXPERIMENT = Experiment(
    title="Exact pooling with differential privacy: NLL",
    columns=tuple(sorted({column for column, _ in PLAN})),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)


if __name__ == "__main__":
    run_plan(EXPERIMENT, PLAN, Path(sys.argv[1]), sys.argv[2])
