"""Intercepts × tasks × levels × references × dates × reload × export: a run and its folder say the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import consilience as co
from consilience.biostatistics.effects import Effects, from_json
from consilience.data.sites import Sites
from consilience.inference import Laplace, Newton
from consilience.methods.gaussian_product import GaussianProduct

LAPLACE = GaussianProduct(Laplace(mode=Newton(), dense=True))
TASKS: dict[str, Any] = {"classification": co.classification, "regression": co.regression, "counts": co.counts}
CASES = [
    *((task, co.methods.GLM(centre=centre)) for task in TASKS for centre in (None, "fixed", "random")),
    ("regression", co.methods.METHODS["exact"]()),
    ("classification", co.methods.Hierarchical()),
    ("regression", co.methods.Hierarchical()),
    ("classification", LAPLACE),
    ("counts", LAPLACE),
]
FAST = (2, 10)  # a random intercept, and partial pooling of classes


def wards(folder: Path, task: str) -> Sites:
    """Five sites with intercepts of their own; a number, a date and a category."""
    rng = np.random.default_rng(2)
    for k, own in enumerate((-1.2, -0.5, 0.0, 0.6, 1.2)):
        age, late, sex = rng.normal(50, 10, 60).round(1), rng.integers(0, 300, 60), rng.choice(["f", "m"], 60)
        eta = own + 0.05 * (age - 50) + 0.5 * (sex == "m")
        y = {
            "classification": np.where(rng.random(60) < 1 / (1 + np.exp(-eta)), "yes", "no"),
            "regression": (eta + rng.normal(size=60)).round(3),
            "counts": rng.poisson(np.exp(0.5 + 0.4 * eta)),
        }[task]
        days = np.datetime64("2020-01-01") + late
        lines = [",".join(map(str, row)) for row in zip(age, sex, days, y, strict=True)]
        (folder / f"w{k}.csv").write_text("\n".join(["age,sex,seen,y", *lines, ""]))
    columns = folder / "columns.toml"
    columns.write_text('[columns]\nage = {}\nsex = { levels = ["f", "m"] }\nseen = { since = "2020-01-01" }\n')
    return co.from_csv(str(folder / "*.csv"), "y", task=task, columns=columns, seed=1, calibration=0)


def numbers(table: Effects) -> list[float]:
    """Every number of a table; what is not known is NaN in all of them."""
    lines = [value for row in table for value in row if not isinstance(value, str)]
    own = [v for part in table.by_site.values() for found in part for v in (found.estimate, found.error)]
    return [math.nan if value is None else float(value) for value in (*lines, *own)]


def core(table: Effects) -> list[float]:
    return [value for row in table for value in (row.estimate, row.error, row.low, row.high)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("task", "method"),
    [pytest.param(*case, marks=() if k in FAST else pytest.mark.slow) for k, case in enumerate(CASES)],
    ids=[f"{task}-{method.about.name}-{getattr(method, 'centre', '')}" for task, method in CASES],
)
def test_a_run_and_its_folder_say_the_same(tmp_path: Path, task: str, method: co.Method) -> None:
    """Partial pooling of classes took no other reference from its folder, which had all that it asked for."""
    sites = wards(tmp_path, task)
    run = co.run(method, TASKS[task](co.models.linear(sites.features, sites.classes)), sites, out=tmp_path / "run")
    loaded = co.load(tmp_path / "run")

    assert numbers(from_json(run.report["effects"])) == pytest.approx(numbers(run.effects()), rel=1e-6, nan_ok=True)
    assert numbers(loaded.effects(0.5)) == pytest.approx(numbers(run.effects(0.5)), rel=1e-6, nan_ok=True)
    swapped = {"sex": "m"}
    assert core(loaded.effects(0.5, swapped)) == pytest.approx(core(run.effects(0.5, swapped)), rel=1e-6)
    there, back = (next(row for row in run.effects(reference=ref) if row.column == "sex") for ref in ({}, swapped))
    assert (there.estimate, there.error) == pytest.approx((-back.estimate, back.error), rel=1e-4)

    assert sites.feature_scale is not None and sites.feature_shift is not None
    x = sites.test[0].x.double() * sites.feature_scale + sites.feature_shift
    for site in (None, sites.names[0]):
        p, q = run.predict(x, site=site), loaded.predict(x, site=site)
        assert all(torch.equal(a, b) for a, b in zip(p, q, strict=True) if a is not None)
        out = loaded.to_module(site)(x)
        expected = p.probs if p.probs is not None else torch.stack([p.mean, p.var], 1)  # type: ignore[list-item]
        assert torch.allclose(out.double().reshape(expected.shape), expected.double(), rtol=1e-4, atol=1e-5)
