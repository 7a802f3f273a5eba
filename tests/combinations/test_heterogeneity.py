"""How much sites differ, whatever their intercepts and whatever is predicted: R's glm, coxph and metafor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import consilience as co
from consilience.biostatistics.effects import Effects, contrasts_of, site_estimates
from consilience.biostatistics.heterogeneity import Heterogeneity, combine
from consilience.biostatistics.terms import describe_design
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Flat, Isotropic
from consilience.glm.site_likelihoods import from_rows
from consilience.report.forest import effects_pictures

REFERENCES = json.loads((Path(__file__).parents[1] / "references" / "heterogeneity.json").read_text())
TERMS = ("x", "b", "c")


def reference_rows(k: int, link: str, n: int = 240) -> Data:
    """The rows of tests/references/heterogeneity.R, at site k from 1 on."""
    i = np.arange(1, n + 1)
    u = ((i * i * 31 + i * k * 17 + k * k * 101) % 10007) / 10007
    x = ((i * 53 + k * 29) % 97) / 48 - 1
    level = (i + k) % 3
    eta = (-2.5, -0.5, 0.0, 0.5, 1.0)[k - 1] + 0.9 * x + 0.6 * (level == 1) - 0.4 * (level == 2)
    y = (u < 1 / (1 + np.exp(-eta))).astype(int)
    count = np.floor(6 * u * np.exp(eta / 2))
    time = 1 + np.floor(400 * u * np.exp(-eta / 2))
    seen = ((i * 7 + k) % 4 > 0).astype(float)
    if k == 4:
        y[level == 2] = 0
        count[level == 2] = 0
        seen[level == 2] = 0
    targets = {"logit": y, "log": np.stack([count, np.ones(n)], 1), "hazard": np.stack([time, seen], 1)}
    return Data.of(torch.tensor(np.stack([x, level == 1, level == 2], 1)), torch.tensor(targets[link]))


def sites_of(parts: list[Data], link: str, names: tuple[str, ...]) -> Sites:
    classes = {"logit": 2}.get(link)
    outcome = {"log": "counts", "hazard": "survival"}.get(link, "")
    called = tuple(f"h{k}" for k in range(1, len(parts) + 1))
    width = parts[0].x.shape[1]
    own = tuple(parts)
    return Sites(
        own, own, None, None, None, classes, width, "y", "natural", called, feature_names=names, outcome=outcome
    )


def task_of(link: str, width: int, prior: co.Prior) -> co.Task:
    if link == "logit":
        return co.classification(nn.Linear(width, 2).double(), prior)
    if link == "log":
        return co.counts(nn.Linear(width, 1).double(), prior)
    return co.survival(nn.Linear(width, 1).double(), prior, times=(100.0, 200.0))


@pytest.fixture(scope="module", params=["logit", "log", "hazard"])
def compared(request: pytest.FixtureRequest) -> tuple[str, Effects]:
    link = request.param
    sites = sites_of([reference_rows(k, link) for k in range(1, 6)], link, TERMS)
    result = co.run(co.methods.GLM(), task_of(link, 3, Isotropic(1.0)), sites, rounds=3, scored=False)
    return link, result.effects()


def test_a_site_s_line_is_r_s_fit_of_its_own_rows(compared: tuple[str, Effects]) -> None:
    """With glm and coxph at the site, whatever the pool's prior is; a level without events has no estimate there."""
    link, effects = compared
    for k, line in enumerate(REFERENCES[link]["sites"], 1):
        own = {found.label.column: found for found in effects.by_site[f"h{k}"] if found.label.column in TERMS}
        assert set(own) == set(line["estimate"])
        for term, found in own.items():
            assert found.estimate == pytest.approx(line["estimate"][term], abs=2e-6)
            assert found.error == pytest.approx(line["error"][term], rel=2e-6)


def test_tau_i2_and_q_are_those_of_metafor(compared: tuple[str, Effects]) -> None:
    link, effects = compared
    for row in effects:
        if row.column not in TERMS:
            continue
        oracle = REFERENCES[link]["between"][row.column]
        for name, value in oracle.items():
            assert getattr(row, name) == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert [row.sites for row in effects if row.column == "c"] == [4]


def test_what_no_site_can_tell_is_in_the_table_and_the_site_too(compared: tuple[str, Effects]) -> None:
    _, effects = compared
    page = effects_pictures(effects.to_json())[0]
    row = next(row for row in page.rows if row[0] == "c")
    assert row[3 + 3] == "not estimable"  # after the effect, its estimate and its interval: h1, h2, h3, h4
    assert "not estimable" in page.caption and "left out of τ, I² and Q" in page.caption


def world(
    rng: np.random.Generator, deviation: float, slope: float = 1.0, sites: int = 6, rows: int = 800
) -> list[Data]:
    """Sites with one slope whose intercepts differ."""
    parts = []
    for _ in range(sites):
        x = rng.normal(size=rows)
        y = rng.random(rows) < 1 / (1 + np.exp(-(deviation * rng.normal() + slope * x)))
        parts.append(Data.of(torch.tensor(x).unsqueeze(1), torch.tensor(y.astype(int))))
    return parts


def difference(parts: list[Data]) -> Heterogeneity:
    """What the table says of the slope, without a run: sites' lines come of their rows alone."""
    task = task_of("logit", 1, Flat())
    sites = sites_of(parts, "logit", ("x",))
    labels, rows = contrasts_of(task, describe_design(sites), "logit")
    own = [site_estimates(labels, rows, torch.zeros(2), one)[1] for one in from_rows(task, parts) or ()]
    found = combine([one.estimate for one in own], [one.error for one in own])
    assert found is not None
    return found


def test_sites_of_one_slope_are_not_told_apart_by_their_intercepts() -> None:
    """The example of a rare outcome at one of six sites: intercepts −4, 0, 0, 0, 0, 0, the slope 1 everywhere."""
    rng = np.random.default_rng(5)
    rare = world(rng, 0.0, sites=1)[0]
    eta = rare.x[:, 0].numpy() - 4
    rare = rare._replace(y=torch.tensor((rng.random(800) < 1 / (1 + np.exp(-eta))).astype(int)))
    found = difference([rare, *world(rng, 0.0, sites=5)])
    assert found.q_p > 0.05 and found.tau < 0.1  # one Newton step from the pool had τ 0.34 and p 0.000


def test_q_has_the_mean_of_its_degrees_of_freedom_where_slopes_are_equal() -> None:
    """E Q = K − 1 = 5, with a deviation of √10 in one world: 3 standard errors of 12 worlds are 2.7."""
    rng = np.random.default_rng(0)
    mean = np.mean([difference(world(rng, 1.5)).q for _ in range(12)])
    assert abs(mean - 5) < 2.7


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.0, 0.5, 1.0, 1.5])
def test_q_rejects_equal_slopes_in_a_twentieth_of_worlds(deviation: float) -> None:
    """1 000 worlds of six sites × 800 rows: 5 % ± 3 standard errors of 0.7 % is 3 to 7 %."""
    rng = np.random.default_rng(int(10 * deviation))
    rejected = np.mean([difference(world(rng, deviation)).q_p < 0.05 for _ in range(1000)])
    print(f"deviation {deviation}: type I error of Q {rejected:.3f}")
    assert 0.03 <= rejected <= 0.07
