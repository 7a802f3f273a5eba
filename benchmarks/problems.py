"""The two protocols: rows already handed out, and the papers' settings. Values do not matter for time, shapes do."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

import consilience as co
from consilience.data import Data, datasets
from consilience.data.splits.labels import HeterogeneousHasan2023
from consilience.data.splits.text import parse
from consilience.errors import InputError
from consilience.key import Key

DECAY, FRICTION, BATCH, CLIENTS = 5e-4, 0.9, 100, 5


@dataclass(frozen=True)
class Problem:
    sites: co.Sites
    test: Data
    rate: float
    temperature: float  # of the noise √(2εαT/n)
    epochs: int
    cycles: int
    samples: int  # a cycle
    keep: int
    distil_rate: float
    distil_epochs: int
    source: str  # real or drawn rows

    @property
    def steps(self) -> int:
        """Minibatch steps of all clients."""
        return self.epochs * sum(math.ceil(len(d.x) / BATCH) for d in self.sites.train)


def mnist(scale: float, data_dir: str | None) -> Problem:
    """h = 0.3, 25 epochs, six samples a client, 100 epochs of distillation; `scale` of the rows, so of the work."""
    rows, source = load_rows("mnist", data_dir)
    assert rows.x_test is not None and rows.y_test is not None
    n, held = round(scale * len(rows.x)), round(scale * len(rows.x_test))
    rows = dataclasses.replace(rows, x=rows.x[:n], y=rows.y[:n], x_test=rows.x_test[:held], y_test=rows.y_test[:held])
    split = HeterogeneousHasan2023(0.3, oversize=1.25)
    sites = rows.split(split, CLIENTS, calibration=round(0.2 * n), seed=0).map_x(lambda x: (x - 0.1307) / 0.3081)
    total = sum(len(d.x) for d in sites.train)
    return Problem(_shared(sites), sites.all_test, 0.1, 1 / (CLIENTS * total), 25, 5, 2, 6, 1e-4, 100, source)


def wine(data_dir: str | None) -> Problem:
    """20 epochs, four samples a client, 100 epochs of distillation."""
    rows, source = load_rows("wine@hasan2023", data_dir)
    assert rows.x_test is not None and rows.y_test is not None
    sites = rows.split(parse("sorted_feature"), CLIENTS, calibration=round(0.2 * len(rows.x)), standardise=False)
    test = Data.of(rows.x_test, rows.y_test)
    return Problem(_shared(sites), test, 0.2, 5e-2 / CLIENTS, 20, 4, 2, 4, 5e-3, 100, source)


def _shared(sites: co.Sites) -> co.Sites:
    """The same rows distil and tune β."""
    assert sites.calibration is not None
    return dataclasses.replace(sites, inputs=sites.calibration.x)


def load_rows(name: str, data_dir: str | None) -> tuple[co.data.Dataset, str]:
    try:
        return datasets.load(name, data_dir), "real rows"
    except InputError:
        return (_images() if name == "mnist" else _table()), "drawn rows of the same shape"


def _images() -> co.data.Dataset:
    y = torch.arange(70_000) % 10
    centres = Key(0).uniform(10 * 784).reshape(10, 1, 28, 28)
    x = (centres[y] + 0.7 * Key(1).normal((70_000, 1, 28, 28))).clamp(0, 1)
    return co.data.Dataset("drawn", x[:60_000], y[:60_000], classes=10, x_test=x[60_000:], y_test=y[60_000:])


def _table() -> co.data.Dataset:
    x = Key(0).normal((1599, 11))
    y = x[:, 0] - 0.5 * x[:, 1] + 0.7 * Key(1).normal((1599,))
    return co.data.Dataset("drawn", x[:1279], y[:1279], x_test=x[1279:], y_test=y[1279:])
