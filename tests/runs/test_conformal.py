"""Prediction sets of runs: rows set aside, thresholds by every kind, kept with the run, for arrays too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import consilience as co
from consilience.data.sites import concatenate
from consilience.prediction_sets.sets import Guarantee
from consilience.report.run_page import run_page
from consilience.report.schema.prediction_sets import read_sets, sets_sentence
from consilience.runs.conformal import assess, models_of
from consilience.runs.recipe import Recipe
from consilience.runs.result import Result

MOONS = co.datasets.moons(n=600)


def sites_with_sets(share: float = 0.4, **changes: float) -> co.Sites:
    return MOONS.split(co.splits.dirichlet(1.0), 3, conformal=share, calibration=0, seed=1, **changes)


@pytest.fixture(scope="module")
def result() -> Result:
    sites = sites_with_sets()
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)))
    return co.run(tiny.method("mixture"), task, sites)


@pytest.fixture(scope="module")
def numbers() -> Result:
    sites = co.datasets.sine(n_per_site=60).split(co.splits.natural(), conformal=0.4, standardise=True)
    task = co.regression(co.models.mlp(sites.features, hidden=(5,)))
    return co.run(tiny.method("mixture"), task, sites)


def test_rows_set_aside_train_nobody() -> None:
    sites = sites_with_sets(validation=0.2)
    whole = MOONS.split(co.splits.dirichlet(1.0), 3, calibration=0, seed=1, standardise=False)
    assert sites.conformal is not None and sites.validation is not None

    for k, rows in enumerate(whole.train):
        parts = (sites.train[k], sites.validation[k], sites.conformal[k])
        assert sum(len(part.y) for part in parts) == len(rows.y)
        assert len(sites.conformal[k].y) == round(0.4 * len(rows.y))
    assert len(sites.pooled().conformal or ()) == 1


def test_without_rows_set_aside_nothing_changes() -> None:
    before = MOONS.split(co.splits.dirichlet(1.0), 3, seed=1)

    assert before.conformal is None
    assert before.fingerprint() != dataclasses.replace(before, conformal=before.test).fingerprint()
    assert "conformal" not in co.Problem("moons").to_json()
    recipe = Recipe("exact", co.Problem("moons", model="linear", conformal=0.2))
    assert Recipe.from_json(recipe.to_json()).problem.conformal == 0.2


@pytest.mark.parametrize("kind", ["class", "pooled", "quantile", "own"])
@pytest.mark.parametrize("score", ["hinge", "aps", "raps:0.1:1"])
def test_every_kind_covers_what_it_promises(result: Result, kind: str, score: str) -> None:
    """Test rows alone leave a binomial doubt; so does calibration. Four standard errors of both together."""
    guarantee = co.conformal(result, 0.8, kind, score=score)
    found = assess(models_of(result.method, result.task, result.state, {}, result.sites), result.sites, guarantee)

    rows = found["overall"]["rows"]
    error = 4 * (0.16 / rows + 0.16 / sum(guarantee.rows)) ** 0.5
    assert abs(found["overall"]["coverage"] - 0.8) < error
    coverages = [entry["coverage"] for entry in found["by_site"]]
    assert coverages == sorted(coverages) and len(found["by_class"]) == 2


def test_predictions_have_sets_that_agree_with_the_report(result: Result) -> None:
    x = result.sites.all_test.x
    prediction = result.predict(x, level=0.9)
    guarantee = Guarantee.from_json(result.report["guarantee"])

    assert prediction.sets is not None and prediction.low is None
    assert torch.equal(prediction.sets, result.predict(x, level=guarantee).sets)  # type: ignore[arg-type]
    y = result.sites.all_test.y
    covered = prediction.sets.gather(1, y.unsqueeze(1)).double().mean()
    assert float(covered) == pytest.approx(result.report["guarantee"]["overall"]["coverage"], abs=1e-9)
    assert result.predict(x).sets is None


def test_numbers_have_intervals_in_their_own_unit(numbers: Result) -> None:
    sites = numbers.sites
    rows = concatenate(sites.test)
    assert sites.feature_scale is not None and sites.feature_shift is not None
    x = rows.x * sites.feature_scale + sites.feature_shift
    prediction = numbers.predict(x, level=0.9)
    y = rows.y * sites.target_scale + sites.target_shift

    assert prediction.low is not None and prediction.high is not None and prediction.sets is None
    covered = float(((y >= prediction.low) & (y <= prediction.high)).double().mean())
    report = numbers.report["guarantee"]
    assert report["kind"] == "pooled" and covered == pytest.approx(report["overall"]["coverage"], abs=0.011)
    assert float((prediction.high - prediction.low).mean()) == pytest.approx(report["overall"]["size"], rel=1e-3)
    for score in ("residual", "quantile"):
        assert co.conformal(numbers, 0.8, "own", score=score).names == sites.names
    with pytest.raises(co.InputError, match="needs classes"):
        co.conformal(numbers, kind="class")


def test_a_saved_run_keeps_its_thresholds(result: Result, tmp_path: Path) -> None:
    loaded = co.load(result.save(tmp_path / "run"))
    x = torch.zeros(3, 2)

    assert torch.equal(loaded.predict(x, level=0.9).sets, result.predict(x, level=0.9).sets)  # type: ignore[arg-type]
    with pytest.raises(co.InputError, match=r"thresholds of level=0\.9"):
        loaded.predict(x, level=0.8)


def test_own_thresholds_need_the_site(result: Result) -> None:
    guarantee = co.conformal(result, 0.8, "own")

    assert result.predict(torch.zeros(1, 2), level=guarantee, site="1").sets is not None
    with pytest.raises(co.InputError, match="one of 0, 1, 2"):
        result.predict(torch.zeros(1, 2), level=guarantee)


def test_sites_with_models_of_their_own_calibrate_these() -> None:
    sites = sites_with_sets()
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)))
    alone = co.run(tiny.method("local_only"), task, sites)
    together = co.run(tiny.method("centralised"), task, sites)

    guarantee = co.conformal(alone, 0.8, "own")
    assert len(guarantee.thresholds) == 3
    assert len(alone.report["guarantee"]["by_site"]) == len(together.report["guarantee"]["by_site"]) == 3


def test_too_few_rows_cost_the_sets_and_not_the_run() -> None:
    sites = sites_with_sets(0.02)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)))
    result = co.run(tiny.method("mixture"), task, sites)
    sets = read_sets(result.report["guarantee"])

    assert sets is not None and sets_sentence(sets, False).startswith("No prediction sets: ")
    assert "No prediction sets: " in run_page(result.report)
    with pytest.raises(co.InputError, match="are held out"):
        result.predict(torch.zeros(1, 2), level=0.9)


def test_a_level_without_rows_is_refused_before_anybody_trains() -> None:
    sites = MOONS.split(co.splits.iid(), 3)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)))

    with pytest.raises(co.InputError, match=r"conformal=0\.2"):
        co.run(co.methods.Mixture(), task, sites, level=0.9)
    with pytest.raises(co.InputError, match="not between 0 and 1"):
        co.run(co.methods.Mixture(), task, sites_with_sets(), level=9)


def test_noise_on_counts_enlarges_sets(result: Result) -> None:
    plain = co.conformal(result, 0.8, "pooled", grid=20)
    noisy = co.conformal(result, 0.8, "pooled", grid=20, noise=1.0)

    assert noisy.noise == 1.0 and noisy.thresholds[0] >= plain.thresholds[0]


def test_the_page_shows_sets_by_site_and_class(result: Result) -> None:
    page = run_page(result.report)

    assert "Prediction sets for 90 %, by site" in page and "Prediction sets for 90 %, by class" in page
    assert "Clopper and Pearson" in page and "Of every class, at least 90" in page


def test_estimators_predict_sets_and_intervals() -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(400, 2))
    groups = np.repeat(["a", "b"], 200)
    labels = np.where(x[:, 0] + 0.5 * draws.normal(size=400) > 0, "yes", "no")
    y = 3 * x[:, 0] + draws.normal(size=400) + 100
    classifier = co.FederatedClassifier(conformal=0.3).fit(x[:300], labels[:300], groups[:300])
    regressor = co.FederatedRegressor(conformal=0.3).fit(x[:300], y[:300], groups[:300])

    sets = classifier.predict_set(x[300:], 0.8)
    interval = regressor.predict_interval(x[300:], 0.8)

    truth = sets[np.arange(100), np.searchsorted(classifier.classes_, labels[300:])]
    assert truth.mean() == pytest.approx(0.8, abs=4 * (0.16 / 100 + 0.16 / 90) ** 0.5)
    inside = (y[300:] >= interval[:, 0]) & (y[300:] <= interval[:, 1])
    assert inside.mean() == pytest.approx(0.8, abs=4 * (0.16 / 100 + 0.16 / 90) ** 0.5)
    assert classifier.predict_set(x[:2], 0.8, kind="own", site="b").shape == (2, 2)
    with pytest.raises(co.InputError, match="No rows are held out"):
        co.FederatedClassifier().fit(x, labels, groups).predict_set(x)
