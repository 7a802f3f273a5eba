"""One round with differential privacy: exact pooling against ε, for both places of the noise and many sites.

A column is data/map/bound/part. The map is a feature map ('conv:512', 'identity'), the bound one of `BOUNDS`, and the
part is

    test        scored on test rows, trained on all others
    validation  scored on a sixth of the training rows, trained on the rest, with other seeds than those of the tables

Validation rows choose, before any test row is looked at: first the bound, one for a data set, by the mean NLL of all
its private cells; then D, for each cell. Only columns with the chosen bound are run on test rows.

Sums do not depend on the split, so that rows are summed once. Noise at each of K sites is drawn at once with K times
the variance: the total of K draws has the same law up to 10⁻¹⁰ (`consilience.privacy.dp.mechanisms`). A row is 'ε,
noise, sites'. 'exact' is one message; 'tuned' spends a tenth of μ² on a second one that chooses a temperature.
Seeds draw the filters, the noise and, where there is no official test part, the test rows. All noise is simulated.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.benchmark.reproduce import Experiment, Values, run_plan
from consilience.data import Data, datasets
from consilience.distributions.predictive import Distribution, tempered
from consilience.glm.fitting import fit
from consilience.glm.heads import OneHot
from consilience.glm.noisy import (
    LOG_TEMPERATURES,
    Noisy,
    choose_temperature,
    fit_noisy,
    read_release,
    sum_bounded,
    sum_scores,
)
from consilience.glm.sums import summarise
from consilience.key import Key
from consilience.methods.exact_tuned import SCORES
from consilience.metrics.scores import scores
from consilience.models.bounded import Bounded
from consilience.models.convolutions import GRID
from consilience.models.maps import features
from consilience.privacy.dp.discrete import discrete_gaussian
from consilience.privacy.dp.mechanisms import MOST, STEP, Clipped, Privacy, Released
from consilience.privacy.entropy import Simulated
from consilience.privacy.secure_aggregation.fixed_point import decode, encode

EPSILONS = (0.3, 1.0, 3.0, 8.0)
DELTAS = {"heart_disease": 1e-4, "digits": 1e-4}  # below 1/n: 740 and 1 437 training rows
DELTA = 1e-5
PLACES = (("once", 10), ("site", 5), ("site", 10), ("site", 50))  # once: the number of sites changes nothing
SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased")
CENTRES = {"age": (54, 10), "trestbps": (130, 20), "chol": (240, 50), "thalach": (140, 25), "oldpeak": (1, 1)}
CENTRES |= {"ca": (0.5, 1)}  # round numbers that nobody computed from these rows; all other columns are 0 or 1


BOUNDS: dict[str, Callable[[int], Bounded]] = {
    "centred": lambda width: Bounded(0.0, GRID**2),  # each row without its mean in each cell, all at length 1
    "unit": lambda width: Bounded(0.0),  # all rows at length 1
    "full": lambda width: Bounded(math.sqrt(width)),  # at most √D, the usual length of D scaled columns
    "half": lambda width: Bounded(math.sqrt(width) / 2),
}


class Rows(NamedTuple):
    train: Data
    test: Data
    classes: int


@lru_cache(maxsize=1)
def load_features(name: str, kind: str, seed: int, data_dir: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Features and labels of training and test rows, with agreed constants alone, not bounded yet."""
    rows = datasets.load(name, data_dir)
    x, y, x_test, y_test = rows.x, rows.y, rows.x_test, rows.y_test
    if rows.feature_names and name == "heart_disease":
        agreed = torch.tensor([CENTRES.get(column, (0.5, 0.5)) for column in rows.feature_names])
        x = (x - agreed[:, 0]) / agreed[:, 1]
    map_ = features(kind, rows.features)
    if kind != "identity":
        map_ = features(f"{kind}:{seed}", rows.features)
    if x_test is None or y_test is None:
        order = Key(seed).permutation(len(x))
        held = len(x) // 5
        x_test, y_test, x, y = x[order[:held]], y[order[:held]], x[order[held:]], y[order[held:]]
    with torch.no_grad():
        return map_(x.float()), y, map_(x_test.float()), y_test, int(y.max()) + 1


def load_rows(name: str, kind: str, bound: str, part: str, seed: int, data_dir: str | None) -> Rows:
    phi, y, phi_test, y_test, classes = load_features(name, kind, seed, data_dir)
    if part == "validation":
        order = Key(seed).fold(1).permutation(len(phi))
        held, rest = order[: len(phi) // 6], order[len(phi) // 6 :]
        phi, y, phi_test, y_test = phi[rest], y[rest], phi[held], y[held]
    shorten = BOUNDS[bound](phi.shape[1])
    return Rows(Data.of(shorten(phi), y), Data.of(shorten(phi_test), y_test), classes)


def measure(p: Distribution, y: Tensor) -> dict[str, float | None]:
    known = scores(p, y)
    return {name: known[name] for name in SHOWN if name in known}


def release(sums: Clipped, privacy: Privacy, sites: int, key: Key, part: float = 1.0) -> Released:
    """What as many sites release together, whoever holds which rows."""
    values = sums.values.reshape(-1)
    sigma = math.sqrt(sites) * privacy.deviation(len(values), part) / STEP
    noise = discrete_gaussian(len(values), sigma, Simulated(key))
    total = decode(encode(values, STEP, MOST) + noise, STEP).reshape(sums.values.shape)
    return Released(total, torch.tensor(float(sites)))


def itself(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, kind, bound, part = column.split("/")
    rows = load_rows(name, kind, bound, part, seed, data_dir)
    width, classes = int(rows.train.x.shape[1]), rows.classes
    ridge = OneHot(floor=False, rates=False)  # its floor needs base rates, which noisy sums do not have
    plain = fit(ridge, summarise(itself, rows.train, classes))
    values: Values = {"no noise": measure(ridge.predict(plain, rows.test.x), rows.test.y)}
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
            head = Noisy(ridge, privacy)
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


class Choice(NamedTuple):
    """What validation rows choose among for a data set, and on which seeds.

    Attributes:
        maps: Feature maps.
        bounds: How features are bounded.
        choosing: Seeds whose validation rows choose.
        seeds: Those of the table.
    """

    maps: tuple[str, ...]
    bounds: tuple[str, ...]
    choosing: tuple[int, ...]
    seeds: tuple[int, ...]


IMAGES = ("conv:128", "conv:512"), ("centred", "unit")
CHOICES = {
    "heart_disease": Choice(("identity",), ("full", "half", "unit"), tuple(range(100, 110)), tuple(range(10))),
    "digits": Choice(("conv:64", "conv:128"), ("centred", "unit"), tuple(range(100, 105)), tuple(range(10))),
    "mnist": Choice(*IMAGES, (100,), (0, 1, 2)),
    "fashion_mnist": Choice(*IMAGES, (100,), (0, 1, 2)),
    "cifar10": Choice(IMAGES[0], ("centred",), (100,), (0, 1, 2)),  # the bound that both other image sets chose
}


def validation_columns(name: str) -> list[str]:
    choice = CHOICES[name]
    return [f"{name}/{kind}/{bound}/validation" for kind in choice.maps for bound in choice.bounds]


def chosen_bound(name: str, values: Callable[[str, int], Values]) -> str:
    """The bound with the lowest mean NLL over all private cells, maps and seeds of the validation rows."""

    def mean_nll(bound: str) -> float:
        columns = [column for column in validation_columns(name) if column.split("/")[2] == bound]
        trials = [values(column, seed) for column in columns for seed in CHOICES[name].choosing]
        return fmean(float(cell["nll"] or 0) for rows in trials for row, cell in rows.items() if row != "no noise")

    return min(CHOICES[name].bounds, key=mean_nll)


EXPERIMENT = Experiment(
    title="Exact pooling with differential privacy: NLL",
    columns=tuple(
        f"{name}/{kind}/{bound}/{part}"
        for name, choice in CHOICES.items()
        for kind in choice.maps
        for bound in choice.bounds
        for part in ("validation", "test")
    ),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)


def saved_values(folder: Path, stored: dict[str, dict[str, Values]], column: str, seed: int) -> Values:
    """The values of a trial that was run, here or for the stored results."""
    if str(seed) in stored.get(column, {}):
        return stored[column][str(seed)]
    place = folder / "trials" / "full" / column.replace(":", "-").replace("/", "-")
    values: Values = json.loads((place / f"seed-{seed}.json").read_text())["values"]
    return values


def main(folder: Path, data_dir: str, names: list[str]) -> None:
    """Choose on validation rows, then run what was chosen on test rows."""
    stored = json.loads((Path(__file__).parent / "results" / "table.json").read_text())
    for name in names:
        choice = CHOICES[name]
        tried = [(column, choice.choosing) for column in validation_columns(name)]
        run_plan(EXPERIMENT, tried, folder, data_dir, stored)
        bound = chosen_bound(name, lambda column, seed: saved_values(folder, stored, column, seed))
        print(name, "bound:", bound, flush=True)
        tested = [(f"{name}/{kind}/{bound}/test", choice.seeds) for kind in choice.maps]
        run_plan(EXPERIMENT, tested, folder, data_dir, stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(CHOICES))
